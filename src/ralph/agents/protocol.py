"""What must an agent's module offer? Its argv for a turn, and a parser that makes events and one Turn of its stream."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Literal, Protocol

from msgspec import Struct, json

from ralph.core.events import AgentEvent
from ralph.core.model import Exit, Failure, FailureKind, Turn, Usage
from ralph.errors import UNREADABLE
from ralph.files import read_given, replace_file


class TurnRequest(Struct, frozen=True, kw_only=True):
    """What one turn asks of an agent.

    `command` is the program as the user named it (`("claude",)`, `("/opt/bin/claude",)`, or a whole command line);
    `flags` are the user's own extra words; `understands` are the options that the installed version lists in its help
    (None: not asked); `scratch` is a private folder for files the agent writes for us; `usage_before` is what the
    earlier turns of `session` cost together, for agents that report the session's total; `boxed`: it is started in a
    box, where a sandbox of its own would only be in its way; `looks_only`: it is to look and to answer, and to change
    nothing, as far as it has a mode for that; `folders` are those outside the workspace where it is to write.
    """

    prompt: str
    prompt_file: str
    command: tuple[str, ...]
    flags: tuple[str, ...] = ()
    model: str = ""
    yolo: bool = False
    stream: bool = True
    session: str | None = None
    max_turns: int | None = None
    root: bool = False
    understands: frozenset[str] | None = None
    scratch: str = ""
    usage_before: Usage = Usage()
    boxed: bool = False
    looks_only: bool = False
    folders: tuple[str, ...] = ()


class Trouble(Struct, frozen=True):
    """What the agent itself says went wrong. `kind` only where its own signals leave no doubt."""

    message: str
    status: int | None = None
    kind: FailureKind | None = None
    resets_at: float | None = None


class Invocation(Struct, frozen=True):
    """How to start the agent. `stdin`: the prompt (exact bytes, then end of file) or nothing.
    `answer_file`: where the agent itself writes its final answer, if anywhere."""

    argv: tuple[str, ...]
    stdin: Literal["prompt", "empty"] = "prompt"
    env: Mapping[str, str] = {}
    answer_file: str = ""


class Login(Struct, frozen=True):
    """How a person logs in, and what shows that somebody did: `files` in the folder that `variable` names (by default
    `home`), or one of the `others`, variables that stand for a login besides the module's KEYS."""

    how: str
    variable: str
    home: str
    files: tuple[str, ...]
    others: tuple[str, ...] = ()


class BoxNeeds(Struct, frozen=True, kw_only=True):
    """What an agent needs to work in a box. Its `state` (login, sessions) is in a folder at home, or in the one that
    `variable` names; the names in it that are `fixed` make it run something or tell it what to do, so it may only read
    them. `shown` are other paths at home that it reads, `copied` files of which it gets copies. `hosts` are where its
    models are, beside those that `urls`, variables of the environment, and its `fixed` settings name."""

    state: str
    variable: str = ""
    within: str = ""  # where the state is in the folder that the variable names
    fixed: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()
    copied: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    urls: tuple[str, ...] = ()


class Description(Protocol):
    """What the settings say about an agent. `resume` and `model` are words that are added when there is a session
    or a model to name; `stream` is `text`, `auto`, or the known agent whose stream it speaks. What follows is about the
    model of the built-in agent."""

    @property
    def argv(self) -> tuple[str, ...]: ...
    @property
    def prompt(self) -> Literal["stdin", "argument", "file"]: ...
    @property
    def stream(self) -> str: ...
    @property
    def resume(self) -> tuple[str, ...]: ...
    @property
    def model(self) -> tuple[str, ...] | str: ...
    @property
    def url(self) -> str: ...
    @property
    def wire(self) -> str: ...
    @property
    def key_env(self) -> str: ...
    @property
    def context(self) -> int | None: ...
    @property
    def max_output(self) -> int | None: ...
    @property
    def tools(self) -> str: ...


class Parser(Protocol):
    """Reads one turn's stdout. Never raises on bad input: a line it cannot read is counted in `skipped`. `spent` is
    what the turn has used so far, of an agent that tells while it still works; it `is_heard` if its stream tells of all
    that it does, and `is_waiting` while a tool call of its own is under way."""

    skipped: int
    tool_errors: int
    spent: Usage | None

    @property
    def is_heard(self) -> bool: ...

    @property
    def is_waiting(self) -> bool: ...

    def feed(self, line: bytes) -> Iterable[AgentEvent]:
        """The events in one line of stdout (without its newline)."""
        ...

    def feed_all(self, lines: Sequence[bytes]) -> Sequence[AgentEvent]:
        """The events in lines that came at once."""
        ...

    def turn(self, ended: Exit) -> Turn:
        """The whole turn, once the process has ended: final answer, tool calls, usage, session, failure."""
        ...


