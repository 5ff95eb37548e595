"""See and steer the backlog runs of a fleet from any machine.

A request becomes an event in the log, so it needs neither a clone nor a running worker.
"""

import os
import time
from collections.abc import Iterable, Iterator
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from ralph.backlog.ledger import WorkTold
from ralph.backlog.task_requests import TaskRequest, events_for_request, explain_no_effect, find_task
from ralph.core import work_events
from ralph.core.backlog import Board
from ralph.core.text import one_line
from ralph.core.work_events import WorkState
from ralph.errors import UserError
from ralph.fleet.database import Database, Transaction
from ralph.fleet.log import Decide, WorkerRow, WorkLog, WorkRow, list_workers, list_works
from ralph.history.work_history import WorkHistory, fold_work
from ralph.store.journal import decode_entry

DONE = {
    "retry": "{key} is tried again",
    "withdraw": "{key} is withdrawn; its branch stays",
    "pause": "{work} pauses: each loop stops before its next turn",
    "resume": "{work} continues",
    "stop": "{work} ends: each loop after its turn",
}


def decide_task_request(request: TaskRequest, state: WorkState) -> list[WorkTold]:
    """Return the events for a request about a task. A retry reopens a backlog run that is over."""
    job = find_task(state.board, request.key, state.started.name if state.started else "")
    events = events_for_request(state.board, replace(request, key=job.task.key))
    if not events:
        raise explain_no_effect(job, request)
    return [*_reopen(state), *events] if request.kind == "retry" else [*events]


def decide_pause(is_paused: bool, state: WorkState) -> list[WorkTold]:
    if state.finished:
        raise UserError("this backlog run is over", "`ralph work resume` continues it")
    return [work_events.WorkPaused(is_paused)] if state.board.is_paused != is_paused else []


def decide_resume(state: WorkState) -> list[WorkTold]:
    return _reopen(state) if state.finished else decide_pause(False, state)


def decide_stop(state: WorkState) -> list[WorkTold]:
    """Return the events that end a backlog run: each loop after its turn. It can be resumed."""
    if state.finished:
        raise UserError("this backlog run is over", "nothing is left to stop")
    return [work_events.work_summary(state.board, "interrupted", "stopped by a person", 130, time.time() - state.began)]


def _reopen(state: WorkState) -> list[WorkTold]:
    return [replace(state.started, resumed=True, pid=os.getpid())] if state.finished and state.started else []


async def steer(database: Database, action: str, work: str, key: str = "", note: str = "") -> str:
    """Write a request about a backlog run, or about a task in it, to the log; return a message for the user."""
    decisions: dict[str, Decide] = {
        "retry": partial(decide_task_request, TaskRequest("retry", key, note)),
        "withdraw": partial(decide_task_request, TaskRequest("withdraw", key)),
        "pause": partial(decide_pause, True),
        "resume": decide_resume,
        "stop": decide_stop,
    }
    row = await database.transact(_find_work, work)
    state = await WorkLog(database, row.id).append("", decisions[action])
    known = find_task(state.board, key, row.name).task.key if key else ""
    return DONE[action].format(work=row.name, key=known)


class WorkView(Struct, frozen=True):
    """A backlog run as it is now, and the workers of its repository."""

    row: WorkRow
    history: WorkHistory
    workers: tuple[WorkerRow, ...]

    @property
    def board(self) -> Board:
        return self.history.board


async def load_view(database: Database, name: str = "") -> WorkView:
    """Return the named backlog run, or the one that is open, or the last one."""
    row = await database.transact(_find_work, name)
    log = WorkLog(database, row.id)
    state = await log.refresh()
    history = fold_work(row.id, filter(None, (decode_entry(line) for _, line in log.new_lines)))
    history.state = state.finished.outcome if state.finished else "running"
    workers = await database.transact(list_workers)
    return WorkView(row, history, tuple(one for one in workers if one.repository == row.repository))


async def _find_work(connection: Transaction, name: str) -> WorkRow:
    known = await list_works(connection)
    if not known:
        raise UserError("no backlog in this database", "start one: ralph work BACKLOG --db URL --push --check CMD")
    if name:
        found = [row for row in known if name in (row.name, row.id)]
        if not found:
            names = ", ".join(row.name for row in known[-10:])
            raise UserError(f"no backlog run {name} in this database", f"known: {names}")
        return found[-1]
    opened = [row for row in known if row.is_open]
    if len(opened) > 1:
        names = ", ".join(f"{row.name} ({row.backlog})" for row in opened)
        raise UserError(f"several backlogs are open: {names}", "name one of them")
    return (opened or known)[-1]


def tasks_of(worker: WorkerRow, boards: Iterable[Board]) -> list[str]:
    """Return the keys of the tasks that a worker runs."""
    return [job.task.key for board in boards for job in board.of("working") if job.worker == worker.name]


def describe_workers(workers: Iterable[WorkerRow], boards: Iterable[Board]) -> Iterator[str]:
    """Yield a line for each worker: where it is, which tasks it runs, and when it last sent a heartbeat."""
    boards = [*boards]
    for worker in workers:
        doing = one_line(f"{worker.name} on {worker.host}: {', '.join(tasks_of(worker, boards)) or 'waits'}", 500)
        silence = max(worker.silence, 0.0)
        heard = f"heard {silence:.0f} s ago" if worker.is_present else f"silent for {silence:.0f} s"
        if silence >= 120:
            heard = f"silent for {silence / 60:.0f} min"
        yield f" {doing} ({worker.slots} at a time, {heard})"
