"""Where is a model asked, and with which key? `PROVIDER:NAME` and what the settings add become one endpoint."""

from collections.abc import Mapping
from typing import Literal, get_args
from urllib.parse import urlsplit

from msgspec import Struct

from ralph.errors import UserError

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
