"""What must an agent's module offer? Its argv for a turn, and a parser that makes events and one Turn of its stream."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, Protocol

from msgspec import Struct

from ralph.core.events import AgentEvent
from ralph.core.model import Exit, Turn, Usage


class Request(Struct, frozen=True):
    """What one turn asks of an agent.

    `command` is the program as the user named it (`("claude",)`, `("/opt/bin/claude",)`, or a whole command line);
    `flags` are the user's own extra words; `understands` are the options that the installed version lists in its help
    (None: not asked); `scratch` is a private folder for files the agent writes for us; `usage_before` is what the
    earlier turns of `session` cost together, for agents that report the session's total.
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


class Parser(Protocol):
    """Reads one turn's stdout. Never raises on bad input: a line it cannot read is counted in `skipped`."""

    skipped: int
    tool_errors: int

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
    HELP: tuple[str, ...]  # arguments that print the options of its headless mode
    LOGIN: Login | None

    def invocation(self, request: Request) -> Invocation: ...

    def parser(self, request: Request) -> Parser: ...
