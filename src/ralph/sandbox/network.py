"""The network of a sandbox: a separate namespace with a proxy that only connects to allowed hosts.

The proxy is a small process outside. It listens on a socket inside the sandbox's namespace, and reports refused hosts.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import signal
import socket
from base64 import b64encode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from ipaddress import ip_address
from json import loads
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from ralph.errors import UserError

PORT = 17178  # of the proxy, inside the namespace
_WEB_PORTS = (80, 443)
_LOCAL = ("localhost", "127.0.0.1", "::1")
_HOP_HEADERS = ("host", "connection", "proxy-connection", "proxy-authorization", "keep-alive")
_MOST_HEADER = _CHUNK = 1 << 16
_MOST_REPORT = 512  # bytes
_TIMEOUT = 30.0  # seconds for a request, and for a host to accept a connection
_MOST_CONNECTIONS = 256
_TERMINAL_SIGNALS = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP),
    *(signal.SIGQUIT, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU),
)
_NEW_USER, _NEW_NET, _GET_OWNER = 0x10000000, 0x40000000, 0xB701


class Reachable(Struct, frozen=True):
    """An allowed host: a name, or all names below one (`*.example.org`). Without a port: 80 and 443."""

    name: str
    port: int | None = None

    def allows(self, name: str, port: int) -> bool:
        is_host = name.endswith(self.name[1:]) if self.name.startswith("*.") else name == self.name
        return is_host and (port in _WEB_PORTS if self.port is None else port == self.port)


def parse_host(text: str) -> Reachable:
    """Parse a host: a name, an address, `*.name`, with or without `:port`; or a whole URL."""
    scheme, _, rest = text.strip().rpartition("://")
    place = rest.partition("/")[0].rpartition("@")[2]
    name, port = place, ""
    if place.startswith("["):
        name, _, port = place[1:].partition("]")
    elif place.count(":") == 1:
        name, _, port = place.partition(":")
    name, port = name.rstrip(".").lower(), port.removeprefix(":")
    if not name or not set(name.removeprefix("*.")).isdisjoint(" *[]@,\0") or (port and not port.isdecimal()):
        raise UserError(
            f"sandbox.net: {text!r} is not a host", "name hosts such as github.com, *.example.org or localhost:8080"
        )
    return Reachable(name, int(port) if port else {"http": 80, "https": 443}.get(scheme))


def environment() -> dict[str, str]:
    """Return the variables that tell programs to use the proxy."""
    names = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
    proxies = {spelling: f"http://127.0.0.1:{PORT}" for name in names for spelling in (name, name.lower())}
    return {**proxies, "NO_PROXY": ",".join(_LOCAL), "no_proxy": ",".join(_LOCAL), "NODE_USE_ENV_PROXY": "1"}


class Network:
    """ralph's end of the proxy process, which ends when `control` is closed, for whatever reason."""

    def __init__(self, child: int, control: socket.socket, reports: socket.socket) -> None:
        self._child, self._control, self._reports = child, control, reports
        self._reported: set[str] = set()

    @classmethod
    def start(cls, hosts: Sequence[Reachable], env: Mapping[str, str]) -> Network:
        control, proxy_control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        reports, proxy_reports = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        reports.setblocking(False)
        child = os.fork()
        if child == 0:  # which must never return into ralph's code
            try:
                _leave_ralph(proxy_control.fileno(), proxy_reports.fileno())
                _Proxy(proxy_control, proxy_reports, tuple(hosts), env).serve()
            finally:
                os.killpg(0, 9)
                os._exit(1)
        proxy_control.close()
        proxy_reports.close()
        return cls(child, control, reports)

    def attach(self) -> tuple[int, int]:
        """Return two descriptors for bubblewrap: for `--info-fd`, where it names the first process inside, and for
        `--block-fd`, where that process waits until the proxy listens in its network."""
        info_reader, info = os.pipe()
        block, block_writer = os.pipe()
        try:
            socket.send_fds(self._control, [b"attach"], [info_reader, block_writer])
        except OSError:
            os.close(info)
            os.close(block)
            raise UserError("the proxy of the sandbox was killed", "`ralph resume` starts another") from None
        finally:
            os.close(info_reader)
            os.close(block_writer)
        return info, block

    def refused(self) -> list[str]:
        """Return what was refused since the last call; each message once in the life of the sandbox."""
        fresh = []
        with suppress(BlockingIOError):
            while text := self._reports.recv(_MOST_REPORT).decode("utf-8", "replace"):
                if text not in self._reported:
                    self._reported.add(text)
                    fresh.append(text)
        return fresh

    def close(self) -> None:
        self._control.close()
        self._reports.close()
        with suppress(ChildProcessError):
            os.waitpid(self._child, 0)


def _leave_ralph(*fds: int) -> None:
    """Leave ralph's terminal, session, signals and descriptors, except `kept`. For a forked process."""
    for number in _TERMINAL_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.setsid()
    os.chdir("/")
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in map(int, os.listdir("/dev/fd")):
        if fd in (0, 1, 2):
            os.dup2(nothing, fd)
        elif fd not in (nothing, *fds):
            with suppress(OSError):  # the descriptor of the listing itself
                os.close(fd)


