"""Requests about one task of a backlog run, such as "retry this task": messages in the run's mailbox."""

from pathlib import Path
from typing import Literal

from msgspec import Struct

from ralph.actions.control import wake
from ralph.core.backlog import Board, GateVerdict, Job
from ralph.core.backlog_events import BacklogEvent, GateFinished, TaskQueued, TaskWithdrawn
from ralph.errors import UserError
from ralph.history.backlog_history import backlog_history
from ralph.store.mailbox import Mailbox
from ralph.store.register import Listed, find_run, find_workspace

TASK_REQUEST = ".wish"


class TaskRequest(Struct, frozen=True):
    """A request about one task."""

    kind: Literal["retry", "withdraw"]
    key: str
    note: str = ""


def events_for_request(board: Board, request: TaskRequest) -> list[BacklogEvent]:
    """Return the events that follow from a request; none if it changes nothing."""
    job = board.jobs.get(request.key)
    if job is None or job.state == "merged":
        return []
    if request.kind == "withdraw":
        return [] if job.state == "withdrawn" else [TaskWithdrawn(request.key, "withdrawn by a person")]
    if job.state in ("parked", "withdrawn"):
        again = TaskQueued(request.key, "asked for by a person", request.note, forgiven=True)
        return [again, GateFinished(GateVerdict())] if board.stuck else [again]
    if request.note and job.state == "queued":
        return [TaskQueued(request.key, "a person left a note", request.note)]
    return []


def explain_no_effect(job: Job, request: TaskRequest) -> UserError:
    """Return the message for a request that changes nothing."""
    hints = {"retry": "only a parked or withdrawn task can be retried", "withdraw": "nothing is left to withdraw"}
    return UserError(f"{job.task.key} is {job.state}", hints[request.kind])


def find_task(board: Board, key: str, work: str) -> Job:
    wanted = key.removeprefix("#").casefold()
    match = next((job for job_key, job in board.jobs.items() if job_key.casefold() == wanted), None)
    if match is None:
        raise UserError(f"backlog run {work} has no task {key}", "`ralph work status` lists them")
    return match


def find_backlog_run(name: str, here: Path) -> Listed:
    """Return the named backlog run, or the one that fits if none is named."""
    return find_run(name, find_workspace(here), lambda run: run.by_kind("is not a backlog run", ""))


def leave_request(kind: str, key: str, note: str, here: Path) -> str:
    """Leave a request in the mailbox of the backlog run; return a message for the user."""
    run = find_backlog_run("", here)
    board = backlog_history(run).board
    job = find_task(board, key, run.id)
    request = TaskRequest("retry" if kind == "retry" else "withdraw", job.task.key, note)
    if not events_for_request(board, request):
        raise explain_no_effect(job, request)
    Mailbox(run.folder.path).leave(TASK_REQUEST, request)
    outcome = "tried again" if kind == "retry" else "left alone"
    if run.is_alive:
        wake(run)
        return f"{request.key} is {outcome}"
    return f"{request.key} will be {outcome}: continue with `ralph resume {run.id}`"


def tell_task(key: str, text: str, here: Path) -> str:
    """Leave a note for the next loop of a task; return a message for the user, or "" if its loop is running."""
    try:
        job = backlog_history(find_backlog_run("", here)).board.jobs.get(key.removeprefix("#"))
    except UserError:
        return ""
    is_waiting = job is not None and job.state in ("parked", "withdrawn", "queued")
    return leave_request("retry", key, text, here) if is_waiting else ""
