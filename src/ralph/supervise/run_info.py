"""What is known of one run in a task, and where does it keep its things? In a folder of `runs/`, whose `run-info.yaml`
says how it stands: the supervisor, its child runs and whoever looks on may change it at once."""

import os
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, replace

from ralph.core.model import Turn
from ralph.core.rules import WAIT_EXIT_CODE
from ralph.errors import UserError
from ralph.files import locked, make_folder, put, read_file, unusable
from ralph.processes.descendants import is_living, own_start, start_of
from ralph.processes.program import seconds_left
from ralph.records.folder import RunFolder, TurnFolder
from ralph.supervise import remarks
from ralph.supervise.remarks import Announcer
from ralph.supervise.task_folder import TaskFolder, task_environment

FILE = "run-info.yaml"
RunStatus = Literal["running", "completed", "failed", "stopped", "unreadable"]


class RunInfo(Struct, frozen=True, kw_only=True):
    """One run. `pid` is the agent, `owner_pid` the ralph that looks after it; their starts tell them from later
    processes with the same numbers. `attempt` counts from 1; a child run has a parent and no attempt."""

    run_id: str
    status: RunStatus = "running"
    project_id: str = ""
    task_id: str = ""
    parent_run_id: str = ""
    previous_run_id: str = ""
    attempt: int = 0
    agent: str = ""
    pid: int = 0
    pgid: int = 0
    pid_start: str = ""
    owner_pid: int = 0
    owner_start: str = ""
    started_at: str = ""
    ended_at: str = ""
    exit_code: int | None = None
    error_summary: str = ""
    prompt_path: str = ""
    stdout_path: str = ""
    stderr_path: str = ""
    output_path: str = ""


def create(
    folder: TaskFolder, agent: str, now: float, *, attempt: int = 0, parent: str = "", previous: str = ""
) -> RunInfo:
    """A new run with a folder of its own, for the user's eyes only, looked after by this process."""
    path = _new_folder(folder.runs, now)
    info = RunInfo(
        run_id=path.name,
        project_id=folder.project,
        task_id=folder.task,
        parent_run_id=parent,
        previous_run_id=previous,
        attempt=attempt,
        agent=agent,
        owner_pid=os.getpid(),
        owner_start=own_start(),
        started_at=timestamp(now),
        prompt_path=str(path / "prompt.md"),
        stdout_path=str(path / "agent-stdout.txt"),
        stderr_path=str(path / "agent-stderr.txt"),
        output_path=str(path / "output.md"),
    )
    put(path / FILE, dump(asdict(info)))
    return info


def started(path: Path, pid: int, pgid: int) -> RunInfo:
    """Note that the agent of the run in `path` is at work."""
    return update(path, pid=pid, pgid=pgid, pid_start=start_of(pid) or "")


def ended(path: Path, now: float, status: RunStatus, exit_code: int | None, error_summary: str = "") -> RunInfo:
    """Note how the run in `path` ended."""
    return update(path, status=status, exit_code=exit_code, error_summary=error_summary, ended_at=timestamp(now))


def release(path: Path) -> RunInfo:
    """Note that nobody looks after the run in `path` any more: no attempt follows it."""
    return update(path, owner_pid=0, owner_start="")


def update(path: Path, **fields: str | int | None) -> RunInfo:
    """Change some fields of the run in the folder `path`; what others change meanwhile is kept."""
    return amend(path, lambda info: replace(info, **fields))


def amend(path: Path, change: Callable[[RunInfo], RunInfo]) -> RunInfo:
    """Change the run in the folder `path` according to what it is at that moment."""
    with locked(path, seconds_left):
        info = load(path)
        changed = change(info)
        if changed != info:
            put(path / FILE, dump(asdict(changed)))
    return changed


