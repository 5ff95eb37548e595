"""Where is the page served, under which names, and how does a person get in? A port of this machine or a socket, a link
that can be used once, and a word to all terminals about where it is."""

import ipaddress
import os
import signal
import socket
import stat
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import TextIO
from urllib.parse import urlsplit

from msgspec import Struct

from ralph.errors import UserError
from ralph.processes.descendants import own_start
from ralph.processes.spawning import MARK
from ralph.records.serving import KEY_LASTS, Served, ServerFolder, servers
from ralph.web.access import LEVELS, Access, BrowserSession
from ralph.web.qr_code import drawn, matrix

PORT = 8787
BACKLOG = 128


class Asked(Struct, frozen=True, kw_only=True):
    """What the command line said."""

    places: tuple[str, ...] = ()
    port: int | None = None
    socket: str | None = None
    names: tuple[str, ...] = ()
    bind: str = "127.0.0.1"
    plain: bool = False
    allow: str = "start"
    remember: bool = False


def serve(asked: Asked, out: TextIO, env: Mapping[str, str] = os.environ) -> int:
    """Serves until it is interrupted."""
    names = _names(asked)
    listener = (
        listen_on_socket(asked.socket)
        if asked.socket
        else listen_on_port(asked.bind, PORT if asked.port is None else asked.port)
    )
    folder = ServerFolder(asked.socket or _address(listener), env)
    remembered = folder.recall() if asked.remember else None
    sessions = (
        {name: BrowserSession(LEVELS[level], until) for name, (level, until) in remembered.sessions.items()}
        if remembered
        else {}
    )
    access = Access(remembered.site if remembered else "", names, LEVELS[asked.allow], sessions)
    signals = _heard_signals()
    folder.announce(Served(os.getpid(), own_start(), _origin(asked, listener) + access.base, asked.allow))
    try:
        _say(asked, folder, out)
        # Imported once the link is out: whoever is quicker waits in the listener's queue.
        from ralph.processes.program import leaving_alone
        from ralph.web.routes import Pages
        from ralph.web.server import Server
        from ralph.web.watching import Register

        pages = Pages(access, folder, Register(env, asked.places), asked.remember)
        with leaving_alone() as asker, Server(listener, access, pages, pages.hub, asker) as server:
            pages.hub.start()
            threading.Thread(target=server.serve_forever, args=(3600,), name="accepts", daemon=True).start()
            signals.recv(1)
    except KeyboardInterrupt:
        pass  # Ctrl-C, or whatever else ends a server, is how it ends: all is well then
    finally:
        signal.set_wakeup_fd(-1)  # with `signals`, nobody is left to hear of them
        folder.withdraw()
        if asked.socket:
            with suppress(OSError):
                os.unlink(asked.socket)
    return 0


