"""Processes that are still running although their run and its keeper were killed.

They are found by their mark: the environment variable RALPH_RUN_ID holds the id of the run that started them. A
process that has cleared its environment is not found.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec import Struct

from ralph.core.text import one_line
from ralph.process.descendants import ancestors_of, kill_run, marked_processes, processes_of_run, runs_with_processes
from ralph.process.keeper_program import NAME
from ralph.store.folder import is_occupied
from ralph.store.register import Listed, run_with_id

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


def find_orphans(env: Mapping[str, str] = os.environ) -> list[OrphanedRun]:
    """Return the dead runs of this user that still have running processes."""
    found = []
    for mark in sorted(runs_with_processes()):
        run = run_with_id(mark.removesuffix(GATE_SUFFIX).removesuffix(COPY_SUFFIX), env)
        if run is None or _is_active(run, mark):
            continue
        names = [f"{process.pid} {process.name.decode('utf-8', 'replace')}" for process in processes_of_run(mark)]
        if names:
            found.append(OrphanedRun(mark, run.facts.workspace, tuple(names)))
    return found


def kill_orphans(
    env: Mapping[str, str] = os.environ, time_left: Callable[[], float] = lambda: float("inf")
) -> list[OrphanedRun]:
    """Kill the processes of all dead runs; return what was killed."""
    orphans = find_orphans(env)
    for orphan in orphans:
        kill_run(orphan.run, time_left=time_left)
    return orphans


def _is_active(run: Listed, mark: str) -> bool:
    """Return whether ralph still looks after the run.

    The pid of a run inside a container means nothing outside, but its lock and its keeper can be seen from there.
    """
    is_locked = not run.facts.branch and is_occupied(Path(run.facts.workspace))
    return run.is_alive or is_locked or any(map(_has_keeper, (process.pid for process in marked_processes(mark))))


def _has_keeper(pid: int) -> bool:
    return any(process.name == NAME.encode() for process in ancestors_of(pid))
