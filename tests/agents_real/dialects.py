"""The four protocols of models: how each one writes a request, a reply and an error, streamed or whole."""

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol
from uuid import uuid4

from script import Asked, Fail, Tokens, Use

PIECE = 4096  # characters in one delta; an agent that repeats the text so far in each event suffers from small ones
Json = dict[str, Any]


class Reply(NamedTuple):
    """The model's answer, independent of any protocol."""

    text: str
    uses: tuple[Use, ...]
    tokens: Tokens
    cut: bool = False


class Dialect(Protocol):
    name: str
    ending: int  # how many events at the end of a streamed text say that it is whole

    def asked(self, path: str, body: Json) -> Asked: ...

    def stream(self, reply: Reply, asked: Asked) -> Iterator[bytes]: ...

    def whole(self, reply: Reply, asked: Asked) -> Json: ...

    def error(self, fail: Fail) -> Json: ...

    def error_inside(self, fail: Fail) -> bytes:
        """Return the error as it is written in the middle of a stream."""
        ...


def pieces(text: str) -> list[str]:
    return [text[at : at + PIECE] for at in range(0, len(text), PIECE)]


def sse(data: Json, event: str = "") -> bytes:
    head = f"event: {event}\n" if event else ""
    return f"{head}data: {json.dumps(data)}\n\n".encode()