class AgentModule(Protocol):
    """One coding-agent CLI. A module of `ralph.agents` is one of these."""

    NAME: str
    INSTALL: str  # what to type to install it
    KEYS: tuple[str, ...]  # environment variables that hold its own credentials
    RESUMES: bool  # whether a session can be continued headless
    CONFINED: bool  # whether, short of yolo, it writes nowhere but in the workspace and in folders that it is given
    HELP: tuple[str, ...]  # arguments that print the options of its headless mode
    LOGIN: Login | None
    BOX: BoxNeeds | None

    def invocation(self, request: TurnRequest) -> Invocation: ...

    def parser(self, request: TurnRequest) -> Parser: ...


def given(request: TurnRequest, *names: str) -> bool:
    """Whether one of the options `names` stands in the user's flags."""
    return any(flag.partition("=")[0] in names for flag in request.flags)


def model(request: TurnRequest, *names: str) -> list[str]:
    """The words that choose the model, by the first of the option's `names`."""
    return [names[0], request.model] if request.model and not given(request, *names) else []


def extra(request: TurnRequest, *own: str) -> tuple[str, ...]:
    """The user's flags without the words that are said anyway: he may call his agent `codex exec --json`."""
    return tuple(flag for flag in request.flags if flag not in own)


def knows(request: TurnRequest, name: str) -> bool:
    """Whether the installed version takes the option `name`, as far as anyone has asked it."""
    return request.understands is None or name in request.understands


def optional(request: TurnRequest, name: str, *values: str) -> list[str]:
    """An option and its values, unless the installed version does not take it: the turn can do without."""
    return [name, *values] if knows(request, name) else []


def lent(request: TurnRequest, name: str) -> list[str]:
    """The words that let it write in other folders, by the option of that `name`."""
    return [word for folder in request.folders for word in optional(request, name, folder)]


def reaches(module: AgentModule, request: TurnRequest) -> bool:
    """Whether the agent may write in all the folders outside the workspace that it needs."""
    if request.yolo or request.boxed or not module.CONFINED:
        return True
    started = module.invocation(request)
    said = "\0".join((*started.argv, *started.env.values()))
    return all(folder in said for folder in request.folders)


Words = tuple[str, ...]


class _Answer(Struct):
    """What a program answered, and which program that was, and what the question."""

    asked: str
    options: list[str]


def worth_asking(failure: Failure | None) -> bool:
    """Whether a turn failed in a way that knowing the options would mend."""
    refusals = ("unknown", "unexpected", "unrecognized", "no such")
    words = [f"{refusal} {thing}" for refusal in refusals for thing in ("option", "argument", "flag")]
    return failure is not None and any(word in failure.reason.lower() for word in words)


def understood(program: str, question: Words, printed: Callable[[Words], str]) -> frozenset[str] | None:
    """The options that the program at this path lists when it is asked `question`, or None where there is no telling.
    `printed` gives what a command prints."""
    known = remembered(program, question)
    if known is None:
        import re

        options = sorted(set(re.findall(r"(?<![\w-])--?[A-Za-z][\w-]*", printed((program, *question)))))
        if not options:
            return None
        known, path = frozenset(options), _memory(program)
        with suppress(OSError):  # to keep the answer is a comfort: where it cannot be kept, the next run asks again
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            replace_file(path, json.encode(_Answer(_identity(program, question), options)))
    return known


def remembered(program: str, question: Words) -> frozenset[str] | None:
    """What this very version has answered before, here or in an earlier run."""
    try:
        answer = json.decode(read_given(_memory(program), 1 << 20), type=_Answer)
        return frozenset(answer.options) if answer.asked == _identity(program, question) else None
    except (OSError, *UNREADABLE):
        return None


def _identity(program: str, question: Words) -> str:
    """Which file, put there when? Packages come with made-up times of change, and a new version with an old size."""
    facts = os.stat(program)
    numbers = (facts.st_ino, facts.st_ctime_ns, facts.st_size)
    return "\0".join((os.path.abspath(program), *map(str, numbers), *question))


def _memory(program: str) -> str:
    folder = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(folder, "ralph", f"options-{os.path.basename(program)}.json")
