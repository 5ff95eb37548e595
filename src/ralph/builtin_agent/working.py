"""How does the agent work, and what does it print? It asks the model, runs the tools that the reply calls for, and asks
again, until a reply calls for none: that reply is the answer. A line of JSON tells each thing that happens, as in
Claude Code's stream-json; or only its final answer is printed, as text."""

import json
import platform
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct
from msgspec.json import schema
from pydantic_ai.messages import InstructionPart, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.tools import ToolDefinition

from ralph.builtin_agent.conversation import Conversation
from ralph.builtin_agent.toolbox import TOOLS, Bash, Call, Toolbox, calls_in, commands_in, cut, made_up, text_of
from ralph.builtin_agent.wires import TRIES, ContextFull, ModelAsker, Refused, Unfinished

_ALIVE = 2.0  # seconds between two signs of life


class Report:
    """Tells what happens to whoever reads stdout. `is_text`: nothing but the answer is asked for."""

    def __init__(self, model: str, is_text: bool) -> None:
        self._model, self._is_text = model, is_text
        self._session = ""
        self._replies = 0
        self._alive = self._began = time.monotonic()
        self._used: Counter[str] = Counter()

    def begins(self, session: str, folder: str) -> None:
        self._session = session
        self._line("system", subtype="init", cwd=folder, model=self._model)

    def show_life(self) -> None:
        """Bytes are coming: whoever waits for a silent agent need not end this one."""
        now = time.monotonic()
        if now - self._alive >= _ALIVE:
            self._alive = now
            self._line("keep_alive")

    def asks_again(self, number: int, pause: float, error: Refused) -> None:
        about = {"attempt": number, "max_retries": TRIES - 1, "retry_delay_ms": round(pause * 1000)}
        self._line("system", subtype="api_retry", error_status=error.status, error=error.message, **about)

    def notices(self, what: str, words: str) -> None:
        self._line("system", subtype=what, content=words)

    def replies(self, reply: ModelResponse, calls: Sequence[Call]) -> None:
        used = _usage(reply)
        self._used.update(used)
        self._replies += 1
        said = text_of(reply)
        content: list[dict[str, Any]] = [{"type": "text", "text": said}] if said else []
        for call in calls:
            given = call.given or {"description": call.asked}
            told = {name: cut(value, 2000) if isinstance(value, str) else value for name, value in given.items()}
            content.append({"type": "tool_use", "id": call.id, "name": call.tool, "input": told})
        message = {"id": f"reply_{self._replies}", "role": "assistant", "model": self._model, "content": content}
        self._line("assistant", message={**message, "usage": used})

    def returns(self, calls: Sequence[Call], results: Sequence[tuple[bool, str]]) -> None:
        content = [
            {"type": "tool_result", "tool_use_id": call.id, "is_error": not ok, "content": output}
            for call, (ok, output) in zip(calls, results, strict=True)
        ]
        self._line("user", message={"role": "user", "content": content})

    def ends(self, answer: str) -> None:
        """The turn is over, and this is the agent's final answer."""
        if self._is_text:
            print(answer, flush=True)
        self._result("success", False, answer)

    def breaks_off(self, why: Unfinished) -> None:
        """The turn is over, and the work is not: nothing that was said counts as an answer."""
        self._result(why.how, True, why.message)
        print(f"unfinished: {why.message}", file=sys.stderr)

    def refused(self, error: Refused) -> None:
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
        if not self._is_text:
            # In ASCII: half an emoji from a model that was cut is no valid UTF-8.
            print(json.dumps({"type": kind, "session_id": self._session, **fields}), flush=True)


def _usage(reply: ModelResponse) -> dict[str, int]:
    """The tokens of one reply. What came from the cache, or went into it, is not counted as input again."""
    used = reply.usage
    return {
        "input_tokens": max(used.input_tokens - used.cache_read_tokens - used.cache_write_tokens, 0),
        "output_tokens": used.output_tokens,
        "cache_read_input_tokens": used.cache_read_tokens,
        "cache_creation_input_tokens": used.cache_write_tokens,
    }


MOST_TROUBLE = 8  # calls in a row that cannot be understood
WENT_ON = "The context is full, and the work is not finished. The next turn goes on from the note that was left."

_SYSTEM = """\
You are a coding agent at work in the folder {folder} ({system}). You work alone: nobody reads along and nobody answers
questions, so decide for yourself, and say what you decided.

How to work:
- Look before you change anything: read the files that matter, and AGENTS.md if there is one.
- Act with {tools}; to describe a change is not to make it.
- Keep to what was asked. Leave other work as it is: delete, commit, push and install only where the task says so.
- Verify: run the tests or the program, and read what they print. What you have not seen working is not done.
- When something fails, read why, and try something else than the same again.
- Long output is cut in the middle: look for what you need with grep, head and tail.
- Start servers and whatever else does not end by itself in the background, with their output in a file.

How to end: reply {ending}. That reply is your answer. Say in a few lines what you did, what you saw working, and what
is left. If the task says how to report that it is done, do so exactly, on the last line, and only if it is true."""

_NATIVE = {"tools": "the tools, several in one reply if you like", "ending": "without calling a tool"}
_FENCED = {
    "tools": "shell commands. To run one, end your reply with exactly one block like this, and wait for its output:\n"
    "```bash\nls -la\n```\nWrite files with `cat > FILE <<'EOF'`",
    "ending": "without such a block",
}
_HAND_OVER = """\
Your context is nearly full. Call no tool. Write a note for whoever goes on in your place and knows nothing of this
conversation: what was asked, what is done and seen working, what is left, which files matter, what was tried in vain,
and the next step."""
_NO_NOTE = "(No note could be written. Look at the files, and at `git diff`, to see how far the work is.)"


