"""Which runs that a task's agents started are still at work? A run's file may say so long after its process died."""

import time
from collections.abc import Callable

from msgspec.structs import replace

from ralph.world.processes.identity import is_living
from ralph.world.supervision import runinfo
from ralph.world.supervision.runinfo import RunInfo
from ralph.world.supervision.taskfolder import TaskFolder

Living = Callable[[int, str], bool]


class Offspring:
    """The processes of a task's child runs, for the keeper to spare."""

    def __init__(self, folder: TaskFolder) -> None:
        self._folder = folder

    def pids(self) -> list[int]:
        return [pid for run in active_children(self._folder) for pid in (run.owner_pid, run.pid) if pid]

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
        owners = [(run.owner_pid, run.owner_start) for run in runinfo.every(folder) if run.attempt]
        self._owner = next((owner for owner in reversed(owners) if is_living(*owner)), None)

    @property
    def is_known(self) -> bool:
        """Whether there was one when the child began."""
        return self._owner is not None

    def was_killed(self) -> bool:
        """Whether it is gone without a word. One that ended of itself may have let its children live."""
        if self._owner is None or is_living(*self._owner):
            return False
        attempts = [run for run in runinfo.every(self._folder) if run.attempt]
        return any((run.owner_pid, run.owner_start) == self._owner for run in attempts)


def active_children(folder: TaskFolder) -> list[RunInfo]:
    """The runs that are at work and are no attempts of the supervisor itself."""
    return [run for run in runinfo.every(folder) if not run.attempt and is_active(run)]


def bury(folder: TaskFolder, now: Callable[[], float] = time.time) -> list[RunInfo]:
    """Mark as failed the runs whose processes died without a word. Gives those that were."""
    buried = []
    for run in runinfo.every(folder):
        if is_dead(run):
            marked = runinfo.amend(folder.runs / run.run_id, lambda run: _failed(run, now()) if is_dead(run) else run)
            buried += [marked] if marked.status == "failed" else []
    return buried


def is_active(run: RunInfo, living: Living = is_living) -> bool:
    return run.status == "running" and _has_process(run, living)


def is_dead(run: RunInfo, living: Living = is_living) -> bool:
    """Whether it says that it runs, and nobody does."""
    return run.status == "running" and not _has_process(run, living)


def _has_process(run: RunInfo, living: Living) -> bool:
    return living(run.pid, run.pid_start) or living(run.owner_pid, run.owner_start)


def _failed(run: RunInfo, now: float) -> RunInfo:
    gone = f"its process {run.pid or run.owner_pid} is gone"
    return replace(run, status="failed", ended_at=runinfo.timestamp(now), error_summary=run.error_summary or gone)
