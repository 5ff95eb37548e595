"""Whom may a program in the box talk to? It has a network of its own with nobody in it; what ralph holds open there
leads to a small process outside, which connects to the hosts that are allowed, and tells of those that are not."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress

from msgspec import Struct

from ralph.errors import UserError
from ralph.processes.spawning import leave_ralph

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

PORT = 17178  # inside, where nobody else has taken it
_WEB_PORTS = (80, 443)
_LOCAL = ("localhost", "127.0.0.1", "::1")
_OF_A_CONNECTION = ("host", "connection", "proxy-connection", "proxy-authorization", "keep-alive")
_LONGEST_HEAD = _CHUNK = 1 << 16
_LONGEST_NEWS = 512
_PATIENCE = 30.0  # for a request to be made, and for a host to answer the call
_MOST = 256  # connections at once
_NEW_USER, _NEW_NET, _GET_OWNER = 0x10000000, 0x40000000, 0xB701


class Reachable(Struct, frozen=True):
    """Who may be reached: a name, or all names below one (`*.example.org`). Without a port: where web servers are."""

    name: str
    port: int | None = None

    def admits(self, name: str, port: int) -> bool:
        is_meant = name.endswith(self.name[1:]) if self.name.startswith("*.") else name == self.name
        return is_meant and (port in _WEB_PORTS if self.port is None else port == self.port)


def host(text: str) -> Reachable:
    """A host as people write it: a name, an address, `*.name`, with or without `:port`; or a whole URL."""
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
            f"sandbox.net: {text!r} is no host", "name hosts such as github.com, *.example.org or localhost:8080"
        )
    return Reachable(name, int(port) if port else {"http": 80, "https": 443}.get(scheme))


def environment() -> dict[str, str]:
    """What tells programs in the box which way leads out."""
    names = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
    proxies = {spelling: f"http://127.0.0.1:{PORT}" for name in names for spelling in (name, name.lower())}
    return {**proxies, "NO_PROXY": ",".join(_LOCAL), "no_proxy": ",".join(_LOCAL), "NODE_USE_ENV_PROXY": "1"}


class Network:
    """The process outside. It ends when this end of the line between them is closed, however that comes about."""

    def __init__(self, child: int, line: socket.socket, news: socket.socket) -> None:
        self._child, self._line, self._news = child, line, news
        self._told: set[str] = set()

    @classmethod
    def start(cls, hosts: Sequence[Reachable], env: Mapping[str, str]) -> Network:
        line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        news, telling = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        news.setblocking(False)
        child = os.fork()
        if child == 0:
            _serve(theirs, telling, tuple(hosts), env)
        theirs.close()
        telling.close()
        return cls(child, line, news)

    def attach(self) -> tuple[int, int]:
        """Two descriptors for a bubblewrap that is about to start: where it says which process is the first inside, and
        where that one waits until its network is there."""
        said, info = os.pipe()
        gate, opener = os.pipe()
        try:
            socket.send_fds(self._line, [b"attach"], [said, opener])
        except OSError:
            os.close(info)
            os.close(gate)
            raise UserError(
                "the process that leads out of the box was killed", "`ralph resume` starts another"
            ) from None
        finally:
            os.close(said)
            os.close(opener)
        return info, gate

    def news(self) -> list[str]:
        """What has been refused inside since somebody asked, each of it once."""
        fresh = []
        with suppress(BlockingIOError):
            while text := self._news.recv(_LONGEST_NEWS).decode("utf-8", "replace"):
                if text not in self._told:
                    self._told.add(text)
                    fresh.append(text)
        return fresh

    def close(self) -> None:
        self._line.close()
        self._news.close()
        with suppress(ChildProcessError):
            os.waitpid(self._child, 0)


def _serve(line: socket.socket, news: socket.socket, hosts: tuple[Reachable, ...], env: Mapping[str, str]) -> NoReturn:
    """The life of the process outside. It must never come back into the stack of ralph's."""
    try:
        leave_ralph(line.fileno(), news.fileno())
        _Proxy(line, news, hosts, env).serve()
    finally:
        os.killpg(0, 9)
        os._exit(1)


