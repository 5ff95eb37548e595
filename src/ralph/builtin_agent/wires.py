"""Requests to a model, with retries. pydantic-ai implements each provider's protocol ("wire").

A reply without a finish reason is incomplete, and is requested again.
"""

import asyncio
import re
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

import httpx2
from pydantic_ai import exceptions
from pydantic_ai.direct import model_request_stream
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models import Model, ModelRequestParameters

from ralph.agents.builtin import Endpoint
from ralph.errors import UserError

MAX_ATTEMPTS = 5
FIRST_DELAY, MAX_DELAY = 0.5, 8.0
MAX_RETRY_AFTER = 60.0
_READ_TIMEOUT = 1800.0  # seconds until the first token; ralph's own limits end a turn earlier
_MAX_OUTPUT = 100_000  # tokens of a reply, if `max_output` is not set
_PER_TOKEN = 4  # events of a stream for one token, at most
_MAX_ERROR = 2000  # characters of an error message
_LIBRARY_ERRORS = (AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
_TOO_LONG = re.compile(r"exceeds the (maximum number of tokens|available context)")  # Google and llama.cpp
_NOT_RETRIED = (400, 401, 402, 403, 404, 422)  # HTTP statuses that a retry would not change


class ModelError(Exception):
    """The request failed. `resets_at` is when a usage limit ends, if the server stated it."""

    def __init__(self, message: str, status: int | None = None, resets_at: float | None = None) -> None:
        self.message, self.status, self.resets_at = message, status, resets_at


class UnfinishedTurn(Exception):
    """The turn can't be completed, and a retry would not help. `how` is the subtype of the result line."""

    def __init__(self, message: str, how: str = "error_unfinished") -> None:
        self.message, self.how = message, how


class ContextFull(Exception):
    """The conversation no longer fits into the model's context."""


def _error_text(error: Any) -> str:
    """Return the message in an error object of any shape."""
    if isinstance(error, dict):
        return _error_text(error.get("message") or error.get("error") or error.get("code") or "")
    return error if isinstance(error, str) else ""


class ModelAsker:
    """Sends requests to one model. `tell(attempt, delay, error)` is called before each retry. Close its `client`."""

    def __init__(
        self, endpoint: Endpoint, key: str, max_output: int | None, alive: Callable[[], None], tell: Callable[..., None]
    ) -> None:
        self.endpoint, self._alive, self._tell = endpoint, alive, tell
        self._max_events = max((max_output or _MAX_OUTPUT) * _PER_TOKEN, 1000)
        self._content_type = ""  # of the last reply
        self.client = httpx2.AsyncClient(
            timeout=httpx2.Timeout(_READ_TIMEOUT, connect=15),
            event_hooks={"response": [self._on_response]},
            follow_redirects=False,  # the key must not go to another host
        )
        try:
            self.model = _model(endpoint, base_url=endpoint.url, api_key=key or "none", http_client=self.client)
        except exceptions.UserError as error:
            raise UserError(f"cannot use {endpoint.provider}:{endpoint.model}", str(error)) from None
        length = {"max_tokens": max_output} if max_output else {}
        # Mistral always reports tokens, and rejects the option that requests them.
        own: dict[str, Any] = {"extra_body": {"stream_options": {}}} if endpoint.provider == "mistral" else {}
        self._settings = {"cache": True, "max_retries": 0, "timeout": _READ_TIMEOUT, **length, **own}

    async def ask(self, messages: list[ModelMessage], offered: ModelRequestParameters) -> ModelResponse:
        """Return the model's next complete reply. Retry if a reply is incomplete or the request fails."""
        how = {"model_settings": self._settings, "model_request_parameters": offered}
        number, pause = 1, FIRST_DELAY
        while True:
            try:
                return await self._once(messages, **how)
            except ModelError as error:
                wait = pause if error.resets_at is None else max(error.resets_at - time.time(), 0.0)
                if error.status in _NOT_RETRIED or number == MAX_ATTEMPTS or wait > MAX_RETRY_AFTER:
                    raise
                self._tell(number, wait, error)
                await asyncio.sleep(wait)
                number, pause = number + 1, min(pause * 2, MAX_DELAY)

    async def _once(self, messages: list[ModelMessage], **how: Any) -> ModelResponse:
        self._content_type, events = "", 0
        try:
            async with model_request_stream(self.model, messages, **how) as stream:
                async for _ in stream:
                    self._alive()
                    events += 1
                    if events > self._max_events:
                        raise UnfinishedTurn("the reply did not end: it was much longer than max_output")
            reply = stream.get()
        except (exceptions.ModelAPIError, httpx2.HTTPError) as error:
            self._refuse_other_protocol()
            raise _convert_error(error, self.endpoint) from None
        except _LIBRARY_ERRORS as error:
            if not self._content_type:
                raise
            self._refuse_other_protocol()
            raise ModelError(f"connection failed: the reply cannot be read ({type(error).__name__})") from None
        if not reply.finish_reason and not (reply.provider_details or {}).get("finish_reason"):
            self._refuse_other_protocol()
            raise ModelError("stream ended before the reply did")
        if reply.finish_reason == "length":
            raise UnfinishedTurn("the reply was cut off: it was longer than max_output")
        if reply.finish_reason == "content_filter":
            raise UnfinishedTurn("the model's provider withheld the reply (content filter)")
        return reply

    async def _on_response(self, response: httpx2.Response) -> None:
        if response.is_success:
            self._content_type = response.headers.get("content-type", "").partition(";")[0] or "nothing"

    def _refuse_other_protocol(self) -> None:
        """Raise if the reply that could not be read was not even a stream of events."""
        if self._content_type and self._content_type != "text/event-stream":
            where = f"{self.endpoint.url} does not speak the wire `{self.endpoint.wire}`"
            raise ModelError(f"not found: {where}, it answered with {self._content_type}", 404)


def _convert_error(error: Exception, endpoint: Endpoint) -> ModelError | ContextFull:
    """Return our own exception for an exception of the library."""
    words = (_error_text(getattr(error, "body", None)) or str(error))[:_MAX_ERROR]
    if isinstance(error, exceptions.ModelContextWindowExceededError) or _TOO_LONG.search(words):
        return ContextFull(words)
    if isinstance(error, exceptions.ModelAPIError) and error.in_stream:
        return ModelError(f"the model's server stopped with an error: {words}")
    if not isinstance(error, exceptions.ModelHTTPError):
        return ModelError(f"connection failed: {endpoint.url}: {words}")
    if error.status_code == 401:
        key_sent = (
            f"the key in {endpoint.key_env}" if endpoint.key_env else "no key was sent: see agents.builtin.key_env"
        )
        words += f" ({key_sent})"
    if error.status_code in (400, 500) and "tool" in words.lower():
        words += ' (a model without tool calling works with the setting agents.builtin.tools "text")'
    after = None if error.retry_after is None else time.time() + error.retry_after
    return ModelError(f"{error.status_code} {words}", error.status_code, after)


def _model(endpoint: Endpoint, **own: Any) -> Model[Any]:
    """Return the library's model for an endpoint. Import only its protocol, because each takes half a second."""
    if endpoint.wire == "messages":
        from pydantic_ai.models.anthropic import AnthropicModel
        from pydantic_ai.providers.anthropic import AnthropicProvider

        return AnthropicModel(endpoint.model, provider=AnthropicProvider(**own))
    if endpoint.wire == "google":
        from pydantic_ai.models.google import GoogleModel
        from pydantic_ai.providers.google import GoogleProvider

        return GoogleModel(endpoint.model, provider=GoogleProvider(**own))
    return _openai(endpoint, **own)


# Providers with OpenAI's protocol that the library supports, and those for which it has its own model class.
_KNOWN = ("openai", "openrouter", "deepseek", "together", "fireworks", "cerebras", "moonshotai", "ollama", "vllm")
_MODELS = {"openrouter": "OpenRouterModel", "ollama": "OllamaModel"}


def _openai(endpoint: Endpoint, **options: Any) -> Model[Any]:
    """Return a model for one of OpenAI's two protocols, with the library's settings for the provider.

    Only OpenAI itself supports the newer option for the length of a reply (`max_completion_tokens`).
    """
    from openai import AsyncOpenAI
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

    sdk = AsyncOpenAI(**options)
    own: Any = OpenAICompatibleProvider(endpoint.provider, openai_client=sdk)
    speaks: Callable[..., Model[Any]] = OpenAIResponsesModel if endpoint.wire == "responses" else OpenAIChatModel
    if endpoint.provider in _KNOWN:
        from pydantic_ai.providers import infer_provider_class

        own = infer_provider_class(endpoint.provider)(openai_client=sdk)  # type: ignore[call-arg]
    if name := _MODELS.get(endpoint.provider):
        speaks = getattr(import_module(f"pydantic_ai.models.{endpoint.provider}"), name)
    profile = {
        "openai_chat_supports_max_completion_tokens": endpoint.provider == "openai",
        "openai_chat_streaming_requires_finish_reason": True,  # without one the reply broke off
    }
    return speaks(endpoint.model, provider=own, profile=profile)
