"""The model of a run: its history as frozen structs. Every decision of the loop reads only these."""

from collections.abc import Callable, Iterable
from enum import Enum
from typing import Concatenate, Literal, ParamSpec

from msgspec import Struct
from msgspec.structs import replace

from ralph.core.findings import ComparedTests
from ralph.core.measuring import Comparison, Start
from ralph.core.runner_output import ReportedTests


class Outcome(Enum):
    """How a run ended."""

    DONE = "done"
    STOPPED = "stopped"
    EXHAUSTED = "exhausted"
    BLOCKED = "blocked"
    STALLED = "stalled"
    BUDGET = "budget"
    TIMEOUT = "timeout"
    FAILED = "failed"
    FATAL = "fatal"
    INTERRUPTED = "interrupted"

    @property
    def exit_code(self) -> int:
        return {"done": 0, "stopped": 0, "fatal": 2, "interrupted": 130}.get(self.value, 1)


MOST_LIMITED = 100  # turns kept that ran into a usage limit, so that reading a long journal stays linear


class Usage(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The cost of a turn. `cost_usd` is None if it is unknown, `estimated` if it comes from a price table."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cost_usd: float | None = None
    estimated: bool = False

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens + self.cache_read_tokens + self.cache_write_tokens

    def plus(self, other: "Usage") -> "Usage":
        costs = [cost for cost in (self.cost_usd, other.cost_usd) if cost is not None]
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cache_read_tokens=self.cache_read_tokens + other.cache_read_tokens,
            cache_write_tokens=self.cache_write_tokens + other.cache_write_tokens,
            cost_usd=sum(costs) if costs else None,
            estimated=self.estimated or other.estimated,
        )


FailureKind = Literal["fatal", "limit", "transient", "ordinary"]


class Failure(Struct, frozen=True, omit_defaults=True):
    """Why a turn did not do its job. `resets_at` (epoch seconds): when a stated usage limit ends."""

    kind: FailureKind
    reason: str
    resets_at: float | None = None


