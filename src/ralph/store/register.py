"""Which runs of this user are there on this machine, where do they stand, and which of them live?

Each run keeps its facts in a small file of its own folder; a folder of links leads to all of them. Nobody has to
keep order there: a link whose workspace is gone leads nowhere, and a process that died is known by its start time.
Asked in a blink: paths are plain text here, and next to nothing is imported.
"""

import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from msgspec import Struct
from msgspec.json import Decoder
from msgspec.structs import asdict, replace

from ralph.core.state import RunSummary, after
from ralph.core.text import clean
from ralph.errors import UNREADABLE, UserError
from ralph.files import open_file, state_folder
from ralph.process.descendants import is_living
from ralph.store.folder import RunFolder
from ralph.store.journal import Entry, read_ends

STATE, JOURNAL = "state.json", "journal.ndjson"
_MOST_BYTES = 1 << 16


class Listed(Struct, frozen=True):
    """A run on record, and whether the process that plays it lives."""

    id: str
    place: str
    facts: RunSummary
    is_alive: bool

    @property
    def folder(self) -> "RunFolder":

        return RunFolder(Path(self.place).parent.parent, self.id)

    @property
    def state(self) -> str:
        """One word: running, stopping, waiting, paused or asking while it lives, else its outcome, or killed."""
        facts = self.facts
        if not self.is_alive:
            return facts.outcome or "killed"
        if facts.stopping:
            return "stopping"
        if facts.paused:
            return "asking" if facts.asks else "paused"
        return "waiting" if facts.waits else "running"

    @property
    def is_child(self) -> bool:
        """Whether an agent of a task started it, for one turn: it is kept among the task's attempts."""
        return not self.place.rpartition("/")[0].rpartition("/")[0].endswith(".ralph")

    @property
    def is_part(self) -> bool:
        """Whether another run or work started it: who names none does not mean it."""
        return self.is_child or bool(self.facts.work)

    @property
    def is_copy(self) -> bool:
        """Whether it stands for the work of a fleet that is done elsewhere. A work's own process is never deaf."""
        return self.facts.deaf and self.facts.kind == "work"

    def ungiven(self, notes: int) -> int:
        """How many of the notes in its mailbox the next prompt will carry: those in the prompt at work are still there,
        because a turn that is cut off has not used them."""
        return max(notes - self.facts.given, 0) if self.is_alive else notes


def runs(env: Mapping[str, str] = os.environ) -> list[Listed]:
    """Every run of this user on this machine that is still on disk, oldest first."""
    here = host()
    found = (listed(path) for path in links_to_all(env))
    return [one for one in found if one and one.facts.host in ("", here)]


def links_to_all(env: Mapping[str, str] = os.environ) -> list[str]:
    """The link to each run of this user, oldest first."""
    links = state_folder(env, "runs")
    return [f"{links}/{name}" for name in sorted(_names(links))]


def run_of(run_id: str, env: Mapping[str, str] = os.environ) -> Listed | None:
    """Return the run with exactly this id, which is never taken for a path."""
    found = listed(f"{state_folder(env, 'runs')}/{run_id}") if _is_name(run_id) else None
    return found if found and found.id == run_id and found.facts.host in ("", host()) else None


def _names(links: str) -> list[str]:
    try:
        return os.listdir(links)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UserError(f"cannot read {links}: {error.strerror}", "check its permissions, or XDG_STATE_HOME") from None


