"""The runs of this user on this machine, running or ended: which there are, which one a person means, what is left.

Each run keeps a summary in its own folder, and the state folder has a link to every run. Stale records do no harm: the
link to a removed workspace is broken, and a dead process is recognised by its start time.
"""

import os
import pwd
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import asdict, replace

from ralph.core.state import AnySummary, BacklogSummary, RunSummary, Summary, after, decode_summary
from ralph.core.text import clean, one_line
from ralph.errors import UNREADABLE, UserError
from ralph.files import names_in, read_file, state_folder
from ralph.process.descendants import (
    KEEPER_NAME,
    RunningProcess,
    ancestors_of,
    is_living,
    kill_run,
    marked_processes,
    processes_of_run,
)
from ralph.process.machine import machine_id
from ralph.store.folder import RunFolder, is_occupied
from ralph.store.journal import Entry, load_run, read_entries

T = TypeVar("T")
Facts = TypeVar("Facts", bound=Summary)

STATE, JOURNAL = "state.json", "journal.ndjson"
MAX_STATE = 1 << 16  # bytes


class Listed(Struct, frozen=True):
    """A run or backlog on record, and whether its process is running."""

    id: str
    place: str
    facts: AnySummary
    is_alive: bool

    @property
    def folder(self) -> RunFolder:
        return RunFolder(Path(self.place).parent.parent, self.id)

    @property
    def state(self) -> str:
        """The state in one word: running, stopping, waiting, paused or asking. If the run has ended: its outcome, or
        killed."""
        return self.facts.state if self.is_alive else self.facts.outcome or "killed"

    def by_kind(self, of_run: T, of_backlog: T) -> T:
        """Return the first argument for a run, the second for a backlog."""
        return of_backlog if isinstance(self.facts, BacklogSummary) else of_run

    @property
    def is_child(self) -> bool:
        """Whether an agent of a supervised task started it. Such a run is kept in the task's folder."""
        return not self.place.rpartition("/")[0].rpartition("/")[0].endswith(".ralph")

    @property
    def is_part(self) -> bool:
        """Whether another run or a backlog started it. Commands use such a run only if it is named."""
        return self.is_child or bool(self.facts.work)


def runs(env: Mapping[str, str] = os.environ) -> list[Listed]:
    """Return every run of this user on this machine or in this folder that is still on disk, oldest first."""
    links = state_folder(env, "runs")
    try:
        names = sorted(os.listdir(links))
    except FileNotFoundError:
        names = []
    except OSError as error:
        raise UserError(f"cannot read {links}: {error.strerror}", "check its permissions, or XDG_STATE_HOME") from None
    listed = (run_at(f"{links}/{name}") for name in names)
    return [run for run in listed if run and _is_local(run)]


def run_with_id(run_id: str, env: Mapping[str, str] = os.environ) -> Listed | None:
    """Return the run with exactly this id, which is never taken for a path."""
    run = run_at(f"{state_folder(env, 'runs')}/{run_id}") if _is_run_id(run_id) else None
    return run if run and run.id == run_id and _is_local(run) else None


def runs_in(ralph: str | os.PathLike[str]) -> list[Listed]:
    """Return the runs that are kept in this `.ralph/`, oldest first."""
    folder = f"{os.fspath(ralph)}/runs"
    return [run for name in names_in(folder) if (run := run_at(f"{folder}/{name}"))]


def backlogs_in(ralph: str | os.PathLike[str]) -> list[Listed]:
    """Return the backlogs that are kept in this `.ralph/`, oldest first."""
    return [run for run in runs_in(ralph) if run.by_kind(False, True)]


def run_at(path: str | os.PathLike[str]) -> Listed | None:
    """Return the run in this folder, or behind this link to one; None if there is none, or it never began."""
    path = os.fspath(path)
    facts: AnySummary | None = _read(path)
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
    if not is_alive and not facts.has_begun:
        return None  # it was refused before it began
    return Listed(os.path.basename(place), place, facts, is_alive)


def _is_run_id(name: str) -> bool:
    return name.isascii() and name.replace("-", "").replace("_", "").replace(".", "").isalnum()