class BuiltinWorker(Struct, kw_only=True):
    """What one turn works with. `in_text`: the model has no tool calling, and writes its commands into its reply."""

    asker: ModelAsker
    conversation: Conversation
    toolbox: Toolbox
    report: Report
    in_text: bool = False
    max_turns: int | None = None

    async def take_turn(self, leave: Callable[[str], None]) -> int:
        """Works, and says how it ended: with an answer, with a note to `leave` because the context is full, or without
        anything that counts. The exit code."""
        try:
            try:
                self.report.ends(await self._work())
            except ContextFull:
                leave(await self._hand_over())
                self.report.ends(WENT_ON)
        except Refused as error:
            self.report.refused(error)
            return 1
        except Unfinished as why:
            self.report.breaks_off(why)
            return 1
        return 0

    async def _work(self) -> str:
        """The final answer. Whatever keeps it from being given is raised."""
        asked = in_trouble = 0
        while True:
            if self.max_turns is not None and asked >= self.max_turns:
                raise Unfinished("it used all the turns it was allowed", "error_max_turns")
            reply = await self._ask()
            asked += 1
            calls = self._calls_in(reply)
            self._take_in(reply, calls)
            if not calls:
                return text_of(reply)
            in_trouble = in_trouble + len(calls) if all(isinstance(call.asked, str) for call in calls) else 0
            if in_trouble >= MOST_TROUBLE:
                raise Unfinished(f"{in_trouble} tool calls in a row could not be understood: {calls[-1].asked}")
            self._act(calls)

    async def _hand_over(self) -> str:
        """A note for whoever goes on from here, by the model if it still can."""
        self.conversation.add_prompt(_HAND_OVER)
        try:
            reply = await self.asker.ask(self.conversation.messages, self._offered(), tool_choice="none")
        except (ContextFull, Unfinished):
            note = _NO_NOTE
        else:
            self.report.replies(reply, ())
            note = text_of(reply).strip() or _NO_NOTE
        self.conversation.hand_over(note)
        return note

    async def _ask(self) -> ModelResponse:
        """The next reply; old tool output is shortened once to make room for it."""
        said = self.conversation
        is_begun = len(said.messages) > 1
        if is_begun and said.is_full:
            self._shorten()
            if said.is_full:
                raise ContextFull
        try:
            return await self.asker.ask(said.messages, self._offered())
        except ContextFull as error:
            if not is_begun:
                raise Unfinished(f"the prompt is longer than what the model can read: {error}") from None
            self._shorten()
            return await self.asker.ask(said.messages, self._offered())

    def _shorten(self) -> None:
        if self.conversation.is_shortened:
            raise ContextFull
        self.conversation.shorten()
        self.report.notices("context_shortened", "the context is nearly full: old tool output was shortened")

    def _offered(self) -> ModelRequestParameters:
        """What every request of a session begins with, to the letter: so it stays in the cache."""
        ways = _FENCED if self.in_text else _NATIVE
        system = _SYSTEM.format(folder=self.toolbox.root, system=platform.system(), **ways)
        tools = [] if self.in_text else [_definition(name) for name in TOOLS]
        return ModelRequestParameters(function_tools=tools, instruction_parts=[InstructionPart(content=system)])

    def _calls_in(self, reply: ModelResponse) -> list[Call]:
        if not self.in_text:
            return calls_in(reply)
        first = commands_in(text_of(reply))[:1]
        return [Call(made_up(), "bash", {"command": words}, Bash(words), native=False) for words in first]

    def _take_in(self, reply: ModelResponse, calls: Sequence[Call]) -> None:
        self.report.replies(reply, calls)
        # Put right what could not be sent back: arguments that are no JSON or far too long, and half a character.
        given = iter([json.dumps(call.given, ensure_ascii=False) for call in calls if call.native])
        for part in reply.parts:
            if isinstance(part, ToolCallPart):
                part.args = next(given).encode("utf-8", "replace").decode()
            elif isinstance(part, TextPart):
                part.content = part.content.encode("utf-8", "replace").decode()
        self.conversation.add_reply(reply)
        if self.conversation.notice_cut():
            read = f"the model's server reads only about {self.conversation.context:,} tokens of the conversation"
            how = "give it a longer context (Ollama: OLLAMA_CONTEXT_LENGTH=32768)"
            self.report.notices("context_cut", f"{read} and silently drops the rest: {how}")

    def _act(self, calls: Sequence[Call]) -> None:
        """Runs the calls in their order, and tells the model what they gave: each by the way it was called."""
        results = [self.toolbox.run(call, share=len(calls)) for call in calls]
        self.report.returns(calls, results)
        parts, aside = [], []
        for call, (ok, output) in zip(calls, results, strict=True):
            if call.native:
                # Never as a failure: the library would put what the model has to read into a JSON string.
                parts.append(ToolReturnPart(call.tool, output, tool_call_id=call.id))
            else:
                aside.append(f"Output of {call.tool or 'the call'}{'' if ok else ' (it failed)'}:\n{output}")
        self.conversation.add_results(parts, "\n\n".join(aside))


def _definition(name: str) -> ToolDefinition:
    about = schema(TOOLS[name])["$defs"][TOOLS[name].__name__]
    del about["title"]
    return ToolDefinition(name=name, description=about.pop("description"), parameters_json_schema=about, strict=False)