def loops(env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The loops inside sessions that go on: the file of each, by the link to it. When a loop ends its file is moved,
    and the link leads nowhere."""
    links = state_folder(env, "loops")
    try:
        names = sorted(os.listdir(links))
    except OSError:
        return {}
    return {link: os.path.realpath(link) for name in names if os.path.exists(link := f"{links}/{name}")}


def recorded_in(ralph: str | os.PathLike[str]) -> list[Listed]:
    """The runs that are kept in this `.ralph/`, oldest first."""
    return [run for path in folders_in(ralph) if (run := listed(path))]


def folders_in(ralph: str | os.PathLike[str]) -> list[str]:
    """The folder of each run that is kept in this `.ralph/`, oldest first."""
    folder = f"{os.fspath(ralph)}/runs"
    try:
        return [f"{folder}/{name}" for name in sorted(os.listdir(folder))]
    except (FileNotFoundError, NotADirectoryError):
        return []


def listed(path: str | os.PathLike[str]) -> Listed | None:
    """The run in this folder (or behind this link to it); None where there is none, or one that never began."""
    path = os.fspath(path)
    facts = facts_in(path)
    if facts is None:
        if not os.path.exists(f"{path}/{JOURNAL}"):
            return None
        facts = summarize(os.path.basename(path), read_ends(f"{path}/{JOURNAL}"))
    try:
        place = os.readlink(path)
    except OSError:  # the folder itself
        place = path
    if not _is_name(os.path.basename(place)):
        return None  # none of ours: what an agent calls a folder is said to nobody
    alive = not facts.outcome and is_living(facts.pid, facts.start)
    if not alive and not (facts.workspace or facts.finished):
        return None  # it was refused before it began
    run = Listed(os.path.basename(place), place, facts, alive)
    return None if _is_left_behind(run) else run


def _is_name(name: str) -> bool:
    """Whether a run can be called so."""
    return name.isascii() and name.replace("-", "").replace("_", "").replace(".", "").isalnum()


class KnownRuns:
    """For one who looks at the same runs again and again: what has not changed since is not read again."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[_Stamp, Listed]] = {}

    def look(self, paths: Iterable[str]) -> dict[str, Listed]:
        """The run in each of these folders (or behind these links to them), where there is one."""
        before, known = self._known, dict[str, tuple[_Stamp, Listed]]()
        found: dict[str, Listed] = {}
        for path in paths:
            stamp = _stamp(f"{path}/{STATE}")
            old = before.get(path) if stamp else None
            run = old[1] if old and old[0] == stamp else None
            if run and (not is_living(run.facts.pid, run.facts.start) if run.is_alive else _is_left_behind(run)):
                run = None
            run = run or listed(path)
            if run:
                found[path] = run
                if stamp:
                    known[path] = (stamp, run)
        self._known = known
        return found


_Stamp = tuple[int, int, int]
_YOUNG = 1_000_000_000  # nanoseconds in which a file may be written twice and bear the same time


def _stamp(path: str) -> "_Stamp | None":
    """By this a file is known as the one that was read; None where there is none, or it may be written just now."""
    try:
        seen = os.stat(path)
    except OSError:
        return None
    is_young = time.time_ns() - seen.st_mtime_ns < _YOUNG
    return None if is_young else (seen.st_mtime_ns, seen.st_size, seen.st_ino)


def _is_left_behind(run: Listed) -> bool:
    """Whether it is a copy, and who kept it was killed: what became of the work is not known here."""
    return run.is_copy and not is_living(run.facts.pid, run.facts.start)


def facts_in(path: str) -> RunSummary | None:
    """What the run in this folder says of itself; None where that cannot be read."""
    for _ in range(3):  # it may be written at this very moment
        try:
            fd = open_file(f"{path}/{STATE}")
        except OSError:
            return None
        try:
            data = os.read(fd, _MOST_BYTES)
            facts = _DECODER.decode(data)
            return _safe(facts) if b"\\" in data or not data.isascii() else facts
        except UNREADABLE:
            continue
        except OSError:  # a folder stands in its place
            return None
        finally:
            os.close(fd)
    return None


def summarize(run_id: str, entries: Iterable[Entry]) -> RunSummary:
    """Return the summary that these entries of a journal make, for a run whose `state.json` cannot be read."""
    facts = RunSummary(run=run_id)
    for entry in entries:
        event = entry.event()
        if event is not None:
            facts = after(facts, event, entry.at)
    return _safe(facts)


def _safe(facts: RunSummary) -> RunSummary:
    """Fit to be shown: an agent can write where they come from."""
    said = {name: clean(value) for name, value in asdict(facts).items() if isinstance(value, str)}
    return replace(facts, **said)


def host() -> str:
    return os.uname().nodename


_DECODER = Decoder(RunSummary)
