"""The interface of an agent module: the argv for a turn, and a parser that turns its stream into events and a Turn."""

from collections.abc import Callable, Iterable, Mapping
from typing import Literal, Protocol

from msgspec import Struct

from ralph.core.events import AgentEvent
from ralph.core.model import Exit, FailureKind, Turn, Usage


class TurnRequest(Struct, frozen=True, kw_only=True):
    """The input of one turn."""

    prompt: str
    prompt_file: str
    command: tuple[str, ...]
    """The program as the user named it: one word, a path, or a whole command line."""
    flags: tuple[str, ...] = ()
    """The user's extra words."""
    model: str = ""
    yolo: bool = False
    stream: bool = True
    session: str | None = None
    max_turns: int | None = None
    root: bool = False
    scratch: str = ""
    """A private folder for files that the agent writes for ralph."""
    usage_before: Usage = Usage()
    """The usage of earlier turns of `session`, for agents that report the total of a session."""
    sandboxed: bool = False
    """The agent runs in ralph's sandbox, so its own sandbox should be off."""
    looks_only: bool = False
    """The agent should answer without changing anything, if it has a mode for that."""
    folders: tuple[str, ...] = ()
    """Folders outside the workspace in which the agent must be able to write."""
    budget: float | None = None
    """The most that the turn may cost, in dollars."""

    def has_option(self, *names: str) -> bool:
        """Whether the user's flags contain one of the options `names`."""
        return any(flag.partition("=")[0] in names for flag in self.flags)

    def model_option(self, *names: str) -> list[str]:
        """Return the words that choose the model, with the first of the option's `names`."""
        return [names[0], self.model] if self.model and not self.has_option(*names) else []

    def flags_without(self, *own: str) -> tuple[str, ...]:
        """Return the user's flags without words that ralph adds anyway (an agent may be given as `codex exec
        --json`)."""
        return tuple(flag for flag in self.flags if flag not in own)

    def folder_options(self, option: str) -> list[str]:
        """Return `option` for each of the `folders`."""
        return [word for folder in self.folders for word in (option, folder)]


class Trouble(Struct, frozen=True):
    """An error as the agent reports it. `kind` is set only if it is certain, not guessed from the message."""

    message: str
    status: int | None = None
    kind: FailureKind | None = None
    resets_at: float | None = None


class Invocation(Struct, frozen=True):
    """How to start the agent. Its stdin is the prompt or empty.

    `answer_file` is the file to which the agent itself writes its final answer, if any.
    """

    argv: tuple[str, ...]
    stdin: Literal["prompt", "empty"] = "prompt"
    env: Mapping[str, str] = {}
    answer_file: str = ""


class Login(Struct, frozen=True):
    """How to log in, and how to detect a login.

    A login is one of `files` in the folder that the environment variable `variable` names (default: `home`), or one of
    the variables in `others`, or one with the agent's credentials.
    """

    how: str
    variable: str
    home: str
    files: tuple[str, ...]
    others: tuple[str, ...] = ()


class SandboxNeeds(Struct, frozen=True, kw_only=True):
    """What an agent needs in the sandbox.

    Its `state` (login, sessions) is in a folder of the home folder, or in the one that `variable` names. The `fixed`
    files of the state are read-only, because they can make the agent run commands or follow instructions. It writes to
    the `private` folders itself, but in other sessions it runs or follows what is there: a sandbox has its own. The
    agent may
    read the `shown` paths in the home folder, and gets copies of the `copied` files. `hosts` serve its models, as do
    the hosts in the environment variables `urls` and in its `fixed` settings.
    """

    state: str
    variable: str = ""
    within: str = ""  # path of the state in the folder that the variable names
    fixed: tuple[str, ...] = ()
    private: tuple[str, ...] = ()
    project: Callable[[str], str] | None = None
    """Return the folder in the state with the sessions of a workspace. It is the real one, even in a private folder."""
    shown: tuple[str, ...] = ()
    copied: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    urls: tuple[str, ...] = ()


class Parser(Protocol):
    """Reads one turn's stdout. It never raises: a line that it cannot read is counted in `skipped`.

    `spent` is the usage so far, if the agent reports it during the turn. `is_heard`: the stream reports everything that
    the agent does. `is_waiting`: one of its tool calls is running.
    """

    skipped: int
    tool_errors: int
    spent: Usage | None

    @property
    def is_heard(self) -> bool: ...

    @property
    def is_waiting(self) -> bool: ...

    def feed(self, line: bytes) -> Iterable[AgentEvent]:
        """Return the events in one line of stdout (without its newline)."""
        ...

    def turn(self, ended: Exit) -> Turn:
        """Return the turn once the process has ended: final answer, tool calls, usage, session, failure."""
        ...


class AgentModule(Protocol):
    """One coding-agent CLI. A module of `ralph.agents` is one of these."""

    NAME: str
    INSTALL: str  # what to type to install it
    RESUMES: bool  # whether it can continue a session without a terminal
    LOGIN: Login | None
    SANDBOX: SandboxNeeds | None

    def invocation(self, request: TurnRequest) -> Invocation: ...

    def parser(self, request: TurnRequest) -> Parser: ...


class Choice(Struct, frozen=True, kw_only=True):
    """An agent that may take turns. `hidden` are environment variables that it doesn't get. With `purposes` it takes
    only these turns; without, it works on the goal."""

    name: str
    module: AgentModule
    command: tuple[str, ...]
    flags: tuple[str, ...] = ()
    model: str = ""
    hidden: frozenset[str] = frozenset()
    purposes: tuple[str, ...] = ()

    def request(self) -> TurnRequest:
        """Return the request for a turn without a prompt, to see how the agent would be started."""
        return TurnRequest(prompt="", prompt_file="", command=self.command, flags=self.flags, model=self.model)
