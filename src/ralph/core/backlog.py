"""Decisions about a backlog: which tasks start, and which the gate merges together.

The board is the state of a backlog run. Events change it, and every decision depends only on the board. So it doesn't
matter where the events are stored: in a journal on one machine, or in a database that many machines share.
"""

from collections.abc import Iterable, Sequence
from graphlib import CycleError, TopologicalSorter
from statistics import median
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace

from ralph.core.check_counts import FailureCount

TaskState = Literal["queued", "working", "ready", "merged", "parked", "withdrawn"]
FINISHED_STATES = frozenset({"merged", "withdrawn"})
EVERYTHING = "**"  # instead of the file names, if there are too many
FIRST_WINDOW, MAX_WINDOW = 2, 16
STATE_ORDER = ("parked", "working", "ready", "held", "queued", "waiting", "blocked", "withdrawn", "merged")
"""The order in which states are displayed: what needs a person, what is running, what is finished."""


class BacklogTask(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One entry of a backlog. `text` is the goal of its loop, `place` the file and line where a person finds it.

    Tasks with a smaller `priority` start first. `touches` are patterns of the files that it is expected to change.
    """

    key: str
    title: str
    text: str = ""
    place: str = ""
    done: bool = False
    priority: int = 0
    after: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()
    exams: tuple[str, ...] = ()
    touches: tuple[str, ...] = ()
    agent: str = ""
    model: str = ""
    max_cost: float | None = None

    @property
    def about(self) -> str:
        """The title without the key that it may start with: for places that display the key next to it."""
        first, _, rest = self.title.partition(" ")
        return rest if rest and first.rstrip(":.)") == self.key else self.title


class Job(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A task and its progress so far.

    - `tip` is the commit that is ready to merge, and `files` are those that it changes.
    - `returns` counts the refusals of the gate.
    - `refused` are the files in which the gate found the problem, and `note` explains it to the next loop.
    - `commit` is the merge commit.
    - `by_list`: the task was withdrawn by editing the backlog.
    """

    task: BacklogTask
    state: TaskState = "queued"
    attempts: int = 0
    returns: int = 0
    tip: str = ""
    commit: str = ""
    files: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    note: str = ""
    reason: str = ""
    by_list: bool = False
    run: str = ""
    worker: str = ""
    cost_usd: float | None = None
    since: float = 0.0

    @property
    def is_returned(self) -> bool:
        """Whether the gate refused the task, and it is not ready again yet."""
        return self.returns > 0 and self.state in ("queued", "working")


class FailedCheck(Struct, frozen=True, omit_defaults=True):
    """A check that failed at the gate; `count` is the number of failures that it reports, None if unknown."""

    check: str
    ending: str = ""
    output: str = ""
    count: FailureCount | None = None
    advice: str = ""
    """Why the check cannot start, and what to do."""

    def is_no_worse_than(self, before: "FailedCheck | None") -> bool:
        """Whether it failed before as well, with at least as many failures; False if a count is unknown."""
        if before is None or self.count is None or before.count is None:
            return False
        return self.count.failures <= before.count.failures


class Board(Struct, frozen=True, kw_only=True):
    """The state of a backlog run, on which every decision depends.

    - `jobs` are in the order of the backlog.
    - `window` is the most tasks that the gate merges together.
    - `trying` are the tasks that the gate is merging now.
    - `halves` are the parts of a batch that failed; the gate tries them first.
    - `stuck` says why the gate can't continue.
    - `red` are checks that fail on the target with --allow-red.
    """

    jobs: dict[str, Job] = field(default_factory=dict)
    slots: int = 4
    max_returns: int = 3
    max_cost: float | None = None
    window: int = FIRST_WINDOW
    trying: tuple[str, ...] = ()
    halves: tuple[tuple[str, ...], ...] = ()
    stuck: str = ""
    is_paused: bool = False
    spent: float = 0.0
    red: tuple[FailedCheck, ...] = ()

    @property
    def costs(self) -> list[float]:
        """The costs of the tasks whose loops have finished."""
        ended = self.of("ready", "merged", "parked")
        return [job.cost_usd for job in ended if job.cost_usd is not None]

    @property
    def median_cost(self) -> float:
        return median(self.costs or [0.0])

    def of(self, *states: TaskState) -> list[Job]:
        return [job for job in self.jobs.values() if job.state in states]

    def is_working(self, key: str) -> bool:
        return key in self.jobs and self.jobs[key].state == "working"


class TaskResult(Struct, frozen=True, kw_only=True):
    """The result of a task's loop. `tip` is its commit, and `files` are those that the commit changes."""

    outcome: str
    reason: str
    exit_code: int
    run: str
    verified: bool = False
    cost_usd: float | None = None
    tip: str = ""
    files: tuple[str, ...] = ()


class Conflict(Struct, frozen=True, omit_defaults=True):
    """The files in which a branch conflicts with the target, and git's message."""

    files: tuple[str, ...]
    message: str = ""


class GateVerdict(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of one attempt to merge.

    - `tried` are the tasks in the candidate.
    - `merged` are in the target, by the merge `commit` or from before.
    - `conflicts` are the tasks that conflict with the target, and `empty` those that change nothing. All others stay
      ready.
    - `red` is the check that failed on the candidate.
    - `stuck` is a problem that no task caused.
    - `allowed` are checks that fail on the target with --allow-red.
    """

    tried: tuple[str, ...] = ()
    merged: tuple[str, ...] = ()
    commit: str = ""
    conflicts: dict[str, Conflict] = {}
    red: FailedCheck | None = None
    empty: tuple[str, ...] = ()
    stuck: str = ""
    allowed: tuple[FailedCheck, ...] = ()


class Forecast(Struct, frozen=True):
    """The expected cost of the remaining tasks, from the median and the lower and upper quartile of finished ones."""

    more: float
    low: float
    high: float


def next_starts(board: Board) -> tuple[str, ...]:
    """Return the keys of the tasks to start now, in order."""
    working = board.of("working")
    free = board.slots - len(working)
    if free <= 0 or board.is_paused:
        return ()
    chosen: list[Job] = []
    order, is_gate_behind = Precedence(board), _is_gate_behind(board)
    cost = board.median_cost if board.max_cost is not None else 0.0
    for job in _in_order(board.of("queued")):
        if len(chosen) == free or not fits(board, len(working) + len(chosen), cost):
            break
        if is_gate_behind and not job.returns:  # a refused task starts anyway, because others wait for it
            break
        if not _can_start(board, job) or (job.returns and order.holder(job)):
            continue
        if not any(overlap(job.task.touches, other.task.touches) for other in (*working, *chosen)):
            chosen.append(job)
    return tuple(job.task.key for job in chosen)


def _is_gate_behind(board: Board) -> bool:
    """Whether so many tasks wait for the gate that no new ones should start.

    The gate merges a full window at once, so a large window lets more tasks wait. After a refusal fewer may wait,
    because fewer tasks ahead of the target mean fewer conflicts.
    """
    waiting = sum(job.task.key not in board.trying for job in board.of("ready"))
    if waiting < max(2, board.slots // 2):
        return False
    return waiting >= min(board.slots, board.window) or any(job.returns for job in board.jobs.values())


def next_batch(board: Board) -> tuple[str, ...]:
    """Return the keys of the tasks that the gate merges together now."""
    if board.trying or board.stuck:
        return ()
    for half in board.halves:
        if rest := tuple(key for key in half if key in board.jobs and board.jobs[key].state == "ready"):
            return rest
    order = Precedence(board)
    free = (job for job in _in_order(board.of("ready")) if not order.holder(job))
    return tuple(job.task.key for job, _ in zip(free, range(board.window), strict=False))


def after_gate(board: Board, verdict: GateVerdict) -> Board:
    """Return the board after a verdict: the window grows while batches are green; a red batch is halved."""
    tried = verdict.tried
    halves = tuple(half for half in board.halves if not {*half} & {*board.trying})
    window = board.window
    if verdict.red:
        window = max(1, window // 2)
        middle = (len(tried) + 1) // 2
        halves = (tried[:middle], tried[middle:], *halves) if len(tried) > 1 else halves
    elif tried and not verdict.stuck:
        window = min(MAX_WINDOW, window + 1)
    red = verdict.allowed if verdict.commit else board.red
    return replace(board, trying=(), halves=halves, window=window, stuck=verdict.stuck, red=red)


class Precedence:
    """Which refused task goes first on which files.

    The gate merges nothing before a refused task that would only conflict with it, and a second refused task starts
    only after the first one was merged, because it would be refused again.
    """

    def __init__(self, board: Board) -> None:
        has_room = fits(board, len(board.of("working")))
        self._refused = _in_order(job for job in board.jobs.values() if job.returns)
        # Don't wait for a task that the budget has no room for.
        coming = (job for job in self._refused if job.is_returned and (job.state == "working" or has_room))
        self._coming = {job.task.key for job in coming}

    def holder(self, job: Job) -> Job | None:
        """Return the refused task that goes first on the files of `job`."""
        files = {*(job.refused if job.is_returned else job.files)}
        for other in self._refused:
            if other.task.key == job.task.key:
                break
            # Only a task that has not started waits for one that is ready.
            is_ahead = other.task.key in self._coming or (other.state == "ready" and job.state == "queued")
            if is_ahead and (EVERYTHING in files or EVERYTHING in other.refused or not files.isdisjoint(other.refused)):
                return other
        return None


def displayed_states(board: Board) -> dict[str, str]:
    """Return the state of each task as people see it, such as `blocked` for one that waits for a parked task."""
    states: dict[str, str] = {}
    blocked, order = _blocked_keys(board), Precedence(board)
    for key, job in board.jobs.items():
        states[key] = job.state
        if job.state == "queued" and key in blocked:
            states[key] = "blocked"
        elif job.state == "queued" and not _can_start(board, job):
            states[key] = "waiting"
        elif job.state in ("queued", "ready") and order.holder(job):
            states[key] = "held"
    return states


def fits(board: Board, running: int, cost: float | None = None) -> bool:
    """Whether the budget is enough for the running loops and one more, at `cost` each (default: the median)."""
    if board.max_cost is None:
        return True
    cost = board.median_cost if cost is None else cost
    return board.spent < board.max_cost and board.spent + cost * (running + 1) <= board.max_cost


def forecast(board: Board) -> Forecast | None:
    """Return the expected cost of the remaining tasks; None if no cost is known or none remain."""
    blocked, ordered = _blocked_keys(board), sorted(board.costs)
    remaining = sum(job.state in ("queued", "working") and key not in blocked for key, job in board.jobs.items())
    if not ordered or not remaining:
        return None
    low, high = (ordered[round((len(ordered) - 1) * quarter)] for quarter in (0.25, 0.75))
    return Forecast(board.median_cost * remaining, low * remaining, high * remaining)


def exceeded_limit(board: Board, max_time: float | None, age: float, spending: float) -> tuple[str, str]:
    """Return the outcome and the reason if the time or the budget is used up, else two empty texts.

    `spending` is the cost so far of the running loops.
    """
    if max_time is not None and age >= max_time:
        return "timeout", "its time is over"
    if board.max_cost is not None and board.spent + spending >= board.max_cost:
        return "budget", "its budget is spent"
    return "", ""


def is_over(board: Board) -> bool:
    """Whether nothing is running and nothing can start."""
    if board.trying or board.of("working") or next_batch(board):
        return False
    return not board.is_paused and not next_starts(board)


def is_complete(board: Board, is_open: bool) -> bool:
    """Whether nothing is left to do. `is_open`: the target has passed its checks, so that tasks may start.

    If every task is finished, not even the target needs a check.
    """
    return all(job.state in FINISHED_STATES for job in board.jobs.values()) or (is_open and is_over(board))


def outcome(board: Board) -> tuple[str, int]:
    """Return the outcome and the exit code of a finished backlog run."""
    if all(job.state in FINISHED_STATES for job in board.jobs.values()):
        return "done", 0
    if board.of("queued") and not fits(board, 0):
        return "budget", 1
    return ("stuck" if board.stuck else "parked"), 1


def cycle(tasks: Iterable[BacklogTask]) -> tuple[str, ...]:
    """Return the keys of tasks in a cycle of dependencies, each of which depends on the next; empty without a cycle."""
    try:
        TopologicalSorter({task.key: task.after for task in tasks}).prepare()
    except CycleError as error:
        return tuple(reversed(error.args[1]))
    return ()


def overlap(some: Sequence[str], others: Sequence[str]) -> bool:
    """Whether two sets of patterns may match the same file; True if unsure."""
    return any(_may_overlap(glob, other) for glob in some for other in others)


def _may_overlap(glob: str, other: str) -> bool:
    (start, is_open), (begin, is_wide) = _literal_prefix(glob), _literal_prefix(other)
    if not is_open and not is_wide:  # the same file, or a folder and something in it
        paths = f"{glob.rstrip('/')}/", f"{other.rstrip('/')}/"
        return paths[0].startswith(paths[1]) or paths[1].startswith(paths[0])
    if not (start.startswith(begin) or begin.startswith(start)):
        return False
    tail, end = _literal_prefix(glob[::-1])[0], _literal_prefix(other[::-1])[0]
    return tail.startswith(end) or end.startswith(tail)


def _literal_prefix(pattern: str) -> tuple[str, bool]:
    """Return the part before the first wildcard, and whether there is one."""
    at = next((at for at, char in enumerate(pattern) if char in "*?[]"), len(pattern))
    return pattern[:at], at < len(pattern)


def _in_order(jobs: Iterable[Job]) -> list[Job]:
    """Sort: refused tasks first, then by priority, then in the order of the backlog."""
    return sorted(jobs, key=lambda job: (-job.returns, job.task.priority))


def _can_start(board: Board, job: Job) -> bool:
    """Whether all its dependencies are merged."""
    for key in job.task.after:
        other = board.jobs.get(key)
        if other is not None and other.state != "merged" and not other.task.done:
            return False
    return True


def _blocked_keys(board: Board) -> frozenset[str]:
    """Return the keys of tasks that wait, directly or not, for one that is parked or withdrawn."""
    stopped = [job.task.key for job in board.of("parked", "withdrawn") if not job.task.done]
    followers: dict[str, list[str]] = {}
    for job in board.of("queued") if stopped else ():
        for key in job.task.after:
            followers.setdefault(key, []).append(job.task.key)
    blocked: set[str] = set()
    while stopped:
        following = [key for key in followers.pop(stopped.pop(), ()) if key not in blocked]
        blocked.update(following)
        stopped += following
    return frozenset(blocked)