class _Proxy:
    """Takes what comes from the boxes, a process for each connection: they wait for names and for hosts, and must not
    keep each other waiting. In the network of each box it listens as a proxy, and in the stead of this machine's own
    services that are allowed by their port."""

    def __init__(
        self, line: socket.socket, news: socket.socket, hosts: tuple[Reachable, ...], env: Mapping[str, str]
    ) -> None:
        self._line, self._news, self._hosts, self._upstream = line, news, hosts, _upstream(env)
        self._ports = (PORT, *{each.port for each in hosts if each.name in _LOCAL and each.port})
        self._boxes: dict[int, list[socket.socket]] = {}  # by a handle on the first process of each
        self._listening: dict[int, tuple[socket.socket, int]] = {}
        self._ready = select.poll()
        self._ready.register(line, select.POLLIN)
        self._busy = 0

    def serve(self) -> None:
        while True:
            for fd, _ in self._ready.poll(100 if self._busy else None):
                if fd in self._boxes:
                    self._forget(fd)
                elif fd in self._listening:
                    if self._busy < _MOST:
                        self._accept(*self._listening[fd])
                elif fd == self._line.fileno():
                    message, fds, _, _ = socket.recv_fds(self._line, 64, 2)
                    if not message:
                        return
                    self._attach(*fds)
            with suppress(ChildProcessError):
                while self._busy and os.waitpid(-1, os.WNOHANG)[0]:
                    self._busy -= 1

    def _attach(self, said: int, opener: int) -> None:
        """Listens in the network of a new box, and lets its first process begin."""
        try:
            pid = _first_process(said)
            if pid:
                listeners = _listeners(pid, self._ports)
                handle = os.pidfd_open(pid)
                self._boxes[handle] = listeners
                self._ready.register(handle, select.POLLIN)
                for listener, port in zip(listeners, self._ports, strict=True):
                    self._listening[listener.fileno()] = (listener, port)
                    self._ready.register(listener, select.POLLIN)
        except (OSError, ValueError) as error:
            self._tell(f"the box has no network: {error}")
        finally:
            os.close(said)
            os.close(opener)

    def _forget(self, handle: int) -> None:
        """A network lives for as long as somebody listens in it."""
        for listener in self._boxes.pop(handle):
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
                client.settimeout(_PATIENCE)
                if port == PORT:
                    self._pass_on(client)
                else:
                    _join(client, socket.create_connection(("localhost", port), _PATIENCE), b"")
            finally:
                os._exit(0)
        client.close()

    def _pass_on(self, client: socket.socket) -> None:
        request = _Request.read(client)
        if request is None:
            client.sendall(_answer("400 Bad Request", "this is a proxy for HTTP"))
        elif not any(each.admits(request.name, request.port) for each in self._hosts):
            self._tell(f"the box does not lead to {request.name}:{request.port}")
            client.sendall(_answer("403 Forbidden", f"the box does not lead to {request.name}:{request.port}"))
        else:
            try:
                server = self._reach(request)
            except OSError as error:
                client.sendall(_answer("502 Bad Gateway", f"cannot reach {request.name}: {error}"))
                return
            if request.is_tunnel:
                client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            _join(client, server, request.first)

    def _reach(self, request: _Request) -> socket.socket:
        is_named_as_such = request.name in _LOCAL or _is_address(request.name)
        if self._upstream and not is_named_as_such:
            return _through(self._upstream, request)
        trouble = OSError("its name leads to this machine itself")
        for *kind, _, address in socket.getaddrinfo(request.name, request.port, type=socket.SOCK_STREAM):
            # Whoever decides what a name means must not lead the box back to this machine.
            if is_named_as_such or _is_elsewhere(str(address[0])):
                try:
                    return _connected(socket.socket(*kind), address)
                except OSError as error:
                    trouble = error
        raise trouble

    def _tell(self, news: str) -> None:
        with suppress(OSError):
            self._news.send(news.encode("utf-8", "replace")[:_LONGEST_NEWS], socket.MSG_DONTWAIT)


class _Request(Struct, frozen=True):
    """What a client asks of a proxy. `first`: what the server has to be sent before all else."""

    name: str
    port: int
    is_tunnel: bool
    first: bytes

    @classmethod
    def read(cls, client: socket.socket) -> _Request | None:
        head, body = _head_of(client)
        first, *fields = head.decode("latin-1").split("\r\n")
        method, target, version = (*first.split(" "), "", "")[:3]
        tunnel = method == "CONNECT"
        if not version.startswith("HTTP/1.") or not (tunnel or target.lower().startswith("http://")):
            return None
        try:
            to = host(target)
        except UserError:
            return None
        if tunnel:
            return cls(to.name, to.port or 443, True, body)
        place, _, path = target[len("http://") :].partition("/")
        # One request for each connection: the next may be for another host. And the server hears of the one asked for.
        kept = [field for field in fields if field.partition(":")[0].lower() not in _OF_A_CONNECTION]
        lines = (f"{method} /{path} {version}", f"Host: {place.rpartition('@')[2]}", "Connection: close", *kept, "", "")
        return cls(to.name, to.port or 80, False, "\r\n".join(lines).encode("latin-1") + body)


