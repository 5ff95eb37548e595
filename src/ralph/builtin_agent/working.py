"""One turn of the built-in agent: ask the model, run the tools that its reply calls, and ask again, until a reply calls
none. That reply is the answer.

Each thing that happens is printed as a line of JSON, in the format of Claude Code's stream-json. The conversation with
the model is stored on disk, so that a session can be resumed.
"""

import json
import platform
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from msgspec import Struct
from msgspec.json import schema
from pydantic_ai import ModelMessage, ModelMessagesTypeAdapter, ModelRequest, ModelResponse
from pydantic_ai.messages import InstructionPart, TextPart, ToolCallPart, ToolReturnPart, UserPromptPart
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.tools import ToolDefinition

from ralph.builtin_agent.toolbox import TOOLS, Bash, Call, Toolbox, calls_in, commands_in, cut, new_call_id, text_of
from ralph.builtin_agent.wires import MAX_ATTEMPTS, ContextFull, ModelAsker, ModelError, UnfinishedTurn
from ralph.errors import UNREADABLE, UserError
from ralph.files import save_file

_KEEP_ALIVE = 2.0  # seconds between two keep_alive lines
FULL = 0.8  # of the context
_PER_TOKEN = 4  # characters, if the server counts no tokens
_KEPT_DAYS = 30
_RECENT = 4  # the last messages, whose tool output is not shortened
_SHORT = 400  # characters kept of older tool output
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}\Z")
MAX_BAD_CALLS = 8  # invalid tool calls in a row
CONTEXT_FULL = "The context is full, and the work is not finished. Continue from what is in the workspace."

_SYSTEM = """\
You are a coding agent. You work in the folder {folder} ({system}). Nobody reads along and nobody answers
questions, so decide for yourself, and say what you decided.

How to work:
- Look before you change anything: read the files that matter, and AGENTS.md if there is one.
- Act with {tools}; describing a change doesn't make it.
- Keep to what was asked. Leave other work as it is: delete, commit, push and install only if the task says so.
- Verify: run the tests or the program, and read what they print. What you have not seen working is not done.
- When something fails, find out why, and then try something else.
- Long output is cut in the middle: look for what you need with grep, head and tail.
- Start servers and other commands that don't end by themselves in the background, with their output in a file.

How to end: reply {ending}. That reply is your answer. Say in a few lines what you did, what you saw working, and what
is left. If the task says how to report that it is done, do so exactly, on the last line, and only if it is true."""

_NATIVE = {"tools": "the tools, several in one reply if you like", "ending": "without calling a tool"}
_FENCED = {
    "tools": "shell commands. To run one, end your reply with exactly one block like this, and wait for its output:\n"
    "```bash\nls -la\n```\nWrite files with `cat > FILE <<'EOF'`",
    "ending": "without such a block",
}


class Report:
    """Prints each thing that happens to stdout."""

    def __init__(self, model: str) -> None:
        self._model, self._session = model, ""
        self._replies = 0
        self._alive = self._began = time.monotonic()
        self._used: Counter[str] = Counter()

    def start(self, session: str, folder: str) -> None:
        self._session = session
        self._line("system", subtype="init", cwd=folder, model=self._model)

    def keep_alive(self) -> None:
        """Print that bytes are arriving, so that ralph doesn't kill the agent at the idle timeout."""
        now = time.monotonic()
        if now - self._alive >= _KEEP_ALIVE:
            self._alive = now
            self._line("keep_alive")

    def retry(self, number: int, pause: float, error: ModelError) -> None:
        about = {"attempt": number, "max_retries": MAX_ATTEMPTS - 1, "retry_delay_ms": round(pause * 1000)}
        self._line("system", subtype="api_retry", error_status=error.status, error=error.message, **about)

    def notice(self, what: str, words: str) -> None:
        self._line("system", subtype=what, content=words)

    def reply(self, reply: ModelResponse, calls: Sequence[Call]) -> None:
        tokens = reply.usage
        used = {
            # Without tokens that were read from the cache or written to it.
            "input_tokens": max(tokens.input_tokens - tokens.cache_read_tokens - tokens.cache_write_tokens, 0),
            "output_tokens": tokens.output_tokens,
            "cache_read_input_tokens": tokens.cache_read_tokens,
            "cache_creation_input_tokens": tokens.cache_write_tokens,
        }
        self._used.update(used)
        self._replies += 1
        text = text_of(reply)
        content: list[dict[str, Any]] = [{"type": "text", "text": text}] if text else []
        for call in calls:
            values = call.given or {"description": call.arguments}
            arguments = {name: cut(value, 2000) if isinstance(value, str) else value for name, value in values.items()}
            content.append({"type": "tool_use", "id": call.id, "name": call.tool, "input": arguments})
        message = {"id": f"reply_{self._replies}", "role": "assistant", "model": self._model, "content": content}
        self._line("assistant", message={**message, "usage": used})

    def tool_results(self, calls: Sequence[Call], results: Sequence[tuple[bool, str]]) -> None:
        content = [
            {"type": "tool_result", "tool_use_id": call.id, "is_error": not ok, "content": output}
            for call, (ok, output) in zip(calls, results, strict=True)
        ]
        self._line("user", message={"role": "user", "content": content})

    def finish(self, answer: str) -> None:
        self._result("success", False, answer)

    def unfinished(self, why: UnfinishedTurn) -> None:
        """End the turn without an answer."""
        self._result(why.how, True, why.message)
        print(f"unfinished: {why.message}", file=sys.stderr)

    def fail(self, error: ModelError) -> None:
        if error.resets_at is not None:
            self._line("rate_limit_event", rate_limit_info={"status": "rejected", "resetsAt": int(error.resets_at)})
        more = {"api_error_status": error.status, "terminal_reason": "api_error"}
        self._result("error_during_execution", True, f"API Error: {error.message}", **more)
        print(f"API Error: {error.message}", file=sys.stderr)

    def _result(self, subtype: str, is_error: bool, words: str, **more: Any) -> None:
        spent = round((time.monotonic() - self._began) * 1000)
        about = {"num_turns": self._replies, "duration_ms": spent, "usage": self._used, **more}
        self._line("result", subtype=subtype, is_error=is_error, result=words, **about)

    def _line(self, kind: str, **fields: Any) -> None:
        # As ASCII, because a reply that was cut off may contain half an emoji, which is not valid UTF-8.
        print(json.dumps({"type": kind, "session_id": self._session, **fields}), flush=True)


