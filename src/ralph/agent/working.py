"""How does the agent work? It asks the model, runs the tools that the reply calls for, and asks again, until a reply
calls for none: that reply is the answer."""

import json
import platform
from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.json import schema
from pydantic_ai.messages import InstructionPart, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.tools import ToolDefinition

from ralph.agent.calls import Call, calls_in, commands_in, made_up, text_of
from ralph.agent.conversation import Conversation
from ralph.agent.streamjson import Report
from ralph.agent.toolbox import TOOLS, Bash, Toolbox
from ralph.agent.wires import ContextFull, ModelAsker, Refused, Unfinished

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
            return calls_in(reply, TOOLS)
        first = commands_in(text_of(reply))[:1]
        return [Call(made_up(), "bash", {"command": words}, Bash(words), native=False) for words in first]

    def _take_in(self, reply: ModelResponse, calls: Sequence[Call]) -> None:
        self.report.replies(reply, calls)
        _make_sound(reply, calls)
        self.conversation.add_reply(reply)
        if self.conversation.is_cut_by_server():
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


def _make_sound(reply: ModelResponse, calls: Sequence[Call]) -> None:
    """Puts right what could not be sent back: arguments that are no JSON or far too long, and half a character."""
    given = iter([json.dumps(call.given, ensure_ascii=False) for call in calls if call.native])
    for part in reply.parts:
        if isinstance(part, ToolCallPart):
            part.args = next(given).encode("utf-8", "replace").decode()
        elif isinstance(part, TextPart):
            part.content = part.content.encode("utf-8", "replace").decode()
