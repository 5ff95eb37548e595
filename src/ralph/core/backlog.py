"""What comes next in a backlog? Which items start, which go to the gate together, and what follows from its verdict.

A board is what is known of a backlog; each event changes it, and every decision reads it and nothing else. So it does
not matter where the events are kept: in a journal on one machine, or in a database that many share.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace

from ralph.core.text import listed

ItemState = Literal["queued", "working", "ready", "landed", "parked", "withdrawn"]
SETTLED = frozenset({"landed", "withdrawn"})
EVERYTHING = "**"
"""Stands for all files where there are too many to name."""
MOST_COMPARED = 10_000  # pairs of patterns; of more it is in doubt
FIRST_WINDOW, WIDEST_WINDOW = 2, 16
SHOWN = ("parked", "working", "ready", "held", "queued", "waiting", "blocked", "withdrawn", "landed")
"""What a person sees first of a list: what needs one, then what is under way; what is over last."""


class Item(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One entry of a backlog. `text` is all that its agent is told; `place` is where a person finds it; a smaller
    `priority` comes first; `touches` are patterns of the files that it is expected to change."""

    key: str
    title: str
    text: str = ""
    place: str = ""
    done: bool = False
    priority: int = 0
    after: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()
    touches: tuple[str, ...] = ()
    agent: str = ""
    model: str = ""
    max_cost: float | None = None

    @property
    def about(self) -> str:
        """Its title without the key, where that is its first word: it stands beside it."""
        first, _, rest = self.title.partition(" ")
        return rest if rest and first.rstrip(":.)") == self.key else self.title


