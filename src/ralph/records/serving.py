"""Which pages are served on this machine, where, and who has been invited? Each server of this user has a folder of its
own beside the list of runs: what it says of itself, the links that wait to be used, and, where that was asked for, the
browsers that it remembers. Secrets are kept as hashes alone."""

import os
import secrets
import time
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from typing import TypeVar

import msgspec
from msgspec import Struct

from ralph.errors import UNREADABLE, UserError
from ralph.files import read_file, replace_file, state_folder
from ralph.processes.descendants import is_living

SERVED, REMEMBERED, LINKS = "served.json", "remembered.json", "links"
KEY_LASTS = 600.0
Kind = TypeVar("Kind")


class Served(Struct, frozen=True):
    """A server at work: where it is reached (the site's name included), and the most that its links may allow."""

    pid: int
    start: str
    address: str
    most: str


class Link(Struct, frozen=True):
    """An invitation that has not been used."""

    level: str
    until: float


class Remembered(Struct, frozen=True):
    """What outlives a server: its site, and its sessions by the hash of their secret, each with level and end."""

    site: str
    sessions: dict[str, tuple[str, float]] = {}


class ServerFolder:
    """Named after what only one server can hold at a time: an address and a port, or a socket."""

    def __init__(self, name: str, env: Mapping[str, str] = os.environ) -> None:
        if "/" in name:
            name = "socket-" + sha256(os.path.abspath(name).encode("utf-8", "surrogateescape")).hexdigest()[:16]
        self.path = os.path.join(state_folder(env, "serve"), name)

    def announce(self, served: Served) -> None:
        self.withdraw()
        self._write(SERVED, served)

    def withdraw(self) -> None:
        """What was left to be used dies with the server."""
        with suppress(OSError):
            os.unlink(f"{self.path}/{SERVED}")
        for name in self._links():
            self._remove_link(name)

    @property
    def served(self) -> Served | None:
        """The server that is at work here."""
        found = _decoded(f"{self.path}/{SERVED}", Served)
        return found if found and is_living(found.pid, found.start) else None

    def leave_link(self, level: str) -> str:
        """The key of a new link. It is told here once, and not kept."""
        key = secrets.token_urlsafe(18)
        for name in self._links():
            link = _decoded(f"{self.path}/{LINKS}/{name}", Link)
            if not link or link.until < time.time():
                self._remove_link(name)
        self._write(f"{LINKS}/{hashed(key)}", Link(level, time.time() + KEY_LASTS))
        return key

    def level_of_link(self, key: str) -> str:
        """What a link allows, which stays unused; nothing where it has been used or is too old."""
        link = _decoded(f"{self.path}/{LINKS}/{hashed(key)}", Link)
        return link.level if link and link.until > time.time() else ""

    def take_link(self, key: str) -> str:
        """The level of a link, which is used up by that; nothing where it has been used or is too old."""
        link = _decoded(f"{self.path}/{LINKS}/{hashed(key)}", Link)
        if not link or not self._remove_link(hashed(key)) or link.until < time.time():
            return ""
        return link.level

    def recall(self) -> Remembered:
        return _decoded(f"{self.path}/{REMEMBERED}", Remembered) or Remembered("")

    def remember(self, remembered: Remembered) -> None:
        self._write(REMEMBERED, remembered)

    def _links(self) -> list[str]:
        with suppress(OSError):
            return os.listdir(f"{self.path}/{LINKS}")
        return []

    def _remove_link(self, name: str) -> bool:
        """Whether it was there: of several who use one link at once, only one gets in."""
        try:
            os.unlink(f"{self.path}/{LINKS}/{name}")
        except OSError:
            return False
        return True

    def _write(self, name: str, content: object) -> None:
        path = f"{self.path}/{name}"
        try:
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            replace_file(path, msgspec.json.encode(content), 0o600)
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}", "check XDG_STATE_HOME") from None


def servers(env: Mapping[str, str] = os.environ) -> dict[str, Served]:
    """The servers of this user that are at work, by the name of their folder."""
    try:
        names = sorted(os.listdir(state_folder(env, "serve")))
    except OSError:
        return {}
    return {name: served for name in names if (served := ServerFolder(name, env).served)}


def page_of(run: str, env: Mapping[str, str] = os.environ) -> str:
    """Where the page of a run is served at this moment, if anywhere: the address that is reached from furthest away."""
    addresses = [served.address for served in servers(env).values()]
    return next((f"{one}runs/{run}" for one in sorted(addresses, reverse=True)), "")


def _decoded(path: str, kind: type[Kind]) -> Kind | None:
    try:
        return msgspec.json.decode(read_file(path, 1 << 20), type=kind)
    except (OSError, *UNREADABLE):  # not there, or not written by us
        return None


def hashed(key: str) -> str:
    return sha256(key.encode("utf-8", "replace")).hexdigest()