class _Proxy:
    """Accepts connections from inside, and forks a process for each: name lookups and slow hosts must not block others.

    In each sandbox's network it listens on the proxy port, and on the ports of allowed services of this machine.
    """

    def __init__(
        self, control: socket.socket, reports: socket.socket, hosts: tuple[Reachable, ...], env: Mapping[str, str]
    ) -> None:
        self._control, self._reports, self._hosts, self._upstream = control, reports, hosts, _find_upstream(env)
        self._ports = (PORT, *{each.port for each in hosts if each.name in _LOCAL and each.port})
        self._sandboxes: dict[int, list[socket.socket]] = {}  # listeners by a pidfd of the first process inside
        self._listening: dict[int, tuple[socket.socket, int]] = {}
        self._ready = select.poll()
        self._ready.register(control, select.POLLIN)
        self._busy = 0

    def serve(self) -> None:
        while True:
            for fd, _ in self._ready.poll(100 if self._busy else None):
                if fd in self._sandboxes:
                    self._detach(fd)
                elif fd in self._listening:
                    if self._busy < _MOST_CONNECTIONS:
                        self._accept(*self._listening[fd])
                elif fd == self._control.fileno():
                    message, fds, _, _ = socket.recv_fds(self._control, 64, 2)
                    if not message:
                        return
                    self._attach(*fds)
            with suppress(ChildProcessError):
                while self._busy and os.waitpid(-1, os.WNOHANG)[0]:
                    self._busy -= 1

    def _attach(self, info: int, block: int) -> None:
        """Listen in the network of a new sandbox, then let its first process start by closing `block`."""
        try:
            pid = _read_first_pid(info)
            if pid:
                listeners = _listeners(pid, self._ports)
                handle = os.pidfd_open(pid)
                self._sandboxes[handle] = listeners
                self._ready.register(handle, select.POLLIN)
                for listener, port in zip(listeners, self._ports, strict=True):
                    self._listening[listener.fileno()] = (listener, port)
                    self._ready.register(listener, select.POLLIN)
        except (OSError, ValueError) as error:
            self._report(f"the sandbox has no network: {error}")
        finally:
            os.close(info)
            os.close(block)

    def _detach(self, handle: int) -> None:
        """Close the listeners of a sandbox that ended: they would keep its network alive."""
        for listener in self._sandboxes.pop(handle):
            self._ready.unregister(listener)
            del self._listening[listener.fileno()]
            listener.close()
        self._ready.unregister(handle)
        os.close(handle)

    def _accept(self, listener: socket.socket, port: int) -> None:
        try:
            client, _ = listener.accept()
        except OSError:
            return
        self._busy += 1
        if os.fork() == 0:
            try:
                client.settimeout(_TIMEOUT)
                if port == PORT:
                    self._forward(client)
                else:
                    _relay(client, socket.create_connection(("localhost", port), _TIMEOUT), b"")
            finally:
                os._exit(0)
        client.close()

    def _forward(self, client: socket.socket) -> None:
        request = _Request.read(client)
        if request is None:
            client.sendall(_response("400 Bad Request", "this is a proxy for HTTP"))
        elif not any(each.allows(request.name, request.port) for each in self._hosts):
            self._report(f"the sandbox does not allow {request.name}:{request.port}")
            client.sendall(_response("403 Forbidden", f"the sandbox does not allow {request.name}:{request.port}"))
        else:
            try:
                server = self._reach(request)
            except OSError as error:
                client.sendall(_response("502 Bad Gateway", f"cannot reach {request.name}: {error}"))
                return
            if request.is_tunnel:
                client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            _relay(client, server, request.first)

    def _reach(self, request: _Request) -> socket.socket:
        is_local_or_address = request.name in _LOCAL or _is_address(request.name)
        if self._upstream and not is_local_or_address:
            return _connect_through(self._upstream, request)
        failure = OSError("the name resolves to this machine")
        for *_, address in socket.getaddrinfo(request.name, request.port, type=socket.SOCK_STREAM):
            # A DNS entry must not lead the sandbox back to this machine.
            if is_local_or_address or _is_remote(str(address[0])):
                try:
                    return socket.create_connection((str(address[0]), request.port), _TIMEOUT)
                except OSError as error:
                    failure = error
        raise failure

    def _report(self, text: str) -> None:
        with suppress(OSError):
            self._reports.send(text.encode("utf-8", "replace")[:_MOST_REPORT], socket.MSG_DONTWAIT)