class Conversation:
    """The messages of a session. `context` is how many tokens the model can read.

    It only grows, so that the provider can cache its beginning; only when the context is nearly full, old tool output
    is shortened.
    """

    def __init__(self, session: str, file: Path, context: int) -> None:
        self.session, self.context = session, context
        self.messages: list[ModelMessage] = []
        self._file = file
        self._counted = 0  # tokens of the last request and its reply, by the server's count
        self._since = 0  # characters that were added after it

    @property
    def is_full(self) -> bool:
        """Whether the next request would probably be too long."""
        return self._counted + self._since // _PER_TOKEN >= FULL * self.context

    def add_prompt(self, text: str) -> None:
        self._add(ModelRequest(parts=[UserPromptPart(content=text)]))

    def add_results(self, results: Sequence[ToolReturnPart], aside: str = "") -> None:
        """Add the output of tools. `aside` is the output of calls that the model wrote as text."""
        self._add(ModelRequest(parts=[*results, *([UserPromptPart(content=aside)] if aside else [])]))

    def add_reply(self, reply: ModelResponse) -> None:
        self._add(reply)
        if counted := reply.usage.input_tokens:
            self._counted, self._since = counted + reply.usage.output_tokens, 0

    def shorten(self) -> bool:
        """Shorten old tool output; return whether there was any."""
        before = _characters(self.messages)
        _shorten_old(self.messages)
        saved = before - _characters(self.messages)
        self._counted = max(self._counted - saved // _PER_TOKEN, 0)
        self._store()
        return saved > 0

    def clear(self) -> None:
        """Empty the conversation, for a session that is resumed."""
        self.messages.clear()
        self._store()

    def _add(self, message: ModelMessage) -> None:
        self.messages.append(message)
        self._since += _characters([message])
        self._store()

    def _store(self) -> None:
        """Store all messages. If that fails, the turn continues, but the session can't be resumed."""
        messages = ModelMessagesTypeAdapter.dump_python(self.messages, mode="json")
        with suppress(UserError):
            save_file(self._file, json.dumps(messages).encode())


def _characters(messages: Iterable[ModelMessage]) -> int:
    return sum(len(str(getattr(part, "content", ""))) for message in messages for part in message.parts)


def start_conversation(home: Path, context: int) -> Conversation:
    """Start a new session; delete the files of old ones."""
    session, folder = uuid4().hex, home / "sessions"
    oldest = time.time() - _KEPT_DAYS * 86400
    with suppress(OSError):
        for old in folder.glob("*.json"):
            if old.stat().st_mtime < oldest:
                old.unlink()
    return Conversation(session, folder / f"{session}.json", context)


def resume_conversation(home: Path, session: str, context: int) -> Conversation:
    """Load a session, even if the agent was killed in the middle of a call."""
    file = home / "sessions" / f"{session}.json"
    if not _NAME.match(session) or not file.is_file():
        raise UserError(f"no session found with the id {session!r}", "start a new one")
    conversation = Conversation(session, file, context)
    try:
        conversation.messages = ModelMessagesTypeAdapter.validate_python(json.loads(file.read_bytes()))
    except UNREADABLE:
        raise UserError(f"the session {session} cannot be read", "start a new one") from None
    last = conversation.messages[-1] if conversation.messages else None
    if isinstance(last, ModelResponse) and (calls := [part for part in last.parts if isinstance(part, ToolCallPart)]):
        result = "interrupted: it may be half done"
        conversation.add_results(
            [ToolReturnPart(call.tool_name, result, tool_call_id=call.tool_call_id) for call in calls]
        )
    conversation._since = _characters(conversation.messages)
    return conversation


def _shorten_old(messages: Sequence[ModelMessage]) -> None:
    """Shorten tool output in all but the last messages, always in the same way, so that the provider can cache it."""
    for message in messages[:-_RECENT]:
        for part in message.parts:
            if isinstance(part, ToolReturnPart) and isinstance(part.content, str) and len(part.content) > 2 * _SHORT:
                part.content = f"{part.content[:_SHORT]}\n[… shortened …]"


class BuiltinWorker(Struct, kw_only=True):
    """Takes one turn. `in_text`: the model can't call tools, and writes commands into its replies instead."""

    asker: ModelAsker
    conversation: Conversation
    toolbox: Toolbox
    report: Report
    in_text: bool = False
    max_turns: int | None = None

    async def take_turn(self) -> int:
        """Take the turn, report its end, and return the exit code."""
        try:
            self.report.finish(await self._work())
        except ContextFull:
            self.conversation.clear()
            self.report.finish(CONTEXT_FULL)
        except ModelError as error:
            self.report.fail(error)
            return 1
        except UnfinishedTurn as why:
            self.report.unfinished(why)
            return 1
        return 0

    async def _work(self) -> str:
        """Return the final answer."""
        replies = in_trouble = 0
        while True:
            if self.max_turns is not None and replies >= self.max_turns:
                raise UnfinishedTurn("it used all the turns it was allowed", "error_max_turns")
            reply = await self._ask()
            replies += 1
            calls = self._calls_in(reply)
            self._take_in(reply, calls)
            if not calls:
                return text_of(reply)
            in_trouble = in_trouble + len(calls) if all(isinstance(call.arguments, str) for call in calls) else 0
            if in_trouble >= MAX_BAD_CALLS:
                raise UnfinishedTurn(f"{in_trouble} tool calls in a row were invalid: {calls[-1].arguments}")
            self._act(calls)

    async def _ask(self) -> ModelResponse:
        """Return the next reply; shorten old tool output if there is no room for it."""
        conversation = self.conversation
        is_begun = len(conversation.messages) > 1
        if is_begun and conversation.is_full:
            self._shorten()
            if conversation.is_full:
                raise ContextFull
        try:
            return await self.asker.ask(conversation.messages, self._request_parameters())
        except ContextFull as error:
            if not is_begun:
                raise UnfinishedTurn(f"the prompt is longer than what the model can read: {error}") from None
            self._shorten()
            return await self.asker.ask(conversation.messages, self._request_parameters())

    def _shorten(self) -> None:
        if not self.conversation.shorten():
            raise ContextFull
        self.report.notice("context_shortened", "the context is nearly full: old tool output was shortened")

    def _request_parameters(self) -> ModelRequestParameters:
        """Return the tools and instructions of every request, which never change, so that they can be cached."""
        ways = _FENCED if self.in_text else _NATIVE
        system = _SYSTEM.format(folder=self.toolbox.root, system=platform.system(), **ways)
        tools = [] if self.in_text else [_definition(name) for name in TOOLS]
        return ModelRequestParameters(function_tools=tools, instruction_parts=[InstructionPart(content=system)])

    def _calls_in(self, reply: ModelResponse) -> list[Call]:
        if not self.in_text:
            return calls_in(reply)
        first = commands_in(text_of(reply))[:1]
        return [Call(new_call_id(), "bash", {"command": words}, Bash(words), native=False) for words in first]

    def _take_in(self, reply: ModelResponse, calls: Sequence[Call]) -> None:
        self.report.reply(reply, calls)
        # Fix parts that could not be sent back: arguments that are not JSON or far too long, and half a character.
        replacements = iter([json.dumps(call.given, ensure_ascii=False) for call in calls if call.native])
        for part in reply.parts:
            if isinstance(part, ToolCallPart):
                part.args = next(replacements).encode("utf-8", "replace").decode()
            elif isinstance(part, TextPart):
                part.content = part.content.encode("utf-8", "replace").decode()
        self.conversation.add_reply(reply)

    def _act(self, calls: Sequence[Call]) -> None:
        """Run the calls in order, and add their results to the conversation: for calls in text, as text."""
        results = [self.toolbox.run(call, share=len(calls)) for call in calls]
        self.report.tool_results(calls, results)
        parts, aside = [], []
        for call, (ok, output) in zip(calls, results, strict=True):
            if call.native:
                # Don't mark it as failed, or the library would wrap the output in a JSON string.
                parts.append(ToolReturnPart(call.tool, output, tool_call_id=call.id))
            else:
                aside.append(f"Output of {call.tool or 'the call'}{'' if ok else ' (it failed)'}:\n{output}")
        self.conversation.add_results(parts, "\n\n".join(aside))


def _definition(name: str) -> ToolDefinition:
    about = schema(TOOLS[name])["$defs"][TOOLS[name].__name__]
    del about["title"]
    return ToolDefinition(name=name, description=about.pop("description"), parameters_json_schema=about, strict=False)
