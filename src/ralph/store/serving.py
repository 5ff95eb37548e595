"""The web servers of this user: where each one runs, its unused links, and the browsers it remembers.

Each server has a folder next to the list of runs. Secrets are stored only as hashes.
"""

import os
import secrets
import time
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256

import msgspec
from msgspec import Struct

from ralph.files import load_json, save_file, state_folder
from ralph.process.descendants import is_living

SERVER, REMEMBERED, LINKS = "served.json", "remembered.json", "links"
LINK_LIFETIME = 600.0  # seconds


class RunningServer(Struct, frozen=True):
    """A server's process, its address including the secret path, and the highest level its links may have."""

    pid: int
    start: str
    address: str
    most: str


class Link(Struct, frozen=True):
    """A link that has not been used."""

    level: str
    until: float


class Remembered(Struct, frozen=True):
    """What the next server takes over: the secret path, and sessions (level, end) by the hash of their secret."""

    site: str
    sessions: dict[str, tuple[str, float]] = {}


class ServerFolder:
    """The folder of one server, named after its address and port."""

    def __init__(self, name: str, env: Mapping[str, str] = os.environ) -> None:
        self.path = os.path.join(state_folder(env, "serve"), name)

    def announce(self, server: RunningServer) -> None:
        self.withdraw()
        self._write(SERVER, server)

    def withdraw(self) -> None:
        """Remove the announcement and all unused links."""
        with suppress(OSError):
            os.unlink(f"{self.path}/{SERVER}")
        for name in self._links():
            self._remove_link(name)

    @property
    def running(self) -> RunningServer | None:
        server = load_json(f"{self.path}/{SERVER}", RunningServer)
        return server if server and is_living(server.pid, server.start) else None

    def new_link(self, level: str) -> str:
        """Return the key of a new link; only its hash is stored. Removes links that are too old."""
        key = secrets.token_urlsafe(18)
        for name in self._links():
            link = load_json(f"{self.path}/{LINKS}/{name}", Link)
            if not link or link.until < time.time():
                self._remove_link(name)
        self._write(f"{LINKS}/{hash_secret(key)}", Link(level, time.time() + LINK_LIFETIME))
        return key

    def link_level(self, key: str) -> str:
        """Return the level of an unused link, "" if it was used or is too old."""
        link = load_json(f"{self.path}/{LINKS}/{hash_secret(key)}", Link)
        return link.level if link and link.until > time.time() else ""

    def use_link(self, key: str) -> str:
        """Use a link up and return its level, "" if it was already used or is too old."""
        level = self.link_level(key)
        return level if self._remove_link(hash_secret(key)) else ""

    def recall(self) -> Remembered:
        return load_json(f"{self.path}/{REMEMBERED}", Remembered) or Remembered("")

    def remember(self, remembered: Remembered) -> None:
        self._write(REMEMBERED, remembered)

    def _links(self) -> list[str]:
        with suppress(OSError):
            return os.listdir(f"{self.path}/{LINKS}")
        return []

    def _remove_link(self, name: str) -> bool:
        """Consume the link atomically; return False if it was already used."""
        try:
            os.unlink(f"{self.path}/{LINKS}/{name}")
        except OSError:
            return False
        return True

    def _write(self, name: str, content: object) -> None:
        save_file(f"{self.path}/{name}", msgspec.json.encode(content))


def running_servers(env: Mapping[str, str] = os.environ) -> dict[str, RunningServer]:
    """Return this user's running servers by the name of their folder."""
    try:
        names = sorted(os.listdir(state_folder(env, "serve")))
    except OSError:
        return {}
    return {name: server for name in names if (server := ServerFolder(name, env).running)}


def run_url(run: str, env: Mapping[str, str] = os.environ) -> str:
    """Return the address of a run in the web UI, "" if no server runs. An https address is preferred."""
    addresses = sorted((server.address for server in running_servers(env).values()), reverse=True)
    return f"{addresses[0]}runs/{run}" if addresses else ""


def hash_secret(secret: str) -> str:
    return sha256(secret.encode("utf-8", "replace")).hexdigest()
