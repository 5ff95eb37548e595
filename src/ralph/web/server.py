"""How are requests read and answered, however slow, hostile or many the clients are? A thread for each connection, and
a bounded number of those; strict about what a request looks like; the same headers on every answer, errors included."""

import re
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from email.message import Message
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from io import BytesIO
from socketserver import TCPServer, ThreadingMixIn
from typing import Protocol
from urllib.parse import parse_qs

from msgspec import Struct

from ralph.processes.program import Asker, asked_by
from ralph.web.access import Access, NotServed

PATIENCE = 10.0
MOST_CONNECTIONS = 64
ROOM_WITHIN = 2.0
MOST_HEAD = 1 << 14
MOST_FIELDS = 50
MOST_DRAINED = 1 << 25
WORTH_ZIPPING = 1400
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; manifest-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types ralph"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_REQUEST_LINE = re.compile(rb"[A-Z]{1,16} ([!-~]{1,8000}) HTTP/1\.[01]")
_HEADER = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,200}:[\t -~\x80-\xff]*")
_END = b"\r\n\r\n"


class WebRequest(Struct, frozen=True, kw_only=True):
    """A request that passed the rules about its form. `path` is what stands behind the site, `origin` is ours."""

    method: str
    path: str
    query: Mapping[str, str]
    form: Mapping[str, str]
    origin: str
    headers: Message
    client: str = ""

    @property
    def wants_a_sentence(self) -> bool:
        return "text/plain" in self.headers.get("Accept", "")


class WebAnswer(Struct, frozen=True):
    body: bytes = b""
    status: int = 200
    kind: str = "text/html"
    headers: Mapping[str, str] = {}


class Live(Struct, frozen=True):
    """Instead of an answer: this connection is a stream about `topic` from now on, for a page that shows what happened
    up to number `after`, and `has` the pieces with this fingerprint."""

    topic: str
    after: int
    has: int
    browser: str


class Site(Protocol):
    """What is served."""

    def answer(self, request: WebRequest) -> WebAnswer | Live: ...

    def refusal(self, refusal: NotServed, is_plain: bool) -> WebAnswer: ...


class Streams(Protocol):
    """Who takes over the connections that become streams."""

    def take(self, sock: socket.socket, live: Live) -> None: ...


