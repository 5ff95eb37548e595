"""What happens while a backlog is worked off, and how does each event change what is known of it?"""

from typing import get_args

from msgspec import Struct
from msgspec.structs import replace

from ralph.core.backlog import Board, GateVerdict, Item, Job, after_gate
from ralph.core.events import named


class WorkStarted(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The first event of a work, and of each time it is resumed. `base` is the commit from which the target starts."""

    name: str
    backlog: str
    workspace: str
    target: str
    base: str = ""
    push: str = ""
    checks: tuple[str, ...] = ()
    slots: int = 1
    most_returns: int = 3
    max_cost: float | None = None
    max_time: float | None = None
    pid: int = 0
    version: str = ""
    resumed: bool = False


class ItemListed(Struct, frozen=True):
    """An item stands in the list, or stands there with other words than before."""

    item: Item


class ItemQueued(Struct, frozen=True, omit_defaults=True):
    """It waits for its turn again: a person wants it tried once more, or its loop was cut off."""

    key: str
    reason: str = ""
    note: str = ""
    forgiven: bool = False


class ItemStarted(Struct, frozen=True, omit_defaults=True):
    """A loop works on it. `round` counts them from 1; `worker` is who has it, where there is more than one."""

    key: str
    round: int
    run: str = ""
    worker: str = ""


class ItemReady(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Its loop is done and verified; the work is committed as `tip`."""

    key: str
    tip: str
    files: tuple[str, ...] = ()
    run: str = ""
    cost_usd: float | None = None


class ItemLanded(Struct, frozen=True, omit_defaults=True):
    """It is in the target: `tip` is an ancestor of it, since `commit`."""

    key: str
    tip: str = ""
    commit: str = ""


class ItemReturned(Struct, frozen=True, omit_defaults=True):
    """The gate sent it back. Nothing else lands on `files` until it has come again."""

    key: str
    reason: str
    note: str = ""
    files: tuple[str, ...] = ()


class ItemParked(Struct, frozen=True, omit_defaults=True):
    """It stands aside until a person speaks."""

    key: str
    reason: str
    run: str = ""
    cost_usd: float | None = None


class ItemWithdrawn(Struct, frozen=True):
    """A person withdrew it or, `by_list`, ticked it or took it off the list. Its branch stays."""

    key: str
    reason: str
    by_list: bool = False


class ItemWarned(Struct, frozen=True):
    """Something has landed that its work will conflict with: its agent was told."""

    key: str
    files: tuple[str, ...]


class GateStarted(Struct, frozen=True):
    keys: tuple[str, ...]


class GateFinished(Struct, frozen=True, omit_defaults=True):
    """What the gate saw, and how long it took."""

    verdict: GateVerdict
    duration_s: float = 0.0


class GateOpened(Struct, frozen=True):
    """The target itself passes every check."""

    commit: str


class WorkHeld(Struct, frozen=True):
    """Nothing new starts and nothing lands until a person speaks; or that is over."""

    is_held: bool


class WorkFinished(Struct, frozen=True, kw_only=True):
    """The last event of a work, whatever ended it."""

    outcome: str
    reason: str
    landed: int
    parked: int
    blocked: int
    items: int
    cost_usd: float | None
    duration_s: float
    exit_code: int


WorkEvent = (
    WorkStarted
    | ItemListed
    | ItemQueued
    | ItemStarted
    | ItemReady
    | ItemLanded
    | ItemReturned
    | ItemParked
    | ItemWithdrawn
    | ItemWarned
    | GateStarted
    | GateFinished
    | GateOpened
    | WorkHeld
    | WorkFinished
)

NAMES = named(get_args(WorkEvent))


def after(board: Board, event: object, at: float) -> Board:
    """The board once `event` has happened."""
    return changed(copied(board), event, at)


def copied(board: Board) -> Board:
    """For one who changes it, while others have it in their hands."""
    return replace(board, jobs={**board.jobs}, working={**board.working})


def changed(board: Board, event: object, at: float) -> Board:
    """The same where the board is in nobody else's hands: its jobs are changed where they are. To copy a thousand of
    them for each of a thousand events would take longer than to read them."""
    match event:
        case WorkStarted():
            known = {"slots": event.slots, "most_returns": event.most_returns, "max_cost": event.max_cost}
            # Nothing is at work when a work begins to go on.
            for key in (*board.working,):  # not all jobs: a journal may tell of a thousand beginnings
                _with(board, replace(board.jobs[key], state="queued"))
            return replace(board, **known, trying=(), stuck="", is_held=False)
        case ItemListed():
            job = board.jobs.get(event.item.key)
            return _with(board, replace(job, item=event.item) if job else Job(item=event.item, since=at))
        case GateStarted():
            return replace(board, trying=event.keys)
        case GateFinished():
            return after_gate(board, event.verdict)
        case WorkHeld():
            return replace(board, is_held=event.is_held)
        case ItemReady() | ItemParked():
            return _spent(_with(board, _ended(board.jobs[event.key], event, at)), event.cost_usd)
        case ItemQueued() | ItemStarted() | ItemLanded() | ItemReturned() | ItemWithdrawn():
            return _with(board, _moved(board.jobs[event.key], event, at))
    return board


def _moved(job: Job, event: ItemQueued | ItemStarted | ItemLanded | ItemReturned | ItemWithdrawn, at: float) -> Job:
    match event:
        case ItemQueued():
            kept = {"returns": 0, "refused": ()} if event.forgiven else {}
            return replace(job, state="queued", reason=event.reason, note=event.note or job.note, since=at, **kept)
        case ItemStarted():
            known = {"rounds": event.round, "run": event.run or job.run, "worker": event.worker}
            return replace(job, state="working", reason="", since=at, **known)
        case ItemLanded():
            return replace(job, state="landed", commit=event.commit, reason="", note="", since=at)
        case ItemReturned():
            known = {"reason": event.reason, "note": event.note, "refused": event.files}
            return replace(job, state="queued", returns=job.returns + 1, since=at, **known)
        case ItemWithdrawn():
            return replace(job, state="withdrawn", reason=event.reason, by_list=event.by_list, since=at)


def _ended(job: Job, event: ItemReady | ItemParked, at: float) -> Job:
    """The item once its loop has come to an end, or the gate has had enough of it."""
    cost = event.cost_usd if job.cost_usd is None else job.cost_usd + (event.cost_usd or 0.0)
    known = {"run": event.run or job.run, "cost_usd": cost, "since": at}
    if isinstance(event, ItemReady):
        return replace(job, state="ready", tip=event.tip, files=event.files, reason="", note="", **known)
    return replace(job, state="parked", reason=event.reason, **known)


def _spent(board: Board, cost: float | None) -> Board:
    return replace(board, spent=board.spent + cost) if cost is not None else board


def _with(board: Board, job: Job) -> Board:
    board.jobs[job.item.key] = job
    if job.state == "working":
        board.working[job.item.key] = job.run
    else:
        board.working.pop(job.item.key, None)
    return board