class _Request(Struct, frozen=True):
    """A client's request to the proxy. `first` is sent to the server before anything else."""

    name: str
    port: int
    is_tunnel: bool
    first: bytes

    @classmethod
    def read(cls, client: socket.socket) -> _Request | None:
        head, body = _read_header(client)
        first, *fields = head.decode("latin-1").split("\r\n")
        method, target, version = (*first.split(" "), "", "")[:3]
        tunnel = method == "CONNECT"
        if not version.startswith("HTTP/1.") or not (tunnel or target.lower().startswith("http://")):
            return None
        try:
            to = parse_host(target)
        except UserError:
            return None
        if tunnel:
            return cls(to.name, to.port or 443, True, body)
        place, _, path = target[len("http://") :].partition("/")
        # One request per connection: the next may be for another host. The Host header is that of the URL.
        headers = [field for field in fields if field.partition(":")[0].lower() not in _HOP_HEADERS]
        lines = (
            f"{method} /{path} {version}",
            f"Host: {place.rpartition('@')[2]}",
            "Connection: close",
            *headers,
            "",
            "",
        )
        return cls(to.name, to.port or 80, False, "\r\n".join(lines).encode("latin-1") + body)


def _read_header(stream: socket.socket) -> tuple[bytes, bytes]:
    """Return what is before the first blank line, and what was read after it."""
    text = b""
    while b"\r\n\r\n" not in text and len(text) < _MOST_HEADER:
        piece = stream.recv(_CHUNK)
        if not piece:
            break
        text += piece
    head, _, rest = text.partition(b"\r\n\r\n")
    return head, rest


def _response(status: str, text: str) -> bytes:
    fields = f"Content-Type: text/plain\r\nContent-Length: {len(text) + 8}\r\nConnection: close"
    return f"HTTP/1.1 {status}\r\n{fields}\r\n\r\nralph: {text}\n".encode()


def _relay(client: socket.socket, server: socket.socket, first: bytes) -> None:
    """Copy data in both directions until both sides have closed."""
    for end in (client, server):
        end.settimeout(None)
    server.sendall(first)
    ready = select.poll()
    ways = {client.fileno(): (client, server), server.fileno(): (server, client)}
    for fd in ways:
        ready.register(fd, select.POLLIN)
    while ways:
        for fd, _ in ready.poll():
            source, target = ways[fd]
            if data := source.recv(_CHUNK):
                target.sendall(data)
                continue
            ready.unregister(fd)
            del ways[fd]
            target.shutdown(socket.SHUT_WR)


def _is_address(name: str) -> bool:
    try:
        return bool(ip_address(name))
    except ValueError:
        return False


def _is_remote(address: str) -> bool:
    ip = ip_address(address.partition("%")[0])
    ip = getattr(ip, "ipv4_mapped", None) or ip
    return not (ip.is_loopback or ip.is_link_local or ip.is_unspecified)


def _find_upstream(env: Mapping[str, str]) -> tuple[str, int, str] | None:
    """Return host, port and `user:password` of the proxy that this machine itself uses."""
    url = urlsplit(env.get("HTTPS_PROXY") or env.get("https_proxy") or "")
    login = f"{unquote(url.username or '')}:{unquote(url.password or '')}" if url.username else ""
    return (url.hostname, url.port or 80, login) if url.scheme == "http" and url.hostname else None


def _connect_through(upstream: tuple[str, int, str], request: _Request) -> socket.socket:
    name, port, login = upstream
    server = socket.create_connection((name, port), _TIMEOUT)
    place = f"[{request.name}]" if ":" in request.name else request.name
    header = f"Proxy-Authorization: Basic {b64encode(login.encode()).decode()}\r\n" if login else ""
    server.sendall(f"CONNECT {place}:{request.port} HTTP/1.1\r\nHost: {place}:{request.port}\r\n{header}\r\n".encode())
    status = _read_header(server)[0].partition(b"\r\n")[0].decode("latin-1")
    if status.split(" ")[1:2] != ["200"]:
        server.close()
        raise OSError(f"the proxy {name} answered {status!r}")
    return server


def _read_first_pid(info: int) -> int:
    """Read the pid of the first process inside from bubblewrap; 0 if it could not create the sandbox."""
    text = b""
    while b"}" not in text and (piece := os.read(info, 4096)):
        text += piece
    return int(loads(text)["child-pid"]) if text else 0


def _listeners(pid: int, ports: Sequence[int]) -> list[socket.socket]:
    """Create listening sockets in the network of a process, in a forked child: entering a user namespace is final."""
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        try:
            # Enter the user and network namespaces of the process.
            setns = ctypes.CDLL(None, use_errno=True).setns
            network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
            for fd, kind in ((fcntl.ioctl(network, _GET_OWNER), _NEW_USER), (network, _NEW_NET)):
                if setns(fd, kind) != 0:
                    number = ctypes.get_errno()
                    raise OSError(number, os.strerror(number))
            sockets = [socket.create_server(("", port), backlog=128) for port in ports]
            socket.send_fds(theirs, [b"made"], [listener.fileno() for listener in sockets])
        except OSError as error:
            theirs.send((error.strerror or str(error)).encode())
        finally:
            os._exit(0)
    theirs.close()
    message, fds, _, _ = socket.recv_fds(ours, _MOST_REPORT, len(ports))
    ours.close()
    os.waitpid(child, 0)
    if not fds:
        raise OSError(message.decode() or "its network cannot be entered")
    return [socket.socket(fileno=fd) for fd in fds]