class Server(ThreadingMixIn, TCPServer):
    daemon_threads = True

    def __init__(self, listener: socket.socket, access: Access, site: Site, streams: Streams, asker: Asker) -> None:
        super().__init__(listener.getsockname(), Exchange, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.access, self.site, self.streams, self._asker = access, site, streams, asker
        self._waiting: dict[socket.socket, None] = {}
        self._places = threading.BoundedSemaphore(MOST_CONNECTIONS)

    @contextmanager
    def waiting(self, sock: socket.socket) -> Iterator[None]:
        """While a client keeps us waiting, it may have to make room for another."""
        self._waiting[sock] = None
        try:
            yield
        finally:
            self._waiting.pop(sock, None)

    def process_request(self, request: socket.socket | tuple[bytes, socket.socket], address: object) -> None:
        assert isinstance(request, socket.socket)
        if self._places.acquire(blocking=False) or self._make_room():
            super().process_request(request, address)
            return
        request.settimeout(0)
        with suppress(OSError):
            request.send(head_of(self.site.refusal(NotServed(503, "Too many ask at once."), True), is_last=True))
        self.shutdown_request(request)

    def _make_room(self) -> bool:
        """Whoever has kept us waiting longest goes. Those whom we keep waiting get a moment to be served."""
        until = time.monotonic() + ROOM_WITHIN
        while time.monotonic() < until:
            for sock in list(self._waiting)[:1]:
                self._waiting.pop(sock, None)
                with suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
            if self._places.acquire(timeout=0.05):
                return True
        return False

    def process_request_thread(self, request: object, address: object) -> None:
        try:
            with asked_by(self._asker):
                super().process_request_thread(request, address)  # type: ignore[arg-type]
        finally:
            self._places.release()

    def handle_error(self, request: object, client_address: object) -> None:
        import traceback

        print("ralph: internal error while answering:", file=sys.stderr)
        traceback.print_exc()


class Exchange(BaseHTTPRequestHandler):
    """One connection: requests and their answers, until either side has had enough."""

    protocol_version = "HTTP/1.1"
    server: Server
    connection: socket.socket
    path: str

    def setup(self) -> None:
        self.connection = self.request
        self._unread = b""
        self._deadline = 0.0
        if self.connection.family != socket.AF_UNIX:
            self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def finish(self) -> None:
        """There is nothing to flush: every answer is sent at once."""

    def handle(self) -> None:
        self.close_connection = False
        while not self.close_connection:
            try:
                self.handle_one_request()
            except OSError:  # gone, too slow, or it had to make room
                self.close_connection = True

    def handle_one_request(self) -> None:
        self.headers = Message()
        try:
            with self.server.waiting(self.connection):
                self._read_head()
            answer = self._answer()
        except NotServed as refusal:
            self.close_connection = True
            answer = self.server.site.refusal(refusal, "text/plain" in self.headers.get("Accept", ""))
        except OSError:
            raise
        except Exception:
            self.close_connection = True
            self.send(
                WebAnswer(b"This is a bug in ralph. The terminal of `ralph serve` says more.\n", 500, "text/plain")
            )
            raise
        if isinstance(answer, Live):
            self._become_a_stream(answer)
        else:
            with self.server.waiting(self.connection):
                self.send(answer)
                if self.close_connection:
                    self._drain()

    def _read_head(self) -> None:
        """A request has so many seconds in all, not for each byte; they begin with its first. No browser asks ahead of
        an answer: who does is answered once more, and has to come again, behind the others."""
        is_ahead = bool(self._unread)
        while not self._unread:
            self._deadline = time.monotonic() + PATIENCE
            self._unread = self._received()
        self._deadline = time.monotonic() + PATIENCE
        while _END not in self._unread:
            if b"\n" in self._unread:
                _target(self._unread.partition(b"\r\n")[0])
            if len(self._unread) > MOST_HEAD:
                raise NotServed(431, "That is too long.")
            self._unread += self._more()
        head, _, self._unread = self._unread.partition(_END)
        # Only what leaves no doubt about where a header ends reaches the parser, which would guess.
        line, *headers = head.split(b"\r\n")
        target = _target(line)
        if len(head) > MOST_HEAD or len(headers) > 100:
            raise NotServed(431, "That is too long.")
        if not all(map(_HEADER.fullmatch, headers)):
            raise NotServed(400, "That is not how to ask.")
        self.raw_requestline = line + b"\r\n"
        self.rfile = BytesIO(b"\r\n".join((*headers, b"", b"")))
        if not self.parse_request():
            raise NotServed(400, "That is not how to ask.")
        self.path = target.decode("ascii")  # as it was sent: the parser mends some
        self.close_connection = self.close_connection or is_ahead

    def handle_expect_100(self) -> bool:
        return True  # there is one answer to a request

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        raise NotServed(code, "That is not how to ask.")

    def _more(self) -> bytes:
        """What else there is of a request that has begun."""
        try:
            return self._received()
        except TimeoutError:
            raise NotServed(408, "That took too long.") from None

    def _received(self) -> bytes:
        self.connection.settimeout(max(self._deadline - time.monotonic(), 0.001))
        chunk = self.connection.recv(1 << 16)
        if not chunk:
            raise ConnectionResetError
        return chunk

    def _answer(self) -> WebAnswer | Live:
        access = self.server.access
        access.admit(self.command, self.path, self.headers)
        if self.command not in ("GET", "POST"):
            raise NotServed(405, "That cannot be done here.")
        path, _, query = self.path.removeprefix(access.base).partition("?")
        request = WebRequest(
            method=self.command,
            path=path,
            query=_fields(query),
            form=_fields(self._body()) if self.command == "POST" else {},
            origin=access.origin(self.headers),
            headers=self.headers,
            client=str(self.client_address[0]) if self.client_address else "",
        )
        return self.server.site.answer(request)

    def _body(self) -> str:
        length = int(self.headers["Content-Length"])
        with self.server.waiting(self.connection):
            while len(self._unread) < length:
                self._unread += self._more()
        body, self._unread = self._unread[:length], self._unread[length:]
        return body.decode("utf-8", "replace")

    def send(self, answer: WebAnswer) -> None:
        body = answer.body
        if len(body) > WORTH_ZIPPING and "gzip" in self.headers.get("Accept-Encoding", ""):
            import gzip

            body = gzip.compress(body, 1)
            answer = WebAnswer(body, answer.status, answer.kind, {**answer.headers, "Content-Encoding": "gzip"})
        self.connection.settimeout(max(self._deadline - time.monotonic(), 0.1))
        self.connection.sendall(head_of(answer, self.close_connection) + body)

    def _drain(self) -> None:
        """Reads what is still under way: a connection that is closed over unread words takes the answer with it."""
        self.connection.shutdown(socket.SHUT_WR)
        drained = 0
        with suppress(OSError):
            while drained < MOST_DRAINED:
                drained += len(self._received())

    def _become_a_stream(self, live: Live) -> None:
        head = head_of(WebAnswer(kind="text/event-stream", headers={"X-Accel-Buffering": "no"}), True, is_endless=True)
        self.connection.settimeout(max(self._deadline - time.monotonic(), 0.1))
        self.connection.sendall(head)
        self.close_connection = True
        self.server.streams.take(socket.socket(fileno=self.connection.detach()), live)


def head_of(answer: WebAnswer, is_last: bool, is_endless: bool = False) -> bytes:
    headers = {
        "Content-Type": f"{answer.kind}; charset=utf-8",
        **({} if is_endless else {"Content-Length": str(len(answer.body))}),
        **HEADERS,
        **answer.headers,
        **({"Connection": "close"} if is_last else {}),
    }
    lines = [f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}", *(f"{k}: {v}" for k, v in headers.items())]
    return "\r\n".join((*lines, "", "")).encode("latin-1")


def _target(line: bytes) -> bytes:
    found = _REQUEST_LINE.fullmatch(line)
    if not found:
        raise NotServed(400, "That is not how to ask.")
    return found[1]


def _fields(encoded: str) -> dict[str, str]:
    try:
        found = parse_qs(encoded, keep_blank_values=True, max_num_fields=MOST_FIELDS)
    except ValueError:
        raise NotServed(400, "That is not how to ask.") from None
    return {name: values[0] for name, values in found.items()}