def read_summary(path: str) -> RunSummary | None:
    """Return the summary that the run in this folder keeps; None if it cannot be read."""
    facts = _read(path)
    return facts if isinstance(facts, RunSummary) else None


def _read(path: str) -> AnySummary | None:
    try:
        data = read_file(f"{path}/{STATE}", MAX_STATE)
        facts = decode_summary(data)
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


def _without_control_characters(facts: Facts) -> Facts:
    texts = {name: clean(value) for name, value in asdict(facts).items() if isinstance(value, str)}
    return replace(facts, **texts)


def _is_local(run: Listed) -> bool:
    """Whether the run was played on this machine, or in the current folder. Machines may share a home."""
    if run.facts.machine in ("", machine_id()):
        return True
    with suppress(OSError):  # the current folder was removed
        return f"{os.getcwd()}/".startswith(f"{run.facts.workspace}/")
    return False


Objection = Callable[[Listed], str]
"""Returns why a run cannot be meant, as the end of a sentence that begins with its name; "" if it can."""

_ALL = "`ralph ps -a` lists all runs"


def find_workspace(folder: Path) -> Path:
    """Return the nearest folder with runs, from this one up to the top of its repository; else this one."""
    places = (folder, *folder.parents)
    tops = [at for at, place in enumerate(places) if (place / ".git").exists()]
    inside = places[: tops[0] + 1] if tops else places[:1]
    return next((place for place in inside if (place / ".ralph" / "runs").is_dir()), folder)


def find_run(
    name: str, here: Path, objection: Objection = lambda run: "", env: Mapping[str, str] = os.environ
) -> Listed:
    """Return the run called `name` (any unique part of its id), or the one that makes sense without a name. In the own
    worktree of a run that is this run."""
    if not name and (own := _run_of_worktree(here, env)):
        if why_not := objection(own):
            raise UserError(f"run {own.id}, to which this worktree belongs, {why_not}", _ALL)
        return own
    try:
        local = runs_in(here / ".ralph")  # oldest first
    except PermissionError:
        whose = owner(here / ".ralph" / "runs")
        raise UserError(f"the runs in {here} belong to {whose}", f"only {whose} may look at them") from None
    kept_here = {run.id for run in local}
    try:
        others = [run for run in runs(env) if run.id not in kept_here]
    except UserError:  # without the list of all runs, those that are kept here can still be found
        if not local:
            raise
        others = []
    candidates = [*others, *local]
    # The runs of a task work here but are kept in the task's folder.
    local = sorted((*local, *(run for run in others if run.facts.workspace == str(here))), key=lambda run: run.id)
    return _find_named(name, candidates, objection) if name else _find_obvious(local, candidates, here, objection)


def _run_of_worktree(folder: Path, env: Mapping[str, str]) -> Listed | None:
    """Return the run whose own worktree contains this folder; None if it isn't in one."""
    place, worktrees = os.path.realpath(folder), os.path.realpath(state_folder(env, "worktrees"))
    if not place.startswith(f"{worktrees}/"):
        return None
    top = os.path.join(worktrees, os.path.relpath(place, worktrees).partition("/")[0])
    return next((run for run in reversed(runs(env)) if run.facts.worktree == top), None)


def _find_named(name: str, candidates: list[Listed], objection: Objection) -> Listed:
    matching = [run for run in candidates if run.id == name]
    if not matching:  # the latest run for a task of a backlog, by the task's key
        of_task = [
            run for run in candidates if run.facts.backlog_task and run.facts.backlog_task == name.removeprefix("#")
        ]
        matching = sorted(of_task, key=lambda run: run.id)[-1:] or [run for run in candidates if name in run.id]
    if not matching:
        raise UserError(f"no such run: {name!r}", _hint(candidates))
    fitting = [run for run in matching if not objection(run)]
    if len(fitting) == 1:
        return fitting[0]
    if len(matching) == 1:
        raise UserError(f"run {matching[0].id} {objection(matching[0])}", _ALL)
    raise UserError(f"{name!r} is ambiguous: {_ids(fitting or matching)}", "type more of the id")


