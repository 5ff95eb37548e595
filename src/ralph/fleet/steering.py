"""See and steer the backlog runs of a fleet from any machine.

A request becomes an event in the log, so it needs neither a clone nor a running worker.
"""

import os
from functools import partial

from msgspec.structs import replace

from ralph.backlog.ledger import WorkTold
from ralph.backlog.task_requests import TaskRequest, events_for_request, explain_no_effect, find_task
from ralph.core import work_events
from ralph.core.backlog import Board
from ralph.core.text import one_line
from ralph.core.work_events import WorkState
from ralph.errors import UserError
from ralph.fleet.database import Database, Transaction
from ralph.fleet.log import Decide, WorkerRow, WorkLog, WorkRow, list_workers, list_works, summarize

DONE = {
    "retry": "{key} is tried again",
    "withdraw": "{key} is withdrawn; its branch stays",
    "pause": "{work} pauses: each loop stops before its next turn",
    "resume": "{work} continues",
    "stop": "{work} ends: each loop after its turn",
}


def decide_request(request: TaskRequest, state: WorkState) -> list[WorkTold]:
    """Return the events for a request about a task. A retry reopens a backlog run that is over."""
    job = find_task(state.board, request.key, state.started.name if state.started else "")
    events = events_for_request(state.board, replace(request, key=job.task.key))
    if not events:
        raise explain_no_effect(job, request)
    return [*_reopen(state), *events] if request.kind == "retry" else [*events]


def decide_letter(request: TaskRequest, state: WorkState) -> list[WorkTold]:
    """Like `decide_request`, for a request from a mailbox: its task may have started since. It then starts again, with
    the note."""
    if request.note and state.board.is_working(request.key):
        return [work_events.TaskQueued(request.key, "a person left a note", request.note)]
    return decide_request(request, state)


def decide_pause(is_paused: bool, state: WorkState) -> list[WorkTold]:
    """Return the event that pauses a backlog run, or lets it continue."""
    return [] if state.finished or is_paused == state.board.is_paused else [work_events.WorkPaused(is_paused)]


def decide_action(action: str, state: WorkState) -> list[WorkTold]:
    """Return the events that pause, resume or stop a backlog run. One that is over can be resumed."""
    if state.finished and action == "resume":
        return _reopen(state)
    if state.finished:
        raise UserError("this backlog run is over", "`ralph work resume` continues it")
    if action == "stop":
        return [summarize(state, "interrupted", "stopped by a person", 130)]
    return decide_pause(action == "pause", state)


def _reopen(state: WorkState) -> list[WorkTold]:
    return [replace(state.started, resumed=True, pid=os.getpid())] if state.finished and state.started else []


async def steer(database: Database, action: str, work: str, key: str = "", note: str = "") -> str:
    """Write a request about a backlog run, or about a task in it, to the log; return a message for the user."""
    decide: Decide = partial(decide_action, action)
    if action in ("retry", "withdraw"):
        decide = partial(decide_request, TaskRequest("retry" if action == "retry" else "withdraw", key, note))
    row = await database.transact(find_work, work)
    state = await WorkLog(database, row.id).append("", decide)
    known = find_task(state.board, key, row.name).task.key if key else ""
    return DONE[action].format(work=row.name, key=known)


async def find_work(connection: Transaction, name: str) -> WorkRow:
    """Return the named backlog run, or the one that is open, or the last one."""
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


async def load_work(database: Database, name: str) -> tuple[WorkRow, WorkState, list[WorkerRow]]:
    """Return a backlog run as it is now, and the workers of its repository."""
    row = await database.transact(find_work, name)
    state = await WorkLog(database, row.id).refresh()
    workers = await database.transact(list_workers)
    return row, state, [one for one in workers if one.repository == row.repository]


def describe_worker(worker: WorkerRow, board: Board) -> str:
    """Return a line about a worker: which tasks it runs, and when it last sent a heartbeat."""
    tasks = [job.task.key for job in board.of("working") if job.worker == worker.name]
    heard = f"heard {max(worker.silence, 0.0):.0f} s ago" if worker.is_present else "silent"
    return " " + one_line(f"{worker.name}: {', '.join(tasks) or 'waits'} ({worker.slots} at a time, {heard})", 500)
