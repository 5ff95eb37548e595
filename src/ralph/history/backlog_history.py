"""The history of a backlog, folded from its journal: the state of each task, and what was merged."""

import os
from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from ralph.core import backlog_events
from ralph.core.backlog import STATE_ORDER, Board, Job, displayed_states
from ralph.core.events import TodoItem
from ralph.errors import UserError
from ralph.git.client import Git, find_git
from ralph.git.merging import contribution
from ralph.store.folder import RunFolder
from ralph.store.journal import Entry, read_entries
from ralph.store.register import Listed


class BacklogHistory(Struct, kw_only=True):
    """Everything that happened to a backlog."""

    run: str
    state: str = ""
    """Its present state."""
    board: Board = field(default_factory=Board)
    started: backlog_events.BacklogStarted | None = None
    finished: backlog_events.BacklogFinished | None = None
    began: float = 0.0
    last: float = 0.0
    """The time of its last event."""
    merges: int = 0
    has_target: bool = True
    """The branch that it merged into waits to be accepted."""
    is_gone: bool = False
    """That branch was removed, because the backlog was accepted as a whole or discarded."""
    returns: int = 0
    """How often the gate returned a task."""

    @property
    def target(self) -> str:
        return self.started.target if self.started else ""

    @property
    def states(self) -> dict[str, str]:
        return displayed_states(self.board)

    def needing(self) -> list[tuple[Job, str]]:
        """Return the parked tasks that can be retried, with the reason."""
        states = self.states if not self.is_gone else {}
        return [(job, job.reason) for key, job in self.board.jobs.items() if states.get(key) == "parked"]


def backlog_history(run: Listed) -> BacklogHistory:
    history = fold_backlog(run.id, read_entries(run.folder.journal))
    history.state = run.state
    return look_at_target(history)


def look_at_target(history: BacklogHistory) -> BacklogHistory:
    """Return the history of a finished backlog with what git says about the branch that it merged into."""
    if not history.finished or not history.started or history.started.push:
        return history
    try:
        repository = find_git(Path(history.started.workspace))
        tip = repository.resolve(f"refs/heads/{history.target}") if repository else ""
        is_ahead = bool(repository and tip and repository.try_run("merge-base", "--is-ancestor", tip, "HEAD").code)
    except UserError:
        return replace(history, has_target=False)
    return replace(history, has_target=is_ahead, is_gone=bool(repository) and not tip)


def fold_backlog(run: str, entries: Iterable[Entry]) -> BacklogHistory:
    history = BacklogHistory(run=run)
    for entry in entries:
        event, at = entry.event(), entry.at
        if event is None:
            continue
        history.board = board_after(history.board, event, at)
        history.began, history.last = history.began or at, at
        match event:
            case backlog_events.BacklogStarted():
                history.started, history.finished = event, None
            case backlog_events.BacklogFinished():
                history.finished = event
            case backlog_events.GateFinished():
                history.merges += bool(event.verdict.merged)
            case backlog_events.TaskReturned():
                history.returns += 1
    return history


def board_after(board: Board | None, event: object, at: float) -> Board:
    """Apply an event to a board in place, and return the board."""
    try:
        return backlog_events.apply_event(board or Board(), event, at)
    except KeyError:  # about a task whose line was torn
        return board or Board()


def todo_of(board: Board) -> tuple[TodoItem, ...]:
    """Return the tasks as a todo list: first those that need a person."""
    words = {"merged": "done", "withdrawn": "done", "working": "active", "ready": "active"}
    states = displayed_states(board)
    ordered = sorted(board.jobs.values(), key=lambda job: STATE_ORDER.index(states[job.task.key]))
    tasks = ((states[job.task.key], job.task) for job in ordered)
    return tuple(TodoItem(f"{task.key} {state}: {task.about}", words.get(state, "pending")) for state, task in tasks)


def merged_range(run: Listed, repository: Git) -> tuple[str, str] | None:
    """Return the states before and after a task's merge; None if it isn't merged."""
    journal = RunFolder(run.folder.path.parents[1], run.facts.work).journal
    if not os.path.exists(journal):
        return None
    job = fold_backlog(run.facts.work, read_entries(journal)).board.jobs.get(run.facts.backlog_task)
    if job is None or job.state != "merged" or not (job.tip and job.commit):
        return None
    return contribution(repository, job.tip, job.commit)
