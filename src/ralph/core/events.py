"""What can happen in a run? One frozen struct per kind of event, called in JSON as its class is."""

from collections.abc import Callable, Iterable
from typing import Protocol, get_args

from msgspec import Struct

from ralph.core.model import Check, Iteration, PersonNote, Turn, Usage

# gc=False: no garbage is looked for in what there may be any number of. It holds no cycles, and is made in less time.


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
    base_tree: str | None = None
    worktree: str = ""
    branch: str = ""
    resumed: bool = False
    task: str = ""
    work: str = ""
    backlog_task: str = ""


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
    """What the agent says. Not necessarily its final answer."""

    text: str


class FileEdit(Struct, frozen=True, gc=False):
    """What a tool takes out of a file and puts in: the beginning of each, and how many lines it is in all."""

    removed: str = ""
    added: str = ""
    removed_lines: int = 0
    added_lines: int = 0


class ToolStarted(Struct, frozen=True, omit_defaults=True, gc=False):
    """`input` is a short human summary of the arguments, such as the path or the command; `edit` is what the tool
    changes, where its arguments say that; `parent` is the call whose sub-agent makes this one."""

    id: str
    name: str
    input: str = ""
    edit: FileEdit | None = None
    parent: str = ""


class ToolFinished(Struct, frozen=True, gc=False, kw_only=True):
    """`output` is the tool's output, of a long one both ends; `lines` and `chars` measure all of it."""

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


class Unheard(Struct, frozen=True, gc=False):
    """So many things that an agent said, or that a tool returned, without their words: the journal has no more room for
    them, and nobody reads as fast. `ended` are the calls that are over. It has no name: it is never written."""

    number: int
    ended: tuple[str, ...] = ()


class AgentProgress(Struct, frozen=True, omit_defaults=True):
    """Status that is neither text nor tool: retrying, context compacted, a sub-agent's words. `routine`: it comes with
    every turn, such as the name of its session."""

    text: str
    routine: bool = False


class PermissionDenied(Struct, frozen=True, omit_defaults=True):
    """The agent was not allowed to use a tool, and nobody is there to ask. `allow_list` is where it keeps what it may
    do without asking, where there is such a list."""

    tool: str
    allow_list: str = ""


class AgentResult(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What the turn cost, as the agent reports it."""

    cost_usd: float | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    estimated: bool = False


class AgentUnknown(Struct, frozen=True):
    """A well-formed line of a kind that the agent's module does not know. Counted, not shown."""

    kind: str = ""


class AgentFinished(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The end of a turn. `skipped_lines`: lines of its stream that could not be read."""

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


class ClaimRejected(Struct, frozen=True):
    claim: str
    gate: str
    reason: str


class Waiting(Struct, frozen=True, omit_defaults=True):
    """`until` is the moment (epoch seconds) at which the wait ends, so that a resumed run goes on waiting; `children`
    are the runs that a claim which stands waits for; `limited`: a usage limit has to end."""

    seconds: float
    reason: str
    until: float = 0.0
    children: tuple[str, ...] = ()
    limited: bool = False


class Paused(Struct, frozen=True, omit_defaults=True):
    """The run stands still until a person speaks; `asks`: until the agent is answered."""

    reason: str
    asks: bool = False


class Continued(Struct, frozen=True):
    """The end of a pause that took so many seconds."""

    seconds: float


class QuestionAsked(Struct, frozen=True):
    """The agent asks a person; `ralph tell` answers. `waits`: no turn begins before that."""

    id: str
    text: str
    waits: bool = False


class PersonTold(Struct, frozen=True):
    """What a person said goes into the prompt of the turn that comes."""

    iteration: int
    notes: tuple[PersonNote, ...]


class ReviewStarted(Struct, frozen=True):
    name: str


class ReviewFinished(Struct, frozen=True):
    name: str
    passed: bool


class ScmFinished(Struct, frozen=True, omit_defaults=True):
    """A commit, push or other SCM task after green checks."""

    iteration: int
    task: str
    ok: bool
    detail: str = ""


class Spent(Struct, frozen=True, omit_defaults=True):
    """What a turn took that is no part of an iteration's record: a commit message was asked for after it."""

    iteration: int
    purpose: str
    usage: Usage


class Notice(Struct, frozen=True, omit_defaults=True):
    """Something a person should know that changes nothing by itself."""

    text: str
    level: str = "warning"  # warning, info, debug


class TurnNotCounted(Struct, frozen=True, omit_defaults=True):
    """A turn that a limit, a passing fault or an interruption ended: it is paid for, but it is not an iteration."""

    turn: Turn


class IterationFinished(Struct, frozen=True, omit_defaults=True):
    """All of an iteration that later decisions need: a run is read back from these."""

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
    """The last event of a run, whatever ended it. `untouched`: it had a worktree, and nothing was changed there;
    `interrupted_by`: the signal, or what else asked for the end."""

    outcome: str
    reason: str
    iterations: int
    cost_usd: float | None
    duration_s: float
    exit_code: int
    verified: bool = True
    worktree: str = ""
    branch: str = ""
    untouched: bool = False
    interrupted_by: str = ""


TALK = frozenset({AgentText, ToolStarted, ToolFinished, TodoUpdated, AgentProgress})
"""What an agent says and does: of these there may be any number."""

AgentEvent = (
    AgentText | ToolStarted | ToolFinished | TodoUpdated | AgentProgress | PermissionDenied | AgentResult | AgentUnknown
)

TurnEvent = AgentStarted | AgentEvent | Unheard | AgentFinished | TurnNotCounted
CheckEvent = Baseline | CheckStarted | CheckFinished | ReviewStarted | ReviewFinished | ClaimRejected
PersonEvent = Waiting | Paused | Continued | QuestionAsked | PersonTold
ResultEvent = Spent | ScmFinished | Notice | IterationFinished | Converged | Stalled | Exhausted | RunFinished
Event = RunStarted | IterationStarted | TurnEvent | CheckEvent | PersonEvent | ResultEvent


def named(kinds: Iterable[type]) -> dict[type, str]:
    """What events are called in JSON: as their classes, in small letters."""
    return {kind: "".join(f"_{one.lower()}" if one.isupper() else one for one in kind.__name__)[1:] for kind in kinds}


NAMES = named(kind for kind in get_args(Event) if kind not in (AgentUnknown, Unheard))
NAMES |= {kind: f"ralph_{NAMES[kind]}" for kind in (IterationStarted, Converged, Stalled, Exhausted)}  # as in the seed

Tell = Callable[[Event], None]


class TellAll(Protocol):
    """Tells of what happened at once, be it one thing or a thousand, in order."""

    def __call__(self, *happened: Event) -> None: ...


class Told(Struct, frozen=True, gc=False):
    """An event as it stands in the journal and in `--json`: one line each."""

    type: str
    timestamp: str
    run: str
    seq: int
    data: Event
