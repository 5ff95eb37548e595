"""The history of a backlog, folded from its journal: the state of each task, its runs and its merges."""

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from ralph.core import work_events
from ralph.core.backlog import STATE_ORDER, Board, Job, displayed_states
from ralph.core.events import TodoItem
from ralph.errors import UserError
from ralph.git.client import find_git
from ralph.store.journal import Entry, read_entries
from ralph.store.register import Listed


class WorkSpan(Struct):
    """The time of a run for a task, or of a merge, with its result in one word. `kind` is loop or gate."""

    keys: tuple[str, ...]
    kind: str
    began: float
    ended: float = 0.0
    result: str = ""


class WorkHistory(Struct, kw_only=True):
    """Everything that happened to a backlog.

    `state` is its present state, `last` the time of its last event, `returns` how often the gate returned a task;
    `has_target`: the branch that it merged into waits to be accepted. `is_gone`: that branch was removed, because
    the backlog was accepted as a whole or discarded.
    """

    run: str
    state: str = ""
    board: Board = field(default_factory=Board)
    started: work_events.WorkStarted | None = None
    finished: work_events.WorkFinished | None = None
    spans: list[WorkSpan] = []
    began: float = 0.0
    last: float = 0.0
    merges: int = 0
    has_target: bool = True
    is_gone: bool = False
    returns: int = 0

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


def work_history(run: Listed) -> WorkHistory:
    history = fold_work(run.id, read_entries(run.folder.journal))
    history.state = run.state
    return look_at_target(history)


def look_at_target(history: WorkHistory) -> WorkHistory:
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


def fold_work(run: str, entries: Iterable[Entry]) -> WorkHistory:
    history = WorkHistory(run=run)
    open_spans: defaultdict[str, list[WorkSpan]] = defaultdict(list)  # by the key of the task; "" for merges
    for entry in entries:
        event = entry.event()
        if event is None:
            continue
        at = entry.at
        history.board = board_after(history.board, event, at)
        history.began, history.last = history.began or at, at
        match event:
            case work_events.WorkStarted():
                history.started, history.finished = event, None
                for spans in open_spans.values():
                    while spans:
                        _end_latest(spans, at, "cut off")
            case work_events.WorkFinished():
                history.finished = event
            case work_events.TaskStarted():
                history.spans.append(WorkSpan((event.key,), "loop", at))
                open_spans[event.key].append(history.spans[-1])
            case (
                work_events.TaskReady()
                | work_events.TaskParked()
                | work_events.TaskQueued()
                | work_events.TaskWithdrawn()
            ):
                _end_latest(open_spans[event.key], at, work_events.NAMES[type(event)].removeprefix("task_"))
            case work_events.GateStarted() if event.keys:  # not for a check of the target itself
                history.spans.append(WorkSpan(event.keys, "gate", at))
                open_spans[""].append(history.spans[-1])
            case work_events.GateFinished():
                seen = event.verdict
                result = "stuck" if seen.stuck else "red" if seen.red else "merged" if seen.merged else "cut off"
                result = "refused" if result == "cut off" and (seen.conflicts or seen.empty) else result
                _end_latest(open_spans[""], at, result)
                history.merges += bool(seen.merged)
            case work_events.TaskReturned():
                history.returns += 1
    return history


def _end_latest(spans: list[WorkSpan], at: float, result: str) -> None:
    if spans:
        span = spans.pop()
        span.ended, span.result = at, result


def board_after(board: Board | None, event: object, at: float) -> Board:
    """Apply an event to a board in place, and return the board."""
    try:
        return work_events.apply_event(board or Board(), event, at)
    except KeyError:  # about a task whose line was torn
        return board or Board()


def todo_of(board: Board) -> tuple[TodoItem, ...]:
    """Return the tasks as a todo list: first those that need a person."""
    words = {"merged": "done", "withdrawn": "done", "working": "active", "ready": "active"}
    states = displayed_states(board)
    ordered = sorted(board.jobs.values(), key=lambda job: STATE_ORDER.index(states[job.task.key]))
    tasks = ((states[job.task.key], job.task) for job in ordered)
    return tuple(TodoItem(f"{task.key} {state}: {task.about}", words.get(state, "pending")) for state, task in tasks)
