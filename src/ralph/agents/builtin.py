"""How is the built-in agent run, where is its model asked, and what does its stream say? A program of ours,
`ralph.agent`, that works with any model and prints what Claude Code prints: `PROVIDER:NAME` and what the settings add
become one endpoint, and what its tokens cost is known here."""

import sys
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from typing import Literal, get_args
from urllib.parse import urlsplit

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from ralph.agents import keys, wire
from ralph.agents.claude import BlockReader, StreamLine, StreamMessage, tokens_in
from ralph.agents.protocol import BoxNeeds, Description, Invocation, Login, Trouble, TurnRequest, given, lent, model
from ralph.agents.reader import estimate
from ralph.agents.wire import Table
from ralph.core.events import AgentEvent
from ralph.core.model import Exit, Usage
from ralph.errors import UserError, to_install

Wire = Literal["chat", "responses", "messages", "google"]


class Provider(Struct, frozen=True):
    """Somebody who serves models. `keys`: the variables that may hold the key, the first one found counts; with none
    the model is the user's own, needs no key and costs nothing."""

    wire: Wire
    url: str
    keys: tuple[str, ...] = ()


PROVIDERS: dict[str, Provider] = {
    "openai": Provider("responses", "https://api.openai.com/v1", ("OPENAI_API_KEY",)),
    "anthropic": Provider("messages", "https://api.anthropic.com", ("ANTHROPIC_API_KEY",)),
    "google": Provider("google", "https://generativelanguage.googleapis.com", ("GEMINI_API_KEY", "GOOGLE_API_KEY")),
    "mistral": Provider("chat", "https://api.mistral.ai/v1", ("MISTRAL_API_KEY",)),
    "groq": Provider("chat", "https://api.groq.com/openai/v1", ("GROQ_API_KEY",)),
    "openrouter": Provider("chat", "https://openrouter.ai/api/v1", ("OPENROUTER_API_KEY",)),
    "deepseek": Provider("chat", "https://api.deepseek.com", ("DEEPSEEK_API_KEY",)),
    "xai": Provider("chat", "https://api.x.ai/v1", ("XAI_API_KEY",)),
    "together": Provider("chat", "https://api.together.xyz/v1", ("TOGETHER_API_KEY",)),
    "fireworks": Provider("chat", "https://api.fireworks.ai/inference/v1", ("FIREWORKS_API_KEY",)),
    "cerebras": Provider("chat", "https://api.cerebras.ai/v1", ("CEREBRAS_API_KEY",)),
    "moonshotai": Provider("chat", "https://api.moonshot.ai/v1", ("MOONSHOTAI_API_KEY",)),
    "ollama": Provider("chat", "http://127.0.0.1:11434/v1"),
    "llamacpp": Provider("chat", "http://127.0.0.1:8080/v1"),
    "vllm": Provider("chat", "http://127.0.0.1:8000/v1"),
    "lmstudio": Provider("chat", "http://127.0.0.1:1234/v1"),
}
OWN = "server"  # the provider of a model that was named by its address alone


class Endpoint(Struct, frozen=True):
    """A model, where it is asked, how, and which variable holds the key ("": none is needed)."""

    provider: str
    model: str
    wire: Wire
    url: str
    key_env: str

    @property
    def is_local(self) -> bool:
        """Whether the model is the user's own, and so costs nothing: no key, on a server that one runs oneself."""
        own = self.provider in PROVIDERS or self.host in ("127.0.0.1", "::1", "localhost")
        return own and not self.key_env

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or ""


def endpoint(model: str, url: str = "", wire: str = "", key_env: str = "") -> Endpoint:
    """The model that is meant. With a `url` of its own it may be called by its bare name."""
    before, colon, after = model.partition(":")
    provider = before if colon and before in PROVIDERS else ""
    name = (after if provider else model).strip()
    if not name:
        raise UserError("the built-in agent needs a model", _how())
    if not provider and not url:
        raise UserError(f"unknown provider in --model {model!r}", _how())
    if wire and wire not in get_args(Wire):
        raise UserError(f"unknown wire {wire!r}", f"use one of: {', '.join(get_args(Wire))}")
    if url and (urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname):
        raise UserError(f"not the address of a server: {url!r}", "write it with http:// or https:// in front")
    usual = PROVIDERS.get(provider, Provider("chat", ""))
    key = key_env or (usual.keys[0] if usual.keys else "")
    return Endpoint(provider or OWN, name, wire or usual.wire, url or usual.url, key)  # type: ignore[arg-type]


def with_key(asked: Endpoint, env: Mapping[str, str]) -> tuple[Endpoint, str]:
    """The endpoint with the variable that really holds its key, and the key. A missing one is said by its name."""
    usual = PROVIDERS[asked.provider].keys if asked.provider in PROVIDERS else ()
    for variable in usual if asked.key_env in usual else (asked.key_env,):
        if key := env.get(variable, "").strip():
            return Endpoint(asked.provider, asked.model, asked.wire, asked.url, variable), key
    if asked.key_env:
        raise UserError(
            f"{asked.key_env} is not set", f"put the key of {asked.provider} into it: export {asked.key_env}=…"
        )
    return asked, ""


def _how() -> str:
    return f"name it as PROVIDER:NAME (openai:gpt-5, ollama:qwen3-coder); providers: {', '.join(PROVIDERS)}"


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


def options(wish: Description | None, asked: str, flags: tuple[str, ...]) -> tuple[str, ...]:
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
            tokens = tokens_in(to_builtins(message.usage))
            cost = _price(tokens, self._asked) if self._asked else None
            total = self.usage.plus(replace(tokens, cost_usd=cost, estimated=bool(cost)))
            blocks = message.content if isinstance(message.content, list) else []
            self.spent = total if any(block.type == "tool_use" for block in blocks) else None
            events += self.pays(total)
        return events

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


parser = _Builtin