def _heard_signals() -> socket.socket:
    """Bears a byte for each signal: one that comes just before a wait begins would not end that wait."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    signal.set_wakeup_fd(theirs.detach())
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    return ours


def listen_on_port(bind: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in bind else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((bind, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        hint = "is `ralph serve` running already? `ralph serve --link` prints a link; or choose another --port"
        raise UserError(f"cannot listen on {bind}:{port}: {error.strerror}", hint) from None
    return listener


def listen_on_socket(path: str) -> socket.socket:
    """A socket that only this user can open. One that a dead server left is taken away; nothing else ever is."""
    _remove_what_is_dead(path)
    listener = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)
    try:
        listener.bind(path)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        why = error.strerror or str(error)  # a path that is too long has no number
        raise UserError(
            f"cannot listen on {path}: {why}", "choose another --socket, shorter than 100 characters"
        ) from None
    finally:
        os.umask(before)
    return listener


def _remove_what_is_dead(path: str) -> None:
    try:
        about = os.lstat(path)
    except OSError:
        return
    if not stat.S_ISSOCK(about.st_mode):
        raise UserError(f"{path} is there, and is no socket", "choose another --socket")
    if about.st_uid != os.geteuid():
        raise UserError(f"{path} belongs to another user", "choose another --socket")
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except OSError:
            os.unlink(path)
            return
    raise UserError(f"somebody serves on {path} already", "`ralph serve --link` prints a link")


def _names(asked: Asked) -> dict[str, str]:
    """The names beside loopback's by which the page is known, each with its scheme: a proxy speaks https, unless what
    is sent may be read along the way."""
    if asked.socket and asked.port is not None:
        raise UserError("--socket and --port at once", "choose one")
    try:
        address = ipaddress.ip_address(asked.bind)
    except ValueError:
        raise UserError(
            f"{asked.bind} is no address", "give --bind an address of this machine, such as 100.64.0.7"
        ) from None
    if not address.is_loopback and not asked.plain:
        hint = "prefer `ssh -L`, a mesh VPN or a proxy with --name; or say --plain: others can read along then"
        raise UserError(f"--bind {asked.bind} is not this machine alone, and ralph has no TLS of its own", hint)
    scheme = "http" if asked.plain else "https"
    names = {_name(name): scheme for name in asked.names}
    if address.is_unspecified and not names:
        raise UserError(
            f"--bind {asked.bind} needs a --name", "say by which name or address browsers reach this machine"
        )
    if not address.is_unspecified:
        names.setdefault(f"[{address}]" if address.version == 6 else str(address), "http")
    return names


def _name(given: str) -> str:
    """A host as it stands in a Host header, without its port."""
    parts = urlsplit(f"//{given}")
    try:
        is_plain = bool(parts.hostname) and not parts.path and not parts.username and parts.port is not False
    except ValueError:
        is_plain = False
    if not is_plain or not given.isascii() or any(char.isspace() for char in given):
        raise UserError(f"--name {given!r} is no host", "give a name alone, such as devbox.example.net")
    host = parts.hostname or ""
    return f"[{host}]" if ":" in host else host


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _origin(asked: Asked, listener: socket.socket) -> str:
    """Where the page is reached: from as far away as it can be."""
    if asked.names:
        port = f":{listener.getsockname()[1]}" if asked.plain and not asked.socket and ":" not in asked.names[0] else ""
        return f"{'http' if asked.plain else 'https'}://{asked.names[0]}{port}"
    return "http://localhost" if asked.socket else f"http://{_address(listener)}"


def _say(asked: Asked, folder: ServerFolder, out: TextIO) -> None:
    link = new_link(folder, asked.allow)
    print(link, file=out, flush=True)
    if asked.names:
        _draw(link, out)
    said = (
        f"ralph: this link can be used once, within {KEY_LASTS / 60:.0f} minutes; `ralph serve --link` prints another"
    )
    print(said, file=sys.stderr)
    if asked.socket:
        print(
            f"ralph: reach it with `ssh -L {PORT}:{os.path.abspath(asked.socket)} …`, then localhost:{PORT}",
            file=sys.stderr,
        )
    print("ralph: Ctrl-C ends the page; runs go on without it", file=sys.stderr, flush=True)


def _draw(link: str, out: TextIO) -> None:
    """As a code for a phone, where there is a terminal to draw it on or somebody who keeps what is printed."""
    modules = matrix(link)
    if modules is None:
        print("ralph: the link is too long for a QR code", file=sys.stderr)
        return
    is_coloured = out.isatty() and not os.environ.get("NO_COLOR")
    for line in drawn(modules):
        print(f"\x1b[97;40m{line}\x1b[0m" if is_coloured else line, file=out, flush=True)


def new_link(folder: ServerFolder, level: str) -> str:
    served = folder.served
    assert served is not None
    return f"{served.address}enter?key={folder.leave_link(level)}"


def another_link(level: str, bind: str, port: int | None, path: str | None, env: Mapping[str, str] = os.environ) -> str:
    """A new link to a page that is served now."""
    if MARK in env:
        raise UserError("only a person can hand out a link", 'an agent can ask: ralph ask "QUESTION"')
    if level and level not in LEVELS:
        raise UserError(f"there is no level {level!r}", f"choose one of {', '.join(LEVELS)}")
    folder, served = _meant(bind, port, path, env)
    if level and LEVELS[level] > LEVELS[served.most]:
        raise UserError(f"the page allows {served.most} at most", f"start it with --allow {level}")
    return new_link(folder, level or served.most)


def _meant(bind: str, port: int | None, path: str | None, env: Mapping[str, str]) -> tuple[ServerFolder, Served]:
    found = servers(env)
    if path or port is not None:
        folder = ServerFolder(path or (f"[{bind}]:{port}" if ":" in bind else f"{bind}:{port}"), env)
        name = os.path.basename(folder.path)
        found = {name: found[name]} if name in found else {}
    if not found:
        raise UserError(
            "no page is served" + (" there" if path or port is not None else ""), "start one with `ralph serve`"
        )
    if len(found) > 1:
        raise UserError(f"several pages are served: {', '.join(found)}", "name one with --port or --socket")
    name, served = next(iter(found.items()))
    return ServerFolder(name, env), served
