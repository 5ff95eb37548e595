"""Which runs that a task's agents started are still at work? A run's file may say so long after its process died."""

import time
from collections.abc import Callable, Collection, Iterable

from msgspec.structs import replace

from ralph.world import runinfo
from ralph.world.identity import is_living
from ralph.world.runinfo import RunInfo
from ralph.world.taskfolder import TaskFolder


def active_children(folder: TaskFolder, roots: Collection[str]) -> list[RunInfo]:
    """The runs below those with the ids `roots` that are at work."""
    return [run for run in below(runinfo.every(folder), roots) if is_active(run)]


def bury_children(folder: TaskFolder, roots: Collection[str], now: Callable[[], float] = time.time) -> list[RunInfo]:
    """Mark as failed the runs below `roots` whose processes died without a word. Gives those that were."""
    dead = [run for run in below(runinfo.every(folder), roots) if is_dead(run)]
    buried = []
    for run in dead:
        marked = runinfo.amend(folder.runs / run.run_id, lambda run: _failed(run, now()) if is_dead(run) else run)
        if marked.status == "failed":
            buried.append(marked)
    return buried


def below(runs: Iterable[RunInfo], roots: Collection[str]) -> list[RunInfo]:
    """The runs whose chain of parents leads to one of `roots`."""
    runs = list(runs)
    parents = {run.run_id: run.parent_run_id for run in runs}

    def leads_to_root(run_id: str) -> bool:
        seen = {run_id}
        while (run_id := parents.get(run_id, "")) and run_id not in seen:
            if run_id in roots:
                return True
            seen.add(run_id)
        return False

    return [run for run in runs if leads_to_root(run.run_id)]


Living = Callable[[int, str], bool]


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
