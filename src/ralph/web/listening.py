"""`ralph serve`: the listening socket, its connections, the host names that browsers may use, and the links that give
access.
"""

import asyncio
import io
import ipaddress
import os
import signal
import socket
import sys
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, ClassVar, TextIO

import segno
import uvicorn
from msgspec import Struct
from uvicorn.protocols.http.h11_impl import H11Protocol

from ralph.errors import UserError
from ralph.process.descendants import MARK, own_start
from ralph.process.own_process import kill_running_commands
from ralph.store.serving import LINK_LIFETIME, Remembered, RunningServer, ServerFolder, running_servers
from ralph.web.access import HOST, LEVELS, Access, BrowserSession
from ralph.web.application import WebApp
from ralph.web.live import MAX_STREAMS
from ralph.web.watching import Register

DEFAULT_PORT = 8787
BACKLOG = 128
MAX_REQUESTS = 64  # being answered at the same time
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


class ServeOptions(Struct, frozen=True, kw_only=True):
    """The options of `ralph serve`. A client has `client_timeout` seconds to send a request, and to read the answer."""

    port: int | None = None
    names: tuple[str, ...] = ()
    bind: str = "127.0.0.1"
    plain: bool = False
    allow: str = "start"
    remember: bool = False
    client_timeout: int = 10


def serve(options: ServeOptions, out: TextIO, env: Mapping[str, str] = os.environ) -> int:
    """Serve the web UI until SIGINT, SIGTERM or SIGHUP; return the exit code."""
    names = host_names(options)
    listener = listen_on_port(options.bind, DEFAULT_PORT if options.port is None else options.port)
    folder = ServerFolder(_address(listener), env)
    origin = _origin(options, listener)
    access = _access(options, folder, names, origin)
    app = WebApp(access, folder, Register(env), options.remember)
    server = uvicorn.Server(_config(app, options.client_timeout))
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, server.handle_exit)
    folder.announce(RunningServer(os.getpid(), own_start(), origin + access.base, options.allow))
    try:
        _print_link(options, folder, out)  # Ctrl-C still raises: stdout may be blocked
        signal.signal(signal.SIGINT, server.handle_exit)
        server.run(sockets=[listener])
    finally:
        kill_running_commands()
        folder.withdraw()
    return 0


def _access(options: ServeOptions, folder: ServerFolder, names: Mapping[str, str], origin: str) -> Access:
    remembered = folder.recall() if options.remember else Remembered("")
    sessions = {name: BrowserSession(LEVELS[level], until) for name, (level, until) in remembered.sessions.items()}
    return Access(remembered.site, names, LEVELS[options.allow], sessions, origin)


def _config(app: WebApp, client_timeout: int) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=HttpConnection,
        ws="none",
        loop="asyncio",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        log_level="critical",  # the application reports its own errors
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        headers=list(HEADERS.items()),
        backlog=BACKLOG,
        timeout_keep_alive=client_timeout,  # `HttpConnection` reads it
        limit_concurrency=MAX_WAITING + MAX_STREAMS + MAX_REQUESTS,
        timeout_graceful_shutdown=0,  # streams never end by themselves
    )


