"""How is a model asked, and when does its reply count? Only when the terminator of its wire has arrived.

The library speaks each provider's protocol. What it does not see is a stream that ends too early: it takes the half for
the whole. So every byte of a reply passes a tap that looks for the terminator, and for an error in the middle."""

import asyncio
import json
import re
import time
import zlib
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

TRIES = 5
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 8.0
LONGEST_RETRY_AFTER = 60.0
_SILENCE = 1800.0  # seconds that a model may think before its first word; ralph has limits of its own
_PER_TOKEN = 1000  # bytes on the wire for one token, at the very most
_MOST_TOKENS = 32_000  # of an answer whose length nobody has limited
_STUMBLES = (AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)  # of the library
_TOO_LONG = re.compile(r"exceeds the (maximum number of tokens|available context)")  # Google's and llama.cpp's words
_FINAL = (400, 401, 402, 403, 404, 422)  # asked again, these would be the same


class Refused(Exception):
    """The model gave no reply that counts. `resets_at`: when a limit that it stated ends."""

    def __init__(self, message: str, status: int | None = None, resets_at: float | None = None) -> None:
        self.message, self.status, self.resets_at = message, status, resets_at


class Unfinished(Exception):
    """The turn ended before the work did, and asking again would not help. `how`: the kind of result that it is."""

    def __init__(self, message: str, how: str = "error_unfinished") -> None:
        self.message, self.how = message, how


class ContextFull(Exception):
    """The conversation no longer fits into the model's context."""


class Tap:
    """What came over the wire for the last request. Its two hooks belong to the HTTP client."""

    def __init__(self, asked: Endpoint, most: int, alive: Callable[[], None]) -> None:
        self._wire, self._asked, self._most, self._alive = asked.wire, httpx2.URL(asked.url), most, alive
        self.forget()

    def forget(self) -> None:
        self.ended = self.streamed = self.overflowed = False
        self.error = self.kind = ""
        self._line, self._size = list[bytes](), 0  # the pieces of a line that is not whole yet

    async def on_request(self, request: httpx2.Request) -> None:
        request.headers["accept-encoding"] = "identity"
        if request.url.host != self._asked.host or request.url.scheme not in (self._asked.scheme, "https"):
            for name in ("authorization", "x-api-key", "x-goog-api-key"):  # the library keeps but the first to itself
                request.headers.pop(name, None)

    async def on_response(self, response: httpx2.Response) -> None:
        self.forget()
        if response.is_success:
            self.kind = response.headers.get("content-type", "").partition(";")[0] or "nothing"
        packed = response.headers.pop("content-encoding", "") in ("gzip", "deflate")
        response.stream = _Tapped(response.stream, self, zlib.decompressobj(47) if packed else None)

    def see(self, data: bytes) -> bool:
        """Looks at the next bytes of the reply; whether more of them may come."""
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
        self.overflowed = self._size > self._most
        return not self.overflowed

    def _event(self, data: bytes) -> None:
        try:
            event = json.loads(data)
        except UNREADABLE:
            return  # `[DONE]`, or something that the library will stumble over
        if not isinstance(event, dict):
            return
        kind = event.get("type", "")
        failed = event.get("response") if kind == "response.failed" else event
        if isinstance(failed, dict) and (kind in ("error", "response.failed") or failed.get("error")):
            self.error = _words_of(failed.get("error") or failed) or "an error in the middle of the reply"
        elif _ends(self._wire, kind, event):
            self.ended = True


class _Tapped(httpx2.AsyncByteStream):
    def __init__(self, stream: Any, tap: Tap, unpack: Any) -> None:
        self._stream, self._tap, self._unpack = stream, tap, unpack

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for data in self._stream:
            try:
                plain = self._unpack.decompress(data) if self._unpack else data
            except zlib.error as error:
                raise httpx2.DecodingError(str(error)) from None
            if not self._tap.see(plain):
                return
            yield plain

    async def aclose(self) -> None:
        await self._stream.aclose()


def _ends(wire: str, kind: str, event: dict[str, Any]) -> bool:
    """Whether this event is the terminator of its wire."""
    if wire == "messages":
        return kind == "message_stop"
    if wire == "responses":
        return kind in ("response.completed", "response.incomplete")
    rows, name = ("candidates", "finishReason") if wire == "google" else ("choices", "finish_reason")
    listed = event.get(rows)
    return isinstance(listed, list) and any(isinstance(row, dict) and row.get(name) for row in listed)


def _words_of(error: Any) -> str:
    """What an error object says, however it is put."""
    if isinstance(error, dict):
        return _words_of(error.get("message") or error.get("error") or error.get("code") or "")
    return error if isinstance(error, str) else ""


