"""Which runs of this user are there on this machine, where do they stand, and which of them live?

Each run keeps its standing in a small file of its own folder; a folder of links leads to all of them. Nobody has to
keep order there: a link whose workspace is gone leads nowhere, and a process that died is known by its start time.
"""

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from ralph.core import events
from ralph.core.rules import AWAITING
from ralph.core.standing import Standing, after, recalled
from ralph.world.folder import RunFolder, cannot_write
from ralph.world.identity import is_living, own_start
from ralph.world.journal import Story, recall

STATE = "state.json"
MOST_LINKS = 1000


class Registration:
    """A listener that keeps the run's own standing up to date while it goes on."""

    def __init__(self, folder: RunFolder, story: Story | None = None) -> None:
        known = (_standing_in(folder.path) or recalled(story.run)) if story else Standing(folder.id, began=time.time())
        self._standing = msgspec.structs.replace(known, pid=os.getpid(), start=own_start(), host=_host(), outcome="")
        self._encode = msgspec.json.Encoder().encode
        path = folder.path / STATE
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._size = os.fstat(self._fd).st_size
            self._write()
        except OSError as error:
            raise cannot_write(path, error) from None

    def __call__(self, event: events.Event) -> None:
        standing = after(self._standing, event, time.time())
        if standing is not self._standing:
            self._standing = standing
            with suppress(OSError):  # a full disk: the journal says so, and is the truth
                self._write()

    def _write(self) -> None:
        """In place, with one call, and never shorter than before: a reader finds the old or the new."""
        data = self._encode(self._standing)
        self._size = max(self._size, len(data))
        os.pwrite(self._fd, data.ljust(self._size, b"\n"), 0)

    def close(self) -> None:
        os.close(self._fd)


def enlist(folder: RunFolder, env: Mapping[str, str]) -> str:
    """Makes the run known to `ralph ps`; what stands in the way, if anything."""
    links = registry(env)
    try:
        links.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(FileExistsError):
            os.symlink(folder.path.absolute(), links / folder.id)
    except OSError as error:
        return f"`ralph ps` will not list this run: cannot write {links}: {error.strerror}"
    return ""


def prune(env: Mapping[str, str]) -> None:
    """Forgets the oldest links, and those that lead nowhere, once there are very many."""
    links = registry(env)
    with suppress(OSError):
        names = sorted(os.listdir(links))
        if len(names) > MOST_LINKS:
            stale = [name for name in names if not (links / name).exists()]
            for name in {*stale, *names[: len(names) - len(stale) - MOST_LINKS // 2]}:
                (links / name).unlink(missing_ok=True)


def registry(env: Mapping[str, str]) -> Path:
    state = env.get("XDG_STATE_HOME", "")
    home = env.get("HOME") or os.path.expanduser("~")
    return Path(state if os.path.isabs(state) else os.path.join(home, ".local", "state"), "ralph", "runs")


class Listed(msgspec.Struct, frozen=True):
    """A run on record, and whether the process that plays it lives."""

    folder: RunFolder
    standing: Standing
    is_alive: bool

    @property
    def id(self) -> str:
        return self.folder.id

    @property
    def state(self) -> str:
        """One word: running, waiting, paused or asking while it lives, else its outcome; killed where it has none."""
        standing = self.standing
        if not self.is_alive:
            return standing.outcome or "killed"
        if standing.parked:
            return "asking" if standing.parked.startswith(AWAITING) else "paused"
        return "waiting" if standing.waits else standing.outcome or "running"


def runs(env: Mapping[str, str] = os.environ) -> list[Listed]:
    """Every run of this user on this machine that is still on disk, oldest first."""
    links = registry(env)
    try:
        names = sorted(os.listdir(links))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise cannot_write(links, error) from None
    found = (listed(links / name) for name in names)
    return [one for one in found if one and one.standing.host in ("", _host())]


def listed(path: Path) -> Listed | None:
    """The run in this folder (or behind this link to it); None where there is none."""
    standing = _standing_in(path)
    if standing is None:
        journal = path / "journal.ndjson"
        if not journal.exists():
            return None
        standing = _from_journal(journal)
    place = Path(os.readlink(path)) if path.is_symlink() else path
    folder = RunFolder(place.parent.parent, place.name)
    return Listed(folder, standing, not standing.outcome and is_living(standing.pid, standing.start))


def _standing_in(path: Path) -> Standing | None:
    for _ in range(3):  # it may be written at this very moment
        try:
            with open(path / STATE, "rb") as file:
                return _DECODER.decode(file.read())
        except msgspec.MsgspecError:
            continue
        except OSError:
            return None
    return None


def _from_journal(path: Path) -> Standing:
    """For a run whose standing cannot be read: slow, and right."""
    story = recall(path)
    standing = recalled(story.run)
    for event in (story.started, story.waiting, story.finished):
        if event is not None:
            standing = after(standing, event, path.stat().st_mtime)
    return standing


_DECODER = msgspec.json.Decoder(Standing)


def _host() -> str:
    return os.uname().nodename