def _find_obvious(local: list[Listed], candidates: list[Listed], here: Path, objection: Objection) -> Listed:
    # Without a name, a person means a task or a backlog, not the runs that were started for parts of it.
    running = [run for run in local if run.is_alive and not run.is_part and not objection(run)]
    if len(running) > 1:
        raise UserError(f"several runs match: {_ids(running)}", "name one; `ralph ps` describes them")
    latest_first = sorted(local, key=lambda run: (run.is_alive, not run.is_part))[::-1]
    # One at a time: an objection may read a whole journal.
    if run := next((run for run in (*running, *latest_first) if not objection(run)), None):
        return run
    elsewhere = [run for run in candidates if run.is_alive and not run.is_part and not objection(run)]
    if len(elsewhere) == 1:
        return elsewhere[0]
    if elsewhere:
        raise UserError(f"several runs match: {_ids(elsewhere)}", "name one; `ralph ps` describes them")
    if local:
        last = max(reversed(local), key=lambda run: not run.is_part)
        raise UserError(f"run {last.id}, the last one in {here}, {objection(last)}", _ALL)
    raise UserError(f"nothing has been run in {here}", _hint(candidates))


def refuse_foreign(run: Listed) -> None:
    """Raise unless the run is the user's own: another user's note would be a file that the run cannot read."""
    whose = owner(run.place)
    if whose != _user_name(os.geteuid()):
        raise UserError(f"run {run.id} belongs to {whose}", f"only {whose} may steer it")


def owner(path: str | Path) -> str:
    try:
        return _user_name(os.stat(path).st_uid)
    except PermissionError:
        return "another user"


def _user_name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"user {user}"


def _ids(listed: list[Listed]) -> str:
    more = f" and {len(listed) - 5} more" if len(listed) > 5 else ""
    return ", ".join(run.id for run in listed[-5:]) + more


def _hint(listed: list[Listed]) -> str:
    return f"on record: {_ids(listed)}" if listed else 'start one with `ralph run "GOAL"`'


def why_not_begun(run: Listed) -> str:
    has_begun = run.by_kind(False, True) or load_run(run.folder.journal).started
    return "" if has_begun else "never began"


# Appended to the run's id in the mark of processes other than its turns and checks.
GATE_SUFFIX = "-gate"  # processes of a backlog's merge gate
COPY_SUFFIX = "-copy"  # processes in a throwaway copy


class OrphanedRun(Struct, frozen=True):
    """A dead run that has running processes; also a line of `ralph ps --json`."""

    run: str
    workspace: str
    processes: tuple[str, ...]
    state: str = "left behind"
    alive: bool = False

    def __str__(self) -> str:
        count = len(self.processes)
        return f"{count} process{'' if count == 1 else 'es'} ({one_line(', '.join(self.processes), 120)})"

    @property
    def killed_words(self) -> str:
        """What to say once it was killed."""
        return f"run {self.run} was killed earlier; killed what it left running: {self}"


def find_orphans(env: Mapping[str, str] = os.environ) -> list[OrphanedRun]:
    """Return the dead runs of this user that still have running processes."""
    orphans = []
    for mark, marked in sorted(marked_processes().items()):
        run = run_with_id(mark.removesuffix(GATE_SUFFIX).removesuffix(COPY_SUFFIX), env)
        if run is None or _is_active(run, marked):
            continue
        names = [f"{process.pid} {process.name.decode('utf-8', 'replace')}" for process in processes_of_run(mark)]
        if names:
            orphans.append(OrphanedRun(mark, run.facts.workspace, tuple(names)))
    return orphans


def kill_orphans(time_left: Callable[[], float] = lambda: float("inf")) -> list[OrphanedRun]:
    """Kill the processes of all dead runs; return what was killed."""
    orphans = find_orphans()
    for orphan in orphans:
        kill_run(orphan.run, time_left=time_left)
    return orphans


def _is_active(run: Listed, marked: Iterable[RunningProcess]) -> bool:
    """Return whether ralph still looks after the run, and after its `marked` processes.

    The pid of a run inside a container means nothing outside, but its lock and its keeper can be seen from there.
    """
    is_locked = not run.facts.branch and is_occupied(Path(run.facts.workspace))
    ancestors = (ancestor for process in marked for ancestor in ancestors_of(process.pid))
    return run.is_alive or is_locked or any(process.name == KEEPER_NAME.encode() for process in ancestors)
