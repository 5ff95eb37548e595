"""Events of a backlog run, how each changes the board, and the events that follow from a finished loop or merge."""

from typing import get_args

from msgspec import Struct, field
from msgspec.structs import replace

from ralph.core.backlog import (
    BacklogTask,
    Board,
    FailedCheck,
    GateVerdict,
    Job,
    TaskResult,
    after_gate,
    displayed_states,
    is_over,
    next_batch,
    next_starts,
)
from ralph.core.events import event_names
from ralph.core.model import Outcome
from ralph.core.text import listed, one_line


class BacklogStarted(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The first event of a backlog run, and of each time it is resumed. The target starts at commit `base`."""

    name: str
    backlog: str
    workspace: str
    target: str
    base: str = ""
    push: str = ""
    checks: tuple[str, ...] = ()
    slots: int = 1
    max_returns: int = 3
    max_cost: float | None = None
    max_time: float | None = None
    pid: int = 0
    version: str = ""
    resumed: bool = False


class TaskListed(Struct, frozen=True):
    """The backlog has a new task, or one whose text was changed."""

    task: BacklogTask


class TaskQueued(Struct, frozen=True, omit_defaults=True):
    """The task waits for a free slot again. `forgiven`: earlier refusals no longer count."""

    key: str
    reason: str = ""
    note: str = ""
    forgiven: bool = False


class TaskStarted(Struct, frozen=True, omit_defaults=True):
    """A loop works on the task. `attempt` counts from 1; `worker` names the machine in a fleet."""

    key: str
    attempt: int
    run: str = ""
    worker: str = ""


class TaskReady(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The task's loop is done and verified; the result is the commit `tip`."""

    key: str
    tip: str
    files: tuple[str, ...] = ()
    run: str = ""
    cost_usd: float | None = None


class TaskMerged(Struct, frozen=True, omit_defaults=True):
    """The target contains the task's commit `tip`, by the merge `commit`."""

    key: str
    tip: str = ""
    commit: str = ""


class TaskReturned(Struct, frozen=True, omit_defaults=True):
    """The gate refused the task. Nothing else that changes `files` is merged until it is ready again."""

    key: str
    reason: str
    note: str = ""
    files: tuple[str, ...] = ()


class TaskParked(Struct, frozen=True, omit_defaults=True):
    """The task needs a person: `ralph work retry KEY`."""

    key: str
    reason: str
    run: str = ""
    cost_usd: float | None = None


class TaskWithdrawn(Struct, frozen=True):
    """A person withdrew the task or, with `by_list`, ticked it or removed it from the backlog. Its branch stays."""

    key: str
    reason: str
    by_list: bool = False


class GateStarted(Struct, frozen=True):
    """The gate merges and checks these tasks together."""

    keys: tuple[str, ...]


class GateFinished(Struct, frozen=True, omit_defaults=True):
    """The gate's verdict, and how long it took."""

    verdict: GateVerdict
    duration_s: float = 0.0


class GateOpened(Struct, frozen=True, omit_defaults=True):
    """The target itself passes every check or, with --allow-red, fails only these."""

    commit: str
    red: tuple[FailedCheck, ...] = ()


class BacklogPaused(Struct, frozen=True):
    """A person paused the backlog run or, if not `is_paused`, let it continue."""

    is_paused: bool


class BacklogFinished(Struct, frozen=True, kw_only=True):
    """The last event of a backlog run."""

    outcome: str
    reason: str
    merged: int
    parked: int
    blocked: int
    tasks: int
    cost_usd: float | None
    duration_s: float
    exit_code: int


TaskEvent = TaskListed | TaskQueued | TaskStarted | TaskReady | TaskMerged | TaskReturned | TaskParked | TaskWithdrawn
GateEvent = GateStarted | GateFinished | GateOpened
BacklogEvent = BacklogStarted | TaskEvent | GateEvent | BacklogPaused | BacklogFinished

NAMES = event_names(get_args(BacklogEvent))
NAMES |= {BacklogStarted: "work_started", BacklogPaused: "work_paused", BacklogFinished: "work_finished"}  # on disk
GATE = ""  # instead of the key of a task


def apply_event(board: Board, event: object, at: float) -> Board:
    """Return the board after `event`. Its `jobs` change in place: a copy for each event would be slow."""
    match event:
        case BacklogStarted():
            limits = {"slots": event.slots, "max_returns": event.max_returns, "max_cost": event.max_cost}
            for job in board.of("working"):  # no loop runs when a backlog run is resumed
                _with(board, replace(job, state="queued"))
            return replace(board, **limits, trying=(), stuck="", is_paused=False)
        case TaskListed():
            job = board.jobs.get(event.task.key) or Job(task=event.task, since=at)
            return _with(board, replace(job, task=event.task))
        case GateStarted():
            return replace(board, trying=event.keys)
        case GateFinished():
            return after_gate(board, event.verdict)
        case GateOpened():
            return replace(board, red=event.red)
        case BacklogPaused():
            return replace(board, is_paused=event.is_paused)
        case TaskReady() | TaskParked():
            board = _with(board, _after_loop(board.jobs[event.key], event, at))
            return replace(board, spent=board.spent + (event.cost_usd or 0.0))
        case TaskQueued() | TaskStarted() | TaskMerged() | TaskReturned() | TaskWithdrawn():
            return _with(board, _after_move(board.jobs[event.key], event, at))
    return board


def _after_loop(job: Job, event: TaskReady | TaskParked, at: float) -> Job:
    """Return the job after its loop finished, or after the gate parked it."""
    cost = event.cost_usd if job.cost_usd is None else job.cost_usd + (event.cost_usd or 0.0)
    job = replace(job, run=event.run or job.run, cost_usd=cost, reason="", since=at)
    if isinstance(event, TaskReady):
        return replace(job, state="ready", tip=event.tip, files=event.files, note="")
    return replace(job, state="parked", reason=event.reason)


def _after_move(
    job: Job, event: TaskQueued | TaskStarted | TaskMerged | TaskReturned | TaskWithdrawn, at: float
) -> Job:
    job = replace(job, reason="" if isinstance(event, TaskStarted | TaskMerged) else event.reason, since=at)
    match event:
        case TaskQueued():
            counters = {"returns": 0, "refused": ()} if event.forgiven else {}
            return replace(job, state="queued", note=event.note or job.note, **counters)
        case TaskStarted():
            return replace(job, state="working", attempts=event.attempt, run=event.run or job.run, worker=event.worker)
        case TaskMerged():
            return replace(job, state="merged", commit=event.commit, note="")
        case TaskReturned():
            return replace(job, state="queued", returns=job.returns + 1, note=event.note, refused=event.files)
        case TaskWithdrawn():
            return replace(job, state="withdrawn", by_list=event.by_list)


def _with(board: Board, job: Job) -> Board:
    board.jobs[job.task.key] = job
    return board


class BacklogState(Struct, frozen=True, kw_only=True):
    """The state of a backlog run after its events.

    `opened` is the commit at which the target last passed its checks, and `elapsed` how long the run had taken when it
    last finished. In a fleet, `holders` names the job that runs each task, and the gate's.
    """

    board: Board = field(default_factory=Board)
    opened: str = ""
    started: BacklogStarted | None = None
    finished: BacklogFinished | None = None
    began: float = 0.0
    elapsed: float = 0.0
    holders: dict[str, str] = field(default_factory=dict)


def copy_state(state: BacklogState) -> BacklogState:
    return replace(state, board=replace(state.board, jobs={**state.board.jobs}), holders={**state.holders})


def next_state(state: BacklogState, event: object, at: float, by: str = "") -> BacklogState:
    """Return the state after an event that the job `by` wrote; change the dictionaries of `state` in place."""
    holders = state.holders
    try:
        state = replace(state, board=apply_event(state.board, event, at))
    except KeyError:  # about a task whose line in the journal is torn
        return state
    match event:
        case BacklogStarted():
            holders.clear()
            state = replace(state, started=event, finished=None, began=state.began or at)
        case BacklogFinished():
            state = replace(state, finished=event, elapsed=event.duration_s)
        case TaskStarted():
            holders[event.key] = by
        case GateStarted():
            holders[GATE] = by
        case GateFinished():
            holders.pop(GATE, None)
        case GateOpened():
            holders.pop(GATE, None)
            state = replace(state, opened=event.commit)
        case TaskMerged() if event.commit:
            state = replace(state, opened=event.commit)
    if (key := getattr(event, "key", None)) and not state.board.is_working(key):
        holders.pop(key, None)
    return state


def due_jobs(state: BacklogState) -> tuple[str, ...]:
    """Return the keys of the tasks that can start, and `GATE` if nobody has the gate and it has something to do: check
    the target, merge, or end the backlog run."""
    if state.finished or state.board.is_paused:
        return ()
    starts = tuple(next_starts(state.board)) if state.opened else ()
    needs_gate = not state.opened or bool(next_batch(state.board)) or is_over(state.board)
    return (GATE, *starts) if needs_gate and GATE not in state.holders else starts


def after_loop(key: str, result: TaskResult, was_stopped: bool) -> BacklogEvent:
    """Return what happens to a task whose loop finished. `was_stopped`: ralph had asked the loop to stop.

    After a fatal error the task is queued again: the task didn't cause the error, and the caller stops everything.
    """
    if result.outcome == Outcome.DONE.value and result.files:
        return TaskReady(key=key, tip=result.tip, files=result.files, run=result.run, cost_usd=result.cost_usd)
    if result.outcome == Outcome.FATAL.value:
        return TaskQueued(key, result.reason)
    if result.outcome == Outcome.INTERRUPTED.value and was_stopped:
        return TaskQueued(key, "its loop was stopped and can be resumed")
    why = one_line(f"{result.outcome}: {result.reason}" if result.reason else result.outcome, 500)
    if result.outcome == Outcome.DONE.value:
        why = "done, but it changed nothing"
    elif result.outcome == Outcome.INTERRUPTED.value:
        why = "stopped by a person"
    return TaskParked(key, why, result.run, result.cost_usd)


def after_merge(board: Board, verdict: GateVerdict, duration: float) -> list[BacklogEvent]:
    """Return the events that follow from the gate's verdict."""
    happened: list[BacklogEvent] = [GateFinished(verdict, duration)]
    happened += [TaskMerged(key, board.jobs[key].tip, verdict.commit) for key in verdict.merged]
    happened += [TaskParked(key, "it changes nothing") for key in verdict.empty]
    for key, conflict in verdict.conflicts.items():
        note = f"it conflicts with what was merged since, in {', '.join(conflict.files[:20])}\n{conflict.message}"
        happened.append(_refuse(board, key, f"conflict in {listed(conflict.files, 3)}", note, conflict.files))
    if verdict.red and len(verdict.tried) == 1:
        (key,), red = verdict.tried, verdict.red
        note = f"`{red.check}` failed on the merged tree: {red.ending}\n{red.output}"
        happened.append(_refuse(board, key, f"{red.check}: {red.ending}", note, board.jobs[key].files))
    return happened


def _refuse(board: Board, key: str, reason: str, note: str, files: tuple[str, ...]) -> TaskReturned | TaskParked:
    if board.jobs[key].returns + 1 >= board.max_returns:
        times = "once" if board.max_returns == 1 else f"{board.max_returns} times"
        return TaskParked(key, f"refused {times}: {reason}")
    return TaskReturned(key, reason, note.strip(), files)


def end_of_backlog(board: Board, outcome: str, reason: str, exit_code: int, duration: float) -> BacklogFinished:
    states = [*displayed_states(board).values()]
    return BacklogFinished(
        outcome=outcome,
        reason=one_line(reason, 500),
        merged=states.count("merged"),
        parked=states.count("parked"),
        blocked=states.count("blocked"),
        tasks=len(states) - states.count("withdrawn"),
        cost_usd=board.spent if board.costs else None,
        duration_s=duration,
        exit_code=exit_code,
    )