def _head_of(stream: socket.socket) -> tuple[bytes, bytes]:
    """What stands before the first blank line, and what came behind it."""
    text = b""
    while b"\r\n\r\n" not in text and len(text) < _LONGEST_HEAD:
        piece = stream.recv(_CHUNK)
        if not piece:
            break
        text += piece
    head, _, rest = text.partition(b"\r\n\r\n")
    return head, rest


def _answer(status: str, text: str) -> bytes:
    fields = f"Content-Type: text/plain\r\nContent-Length: {len(text) + 8}\r\nConnection: close"
    return f"HTTP/1.1 {status}\r\n{fields}\r\n\r\nralph: {text}\n".encode()


def _join(client: socket.socket, server: socket.socket, first: bytes) -> None:
    """Passes on what either says until both have said all."""
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


def _connected(end: socket.socket, address: object) -> socket.socket:
    end.settimeout(_PATIENCE)
    try:
        end.connect(address)  # type: ignore[arg-type]  # as getaddrinfo gave it
    except OSError:
        end.close()
        raise
    return end


def _is_address(name: str) -> bool:
    from ipaddress import ip_address

    try:
        return bool(ip_address(name))
    except ValueError:
        return False


def _is_elsewhere(address: str) -> bool:
    from ipaddress import ip_address

    found = ip_address(address.partition("%")[0])
    found = getattr(found, "ipv4_mapped", None) or found
    return not (found.is_loopback or found.is_link_local or found.is_unspecified)


def _upstream(env: Mapping[str, str]) -> tuple[str, int, str] | None:
    """The proxy that this machine itself has to use, and the name and word that it asks for."""
    from urllib.parse import unquote, urlsplit

    url = urlsplit(env.get("HTTPS_PROXY") or env.get("https_proxy") or "")
    word = f"{unquote(url.username or '')}:{unquote(url.password or '')}" if url.username else ""
    return (url.hostname, url.port or 80, word) if url.scheme == "http" and url.hostname else None


def _through(upstream: tuple[str, int, str], request: _Request) -> socket.socket:
    from base64 import b64encode

    name, port, word = upstream
    server = socket.create_connection((name, port), _PATIENCE)
    place = f"[{request.name}]" if ":" in request.name else request.name
    login = f"Proxy-Authorization: Basic {b64encode(word.encode()).decode()}\r\n" if word else ""
    server.sendall(f"CONNECT {place}:{request.port} HTTP/1.1\r\nHost: {place}:{request.port}\r\n{login}\r\n".encode())
    said = _head_of(server)[0].partition(b"\r\n")[0].decode("latin-1")
    if said.split(" ")[1:2] != ["200"]:
        server.close()
        raise OSError(f"the proxy {name} says {said!r}")
    return server


def _first_process(said: int) -> int:
    """What bubblewrap says of itself as soon as it has begun; 0 where it could not make the box."""
    from json import loads

    text = b""
    while b"}" not in text and (piece := os.read(said, 4096)):
        text += piece
    return int(loads(text)["child-pid"]) if text else 0


def _listeners(pid: int, ports: Sequence[int]) -> list[socket.socket]:
    """Sockets that listen in the network of a process. One goes there to make them and does not come back: whoever has
    taken on the users of a box cannot lay them down."""
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        try:
            _enter(pid)
            made = [socket.create_server(("", port), backlog=128) for port in ports]
            socket.send_fds(theirs, [b"made"], [listener.fileno() for listener in made])
        except OSError as error:
            theirs.send((error.strerror or str(error)).encode())
        finally:
            os._exit(0)
    theirs.close()
    said, fds, _, _ = socket.recv_fds(ours, _LONGEST_NEWS, len(ports))
    ours.close()
    os.waitpid(child, 0)
    if not fds:
        raise OSError(said.decode() or "nobody could go there")
    return [socket.socket(fileno=fd) for fd in fds]


def _enter(pid: int) -> None:
    """Into the network of a process, and the users to whom it belongs."""
    import ctypes
    import fcntl

    setns = ctypes.CDLL(None, use_errno=True).setns
    network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    for fd, kind in ((fcntl.ioctl(network, _GET_OWNER), _NEW_USER), (network, _NEW_NET)):
        if setns(fd, kind) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