class Exit(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How a process ended. `ended_by` says why ralph ended it; "" if it exited by itself. `leftovers` counts the
    processes that it left running."""

    code: int | None
    at: float
    duration: float
    stderr: str = ""
    ended_by: str = ""
    leftovers: int = 0


class Turn(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One invocation of the agent."""

    text: str
    """The agent's final answer."""
    exit_code: int | None = 0
    tool_calls: int | None = None
    """None if the agent doesn't report them."""
    usage: Usage = Usage()
    failure: Failure | None = None
    session: str | None = None
    steps: int | None = None
    ended_at: float = 0.0
    duration: float = 0.0
    ended_by: str = ""
    agent: str = ""
    echoes: tuple[tuple[int, int], ...] = ()
    """The parts of `text` that repeat the prompt."""
    earlier: tuple[str, ...] = ()
    """Messages before `text` that contain the marker, only in sessions of a host."""
    denials: tuple[str, ...] = ()
    """The tool's name, for each time that the agent was not allowed to use a tool."""

    @property
    def is_limited(self) -> bool:
        """Whether a usage limit kept the agent from doing its job."""
        return self.failure is not None and self.failure.kind == "limit"


FailAction = Literal["APPEND", "PREPEND", "REPLACE"]


class Check(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The result of one check."""

    name: str
    passed: bool
    exit_code: int | None = 0
    head: str = ""
    """The first part of its output."""
    tail: str = ""
    """The last part of its output."""
    cut: bool = False
    """`head` is not the whole output."""
    hint: str = ""
    action: FailAction = "APPEND"
    log: str = ""
    duration: float = 0.0
    timeout: float | None = None
    void: str = ""
    """Why the result does not count, whatever the exit code."""
    tests: ReportedTests | None = None
    """What its test runners report."""

    @property
    def ending(self) -> str:
        if self.void:
            return self.void
        return f"Timeout ({self.timeout:g}s)" if self.timeout else f"exit code {self.exit_code}"


class Exam(Struct, frozen=True, omit_defaults=True):
    """The result of one exam, without its output, which the agent may not see. An exam that `shows` its output is also
    among the checks."""

    name: str
    passed: bool
    hint: str = ""
    shows: bool = False


class Review(Struct, frozen=True, omit_defaults=True):
    """One review of a claim, with the turns of its agent. `passed`: it approves the work. `changes` is what it wants
    changed. `problem` says why there is no verdict."""

    name: str
    passed: bool
    turns: tuple[Turn, ...] = ()
    changes: str = ""
    problem: str = ""

    @property
    def agent(self) -> str:
        return self.turns[-1].agent if self.turns else ""

    @property
    def is_interrupted(self) -> bool:
        """Whether a person interrupted the run during the review."""
        return bool(self.turns) and self.turns[-1].ended_by == "interrupt"


class Task(Struct, frozen=True, omit_defaults=True):
    """One entry of a tasks file."""

    text: str
    done: bool
    failed: bool = False


class FileChange(Struct, frozen=True):
    """One changed file: A added, D deleted, M modified, T another type. No counts for a binary file."""

    status: str
    path: str
    added: int | None = None
    deleted: int | None = None


class Question(Struct, frozen=True):
    """A question from the agent to the person who started the run."""

    id: str
    text: str


class PersonNote(Struct, frozen=True, omit_defaults=True):
    """A note from a person to a running run, or the answer to a question."""

    id: str
    text: str
    answers: Question | None = None


class Snapshot(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Facts outside the history."""

    at: float = 0.0
    """The time of the look, in seconds since the epoch."""
    elapsed: float = 0.0
    """Seconds of the run, which ignore clock jumps."""
    interrupted: str = ""
    """The signal or the request to end."""
    trouble: str = ""
    """A problem that ends the run."""
    wait_requested: str = ""
    """Why the task should not be restarted."""
    done_file: bool = False
    done_for: float = 0.0
    """Seconds since the latest claim."""
    tasks: tuple[Task, ...] | None = None
    children: tuple[str, ...] = ()
    """Running child runs."""
    spent: Usage = Usage()
    """The cost of the child runs that ended since the last look."""
    told: tuple[PersonNote, ...] = ()
    """Notes of a person that have not been in a prompt yet."""
    questions: tuple[Question, ...] = ()
    """Questions without an answer."""
    paused: bool = False
    hook_output: str = ""
    """The output of a hook that refused the latest commit."""


_NO_COMMIT = "0" * 40  # in old journals, the head of a repository without a commit


class Fingerprint(Struct, frozen=True, omit_defaults=True):
    """A state of the workspace."""

    head: str = ""
    """The commit that is checked out; empty before the first one."""
    files: str = ""
    """The git tree of the files; empty without git."""
    rest: str = ""
    """A hash of what the tree leaves out: big files, nested repositories, or without git all files."""

    @classmethod
    def parse(cls, text: str) -> "Fingerprint":
        """Read `HEAD:files[:rest]`, or `rest` alone: as journals had it at first."""
        head, *parts = text.split(":", 2)
        return cls("" if head == _NO_COMMIT else head, *parts) if parts else cls(rest=text)


class Iteration(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One agent turn, its checks, and the state of the workspace after it. Numbered from 1."""

    number: int
    turn: Turn
    checks: tuple[Check, ...] = ()
    reviews: tuple[Review, ...] = ()
    exams: tuple[Exam, ...] = ()
    tree: Fingerprint | None = None
    """The fingerprint of the files; None without git."""
    compared: ComparedTests | None = None
    """The results of the tests as they were, for its claim."""
    touched: tuple[str, ...] = ()
    """Protected files that the turn changed."""
    checked: bool = True
    """False if the checks were not run."""
    told: tuple[PersonNote, ...] = ()
    """The notes of a person in its prompt, recorded so that no note is sent twice."""
    tasks_done: int | None = None
    measured: Comparison | None = None
    """The result, in a run that optimises a number."""
    accepted: bool = False
    """A person has accepted test and protected files since."""

    @property
    def turns(self) -> list[Turn]:
        """Every turn of the iteration, reviews included."""
        return [self.turn, *(turn for review in self.reviews for turn in review.turns)]

    @property
    def duration(self) -> float:
        """Seconds that the agent and the checks took."""
        return sum(turn.duration for turn in self.turns) + sum(check.duration for check in self.checks)

    @property
    def is_green(self) -> bool:
        """Whether the checks were run and none of them failed."""
        return self.checked and all(check.passed for check in self.checks)

    @property
    def is_refused(self) -> bool:
        """Whether a referee refused the claim of this iteration."""
        reviewed = not any(review.changes or review.is_interrupted for review in self.reviews)
        brings_nothing = self.measured is not None and not self.measured.kept
        changed_tests = self.compared is not None and self.compared.refused
        examined = all(exam.passed for exam in self.exams)
        return not self.is_green or not reviewed or brings_nothing or changed_tests or not examined

    @property
    def passes_checks(self) -> bool:
        """Whether there are checks, all of them pass, and the turn succeeded."""
        return bool(self.checks) and self.is_green and not self.turn.failure

    @property
    def usage(self) -> Usage:
        return self.turn.usage.plus(self.review_usage)

    @property
    def review_usage(self) -> Usage:
        total = Usage()
        for turn in self.turns[1:]:
            total = total.plus(turn.usage)
        return total


class HandOver(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Another agent takes over the work; as an opinion, that it should.

    `to` takes over from `agent`, after iteration number `after`. It starts with the files of the iteration `start`, or
    with the current ones if that is None. Once they are restored, `tree` is their fingerprint, and `kept_as` the ref of
    a commit with the files that they replaced.
    """

    after: int
    agent: str
    to: str
    reason: str = ""
    start: int | None = None
    tree: Fingerprint | None = None
    kept_as: str = ""


class Run(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The history so far."""

    id: str
    goal: str = ""
    base_tree: Fingerprint | None = None
    baseline: tuple[Check, ...] | None = None
    """The check results before the first turn; None if the checks were not run."""
    start: Start | None = None
    """The measurements before the first turn, in a run that optimises a number."""
    iterations: tuple[Iteration, ...] = ()
    retries: tuple[Turn, ...] = ()
    """The turns since the last iteration that don't count as one."""
    limited: tuple[Turn, ...] = ()
    """Earlier turns in which other agents ran into a usage limit."""
    spent: Usage = Usage()
    """The cost outside iterations."""
    seen: Snapshot = Snapshot()
    resumed: int = 0
    """The number of iterations before the latest resume."""
    stalled: int = 0
    """The number of iterations before the run last ended as stalled."""
    hand_overs: tuple[HandOver, ...] = ()

    @property
    def recent(self) -> tuple[Iteration, ...]:
        """The iterations since the run was started or resumed. Most limits count only these, so that a resumed run gets
        a new chance."""
        return self.iterations[self.resumed :]

    @property
    def last(self) -> Iteration | None:
        return self.iterations[-1] if self.iterations else None

    @property
    def hand_over(self) -> HandOver | None:
        """The latest hand-over, if the next turn is the first one after it."""
        latest = self.hand_overs[-1] if self.hand_overs else None
        return latest if latest and latest.after == len(self.iterations) else None

    @property
    def present(self) -> Iteration | None:
        """The iteration whose files are in the workspace: the last one, or the one that was restored since."""
        restored = self.hand_over and self.hand_over.start
        return self.iterations[restored - 1] if restored else self.last

    @property
    def number(self) -> int:
        """The number of the iteration that comes next."""
        return len(self.iterations) + 1

    @property
    def usage(self) -> Usage:
        total = self.spent
        for iteration in self.iterations:
            total = total.plus(iteration.usage)
        return total

    @property
    def was_red(self) -> bool:
        """Whether a check failed in this run, its baseline included."""
        results = (self.baseline or (), *(iteration.checks for iteration in self.iterations))
        return any(not check.passed for checks in results for check in checks)

    @property
    def has_nothing_to_add(self) -> bool:
        """Whether the agent knew that every check passes, and then ended a successful turn without changing a file,
        asking a question or being denied a tool. At least one check must have been red earlier in this run."""
        if len(self.iterations) < 2 or self.retries or self.seen.questions:
            return False
        before, last = self.iterations[-2:]
        if not before.passes_checks or not last.passes_checks or last.turn.denials or last.tree is None:
            return False
        return tree_files(last.tree) == tree_files(self.tree_before(last.number)) and self.was_red

    def tree_before(self, number: int) -> Fingerprint | None:
        """The workspace's fingerprint before iteration `number`."""
        for hand_over in self.hand_overs:
            if hand_over.after == number - 1 and hand_over.start:
                return hand_over.tree
        return self.iterations[number - 2].tree if number > 1 else self.base_tree

    def session_of(self, agent: str) -> str | None:
        """Return the latest session of this agent, which it can continue."""
        for turn in (*reversed(self.retries), *(i.turn for i in reversed(self.iterations))):
            if turn.session and turn.agent == agent:
                return turn.session
        return None

    def seeing(self, snapshot: Snapshot) -> "Run":
        return replace(self, seen=snapshot, spent=self.spent.plus(snapshot.spent))

    def plus(self, iteration: Iteration) -> "Run":
        limited = still_limited((*self.limited, *self.retries), iteration)
        return replace(self, iterations=(*self.iterations, iteration), retries=(), limited=limited)

    def retrying(self, turn: Turn) -> "Run":
        """Return the run after a turn that doesn't count: its cost is added, but it is not an iteration."""
        return replace(self.spending(turn.usage), retries=(*self.retries, turn))

    def spending(self, usage: Usage) -> "Run":
        return replace(self, spent=self.spent.plus(usage))


def tree_files(tree: Fingerprint | None) -> tuple[str, str] | None:
    """Return the part of a fingerprint that identifies the files: a commit alone doesn't change it."""
    return (tree.files, tree.rest) if tree else None


def still_limited(turns: Iterable[Turn], iteration: Iteration) -> tuple[Turn, ...]:
    """Return the latest turns in which agents other than that of `iteration` ran into a usage limit."""
    others = [turn for turn in turns if turn.is_limited and turn.agent != iteration.turn.agent]
    return tuple(others[-MOST_LIMITED:])


class Refusal(Struct, frozen=True, omit_defaults=True):
    """A claim that a gate refused."""

    claim: str
    gate: str
    reason: str


class Stop(Struct, frozen=True, omit_defaults=True):
    """The opinion that the run ends here. `refusals` are claims that rules before this one refused. `interrupted_by`
    names the signal or request."""

    outcome: Outcome
    reason: str
    claim: str = ""
    refusals: tuple[Refusal, ...] = ()
    interrupted_by: str = ""


class Note(Struct, frozen=True, omit_defaults=True):
    """The opinion that the next prompt must contain this text. `about` names its topic; `output` is program output,
    which the prompt fences.
    """

    text: str
    about: str
    action: FailAction = "APPEND"
    output: str = ""


class Wait(Struct, frozen=True, omit_defaults=True):
    """The opinion that the next turn must not start for this many seconds.

    With `until` it ends when a person resumes the run or answers the agent, and doesn't count against the time limit.
    `children` are the runs that the current claim waits for. `limited`: a usage limit has to end.
    """

    seconds: float
    reason: str
    until: Literal["", "resume", "answer"] = ""
    children: tuple[str, ...] = ()
    limited: bool = False


Opinion = Stop | Note | Wait | Refusal | HandOver
Opinions = Iterable[Opinion]
Rule = Callable[[Run], Opinions]
Given = ParamSpec("Given")


def configured(rule: Callable[Concatenate[Run, Given], Opinions]) -> Callable[Given, Rule]:
    """Make a rule with settings: `failing(times=3)` returns a rule."""
    return lambda *values, **named: lambda run: rule(run, *values, **named)


class Continue(Struct, frozen=True, omit_defaults=True):
    """The verdict that the agent gets one more turn, after `wait` and `hand_over`, with `notes` in its prompt."""

    notes: tuple[Note, ...] = ()
    wait: Wait | None = None
    refusals: tuple[Refusal, ...] = ()
    hand_over: HandOver | None = None


Verdict = Stop | Continue
