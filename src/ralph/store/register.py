"""The runs of this user on this machine, running or ended.

Each run keeps a summary in its own folder, and the state folder has a link to every run. Stale records do no harm: the
link to a removed workspace is broken, and a dead process is recognised by its start time.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from msgspec import Struct
from msgspec.json import Decoder
from msgspec.structs import asdict, replace

from ralph.core.state import RunSummary, after
from ralph.core.text import clean
from ralph.errors import UNREADABLE, UserError
from ralph.files import read_file, state_folder
from ralph.process.descendants import is_living
from ralph.store.folder import RunFolder
from ralph.store.journal import Entry, read_entries

STATE, JOURNAL = "state.json", "journal.ndjson"
MAX_STATE = 1 << 16  # bytes
_DECODER = Decoder(RunSummary)


class Listed(Struct, frozen=True):
    """A run on record, and whether its process is running."""

    id: str
    place: str
    facts: RunSummary
    is_alive: bool

    @property
    def folder(self) -> RunFolder:
        return RunFolder(Path(self.place).parent.parent, self.id)

    @property
    def state(self) -> str:
        """The state in one word: running, stopping, waiting, paused or asking. If the run has ended: its outcome, or
        killed."""
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
        """Whether an agent of a supervised task started it. Such a run is kept in the task's folder."""
        return not self.place.rpartition("/")[0].rpartition("/")[0].endswith(".ralph")

    @property
    def is_part(self) -> bool:
        """Whether another run or a backlog started it. Commands use such a run only if it is named."""
        return self.is_child or bool(self.facts.work)

    @property
    def is_copy(self) -> bool:
        """Whether this is a local copy of a fleet's backlog. Only such a backlog ignores signals."""
        return self.facts.ignores_signals and self.facts.kind == "work"

    def pending_notes(self, notes: int) -> int:
        """Return how many of the `notes` in its mailbox the next prompt will have.

        The notes in the current prompt stay in the mailbox until its turn has ended.
        """
        return max(notes - self.facts.given, 0) if self.is_alive else notes


def runs(env: Mapping[str, str] = os.environ) -> list[Listed]:
    """Return every run of this user on this machine that is still on disk, oldest first."""
    links = state_folder(env, "runs")
    try:
        names = sorted(os.listdir(links))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UserError(f"cannot read {links}: {error.strerror}", "check its permissions, or XDG_STATE_HOME") from None
    here = host()
    found = (run_at(f"{links}/{name}") for name in names)
    return [run for run in found if run and run.facts.host in ("", here)]


def run_with_id(run_id: str, env: Mapping[str, str] = os.environ) -> Listed | None:
    """Return the run with exactly this id, which is never taken for a path."""
    found = run_at(f"{state_folder(env, 'runs')}/{run_id}") if _is_run_id(run_id) else None
    return found if found and found.id == run_id and found.facts.host in ("", host()) else None


def runs_in(ralph: str | os.PathLike[str]) -> list[Listed]:
    """Return the runs that are kept in this `.ralph/`, oldest first."""
    folder = f"{os.fspath(ralph)}/runs"
    try:
        names = sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [run for name in names if (run := run_at(f"{folder}/{name}"))]


def run_at(path: str | os.PathLike[str]) -> Listed | None:
    """Return the run in this folder, or behind this link to one; None if there is none, or it never began."""
    path = os.fspath(path)
    facts = read_summary(path)
    if facts is None:
        if not os.path.exists(f"{path}/{JOURNAL}"):
            return None
        facts = summarize(os.path.basename(path), read_entries(f"{path}/{JOURNAL}"))
    try:
        place = os.readlink(path)
    except OSError:  # the folder itself
        place = path
    if not _is_run_id(os.path.basename(place)):
        return None  # an agent can name a folder anything, and the name is printed
    is_alive = not facts.outcome and is_living(facts.pid, facts.start)
    if not is_alive and not (facts.workspace or facts.finished):
        return None  # it was refused before it began
    run = Listed(os.path.basename(place), place, facts, is_alive)
    is_stale = run.is_copy and not is_living(facts.pid, facts.start)  # what became of the backlog is not known here
    return None if is_stale else run


def _is_run_id(name: str) -> bool:
    return name.isascii() and name.replace("-", "").replace("_", "").replace(".", "").isalnum()


def read_summary(path: str) -> RunSummary | None:
    """Return the summary that the run in this folder keeps; None if it cannot be read."""
    try:
        data = read_file(f"{path}/{STATE}", MAX_STATE)
        facts = _DECODER.decode(data)
    except (OSError, *UNREADABLE):
        return None
    return _without_control_characters(facts) if b"\\" in data or not data.isascii() else facts


def summarize(run_id: str, entries: Iterable[Entry]) -> RunSummary:
    """Build a summary from journal entries, for a run whose `state.json` cannot be read."""
    facts = RunSummary(run=run_id)
    for entry in entries:
        event = entry.event()
        if event is not None:
            facts = after(facts, event, entry.at)
    return _without_control_characters(facts)


def _without_control_characters(facts: RunSummary) -> RunSummary:
    texts = {name: clean(value) for name, value in asdict(facts).items() if isinstance(value, str)}
    return replace(facts, **texts)


def host() -> str:
    return os.uname().nodename