def flat(content: object) -> str:
    """Return the text of a message's content, which is a string or a list of parts."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(filter(None, map(flat, content)))
    if isinstance(content, Mapping):
        return next(
            (flat(content[key]) for key in ("text", "content", "output", "return_value") if content.get(key)), ""
        )
    return ""


def written(arguments: Mapping[str, object] | str) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments)


def fresh(prefix: str) -> str:
    return f"{prefix}_{uuid4().hex[:24]}"


class Messages:
    """Anthropic Messages."""

    name = "messages"
    ending = 3

    def asked(self, path: str, body: Json) -> Asked:
        tools = {tool["name"]: tool.get("input_schema", {}) for tool in body.get("tools") or ()}
        said = tuple(turn for message in body.get("messages", ()) for turn in self._turns(message))
        system = flat(body.get("system"))
        return Asked(self.name, path, system, said, tools, bool(body.get("stream")), body.get("model", ""))

    def _turns(self, message: Json) -> Iterator[tuple[str, str]]:
        content = message["content"]
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
        for part in content:
            yield ("tool" if part.get("type") == "tool_result" else message["role"]), flat(part)

    def blocks(self, reply: Reply) -> list[Json]:
        blocks: list[Json] = [{"type": "text", "text": reply.text}] if reply.text or not reply.uses else []
        for use in reply.uses:
            blocks.append({"type": "tool_use", "id": fresh("toolu"), "name": use.name, "input": use.arguments})
        return blocks

    def whole(self, reply: Reply, asked: Asked) -> Json:
        return {
            "id": fresh("msg"),
            "type": "message",
            "role": "assistant",
            "model": asked.model,
            "content": self.blocks(reply),
            "stop_reason": "max_tokens" if reply.cut else "tool_use" if reply.uses else "end_turn",
            "stop_sequence": None,
            "usage": {
                "input_tokens": reply.tokens.input - reply.tokens.cached,
                "cache_read_input_tokens": reply.tokens.cached,
                "output_tokens": reply.tokens.output,
            },
        }

    def stream(self, reply: Reply, asked: Asked) -> Iterator[bytes]:
        whole = self.whole(reply, asked)
        begun = {**whole, "content": [], "stop_reason": None, "usage": {**whole["usage"], "output_tokens": 1}}
        yield sse({"type": "message_start", "message": begun}, "message_start")
        for index, block in enumerate(whole["content"]):
            if block["type"] == "text":
                empty: Json = {"type": "text", "text": ""}
                deltas = pieces(block["text"])
                kind, key = "text_delta", "text"
            else:
                empty = {**block, "input": {}}
                deltas = pieces(written(block["input"]))
                kind, key = "input_json_delta", "partial_json"
            start = {"type": "content_block_start", "index": index, "content_block": empty}
            yield sse(start, "content_block_start")
            for delta in deltas:
                change = {"type": "content_block_delta", "index": index, "delta": {"type": kind, key: delta}}
                yield sse(change, "content_block_delta")
            yield sse({"type": "content_block_stop", "index": index}, "content_block_stop")
        end = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
        usage = {"output_tokens": reply.tokens.output}
        yield sse({"type": "message_delta", "delta": end, "usage": usage}, "message_delta")
        yield sse({"type": "message_stop"}, "message_stop")

    def error(self, fail: Fail) -> Json:
        kinds = {401: "authentication_error", 429: "rate_limit_error", 529: "overloaded_error"}
        kind = fail.kind or kinds.get(fail.status, "invalid_request_error")
        return {"type": "error", "error": {"type": kind, "message": fail.message, **fail.fields}}

    def error_inside(self, fail: Fail) -> bytes:
        return sse(self.error(fail), "error")


class Responses:
    """OpenAI Responses."""

    name = "responses"
    ending = 2

    def asked(self, path: str, body: Json) -> Asked:
        tools = {tool["name"]: tool.get("parameters", {}) for tool in body.get("tools") or () if "name" in tool}
        said = body.get("input", "")
        items = [{"role": "user", "content": said}] if isinstance(said, str) else said
        turns = tuple(self._turn(item) for item in items)
        system = flat(body.get("instructions"))
        return Asked(self.name, path, system, turns, tools, bool(body.get("stream")), body.get("model", ""))

    def _turn(self, item: Json) -> tuple[str, str]:
        if str(item.get("type", "")).endswith("_output"):
            return "tool", flat(item.get("output"))
        return item.get("role", "assistant"), flat(item.get("content"))

    def items(self, reply: Reply) -> list[Json]:
        items: list[Json] = []
        if reply.text or not reply.uses:
            part = {"type": "output_text", "text": reply.text, "annotations": []}
            message = {"type": "message", "role": "assistant", "status": "completed"}
            items.append({**message, "id": fresh("msg"), "content": [part]})
        for use in reply.uses:
            call = {"type": "function_call", "id": fresh("fc"), "call_id": fresh("call"), "name": use.name}
            items.append({**call, "arguments": written(use.arguments), "status": "completed"})
        return items

    def whole(self, reply: Reply, asked: Asked) -> Json:
        tokens = reply.tokens
        return {
            "id": fresh("resp"),
            "object": "response",
            "created_at": int(time.time()),
            "model": asked.model,
            "status": "incomplete" if reply.cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if reply.cut else None,
            "output": self.items(reply),
            "usage": {
                "input_tokens": tokens.input,
                "input_tokens_details": {"cached_tokens": tokens.cached},
                "output_tokens": tokens.output,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": tokens.input + tokens.output,
            },
        }

    def stream(self, reply: Reply, asked: Asked) -> Iterator[bytes]:
        whole = self.whole(reply, asked)

        def event(kind: str, **data: object) -> bytes:
            return sse({"type": kind, **data}, kind)

        yield event("response.created", response={**whole, "status": "in_progress", "output": [], "usage": None})
        for index, item in enumerate(whole["output"]):
            begun = {**item, "status": "in_progress"}
            begun["content" if "content" in item else "arguments"] = [] if "content" in item else ""
            yield event("response.output_item.added", output_index=index, item=begun)
            if item["type"] == "message":
                for delta in pieces(reply.text):
                    where = {"item_id": item["id"], "output_index": index, "content_index": 0}
                    yield event("response.output_text.delta", delta=delta, **where)
            yield event("response.output_item.done", output_index=index, item=item)
        yield event(f"response.{whole['status']}", response=whole)

    def error(self, fail: Fail) -> Json:
        return Completions().error(fail)

    def error_inside(self, fail: Fail) -> bytes:
        failed = {"id": fresh("resp"), "object": "response", "status": "failed", "output": [], "model": "lab"}
        error = {"code": fail.kind or "server_error", "message": fail.message}
        made = {"created_at": int(time.time()), "error": error}
        return sse({"type": "response.failed", "sequence_number": 9, "response": failed | made}, "response.failed")


class Completions:
    """OpenAI Chat Completions."""

    name = "completions"
    ending = 3

    def asked(self, path: str, body: Json) -> Asked:
        offered = [tool["function"] for tool in body.get("tools") or ()]
        tools = {tool["name"]: tool.get("parameters", {}) for tool in offered}
        turns = tuple((message["role"], flat(message.get("content"))) for message in body.get("messages", ()))
        system = "\n".join(text for role, text in turns if role in ("system", "developer"))
        return Asked(self.name, path, system, turns, tools, bool(body.get("stream")), body.get("model", ""))

    def calls(self, reply: Reply) -> list[Json]:
        return [
            {
                "index": index,
                "id": fresh("call"),
                "type": "function",
                "function": {"name": use.name, "arguments": written(use.arguments)},
            }
            for index, use in enumerate(reply.uses)
        ]

    def usage(self, tokens: Tokens) -> Json:
        total = tokens.input + tokens.output
        used = {"prompt_tokens": tokens.input, "completion_tokens": tokens.output, "total_tokens": total}
        return {**used, "prompt_tokens_details": {"cached_tokens": tokens.cached}}

    def ended(self, reply: Reply) -> str:
        return "length" if reply.cut else "tool_calls" if reply.uses else "stop"

    def whole(self, reply: Reply, asked: Asked) -> Json:
        message: Json = {"role": "assistant", "content": reply.text}
        if reply.uses:
            message["tool_calls"] = self.calls(reply)
        choice = {"index": 0, "message": message, "finish_reason": self.ended(reply)}
        head = {"id": fresh("chatcmpl"), "object": "chat.completion", "created": int(time.time())}
        return {**head, "model": asked.model, "choices": [choice], "usage": self.usage(reply.tokens)}

    def stream(self, reply: Reply, asked: Asked) -> Iterator[bytes]:
        head = {"id": fresh("chatcmpl"), "object": "chat.completion.chunk", "created": int(time.time())}
        head["model"] = asked.model

        def chunk(delta: Json, reason: str | None = None) -> bytes:
            return sse({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]})

        yield chunk({"role": "assistant", "content": ""})
        for piece in pieces(reply.text):
            yield chunk({"content": piece})
        for call in self.calls(reply):
            yield chunk({"tool_calls": [call]})
        yield chunk({}, self.ended(reply))
        yield sse({**head, "choices": [], "usage": self.usage(reply.tokens)})
        yield b"data: [DONE]\n\n"

    def error(self, fail: Fail) -> Json:
        kinds = {401: "invalid_api_key", 429: "rate_limit_exceeded"}
        kind = fail.kind or kinds.get(fail.status, "server_error")
        return {"error": {"message": fail.message, "type": kind, "code": kind, "param": None, **fail.fields}}

    def error_inside(self, fail: Fail) -> bytes:
        return sse(self.error(fail))


class Gemini:
    """Gemini generateContent."""

    name = "gemini"
    ending = 1

    def asked(self, path: str, body: Json) -> Asked:
        declared = [one for group in body.get("tools") or () for one in group.get("functionDeclarations", ())]
        tools = {one["name"]: _schema(one) for one in declared}
        turns = tuple(turn for content in body.get("contents", ()) for turn in self._turns(content))
        system = flat((body.get("systemInstruction") or {}).get("parts"))
        model = path.rpartition("/")[2].partition(":")[0]
        return Asked(self.name, path, system, turns, tools, "stream" in path, model)

    def _turns(self, content: Json) -> Iterator[tuple[str, str]]:
        for part in content.get("parts", ()):
            if "functionResponse" in part:
                yield "tool", flat(part["functionResponse"].get("response"))
            else:
                yield ("user" if content.get("role") == "user" else "assistant"), flat(part)

    def chunk(self, parts: list[Json], reply: Reply, last: bool) -> Json:
        candidate: Json = {"content": {"role": "model", "parts": parts}, "index": 0}
        if last:
            candidate["finishReason"] = "MAX_TOKENS" if reply.cut else "STOP"
        tokens = reply.tokens
        usage = {"promptTokenCount": tokens.input, "candidatesTokenCount": tokens.output}
        usage["cachedContentTokenCount"] = tokens.cached
        usage["totalTokenCount"] = tokens.input + tokens.output
        return {"candidates": [candidate], "usageMetadata": usage}

    def calls(self, reply: Reply) -> list[Json]:
        return [{"functionCall": {"name": use.name, "args": use.arguments}} for use in reply.uses]

    def whole(self, reply: Reply, asked: Asked) -> Json:
        return self.chunk([{"text": reply.text}, *self.calls(reply)], reply, True)

    def stream(self, reply: Reply, asked: Asked) -> Iterator[bytes]:
        for piece in pieces(reply.text):
            yield sse(self.chunk([{"text": piece}], reply, False))
        yield sse(self.chunk(self.calls(reply) or [{"text": ""}], reply, True))

    def error(self, fail: Fail) -> Json:
        kinds = {401: "UNAUTHENTICATED", 429: "RESOURCE_EXHAUSTED"}
        kind = fail.kind or kinds.get(fail.status, "INTERNAL")
        return {"error": {"code": fail.status, "message": fail.message, "status": kind, **fail.fields}}

    def error_inside(self, fail: Fail) -> bytes:
        return sse(self.error(fail))


def _schema(declared: Json) -> Json:
    names = ("parametersJsonSchema", "parameters_json_schema", "parameters")
    return next((declared[name] for name in names if declared.get(name)), {})


def dialect(path: str) -> Dialect | None:
    """Return the protocol of this address."""
    for end, spoken in (("/messages", Messages()), ("/responses", Responses()), ("/completions", Completions())):
        if path.endswith(end):
            return spoken
    return Gemini() if path.endswith(("generateContent", "GenerateContent")) else None
