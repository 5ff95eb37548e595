"""What became of a backlog? Its journal, folded into where each item stands, and when it was worked on and landed."""

from collections.abc import Iterable

from msgspec import Struct, field

from ralph.core import work_events
from ralph.core.backlog import SHOWN, Board, Job, shown
from ralph.core.events import TodoItem
from ralph.errors import UserError
from ralph.records.journal import Entry, read
from ralph.records.register import Listed


class WorkSpan(Struct):
    """A loop or a look of the gate, from its beginning to its end; what came of it in a word."""

    keys: tuple[str, ...]
    kind: str
    began: float
    ended: float = 0.0
    result: str = ""


class WorkHistory(Struct, kw_only=True):
    """All that is told of a work. `state` is its state now, `last` the moment of its last line."""

    run: str
    state: str = ""
    board: Board = field(default_factory=Board)
    started: work_events.WorkStarted | None = None
    finished: work_events.WorkFinished | None = None
    spans: list[WorkSpan] = []
    began: float = 0.0
    last: float = 0.0
    landings: int = 0
    returns: int = 0

    @property
    def target(self) -> str:
        return self.started.target if self.started else ""

    @property
    def states(self) -> dict[str, str]:
        return shown(self.board)

    def needing(self) -> list[tuple[Job, str]]:
        """The items that a person has to look at, and why."""
        states = self.states
        return [(job, job.reason) for key, job in self.board.jobs.items() if states[key] == "parked"]


def work_history(run: Listed) -> WorkHistory:
    """The history of a work as its journal tells it now."""
    try:
        history = folded(run.id, read(run.folder.journal))
    except OSError as error:
        raise UserError(f"cannot read {run.folder.journal}: {error.strerror}", "is the work's folder there?") from None
    history.state = run.state
    return history


def folded(run: str, entries: Iterable[Entry]) -> WorkHistory:
    history = WorkHistory(run=run)
    for entry in entries:
        event = entry.event()
        if event is None:
            continue
        try:
            history.board = work_events.changed(history.board, event, entry.at)
        except KeyError:  # about an item that a torn line had named
            continue
        at = entry.at
        history.began, history.last = history.began or at, at
        match event:
            case work_events.WorkStarted():
                history.started, history.finished = event, None
                for span in history.spans:
                    span.ended, span.result = span.ended or at, span.result or "cut off"
            case work_events.WorkFinished():
                history.finished = event
            case work_events.ItemStarted():
                history.spans.append(WorkSpan((event.key,), "loop", at))
            case (
                work_events.ItemReady()
                | work_events.ItemParked()
                | work_events.ItemQueued()
                | work_events.ItemWithdrawn()
            ):
                _close(history, "loop", at, work_events.NAMES[type(event)].removeprefix("item_"), event.key)
            case work_events.GateStarted():
                history.spans.append(WorkSpan(event.keys, "gate", at))
            case work_events.GateFinished():
                seen = event.verdict
                result = "stuck" if seen.stuck else "red" if seen.red else "landed" if seen.landed else "cut off"
                result = "refused" if result == "cut off" and (seen.conflicts or seen.empty) else result
                _close(history, "gate", at, result)
                history.landings += bool(seen.landed)
            case work_events.ItemReturned():
                history.returns += 1
    return history


def _close(history: WorkHistory, kind: str, at: float, result: str, key: str = "") -> None:
    for span in reversed(history.spans):
        if span.kind == kind and not span.ended and (not key or key in span.keys):
            span.ended, span.result = at, result
            return


def board_after(board: Board | None, event: object, at: float) -> Board:
    """What is known of a work after an event, by who has the board alone."""
    try:
        return work_events.changed(board or Board(), event, at)
    except KeyError:  # about an item that a torn line had named
        return board or Board()


def todo_of(board: Board) -> tuple[TodoItem, ...]:
    """The items as a list of things to do, what needs a person first."""
    words = {"landed": "done", "withdrawn": "done", "working": "active", "ready": "active"}
    states = shown(board)
    ordered = sorted(board.jobs.values(), key=lambda job: SHOWN.index(states[job.item.key]))
    items = ((states[job.item.key], job.item) for job in ordered)
    return tuple(TodoItem(f"{item.key} {state}: {item.about}", words.get(state, "pending")) for state, item in items)