class Job(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of an item so far. `tip` is the commit that is ready, and `files` what it changes; `refused` are the
    files for which the gate sent it back, `note` is what its next run is told of that; `commit` is what landed;
    `by_list`: what the list says has withdrawn it."""

    item: Item
    state: ItemState = "queued"
    rounds: int = 0
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
        """Whether the gate has sent it back, and it has not come again."""
        return self.returns > 0 and self.state in ("queued", "working")


class Board(Struct, frozen=True, kw_only=True):
    """All that decisions are made from. `jobs` are in the order of the list, `working` those whose loops are at work,
    with their runs; `trying` is at the gate; `halves` of a red batch are tried before anything else; `stuck` says why
    the gate stands still."""

    jobs: dict[str, Job] = field(default_factory=dict)
    working: dict[str, str] = field(default_factory=dict)
    slots: int = 4
    most_returns: int = 3
    max_cost: float | None = None
    window: int = FIRST_WINDOW
    trying: tuple[str, ...] = ()
    halves: tuple[tuple[str, ...], ...] = ()
    stuck: str = ""
    is_held: bool = False
    spent: float = 0.0

    @property
    def costs(self) -> list[float]:
        """What each item took whose loop has come to an end."""
        ended = self.of("ready", "landed", "parked")
        return [job.cost_usd for job in ended if job.cost_usd is not None]

    def of(self, *states: ItemState) -> list[Job]:
        return [job for job in self.jobs.values() if job.state in states]


class Conflict(Struct, frozen=True, omit_defaults=True):
    """Where a branch and the target cannot be merged, and what git said of it."""

    files: tuple[str, ...]
    said: str = ""


class Red(Struct, frozen=True, omit_defaults=True):
    """The check that failed on a candidate."""

    check: str
    ending: str = ""
    output: str = ""


class GateVerdict(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the gate saw. `tried` were in the candidate; `landed` are in the target, as `commit` or from before;
    `conflicts` cannot be merged with the target, `red` failed on the candidate, `empty` change nothing; `stuck` is the
    fault of none of them. Who is named nowhere stays ready. `probed` are items at work that will conflict now."""

    tried: tuple[str, ...] = ()
    landed: tuple[str, ...] = ()
    commit: str = ""
    conflicts: dict[str, Conflict] = {}
    red: Red | None = None
    empty: tuple[str, ...] = ()
    stuck: str = ""
    probed: dict[str, Conflict] = {}


class Step(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a verdict means for one item."""

    key: str
    to: Literal["landed", "returned", "parked"]
    reason: str = ""
    note: str = ""
    files: tuple[str, ...] = ()


class Forecast(Struct, frozen=True):
    """What the rest may cost: as the middle one of those that are finished, as the cheap quarter, as the dear one."""

    more: float
    low: float
    high: float


def next_starts(board: Board) -> tuple[str, ...]:
    """The items whose loops start now, the first to start first."""
    working = board.of("working")
    free = board.slots - len(working)
    if free <= 0 or board.is_held:
        return ()
    chosen: list[Job] = []
    order, cost = Precedence(board), median(board.costs)
    before_the_gate = [job for job in board.of("ready") if job.item.key not in board.trying]
    # What the gate takes at once does not wait for long, and empty slots would; but where items conflict, the fewer are
    # ahead of the target, the fewer are sent back.
    at_once = 0 if any(job.returns for job in board.jobs.values()) else min(board.slots, board.window)
    is_pressed = len(before_the_gate) >= max(2, board.slots // 2, at_once)
    for job in _in_order(board.of("queued")):
        if len(chosen) == free or not fits(board, len(working) + len(chosen), cost):
            break
        if is_pressed and not job.returns:  # who was sent back is waited for: it starts all the same
            break
        if not _is_free(board, job) or (job.returns and order.holder(job)):
            continue
        if not any(overlap(job.item.touches, other.item.touches) for other in (*working, *chosen)):
            chosen.append(job)
    return tuple(job.item.key for job in chosen)


def next_batch(board: Board) -> tuple[str, ...]:
    """The items that go to the gate together now."""
    if board.trying or board.stuck:
        return ()
    for half in board.halves:
        if left := tuple(key for key in half if key in board.jobs and board.jobs[key].state == "ready"):
            return left
    order = Precedence(board)
    free = (job for job in _in_order(board.of("ready")) if not order.holder(job))
    return tuple(job.item.key for job, _ in zip(free, range(board.window), strict=False))


def after_verdict(board: Board, verdict: GateVerdict) -> tuple[Step, ...]:
    """What becomes of the items that were at the gate."""
    steps = [Step(key=key, to="landed") for key in verdict.landed]
    steps += [Step(key=key, to="parked", reason="it changes nothing") for key in verdict.empty]
    for key, conflict in verdict.conflicts.items():
        note = f"it conflicts with what has landed meanwhile, in {', '.join(conflict.files[:20])}\n{conflict.said}"
        steps.append(_refused(board, key, f"conflict in {listed(conflict.files, 3)}", note.strip(), conflict.files))
    if verdict.red and len(verdict.tried) == 1:
        (key,), red = verdict.tried, verdict.red
        note = f"`{red.check}` failed on the merged tree: {red.ending}\n{red.output}".strip()
        job = board.jobs.get(key)
        steps.append(_refused(board, key, f"{red.check}: {red.ending}", note, job.files if job else ()))
    return tuple(steps)


def _refused(board: Board, key: str, reason: str, note: str, files: tuple[str, ...]) -> Step:
    job = board.jobs.get(key)
    if job is not None and job.returns + 1 >= board.most_returns:
        times = "once" if board.most_returns == 1 else f"{board.most_returns} times"
        return Step(key=key, to="parked", reason=f"refused {times}: {reason}", note=note, files=files)
    return Step(key=key, to="returned", reason=reason, note=note, files=files)


def after_gate(board: Board, verdict: GateVerdict) -> Board:
    """The gate once it has spoken: a window that grows while all is green, and the halves of a batch that was red."""
    tried = verdict.tried
    halves = tuple(half for half in board.halves if not {*half} & {*board.trying})
    window = board.window
    if verdict.red:
        window = max(1, window // 2)
        middle = (len(tried) + 1) // 2
        halves = (tried[:middle], tried[middle:], *halves) if len(tried) > 1 else halves
    elif tried and not verdict.stuck:
        window = min(WIDEST_WINDOW, window + 1)
    return replace(board, trying=(), halves=halves, window=window, stuck=verdict.stuck)


class Precedence:
    """Which refused item goes first on which files. At the gate nobody goes before it who would only conflict with it;
    and whoever was refused too does not start before it has landed, or would be refused again."""

    def __init__(self, board: Board) -> None:
        self._ranks = {job.item.key: rank for rank, job in enumerate(_in_order(board.jobs.values()))}
        # By file the first that will come again, and the first of those and of what is ready, which only who has not
        # begun waits for. Under the empty name it is the first of all.
        self._coming: dict[str, Job] = {}
        self._any: dict[str, Job] = {}
        refused = [job for job in board.jobs.values() if job.returns]
        has_room = bool(refused) and fits(board, len(board.of("working")))
        for job in sorted(refused, key=lambda job: self._ranks[job.item.key]):
            # Nobody waits for one that there is no budget for.
            is_coming = job.is_returned and (job.state == "working" or has_room)
            for file in (*job.refused, "") if is_coming or job.state == "ready" else ():
                self._any.setdefault(file, job)
                if is_coming:
                    self._coming.setdefault(file, job)

    def holder(self, job: Job) -> Job | None:
        """The refused item that goes first on the files of this one."""
        first = self._any if job.state == "queued" else self._coming
        files = job.refused if job.is_returned else job.files
        names = ("",) if EVERYTHING in files else (*files, EVERYTHING)
        holders = [first[name] for name in names if name in first]
        found = min(holders, key=lambda other: self._ranks[other.item.key], default=job)
        return found if self._ranks[found.item.key] < self._ranks[job.item.key] else None


def shown(board: Board) -> dict[str, str]:
    """The state of each item in one word, as a person wants to know it."""
    blocked, order = _blocked(board), Precedence(board)
    return {key: _shown(board, job, blocked, order) for key, job in board.jobs.items()}


def _shown(board: Board, job: Job, blocked: frozenset[str], order: Precedence) -> str:
    if job.state == "queued" and job.item.key in blocked:
        return "blocked"
    if job.state == "queued" and not _is_free(board, job):
        return "waiting"
    if job.state in ("queued", "ready") and order.holder(job):
        return "held"
    return job.state


def fits(board: Board, running: int, cost: float | None = None) -> bool:
    """Whether the budget has room for one more loop beside those that run, where one has such a cost."""
    if board.max_cost is None:
        return True
    cost = median(board.costs) if cost is None else cost
    return board.spent < board.max_cost and board.spent + cost * (running + 1) <= board.max_cost


def forecast(board: Board) -> Forecast | None:
    """What the items that are not finished will cost; None before anything is known."""
    blocked, ordered = _blocked(board), sorted(board.costs)
    left = sum(job.state in ("queued", "working") and key not in blocked for key, job in board.jobs.items())
    if not ordered or not left:
        return None
    low, high = (ordered[round((len(ordered) - 1) * quarter)] for quarter in (0.25, 0.75))
    return Forecast(median(ordered) * left, low * left, high * left)


def is_over(board: Board) -> bool:
    """Whether nothing is at work, and nothing is left that could be."""
    if board.trying or board.of("working") or next_batch(board):
        return False
    return not board.is_held and not next_starts(board)


def outcome(board: Board) -> tuple[str, int]:
    """How it ended, in a word, and the exit code."""
    if all(job.state in SETTLED for job in board.jobs.values()):
        return "done", 0
    if board.of("queued") and not fits(board, 0):
        return "budget", 1
    return ("stuck" if board.stuck else "parked"), 1


def cycle(items: Iterable[Item]) -> tuple[str, ...]:
    """Items that wait for one another in a ring, if there are any: nobody of them could ever start."""
    after = {item.key: item.after for item in items}
    seen: dict[str, int] = {}  # 1: on the way, 2: harmless
    for start in after:
        way: list[tuple[str, Iterator[str]]] = [(start, iter(after[start]))] if start not in seen else []
        seen.setdefault(start, 1)
        while way:
            key, rest = way[-1]
            following = next(rest, None)
            if following is None:
                seen[key] = 2
                way.pop()
            elif seen.get(following) == 1:
                names = [name for name, _ in way]
                return (*names[names.index(following) :], following)
            elif following in after and following not in seen:
                seen[following] = 1
                way.append((following, iter(after[following])))
    return ()


def overlap(some: Sequence[str], others: Sequence[str]) -> bool:
    """Whether two sets of patterns may mean the same file. In doubt they do."""
    return len(some) * len(others) > MOST_COMPARED or any(_meet(one, other) for one in some for other in others)


def _meet(one: str, other: str) -> bool:
    if one == other:
        return True
    (start, is_open), (begin, is_wide) = _fixed(one), _fixed(other)
    if not is_open and not is_wide:
        return f"{one.rstrip('/')}/".startswith(f"{other.rstrip('/')}/") or f"{other.rstrip('/')}/".startswith(
            f"{one.rstrip('/')}/"
        )
    if not (start.startswith(begin) or begin.startswith(start)):
        return False
    tail, end = _fixed(one[::-1])[0], _fixed(other[::-1])[0]
    return tail.startswith(end) or end.startswith(tail)


def _fixed(pattern: str) -> tuple[str, bool]:
    """What stands before its first wildcard, and whether there is one."""
    at = next((at for at, char in enumerate(pattern) if char in "*?[]"), len(pattern))
    return pattern[:at], at < len(pattern)


def median(costs: Sequence[float]) -> float:
    ordered = sorted(costs)
    if not ordered:
        return 0.0
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def _in_order(jobs: Iterable[Job]) -> list[Job]:
    """Those that were sent back first, then by priority; `sorted` keeps the order of the list among equals."""
    return sorted(jobs, key=lambda job: (-job.returns, job.item.priority))


def _is_free(board: Board, job: Job) -> bool:
    """Whether all that it depends on has landed."""
    for key in job.item.after:
        other = board.jobs.get(key)
        if other is not None and other.state != "landed" and not other.item.done:
            return False
    return True


def _blocked(board: Board) -> frozenset[str]:
    """The items that wait for one that stands aside, however many stand between them."""
    stopped = [job.item.key for job in board.of("parked", "withdrawn") if not job.item.done]
    followers: dict[str, list[str]] = {}
    for job in board.of("queued") if stopped else ():
        for key in job.item.after:
            followers.setdefault(key, []).append(job.item.key)
    blocked: set[str] = set()
    while stopped:
        following = [key for key in followers.pop(stopped.pop(), ()) if key not in blocked]
        blocked.update(following)
        stopped += following
    return frozenset(blocked)
