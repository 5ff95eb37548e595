"""One HTTP connection: uvicorn's h11 protocol with ralph's limits on form, size and time.

A connection carries one request. The head is checked before h11 parses it, because h11 accepts more than browsers send
(bare newlines, folded headers, control characters). A client has `CLIENT_TIMEOUT` seconds to send its whole request,
and again to read the answer. If too many clients keep the server waiting, the one that has waited longest is dropped.
"""

import asyncio
import re
import socket
from http import HTTPStatus
from typing import Any, ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol

CLIENT_TIMEOUT = 10.0  # seconds
MAX_WAITING = 256  # connections whose client has not sent its request, or not read its answer
MAX_HEAD = 1 << 14  # bytes
MAX_HEADERS = 100
SEND_BUFFER = 1 << 16  # bytes; the kernel would buffer megabytes for a client that does not read
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "manifest-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types ralph"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Connection": "close",
}
"""Sent with every answer, errors included."""

_REQUEST_LINE = re.compile(rb"[A-Z]{1,16} [!-~]{1,8000} HTTP/1\.[01]")
_HEADER = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,200}:[\t -~\x80-\xff]*")
_LENGTH = re.compile(rb"content-length:[\t ]*([0-9]*)[\t ]*", re.IGNORECASE)
_END = b"\r\n\r\n"


class HttpConnection(H11Protocol):
    waiting: ClassVar[dict["HttpConnection", None]] = {}  # oldest first

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.app_state = {"connection": self}  # the application finds it in the request's state
        self._head = b""
        self._is_refused = False
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        self._wait_for_client()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        if self.cycle is not None:
            super().data_received(data)
        else:
            self._head += data
            problem = head_problem(self._head)
            if problem:
                self.refuse(*problem)
                return
            if _END in self._head:
                super().data_received(self._head)
        if self.cycle is not None and not self.cycle.more_body:
            self._stop_waiting()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._is_refused:
            self._wait_for_client()

    def send_400_response(self, msg: str) -> None:
        self.refuse(400, "malformed request")

    def refuse(self, status: int, message: str) -> None:
        """Answer without the application, then discard what the client still sends.

        Closing a connection over unread bytes resets it, and the client would not see the answer.
        """
        self._is_refused = True
        body = f"{message}\n".encode()
        headers = {"Content-Type": "text/plain; charset=utf-8", "Content-Length": str(len(body)), **HEADERS}
        lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}"]
        lines += [f"{key}: {value}" for key, value in headers.items()]
        self.transport.write("\r\n".join((*lines, "", "")).encode() + body)
        self.transport.write_eof()

    def abort(self) -> None:
        self.transport.abort()

    def _wait_for_client(self) -> None:
        self._stop_waiting()
        self._timer = self.loop.call_later(CLIENT_TIMEOUT, self._on_timeout)
        self.waiting[self] = None
        if len(self.waiting) > MAX_WAITING:
            oldest = next(iter(self.waiting))
            oldest._stop_waiting()
            oldest.abort()

    def _stop_waiting(self) -> None:
        self.waiting.pop(self, None)
        if self._timer:
            self._timer.cancel()
            self._timer = None

    def _on_timeout(self) -> None:
        if self.cycle is None and not self._is_refused and self._head:
            self.refuse(408, f"request timed out after {CLIENT_TIMEOUT:.0f} seconds")
            self._wait_for_client()
        else:
            self.abort()


def head_problem(data: bytes) -> tuple[int, str] | None:
    """Return status and message if the start of a request, or its whole head, is not what a browser would send."""
    head, end, _ = data.partition(_END)
    line, *headers = head.split(b"\r\n")
    if b"\n" in data and not _REQUEST_LINE.fullmatch(line):
        return 400, "malformed request"
    if len(head) > MAX_HEAD or len(headers) > MAX_HEADERS:
        return 431, f"request head too long: at most {MAX_HEAD >> 10} KB and {MAX_HEADERS} headers"
    if not end:
        return None
    lengths = [one for one in headers if one.lower().startswith(b"content-length")]
    if len(lengths) > 1 or not all(_LENGTH.fullmatch(one) for one in lengths):
        return 400, "expected one Content-Length header with a number"
    if not all(map(_HEADER.fullmatch, headers)):
        return 400, "malformed request"
    return None
