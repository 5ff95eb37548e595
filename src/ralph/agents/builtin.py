"""The built-in agent: how to start `ralph.builtin_agent`, a separate program, and how to read its stream.

Its stream has the format of Claude Code. `PROVIDER:NAME` and the settings are resolved to one endpoint. The costs are
calculated here, from a price table.
"""

import sys
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from typing import Literal, get_args
from urllib.parse import urlsplit

from msgspec import Struct
from msgspec.structs import replace

from ralph.agents import wire
from ralph.agents.claude import BlockReader, tokens_in
from ralph.agents.prices import estimate
from ralph.agents.protocol import Invocation, Login, SandboxNeeds, Trouble, TurnRequest
from ralph.agents.wire import Table
from ralph.core.events import AgentEvent
from ralph.core.model import Exit, Usage
from ralph.errors import UserError, to_install

Wire = Literal["chat", "responses", "messages", "google"]


class Provider(Struct, frozen=True):
    """A service with models.

    `keys` are the environment variables that may contain its key; the first that is set counts. A provider without
    `keys` is the user's own server, which needs no key and costs nothing. The variable `url_variable` overrides its
    address.
    """

    wire: Wire
    url: str
    keys: tuple[str, ...] = ()
    url_variable: str = ""


PROVIDERS: dict[str, Provider] = {
    "openai": Provider("responses", "https://api.openai.com/v1", ("OPENAI_API_KEY",), "OPENAI_BASE_URL"),
    "anthropic": Provider("messages", "https://api.anthropic.com", ("ANTHROPIC_API_KEY",), "ANTHROPIC_BASE_URL"),
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
OWN = "server"  # the provider of a model for which only an address is given
_HOW = f"name it as PROVIDER:NAME (openai:gpt-5, ollama:qwen3-coder); providers: {', '.join(PROVIDERS)}"


class Endpoint(Struct, frozen=True):
    """A model, its address and protocol, and the environment variable with its key ("" if it needs none)."""

    provider: str
    model: str
    wire: Wire
    url: str
    key_env: str

    @property
    def is_local(self) -> bool:
        """Whether the model probably runs on the user's own machine."""
        host = urlsplit(self.url).hostname
        return self.is_free or (not self.key_env and host in ("127.0.0.1", "::1", "localhost"))

    @property
    def is_free(self) -> bool:
        """Whether the model certainly costs nothing. Another local server may be a proxy to a paid model."""
        return self.provider in PROVIDERS and not self.key_env


def endpoint(
    model: str, url: str = "", wire: str = "", key_env: str = "", *, env: Mapping[str, str] | None = None
) -> Endpoint:
    """Resolve a model name. With a `url` a name without provider is enough; `env` may replace a provider's address."""
    before, colon, after = model.partition(":")
    provider = before if colon and before in PROVIDERS else ""
    name = (after if provider else model).strip()
    if not name:
        raise UserError("the built-in agent needs a model", _HOW)
    if not provider and not url:
        raise UserError(f"unknown provider in --model {model!r}", _HOW)
    if wire and wire not in get_args(Wire):
        raise UserError(f"unknown wire {wire!r}", f"use one of: {', '.join(get_args(Wire))}")
    usual = PROVIDERS.get(provider, Provider("chat", ""))
    url = url or (env or {}).get(usual.url_variable, "")
    if url and (urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname):
        raise UserError(f"not the address of a server: {url!r}", "write it with http:// or https:// in front")
    key = key_env or (usual.keys[0] if usual.keys else "")
    return Endpoint(provider or OWN, name, wire or usual.wire, url or usual.url, key)  # type: ignore[arg-type]


def with_key(asked: Endpoint, env: Mapping[str, str]) -> tuple[Endpoint, str]:
    """Return the endpoint with the variable that contains its key, and the key. Raise if a needed key is not set."""
    usual = PROVIDERS[asked.provider].keys if asked.provider in PROVIDERS else ()
    for variable in usual if asked.key_env in usual else (asked.key_env,):
        if key := env.get(variable, "").strip():
            return replace(asked, key_env=variable), key
    if asked.key_env:
        hint = f"put the key of {asked.provider} into it: export {asked.key_env}=…"
        raise UserError(f"{asked.key_env} is not set", hint)
    return asked, ""


NAME = "builtin"
INSTALL = "builtin is an extra of ralph: `ralph doctor` says how to install it"
RESUMES = True
LOGIN = Login("name a model of your own (--model ollama:NAME)", "XDG_STATE_HOME", "~/.local/state", ())
SANDBOX = SandboxNeeds(state="~/.local/state/ralph-agent", variable="XDG_STATE_HOME", within="ralph-agent")

_WHERE = ("--model", "--url", "--wire", "--key-env")
_PRICED_AS = {"xai": "x-ai", OWN: ""}  # providers with another name in the price table


def options(
    settings: Mapping[str, object], asked: str, flags: tuple[str, ...], env: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the options that describe the model to the agent, with its address.

    `settings` are those of the agent in settings.json. They don't apply to a model of another provider.
    """
    configured = settings.get("model")
    own = configured if isinstance(configured, str) else ""
    name = _option_value(flags, "--model") or asked or own
    words: dict[str, object] = {"--model": name}
    if not own or name.partition(":")[0] == own.partition(":")[0]:
        names = ("url", "wire", "key_env", "tools", "context", "max_output")
        words |= {f"--{key.replace('_', '-')}": settings.get(key) for key in names}
    words |= {option: value for option in _WHERE if (value := _option_value(flags, option))}
    service = endpoint(*(str(words.get(option) or "") for option in _WHERE), env=env)
    words |= {"--url": service.url, "--wire": service.wire, "--key-env": service.key_env}
    pairs = [(option, str(value)) for option, value in words.items() if value and not _option_value(flags, option)]
    return (*(word for pair in pairs for word in pair), *flags)


def refuse_unready(flags: tuple[str, ...], env: Mapping[str, str], is_limited: bool) -> None:
    """Raise if the agent cannot work, before anything is spent. `is_limited`: there is a budget, so the price must be
    known."""
    if find_spec("pydantic_ai") is None:
        raise UserError("the built-in agent is not installed", f"install it: {to_install('agent')}")
    asked = endpoint(*(_option_value(flags, option) for option in _WHERE))
    with_key(asked, env)
    if is_limited and _price(Usage(input_tokens=1000, output_tokens=1000), asked) is None:
        raise UserError(
            f"the price of {asked.model} is unknown, so --max-cost can't be enforced",
            "use --max-tokens, or a model with a known price",
        )


def invocation(request: TurnRequest) -> Invocation:
    """Build the command line. `-P` prevents imports from the workspace. The agent's tools need no permissions. It
    prints the stream in text mode as well."""
    argv = [sys.executable, "-P", "-m", "ralph.builtin_agent", *request.model_option("--model")]
    if request.max_turns and not request.has_option("--max-turns"):
        argv += ["--max-turns", str(request.max_turns)]
    if request.session:
        argv += ["--resume", request.session]
    return Invocation((*argv, *request.folder_options("--add-dir"), *request.flags))


class _Builtin(BlockReader):
    def __init__(self, request: TurnRequest) -> None:
        super().__init__(request)
        flags = (*request.model_option("--model"), *request.flags)
        try:
            self._asked: Endpoint | None = endpoint(*(_option_value(flags, option) for option in _WHERE))
        except UserError:
            self._asked = None

    def on_assistant(self, table: Table) -> Iterable[AgentEvent]:
        """Add the cost of each reply.

        A reply without tool calls is the last one. After it `spent` is None, because no budget should end the turn any
        more.
        """
        events, message = [*super().on_assistant(table)], wire.table(table, "message")
        if used := wire.table(message, "usage"):
            tokens = tokens_in(used)
            cost = _price(tokens, self._asked) if self._asked else None
            total = self.usage.plus(replace(tokens, cost_usd=cost, estimated=bool(cost)))
            calls = [block for block in wire.rows(message, "content") if block.get("type") == "tool_use"]
            self.spent = total if calls else None
            events += self.pays(total)
        return events

    def usage_in(self, result: Table) -> Usage:
        self.spent = None
        return self.usage

    def verdict(self, ended: Exit) -> Trouble | None:
        """Treat exit code 2 as fatal: the configuration is wrong, and a retry would not help."""
        if ended.code == 2 and self.trouble is None:
            message = ended.stderr.strip().rpartition("\n")[2].removeprefix("ralph.builtin_agent: ")
            return Trouble(message or "exit code 2", kind="fatal")
        return self.trouble

    def trouble_in(self, result: Table) -> Trouble:
        message = wire.text(result, "result")
        if wire.text(result, "terminal_reason") != "api_error":
            return Trouble(message, kind="ordinary")
        status = wire.status(result, "api_error_status")
        return Trouble(message, status, None if status else "transient", self.resets_at)


def _price(usage: Usage, asked: Endpoint) -> float | None:
    """Return the price of a call in dollars; None if it is unknown."""
    return 0.0 if asked.is_free else estimate(usage, asked.model, _PRICED_AS.get(asked.provider, asked.provider))


def _option_value(flags: tuple[str, ...], option: str) -> str:
    """Return the value of an option among the words."""
    for at, flag in enumerate(flags):
        if flag == option:
            return "".join(flags[at + 1 : at + 2])
        if flag.startswith(f"{option}="):
            return flag.partition("=")[2]
    return ""


parser = _Builtin
