"""The events of a run: one frozen struct each. Its name in JSON is derived from the class name."""

from collections.abc import Callable, Iterable
from typing import Literal, Protocol, get_args

from msgspec import Struct

from ralph.core.measuring import Comparison, Start
from ralph.core.model import (
    Check,
    Fingerprint,
    HandOver,
    Iteration,
    Outcome,
    PersonNote,
    Question,
    Refusal,
    Run,
    Stop,
    Turn,
    Usage,
)
from ralph.core.proof import Proof

# Structs of which there may be very many have gc=False: they contain no cycles, and are created faster.


class RunStarted(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The first event of a run, and of each time it is resumed."""

    goal: str
    preset: str
    agent: str
    workspace: str
    max_iterations: int | None
    checks: tuple[str, ...] = ()
    claims: tuple[str, ...] = ()
    gates: tuple[str, ...] = ()
    pid: int = 0
    version: str = ""
    base_tree: Fingerprint | None = None
    worktree: str = ""
    branch: str = ""
    copies: Literal["", "in-place", "plain"] = ""  # how commands see the worktree
    resumed: bool = False
    task: str = ""
    work: str = ""
    backlog_task: str = ""
    stuck: int = 0
    rights: tuple[str, ...] = ()  # --yolo, --sandbox


class Baseline(Struct, frozen=True):
    """The results of the checks before the first turn."""

    checks: tuple[Check, ...]


class IterationStarted(Struct, frozen=True):
    iteration: int
    max_iterations: int | None
    goal: str


class AgentStarted(Struct, frozen=True, omit_defaults=True):
    agent: str
    argv: tuple[str, ...] = ()
    pid: int = 0
    purpose: str = "work"


class AgentText(Struct, frozen=True, gc=False):
    """Text that the agent printed, not necessarily its final answer."""

    text: str


class FileEdit(Struct, frozen=True, gc=False):
    """The text that a tool removes from a file and adds to it: the beginning of each, and its number of lines."""

    removed: str = ""
    added: str = ""
    removed_lines: int = 0
    added_lines: int = 0


class ToolStarted(Struct, frozen=True, omit_defaults=True, gc=False):
    """A tool call starts. `input` is a short summary of the arguments, such as the path or the command; `edit` is what
    the tool changes, if the arguments say so; `parent` is the call whose sub-agent makes this one.
    """

    id: str
    name: str
    input: str = ""
    edit: FileEdit | None = None
    parent: str = ""


class ToolFinished(Struct, frozen=True, gc=False, kw_only=True):
    """A tool call ends. `output` is its output, both ends if it is long; `lines` and `chars` measure all of it."""

    id: str
    name: str
    ok: bool
    output: str = ""
    lines: int = 0
    chars: int = 0


class TodoItem(Struct, frozen=True):
    text: str
    status: str = "pending"  # pending, active, done


class TodoUpdated(Struct, frozen=True):
    items: tuple[TodoItem, ...]


class AgentProgress(Struct, frozen=True, omit_defaults=True):
    """A status that is neither text nor a tool: a retry, a compacted context, text of a sub-agent. `routine`: every
    turn has it, such as the id of its session.
    """

    text: str
    routine: bool = False


class PermissionDenied(Struct, frozen=True, omit_defaults=True):
    """The agent was not allowed to use a tool. `allow_list` is the file that lists what it may do without asking, if
    there is one.
    """

    tool: str
    allow_list: str = ""


class AgentResult(Usage, frozen=True, omit_defaults=True, kw_only=True):
    """What the turn cost, as the agent reports it."""


class AgentUnknown(Struct, frozen=True):
    """A valid line of JSON of a kind that the agent's module does not know. It is counted, not displayed."""

    kind: str = ""


class AgentFinished(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The end of a turn. `skipped_lines` counts lines of its stream that could not be read."""

    exit_code: int | None
    duration_s: float
    tool_calls: int | None = None
    tool_errors: int = 0
    failure: str = ""
    reason: str = ""
    ended_by: str = ""
    skipped_lines: int = 0
    leftovers: int = 0


class CheckStarted(Struct, frozen=True):
    name: str


class CheckFinished(Struct, frozen=True, omit_defaults=True, kw_only=True):
    name: str
    passed: bool
    exit_code: int | None = 0
    duration_s: float = 0.0
    log: str = ""
    output: str = ""
    action: str = ""
    timeout: float | None = None
    void: str = ""


class ExamStarted(Struct, frozen=True):
    name: str


class ExamFinished(Struct, frozen=True):
    """Whether an exam passed. The agent can read the journal, so its output is only in ralph's state folder."""

    name: str
    passed: bool


class MeasurementStarted(Struct, frozen=True):
    """A run of the measuring command, or a pair of them, starts."""

    name: str


class StartMeasured(Struct, frozen=True):
    """The number before the first turn, in a run that optimises it."""

    start: Start


class EndMeasured(Struct, frozen=True):
    """The best version compared with the version that the run started from."""

    comparison: Comparison


class ClaimRejected(Refusal, frozen=True): ...


class Waiting(Struct, frozen=True, omit_defaults=True):
    """A wait starts. `until` is when it ends (epoch seconds), so that a resumed run continues to wait; `children` are
    the runs that the current claim waits for; `limited` means that a usage limit has to end.
    """

    seconds: float
    reason: str
    until: float = 0.0
    children: tuple[str, ...] = ()
    limited: bool = False


class Paused(Struct, frozen=True, omit_defaults=True):
    """The run waits until a person continues it or, if it `asks`, answers the agent."""

    reason: str
    asks: bool = False


class Continued(Struct, frozen=True):
    """The end of a pause of this many seconds."""

    seconds: float


class QuestionAsked(Question, frozen=True):
    """The agent asks a person; `ralph tell` answers."""


class PersonTold(Struct, frozen=True):
    """A person's notes that are part of the next prompt."""

    iteration: int
    notes: tuple[PersonNote, ...]


class ReviewStarted(Struct, frozen=True):
    name: str


class ReviewFinished(Struct, frozen=True, omit_defaults=True):
    """A review ends. If it didn't pass, `changes` is what the reviewer asks for, `problem` why there is no verdict."""

    name: str
    passed: bool
    agent: str = ""
    changes: str = ""
    problem: str = ""


class HandedOver(Struct, frozen=True):
    """Another agent takes over the work."""

    hand_over: HandOver


class ScmFinished(Struct, frozen=True, omit_defaults=True):
    """A commit, push or other SCM task after green checks."""

    iteration: int
    task: str
    ok: bool
    detail: str = ""


class Spent(Struct, frozen=True, omit_defaults=True):
    """Usage outside any iteration, such as a commit message written after it."""

    iteration: int
    purpose: str
    usage: Usage


class ProofStarted(Struct, frozen=True):
    """The work is done, and ralph undoes parts of its diff to see whether a check notices. `hunks` counts those of the
    diff."""

    hunks: int


class ProofFinished(Struct, frozen=True, omit_defaults=True):
    """The result of undoing parts of the change. `tree`: the files after the agent's turn about untested parts."""

    iteration: int
    proof: Proof
    tree: Fingerprint | None = None


class ProofAsked(Struct, frozen=True):
    """The agent gets one turn about these untested parts (`--prove=ask`)."""

    iteration: int
    parts: tuple[str, ...]


class Notice(Struct, frozen=True, omit_defaults=True):
    """A message for a person. It changes nothing by itself."""

    text: str
    level: str = "warning"  # warning, info, debug


class TurnNotCounted(Struct, frozen=True, omit_defaults=True):
    """A turn that ended by a limit, a passing failure or an interruption: it costs money, but is not an iteration."""

    turn: Turn


class IterationFinished(Struct, frozen=True, omit_defaults=True):
    """Everything about an iteration that later decisions need. `ralph resume` reads the run from these events."""

    iteration: int
    record: Iteration


class FilesAccepted(Struct, frozen=True):
    """A person accepted test and protected files as they are. `record` is the last iteration after another look at its
    files; it replaces the earlier one."""

    iteration: int
    record: Iteration


class Converged(Struct, frozen=True):
    iteration: int
    signal: str


class Stalled(Struct, frozen=True):
    iteration: int
    reason: str


class Exhausted(Struct, frozen=True):
    iteration: int
    cap: int


class RunFinished(Struct, frozen=True, omit_defaults=False, kw_only=True):
    """The last event of a run. `untouched`: nothing was changed in its worktree; `interrupted_by`: the signal, or
    whatever else requested the end.
    """

    outcome: Outcome
    reason: str
    iterations: int
    cost_usd: float | None
    duration_s: float
    exit_code: int
    verified: bool = True
    worktree: str = ""
    branch: str = ""
    untouched: bool = False
    untested: bool = False  # no check tests the worktree
    interrupted_by: str = ""


TALK = frozenset({AgentText, ToolStarted, ToolFinished, TodoUpdated, AgentProgress})
"""What an agent says and does. There may be very many of these."""

AgentEvent = (
    AgentText | ToolStarted | ToolFinished | TodoUpdated | AgentProgress | PermissionDenied | AgentResult | AgentUnknown
)

TurnEvent = AgentStarted | AgentEvent | AgentFinished | TurnNotCounted | HandedOver
CheckEvent = Baseline | CheckStarted | CheckFinished | ReviewStarted | ReviewFinished | ClaimRejected
RefereeEvent = ExamStarted | ExamFinished | ProofStarted | ProofAsked | ProofFinished
MeasuringEvent = MeasurementStarted | StartMeasured | EndMeasured
PersonEvent = Waiting | Paused | Continued | QuestionAsked | PersonTold
EndEvent = Converged | Stalled | Exhausted | RunFinished
ResultEvent = Spent | ScmFinished | Notice | IterationFinished | FilesAccepted | EndEvent
Event = (
    RunStarted | IterationStarted | TurnEvent | CheckEvent | RefereeEvent | MeasuringEvent | PersonEvent | ResultEvent
)


def event_names(kinds: Iterable[type]) -> dict[type, str]:
    """Return the JSON names of these events: their class names in lower case."""
    return {
        kind: "".join(f"_{char.lower()}" if char.isupper() else char for char in kind.__name__)[1:] for kind in kinds
    }


NAMES = event_names(kind for kind in get_args(Event) if kind is not AgentUnknown)
NAMES |= {kind: f"ralph_{NAMES[kind]}" for kind in (IterationStarted, Converged, Stalled, Exhausted)}  # as in the seed

Tell = Callable[[Event], None]


class TellAll(Protocol):
    """A function that gets one or more events, in order."""

    def __call__(self, *happened: Event) -> None: ...


class Told(Struct, frozen=True, gc=False):
    """An event as it is written to the journal and by `--json`, one per line."""

    type: str
    timestamp: str
    run: str
    seq: int
    data: Event


def closing_events(run: Run, stop: Stop, elapsed: float, cap: int = 0, verified: bool = False) -> list[Event]:
    """Return the events that end a run; the last one is `RunFinished`. `cap` is the iteration limit."""
    last = len(run.iterations)
    events: list[Event] = []
    if stop.outcome is Outcome.DONE:
        events.append(Converged(last, stop.claim))
    elif stop.outcome is Outcome.STALLED:
        events.append(Stalled(last, stop.reason))
    elif stop.outcome is Outcome.EXHAUSTED:
        events.append(Exhausted(last, cap))
    finished = RunFinished(
        outcome=stop.outcome,
        reason=stop.reason,
        interrupted_by=stop.interrupted_by,
        iterations=last,
        cost_usd=run.usage.cost_usd,
        duration_s=elapsed,
        exit_code=stop.outcome.exit_code,
        verified=verified,
    )
    return [*events, finished]