class ModelAsker:
    """Asks one model. `tell(tries, pause, reason)` hears why it is asked again. Its `client` must be closed."""

    def __init__(
        self, endpoint: Endpoint, key: str, max_output: int | None, alive: Callable[[], None], tell: Callable[..., None]
    ) -> None:
        self.endpoint, self._tell = endpoint, tell
        self._tap = Tap(endpoint, max((max_output or _MOST_TOKENS) * _PER_TOKEN, 1_000_000), alive)
        self.client = httpx2.AsyncClient(
            timeout=httpx2.Timeout(_SILENCE, connect=15),
            event_hooks={"request": [self._tap.on_request], "response": [self._tap.on_response]},
            follow_redirects=True,
        )
        try:
            self.model = _model(endpoint, base_url=endpoint.url, api_key=key or "none", http_client=self.client)
        except exceptions.UserError as error:
            raise UserError(f"{endpoint.provider}:{endpoint.model} cannot be asked", str(error)) from None
        length = {"max_tokens": max_output} if max_output else {}
        # Mistral counts tokens unasked, and refuses to be asked for it.
        own: dict[str, Any] = {"extra_body": {"stream_options": {}}} if endpoint.provider == "mistral" else {}
        self._settings = {"cache": True, "max_retries": 0, "timeout": _SILENCE, **length, **own}

    async def ask(self, messages: list[ModelMessage], offered: ModelRequestParameters, **more: Any) -> ModelResponse:
        """The model's next reply, whole. What was cut off, or broke in the middle, is asked for again."""
        how = {"model_settings": {**self._settings, **more}, "model_request_parameters": offered}
        number, pause = 1, FIRST_PAUSE
        while True:
            try:
                return await self._once(messages, **how)
            except Refused as error:
                wait = pause if error.resets_at is None else max(error.resets_at - time.time(), 0.0)
                if error.status in _FINAL or number == TRIES or wait > LONGEST_RETRY_AFTER:
                    raise
                self._tell(number, wait, error)
                await asyncio.sleep(wait)
                number, pause = number + 1, min(pause * 2, LONGEST_PAUSE)

    async def _once(self, messages: list[ModelMessage], **how: Any) -> ModelResponse:
        self._tap.forget()
        try:
            async with model_request_stream(self.model, messages, **how) as stream:
                async for _ in stream:
                    pass
            reply = stream.get()
        except (exceptions.ModelAPIError, httpx2.HTTPError) as error:
            if self._tap.kind:
                self._judge_stream()
            raise _refused(error, self.endpoint) from None
        except _STUMBLES as error:
            if not self._tap.kind:
                raise
            self._judge_stream()
            raise Refused(f"connection failed: the reply cannot be read ({type(error).__name__})") from None
        self._judge_stream()
        if reply.finish_reason == "length":
            raise Unfinished("the reply was cut off: it grew longer than the model may write (max_output)")
        if reply.finish_reason == "content_filter":
            raise Unfinished("the model's provider withheld the reply (content filter)")
        return reply

    def _judge_stream(self) -> None:
        """Raises if what came was no whole reply, whatever the library made of it."""
        tap = self._tap
        if tap.overflowed:
            raise Unfinished("the reply did not end: it was given up after a million bytes and more")
        if tap.error:
            raise Refused(f"the model's server broke off with an error: {tap.error}")
        if tap.kind and not tap.ended and not tap.streamed and tap.kind != "text/event-stream":
            where = f"{self.endpoint.url} does not speak the wire `{self.endpoint.wire}`"
            raise Refused(f"not found: {where}, it answered with {tap.kind}", 404)
        if not tap.ended:
            raise Refused("stream ended before the reply did")


def _refused(error: Exception, asked: Endpoint) -> Refused | ContextFull:
    words = _words_of(getattr(error, "body", None)) or str(error)
    if isinstance(error, exceptions.ModelContextWindowExceededError) or _TOO_LONG.search(words):
        return ContextFull(words)
    if not isinstance(error, exceptions.ModelHTTPError) or error.in_stream:
        return Refused(f"connection failed: {asked.url}: {words}")
    if error.status_code == 401:
        words += f" (the key in {asked.key_env})" if asked.key_env else " (no key was sent: see agents.builtin.key_env)"
    if error.status_code in (400, 500) and "tool" in words.lower():
        words += ' (a model without tool calling works with the setting agents.builtin.tools "text")'
    after = None if error.retry_after is None else time.time() + error.retry_after
    return Refused(f"{error.status_code} {words}", error.status_code, after)


def _model(endpoint: Endpoint, **own: Any) -> Model[Any]:
    """The library's model for an endpoint. Only the wire that is spoken is imported: each costs half a second."""
    if endpoint.wire == "messages":
        from pydantic_ai.models.anthropic import AnthropicModel
        from pydantic_ai.providers.anthropic import AnthropicProvider

        return AnthropicModel(endpoint.model, provider=AnthropicProvider(**own))
    if endpoint.wire == "google":
        from pydantic_ai.models.google import GoogleModel
        from pydantic_ai.providers.google import GoogleProvider

        return GoogleModel(endpoint.model, provider=GoogleProvider(**own))
    return _openai(endpoint, **own)


# Whose ways the library knows though they speak the wire of OpenAI, and those for whom it has a model of its own.
_KNOWN = ("openai", "openrouter", "deepseek", "together", "fireworks", "cerebras", "moonshotai", "ollama", "vllm")
_MODELS = {"openrouter": "OpenRouterModel", "ollama": "OllamaModel"}


def _openai(endpoint: Endpoint, **given: Any) -> Model[Any]:
    """Both wires of OpenAI, for everyone who speaks them, each with what the library knows of his ways. Few but OpenAI
    itself know its newer word for the longest reply."""
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