def listen_on_port(bind: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in bind else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((bind, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        hint = f"ralph serve --link, if it is already running; else ralph serve --port {port + 1}"
        raise UserError(f"cannot listen on {bind}:{port}: {error.strerror}", hint) from None
    return listener


def host_names(options: ServeOptions) -> dict[str, str]:
    """Return the host names besides loopback that browsers may use, each with its scheme. Validates the options."""
    try:
        address = ipaddress.ip_address(options.bind)
    except ValueError:
        hint = "give an address of this machine, for example --bind 100.64.0.7"
        raise UserError(f"--bind expects an IP address, got {options.bind}", hint) from None
    if not address.is_loopback and not options.plain:
        hint = "use ssh -L, a VPN or a proxy with --name; or add --plain if others may read the traffic"
        raise UserError(f"--bind {options.bind} is reachable from other machines, and ralph has no TLS", hint)
    scheme = "http" if options.plain else "https"  # a proxy in front of us speaks https
    names = {_parse_host(name): scheme for name in options.names}
    if address.is_unspecified and not names:
        hint = f"ralph serve --bind {options.bind} --plain --name HOST"
        raise UserError(f"--bind {options.bind} needs --name: the name that browsers use for this machine", hint)
    if not address.is_unspecified:
        names.setdefault(f"[{address}]" if address.version == 6 else str(address), "http")
    return names


def _parse_host(text: str) -> str:
    """Return a host as it appears in a Host header, without its port."""
    match = HOST.fullmatch(text.lower())
    if not match:
        raise UserError(f"--name expects a host name, got {text!r}", "ralph serve --name devbox.example.net")
    return match[1]


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _origin(options: ServeOptions, listener: socket.socket) -> str:
    """Return the origin of the web UI in links: with its first `--name` if it has one."""
    if options.names:
        name = options.names[0]
        port = f":{listener.getsockname()[1]}" if options.plain and ":" not in name else ""
        return f"{'http' if options.plain else 'https'}://{name}{port}"
    return f"http://{_address(listener)}"


def _print_link(options: ServeOptions, folder: ServerFolder, out: TextIO) -> None:
    link = new_link(folder, options.allow)
    print(link, file=out, flush=True)
    if options.names:
        _print_qr_code(link, out)
    minutes = f"{LINK_LIFETIME / 60:.0f}"
    used_once = f"the link works once, within {minutes} minutes; `ralph serve --link` prints another"
    for line in (used_once, "Ctrl-C ends the web UI; runs continue without it"):
        print(f"ralph: {line}", file=sys.stderr, flush=True)


def _print_qr_code(link: str, out: TextIO) -> None:
    code = io.StringIO()
    segno.make(link, error="l", micro=False).terminal(code, border=2, compact=True)
    is_colored = out.isatty() and not os.environ.get("NO_COLOR")
    for line in code.getvalue().splitlines():
        print(f"\x1b[97;40m{line}\x1b[0m" if is_colored else line, file=out, flush=True)


def new_link(folder: ServerFolder, level: str) -> str:
    server = folder.running
    assert server is not None
    return f"{server.address}enter?key={folder.new_link(level)}"


def another_link(level: str, bind: str, port: int | None, env: Mapping[str, str] = os.environ) -> str:
    """Return a new link to a running server."""
    if MARK in env:
        raise UserError("only a person can create a link", 'an agent can ask: ralph ask "QUESTION"')
    if level and level not in LEVELS:
        raise UserError(f"unknown level {level!r}: expected {', '.join(LEVELS)}", "ralph serve --link look")
    folder, server = _find_server(bind, port, env)
    if level and LEVELS[level] > LEVELS[server.most]:
        raise UserError(f"this server allows {server.most} at most", f"restart it with --allow {level}")
    return new_link(folder, level or server.most)


def _find_server(bind: str, port: int | None, env: Mapping[str, str]) -> tuple[ServerFolder, RunningServer]:
    servers = running_servers(env)
    if port is not None:
        name = f"[{bind}]:{port}" if ":" in bind else f"{bind}:{port}"
        servers = {name: servers[name]} if name in servers else {}
    if not servers:
        where = f" on {port}" if port is not None else ""
        raise UserError(f"no web UI is running{where}", "start one: ralph serve")
    if len(servers) > 1:
        raise UserError(f"several web UIs are running: {', '.join(servers)}", "choose one with --port")
    name, server = next(iter(servers.items()))
    return ServerFolder(name, env), server


class HttpConnection(H11Protocol):
    """uvicorn's h11 protocol, with limits on time and without keep-alive.

    A client has `client_timeout` seconds to send its whole request, and again to read the answer. If too many clients
    keep the server waiting, the one that has waited longest is dropped. h11 refuses a request whose head has no end
    after 16 KB.
    """

    waiting: ClassVar[dict["HttpConnection", None]] = {}  # oldest first

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._client_timeout = self.config.timeout_keep_alive  # its own use is for keep-alive
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

    def _wait_for_client(self) -> None:
        self._stop_waiting()
        self._timer = self.loop.call_later(self._client_timeout, self._on_timeout)
        self.waiting[self] = None
        if len(self.waiting) > MAX_WAITING:
            oldest = next(iter(self.waiting))
            oldest._stop_waiting()
            oldest.transport.abort()

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
            self.transport.abort()
