"""One HTTP connection: uvicorn's h11 protocol, with limits on time and without keep-alive.

A client has `client_timeout` seconds to send its whole request, and again to read the answer. If too many clients keep
the server waiting, the one that has waited longest is dropped. h11 refuses a request whose head has no end after 16 KB.
"""

import asyncio
import socket
from http import HTTPStatus
from typing import Any, ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_WAITING = 256  # connections whose client has not sent its request, or not read its answer
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


class HttpConnection(H11Protocol):
    waiting: ClassVar[dict["HttpConnection", None]] = {}  # oldest first

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._client_timeout = self.config.timeout_keep_alive  # its own use is for keep-alive
        self.app_state = {"connection": self}  # the application finds it in the request's state
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
        if not self._is_refused:
            super().data_received(data)
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

        Closing a connection with unread bytes resets it, and the client would not see the answer.
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
        self._timer = self.loop.call_later(self._client_timeout, self._on_timeout)
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
        if self.cycle is None and not self._is_refused:
            self.refuse(408, f"request timed out after {self._client_timeout} seconds")
            self._wait_for_client()
        else:
            self.abort()
