"""Requests to a model. A reply counts only if it ended with the terminator of its protocol ("wire").

pydantic-ai implements each provider's protocol, but accepts a stream that ends too early. So a tap looks at every byte
of a reply, for the terminator and for an error in the middle.
"""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Callable
from importlib import import_module
from typing import Any

import httpx2
from pydantic_ai import exceptions
from pydantic_ai.direct import model_request_stream
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models import Model, ModelRequestParameters

from ralph.agents.builtin import Endpoint
from ralph.errors import UNREADABLE, UserError

MAX_ATTEMPTS = 5
FIRST_DELAY, MAX_DELAY = 0.5, 8.0
MAX_RETRY_AFTER = 60.0
_READ_TIMEOUT = 1800.0  # seconds until the first token; ralph's own limits end a turn earlier
_PER_TOKEN = 1000  # bytes of a stream for one token, at most
_MAX_TOKENS = 32_000  # of a reply, if `max_output` is not set
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


class Tap:
    """Watches the reply to the last request, up to `max_bytes`, and calls `alive` whenever bytes arrive."""

    def __init__(self, wire: str, max_bytes: int, alive: Callable[[], None]) -> None:
        self._wire, self._max_bytes, self._alive = wire, max_bytes, alive
        self.forget()

    def forget(self) -> None:
        self.ended = self.streamed = self.overflowed = False
        self.error = self.kind = ""
        self._line, self._size = list[bytes](), 0  # the pieces of an incomplete line

    async def on_response(self, response: httpx2.Response) -> None:
        self.forget()
        if response.is_success:
            self.kind = response.headers.get("content-type", "").partition(";")[0] or "nothing"
        response.stream = _Tapped(response.stream, self)

    def see(self, data: bytes) -> bool:
        """Look at the next bytes of the reply; return False if it is too long."""
        self._alive()
        self._size += len(data)
        whole, ended, rest = data.rpartition(b"\n")
        if ended:
            for line in b"".join((*self._line, whole)).split(b"\n"):
                if line.startswith(b"data:"):
                    self.streamed = True
                    self._event(line[5:].strip())
            self._line.clear()
        self._line.append(rest)
        self.overflowed = self._size > self._max_bytes
        return not self.overflowed

    def _event(self, data: bytes) -> None:
        try:
            event = json.loads(data)
        except UNREADABLE:
            return  # `[DONE]`, or malformed JSON, which the library reports
        if not isinstance(event, dict):
            return
        kind = event.get("type", "")
        failed = event.get("response") if kind == "response.failed" else event
        if isinstance(failed, dict) and (kind in ("error", "response.failed") or failed.get("error")):
            self.error = _error_text(failed.get("error") or failed) or "an error in the middle of the reply"
        elif _is_terminator(self._wire, kind, event):
            self.ended = True


class _Tapped(httpx2.AsyncByteStream):
    def __init__(self, stream: Any, tap: Tap) -> None:
        self._stream, self._tap = stream, tap

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for data in self._stream:
            if not self._tap.see(data):
                return
            yield data

    async def aclose(self) -> None:
        await self._stream.aclose()


def _is_terminator(wire: str, kind: str, event: dict[str, Any]) -> bool:
    """Whether this event ends a reply."""
    if wire == "messages":
        return kind == "message_stop"
    if wire == "responses":
        return kind in ("response.completed", "response.incomplete")
    rows, name = ("candidates", "finishReason") if wire == "google" else ("choices", "finish_reason")
    listed = event.get(rows)
    return isinstance(listed, list) and any(isinstance(row, dict) and row.get(name) for row in listed)


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
        self.endpoint, self._tell = endpoint, tell
        self._tap = Tap(endpoint.wire, max((max_output or _MAX_TOKENS) * _PER_TOKEN, 1_000_000), alive)
        self.client = httpx2.AsyncClient(
            timeout=httpx2.Timeout(_READ_TIMEOUT, connect=15),
            event_hooks={"response": [self._tap.on_response]},
            headers={"accept-encoding": "identity"},  # the tap reads the bytes uncompressed
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

    async def ask(self, messages: list[ModelMessage], offered: ModelRequestParameters, **more: Any) -> ModelResponse:
        """Return the model's next complete reply. Retry if a reply is incomplete or the request fails."""
        how = {"model_settings": {**self._settings, **more}, "model_request_parameters": offered}
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
        self._tap.forget()
        try:
            async with model_request_stream(self.model, messages, **how) as stream:
                async for _ in stream:
                    pass
            reply = stream.get()
        except (exceptions.ModelAPIError, httpx2.HTTPError) as error:
            if self._tap.kind:
                self._check_stream()
            raise _convert_error(error, self.endpoint) from None
        except _LIBRARY_ERRORS as error:
            if not self._tap.kind:
                raise
            self._check_stream()
            raise ModelError(f"connection failed: the reply cannot be read ({type(error).__name__})") from None
        self._check_stream()
        if reply.finish_reason == "length":
            raise UnfinishedTurn("the reply was cut off: it was longer than max_output")
        if reply.finish_reason == "content_filter":
            raise UnfinishedTurn("the model's provider withheld the reply (content filter)")
        return reply

    def _check_stream(self) -> None:
        """Raise if the reply was not complete, even if the library accepted it."""
        tap = self._tap
        if tap.overflowed:
            raise UnfinishedTurn("the reply did not end: ralph gave up after a million bytes")
        if tap.error:
            raise ModelError(f"the model's server stopped with an error: {tap.error}")
        if tap.kind and not tap.ended and not tap.streamed and tap.kind != "text/event-stream":
            where = f"{self.endpoint.url} does not speak the wire `{self.endpoint.wire}`"
            raise ModelError(f"not found: {where}, it answered with {tap.kind}", 404)
        if not tap.ended:
            raise ModelError("stream ended before the reply did")


def _convert_error(error: Exception, asked: Endpoint) -> ModelError | ContextFull:
    """Return our own exception for an exception of the library."""
    words = _error_text(getattr(error, "body", None)) or str(error)
    if isinstance(error, exceptions.ModelContextWindowExceededError) or _TOO_LONG.search(words):
        return ContextFull(words)
    if not isinstance(error, exceptions.ModelHTTPError) or error.in_stream:
        return ModelError(f"connection failed: {asked.url}: {words}")
    if error.status_code == 401:
        words += f" (the key in {asked.key_env})" if asked.key_env else " (no key was sent: see agents.builtin.key_env)"
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


def _openai(endpoint: Endpoint, **given: Any) -> Model[Any]:
    """Return a model for one of OpenAI's two protocols, with the library's settings for the provider.

    Only OpenAI itself supports the newer option for the length of a reply (`max_completion_tokens`).
    """
    from openai import AsyncOpenAI
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

    sdk = AsyncOpenAI(**given)
    own: Any = OpenAICompatibleProvider(endpoint.provider, openai_client=sdk)
    speaks: Callable[..., Model[Any]] = OpenAIResponsesModel if endpoint.wire == "responses" else OpenAIChatModel
    if endpoint.provider in _KNOWN:
        from pydantic_ai.providers import infer_provider_class

        own = infer_provider_class(endpoint.provider)(openai_client=sdk)  # type: ignore[call-arg]
    if name := _MODELS.get(endpoint.provider):
        speaks = getattr(import_module(f"pydantic_ai.models.{endpoint.provider}"), name)
    newer = {"openai_chat_supports_max_completion_tokens": endpoint.provider == "openai"}
    return speaks(endpoint.model, provider=own, profile=newer)