def load(path: Path) -> RunInfo:
    """The run in the folder `path`."""
    try:
        text = read_file(path / FILE, 1 << 20).decode("utf-8")
        return msgspec.convert(parse(text), RunInfo, strict=False)
    except OSError as error:
        raise unusable(path / FILE, error) from None
    except ValueError as error:
        raise UserError(f"{path / FILE} cannot be read: {error}", "it is written by ralph alone") from None


def every(folder: TaskFolder) -> list[RunInfo]:
    """All runs of a task, the oldest first. One that cannot be read is among them, and says why."""
    try:
        paths = [Path(entry.path) for entry in os.scandir(folder.runs) if entry.is_dir()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise unusable(folder.runs, error) from None
    infos = [_readable(path) for path in paths if (path / FILE).exists()]
    return sorted(infos, key=lambda info: (info.started_at, info.run_id))


def timestamp(now: float) -> str:
    micros = round(now * 1_000_000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(micros // 1_000_000))}.{micros % 1_000_000:06d}Z"


def _readable(path: Path) -> RunInfo:
    try:
        return load(path)
    except UserError as error:
        return RunInfo(run_id=path.name, status="unreadable", error_summary=error.message)


def _new_folder(runs: Path, now: float) -> Path:
    try:
        make_folder(str(runs))
        while True:
            path = runs / f"{timestamp(now).translate(_AS_NAME)}-{os.urandom(2).hex()}"
            try:
                path.mkdir(mode=0o700)
                return path
            except FileExistsError:
                continue
    except OSError as error:
        raise unusable(runs, error) from None


_AS_NAME = str.maketrans({"-": "", ":": "", "T": "-", ".": "-", "Z": ""})


Scalar = str | int | None

# What may stand without quotes: nothing that YAML would take for a number, a date, a truth value or its own syntax.
_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./+-]*\Z")
_TAKEN = frozenset(("y", "n", "yes", "no", "on", "off", "true", "false", "null", "none"))


def dump(values: dict[str, Scalar]) -> str:
    return "".join(f"{key}: {_written(value)}\n" for key, value in values.items())


def parse(text: str) -> dict[str, str]:
    """The values as text. Raises ValueError for a line that is no `key: value`."""
    values = {}
    for line in text.split("\n"):
        if line.strip() in ("", "---") or line.startswith("#"):
            continue
        key, colon, value = line.partition(":")
        if not colon or not key.replace("_", "").isalnum():
            raise ValueError(f"not a `key: value`: {line[:80]!r}")
        values[key] = _read(value.strip())
    return values


def _written(value: Scalar) -> str:
    if value is None:
        return "null"
    if not isinstance(value, str):
        return str(value)
    if _PLAIN.match(value) and value.lower() not in _TAKEN:
        return value
    return '"' + "".join(map(_quoted, value)) + '"'


def _quoted(character: str) -> str:
    """Escapes that JSON and YAML have in common: so that what is written by one rule is read by either."""
    if character in '"\\':
        return "\\" + character
    if character.isprintable() or character > "\uffff":
        return character
    if "\ud800" <= character <= "\udfff":
        return "\ufffd"
    return {"\n": "\\n", "\t": "\\t", "\r": "\\r"}.get(character) or f"\\u{ord(character):04x}"


def _read(value: str) -> str:
    if value.startswith('"'):
        return msgspec.json.decode(value, type=str)
    if value.startswith("'"):
        return value[1:-1].replace("''", "'")
    return value


Timeouts = Mapping[str, float | None]


class Attempts(RunFolder):
    """The folder of a supervisor's own run, and a folder in the task for each time that it starts the agent.

    `timeouts` are the limits by the name under which a turn says what ended it.
    """

    def __init__(self, ralph: Path, run_id: str, announcer: Announcer, cap: int, timeouts: Timeouts) -> None:
        super().__init__(ralph, run_id)
        self.last: Attempt | None = None
        self._announcer, self._cap, self._timeouts = announcer, cap, timeouts

    @property
    def env(self) -> Mapping[str, str]:
        """What the agent of the latest attempt finds in its environment."""
        return self.last.env if self.last else {}

    def turn(self, number: int, purpose: str = "work", agent: str = "") -> TurnFolder:
        if purpose != "work":
            folder = super().turn(number, purpose)
            folder.env = self.env
            return folder
        if self.last and self.last.turn:
            self._announcer.say(remarks.restarting(self.last.number, self._cap, self.last.turn))
        self.close()
        task = self._announcer.task
        earlier = [run.run_id for run in every(task) if run.attempt]
        info = create(task, agent, time.time(), attempt=number, previous=earlier[-1] if earlier else "")
        self.last = self._attempt(info)
        self._announcer.say(remarks.starting(number, self._cap))
        return self.last

    def _attempt(self, info: RunInfo) -> "Attempt":
        return Attempt(info, self._announcer, self._timeouts)

    def close(self, status: RunStatus | None = None) -> None:
        """No attempt follows the last one."""
        if self.last:
            self.last.close(status)


class Iterations(Attempts):
    """The same where a workspace is the task: what each attempt reads and writes is kept as every run's is."""

    def _attempt(self, info: RunInfo) -> "Attempt":
        attempt = Attempt(info, self._announcer, self._timeouts, RunFolder.turn(self, info.attempt))
        with suppress(OSError):  # of a turn that did not count, or was cut off
            os.unlink(attempt.output)
        attempt.note(
            update,
            prompt_path=attempt.prompt,
            stdout_path=attempt.stdout,
            stderr_path=attempt.stderr,
            output_path=attempt.output,
        )
        return attempt


class JobFolder(RunFolder):
    """The folder of a child run: all that it has stands in the task's `runs/`."""

    def __init__(self, info: RunInfo, announcer: Announcer, timeouts: Timeouts) -> None:
        super().__init__(announcer.task.runs.parent, info.run_id)
        self.last = Attempt(info, announcer, timeouts)

    def turn(self, number: int, purpose: str = "work", agent: str = "") -> TurnFolder:
        self.last.name_agent(agent)
        return self.last

    def close(self, status: RunStatus | None = None) -> None:
        self.last.close(status)


class Attempt(TurnFolder):
    """One run of the agent, in the task's `runs/` unless kept in `folder`. What it wrote into `output.md` stays."""

    stdout_name = "agent-stdout.txt"
    stderr_name = "agent-stderr.txt"

    def __init__(
        self, info: RunInfo, announcer: Announcer, timeouts: Timeouts, folder: TurnFolder | None = None
    ) -> None:
        self._record = announcer.task.runs / info.run_id
        if folder:
            self.stdout_name, self.stderr_name = folder.stdout_name, folder.stderr_name
        path = folder.path if folder else str(self._record)
        super().__init__(path, task_environment(announcer.task, info.run_id, info.parent_run_id, path))
        self.number = info.attempt
        self.turn: Turn | None = None
        self._what = f"attempt {info.attempt}" if info.attempt else "job"
        self._agent, self._announcer, self._timeouts = info.agent, announcer, timeouts
        self._announcer.run = info.run_id

    def scratch(self) -> str:
        """Its own folder: agents are told of it, and leave their output there."""
        return self.path

    @property
    def is_complete(self) -> bool:
        return self.turn is not None and _status(self.turn) == "completed"

    def name_agent(self, agent: str) -> None:
        self._agent = agent
        self.note(update, agent=agent)

    def started(self, pid: int) -> None:
        # The keeper starts every process in a session, and so in a group, of its own.
        self.note(started, pid, pid)
        self._announcer.say(remarks.run_started(self._what, self._agent, pid))

    def ended(self, turn: Turn, answer: bytes) -> None:
        self.turn = turn
        if os.path.isdir(self.path) and not os.path.exists(self.output):
            super().ended(turn, answer)
        summary = remarks.how_ended(turn) if remarks.has_failed(turn) else ""
        self.note(ended, turn.ended_at or time.time(), _status(turn), turn.exit_code, summary)
        self._announcer.say(remarks.run_stopped(self._what, turn))
        if self.number:
            self._announcer.say(remarks.troubles(self.number, turn, self._timeouts.get(turn.ended_by)))

    def close(self, status: RunStatus | None = None) -> None:
        """Nobody looks after this run any more. `status`: what became of it, where its own end does not tell."""
        if self.turn is None:
            self.note(ended, time.time(), "failed", None, "ralph did not see its end")
        if status:
            self.note(update, status=status)
        self.note(release)

    def note(self, change: Callable[..., RunInfo], *values: object, **fields: object) -> None:
        """Writes down how the run stands. An agent that took its folder away has not spoilt its work."""
        try:
            change(self._record, *values, **fields)
        except UserError as error:
            self._announcer.trouble(error.message)


def _status(turn: Turn) -> RunStatus:
    if turn.exit_code == WAIT_EXIT_CODE or turn.ended_by == "interrupt":
        return "stopped"
    return "failed" if remarks.has_failed(turn) else "completed"


IsLiving = Callable[[int, str], bool]


class ChildProcesses:
    """The processes of a task's child runs, for the keeper to spare while they `are_spared`."""

    def __init__(self, folder: TaskFolder, are_spared: Callable[[], bool]) -> None:
        self._folder, self._are_spared = folder, are_spared

    def pids(self) -> list[int]:
        children = active_children(self._folder) if self._are_spared() else ()
        return [pid for run in children for pid in (run.owner_pid, run.pid) if pid]

    def expects(self, pid: int) -> bool:
        """Whether this process is a `ralph job` that has not come to telling of it yet."""
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as cmdline:
                words = [word.rpartition(b"/")[2] for word in cmdline.read().split(b"\0")]
        except OSError:
            return False
        return any(words[at : at + 2] == [b"ralph", b"job"] for at in range(len(words)))


class Supervised:
    """The supervisor of a task, as a child run sees it: who has no keeper above it any more must look for itself."""

    def __init__(self, folder: TaskFolder) -> None:
        self._folder = folder
        owners = [(run.owner_pid, run.owner_start) for run in every(folder) if run.attempt]
        self._owner = next((owner for owner in reversed(owners) if is_living(*owner)), None)

    @property
    def is_known(self) -> bool:
        """Whether there was one when the child began."""
        return self._owner is not None

    def was_killed(self) -> bool:
        """Whether it is gone without a word. One that ended of itself may have let its children live."""
        if self._owner is None or is_living(*self._owner):
            return False
        attempts = [run for run in every(self._folder) if run.attempt]
        return any((run.owner_pid, run.owner_start) == self._owner for run in attempts)


def active_children(folder: TaskFolder) -> list[RunInfo]:
    """The runs that are at work and are no attempts of the supervisor itself."""
    return [run for run in every(folder) if not run.attempt and is_active(run)]


def bury(folder: TaskFolder, now: Callable[[], float] = time.time) -> list[RunInfo]:
    """Mark as failed the runs whose processes died without a word. Gives those that were."""
    buried = []
    for run in every(folder):
        if is_dead(run):
            marked = amend(folder.runs / run.run_id, lambda run: _failed(run, now()) if is_dead(run) else run)
            buried += [marked] if marked.status == "failed" else []
    return buried


def is_active(run: RunInfo, living: IsLiving = is_living) -> bool:
    return run.status == "running" and _has_process(run, living)


def is_dead(run: RunInfo, living: IsLiving = is_living) -> bool:
    """Whether it says that it runs, and nobody does."""
    return run.status == "running" and not _has_process(run, living)


def _has_process(run: RunInfo, living: IsLiving) -> bool:
    return living(run.pid, run.pid_start) or living(run.owner_pid, run.owner_start)


def _failed(run: RunInfo, now: float) -> RunInfo:
    gone = f"its process {run.pid or run.owner_pid} is gone"
    return replace(run, status="failed", ended_at=timestamp(now), error_summary=run.error_summary or gone)
