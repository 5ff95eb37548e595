"""How is the built-in agent run, and what does its stream say? A program of ours, `ralph.agent`, that works with any
model and prints what Claude Code prints; what its tokens cost is known here."""

import sys
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from typing import Protocol

from msgspec.structs import replace

from ralph.agents import keys, wire
from ralph.agents.claude import BlockReader, StreamLine, StreamMessage, Tokens
from ralph.agents.protocol import BoxNeeds, Invocation, Login, Parser, Trouble, TurnRequest, given, lent, model
from ralph.agents.providers import OWN, Endpoint, endpoint, with_key
from ralph.agents.reader import estimate
from ralph.agents.wire import Table
from ralph.core.events import AgentEvent
from ralph.core.model import Exit, Usage
from ralph.errors import UserError, to_install

NAME = "builtin"
INSTALL = f"{to_install('agent')} (then: --agent builtin)"
KEYS = keys(NAME)
RESUMES = True
CONFINED = True
HELP: tuple[str, ...] = ()
LOGIN = Login("name a model of your own (--model ollama:NAME)", "XDG_STATE_HOME", "~/.local/state", ())
BOX = BoxNeeds(state="~/.local/state/ralph-agent", variable="XDG_STATE_HOME", within="ralph-agent")


_WHERE = ("--model", "--url", "--wire", "--key-env")
_PRICED_AS = {"xai": "x-ai", OWN: ""}  # who is called otherwise where the prices are


class ModelChoice(Protocol):
    """What the settings say about a model."""

    @property
    def model(self) -> str | tuple[str, ...]: ...
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


def options(wish: ModelChoice | None, asked: str, flags: tuple[str, ...]) -> tuple[str, ...]:
    """All that is said about the model, as words for the agent: where it is asked stands there too, whoever said so.
    What the settings wish for the model that they name does not hold for one of another provider."""
    own = wish.model if wish and isinstance(wish.model, str) else ""
    name = _said(flags, "--model") or asked or own
    words: dict[str, object] = {"--model": name}
    if wish and (not own or name.partition(":")[0] == own.partition(":")[0]):
        words |= {"--url": wish.url, "--wire": wish.wire, "--key-env": wish.key_env, "--tools": wish.tools}
        words |= {"--context": wish.context, "--max-output": wish.max_output}
    words |= {option: said for option in _WHERE if (said := _said(flags, option))}
    found = endpoint(*(str(words.get(option) or "") for option in _WHERE))
    words |= {"--url": found.url, "--wire": found.wire, "--key-env": found.key_env}
    pairs = [(option, str(value)) for option, value in words.items() if value and not _said(flags, option)]
    return (*(word for pair in pairs for word in pair), *flags)


def refuse_unready(flags: tuple[str, ...], env: Mapping[str, str], is_limited: bool) -> None:
    """Says before anything is spent what keeps the agent from working. `is_limited`: its cost must be known."""
    if find_spec("pydantic_ai") is None:
        raise UserError("the built-in agent is not installed", f"install it: {INSTALL.partition(' (')[0]}")
    asked = _endpoint(flags)
    with_key(asked, env)
    if is_limited and _price(Usage(input_tokens=1000, output_tokens=1000), asked) is None:
        raise UserError(
            f"nobody knows what {asked.model} costs, so that --max-cost cannot be kept",
            "use --max-tokens, or a model with a known price",
        )


def invocation(request: TurnRequest) -> Invocation:
    """`-P` keeps the workspace's own modules out of the program. It has no permissions to ask for: its tools run."""
    argv = [sys.executable, "-P", "-m", "ralph.agent", *model(request, "--model")]
    if not request.stream:
        argv += ["--output-format", "text"]
    if request.max_turns and not given(request, "--max-turns"):
        argv += ["--max-turns", str(request.max_turns)]
    if request.session:
        argv += ["--resume", request.session]
    return Invocation((*argv, *lent(request, "--add-dir"), *request.flags))


def parser(request: TurnRequest) -> Parser:
    return _Builtin(request)


class _Builtin(BlockReader):
    AGENT = NAME

    def __init__(self, request: TurnRequest) -> None:
        super().__init__(request)
        try:
            self._asked: Endpoint | None = _endpoint((*model(request, "--model"), *request.flags))
        except UserError:
            self._asked = None

    def _assistant(self, said: StreamLine) -> Iterable[AgentEvent]:
        """Each reply is a call of the model, and is paid for as such: some are dearer when they are long. One without
        a tool call is the last, and an answer counts whatever it has cost."""
        events = [*super()._assistant(said)]
        message = said.message
        if isinstance(message, StreamMessage) and message.usage is not None:
            total = self.usage.plus(self._paid(message.usage))
            blocks = message.content if isinstance(message.content, list) else []
            self.spent = total if any(block.type == "tool_use" for block in blocks) else None
            events += self.pays(total)
        return events

    def _paid(self, used: Tokens) -> Usage:
        tokens = Usage(
            input_tokens=int(used.input_tokens or 0),
            output_tokens=int(used.output_tokens or 0),
            cache_read_tokens=int(used.cache_read_input_tokens or 0),
            cache_write_tokens=int(used.cache_creation_input_tokens or 0),
        )
        cost = _price(tokens, self._asked) if self._asked else None
        return replace(tokens, cost_usd=cost, estimated=bool(cost))

    def usage_in(self, result: Table) -> Usage:
        self.spent = None
        return self.usage

    def verdict(self, ended: Exit) -> Trouble | None:
        """With exit code 2 it says that it cannot work with what it was told: so would it be the next time."""
        if ended.code == 2 and self.trouble is None:
            said = ended.stderr.strip().rpartition("\n")[2].removeprefix("ralph.agent: ")
            return Trouble(said or "exit code 2", kind="fatal")
        return self.trouble

    def trouble_in(self, result: Table) -> Trouble:
        message = wire.text(result, "result")
        if wire.text(result, "terminal_reason") != "api_error":
            return Trouble(message, kind="ordinary")
        status = wire.status(result, "api_error_status")
        return Trouble(message, status, None if status else "transient", self.resets_at)


def _endpoint(flags: tuple[str, ...]) -> Endpoint:
    return endpoint(*(_said(flags, option) for option in _WHERE))


def _price(usage: Usage, asked: Endpoint) -> float | None:
    """What a call costs, in dollars; None: nobody knows."""
    return 0.0 if asked.is_local else estimate(usage, asked.model, _PRICED_AS.get(asked.provider, asked.provider))


def _said(flags: tuple[str, ...], option: str) -> str:
    """The value of an option among the words."""
    for at, flag in enumerate(flags):
        if flag == option:
            return "".join(flags[at + 1 : at + 2])
        if flag.startswith(f"{option}="):
            return flag.partition("=")[2]
    return ""
