"""The base of all parsers. During a turn it collects the agent's last message, tool calls, usage and error.

For agents that print plain text, the answer is all of stdout without an echo of the prompt; memory is bounded.
"""

import re
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from msgspec.structs import asdict, replace

from ralph.agents import wire
from ralph.agents.failures import error_in_answer, error_record, failure, stated_in
from ralph.agents.protocol import Trouble, TurnRequest
from ralph.agents.wire import Table
from ralph.core.events import (
    AgentEvent,
    AgentResult,
    AgentText,
    AgentUnknown,
    PermissionDenied,
    TodoUpdated,
    ToolFinished,
    ToolStarted,
)
from ralph.core.model import Exit, Failure, Turn, Usage
from ralph.core.text import one_line

LIMIT = 1 << 20


class Clipping:
    """Keeps both ends of a text of any length, at most `limit` characters."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._half = limit // 2
        self.clear()

    def add(self, text: str) -> None:
        self._parts.append(text)
        self._size += len(text)
        if self._size > 4 * self._half or len(self._parts) > 4096:
            self._shrink()

    def clear(self) -> None:
        self._parts: list[str] = []
        self._size = self._cut = 0

    @property
    def text(self) -> str:
        text = self._shrink()
        if not self._cut:
            return text
        return f"{text[: self._half]}\n[{self._cut} characters cut]\n{text[self._half :]}"

    def _shrink(self) -> str:
        text = "".join(self._parts)
        if len(text) > 2 * self._half:
            self._cut += len(text) - 2 * self._half
            text = text[: self._half] + text[-self._half :]
        self._parts, self._size = [text], len(text)
        return text


class PlainText:
    """Reads plain text line by line, and drops a block of lines that repeats the whole prompt.

    The echo may have a label in front (`Prompt: …`), or a mark before each line (`> …`).
    """

    def __init__(self, prompt: str) -> None:
        prompt = prompt.replace("\r\n", "\n").rstrip("\n")
        self._prompt = prompt.split("\n") if prompt.strip() else []
        self._held: list[str] = []  # lines equal to the first lines of the prompt: perhaps the start of an echo
        self._label = ""
        self._lines = 0
        self._kept = Clipping()

    def feed(self, line: bytes) -> list[AgentEvent]:
        texts = self._without_echo(line.decode(errors="replace").removesuffix("\r"))
        self._lines += 1
        for text in texts:
            self._kept.add(f"{text}\n")
        return [AgentText(text) for text in texts]

    @property
    def text(self) -> str:
        return (self._kept.text + "".join(f"{line}\n" for line in self._held)).rstrip("\n")

    def _without_echo(self, line: str) -> list[str]:
        if not self._prompt:
            return [line]
        expected, last = self._prompt[len(self._held)], len(self._held) == len(self._prompt) - 1
        if not self._held:
            labelled = not last and expected.strip() and line.endswith(expected)
            self._label = line.removesuffix(expected) if labelled else ""
        if line == expected or line.rstrip() == (self._label + expected).rstrip():
            self._held.append(line)
            if last:
                self._held.clear()
            return []
        if last and expected and line.startswith(expected) and len(self._held) == self._lines:
            # A prompt without a final newline: the rest of the line is the agent's text.
            self._held.clear()
            return [line[len(expected) :]]
        if not self._held:
            return [line]
        released, self._held = self._held, []
        return [*released, *self._without_echo(line)]


# Lines about tokens, cost and time that CLIs print after the answer: Codex, aider, Claude Code, Copilot.
_SUMMARY = re.compile(
    r"tokens used:?\s*[\d,.]*|Tokens: [^,]+ sent, .+ received\..*|Total cost:\s+\$[\d.]+"
    r"|Total (?:duration|usage est|session time|code changes)\b[^:]*:.+|API time spent:.+"
    r"|(?:Usage by model|Breakdown by AI model):.*|\S+\s+[\d.]+[kM]? (?:input|in), .+"
)
_LONGEST_SUMMARY = 200  # characters of a line
_NUMBER = re.compile(r"[\d,.]+")


def without_summary(text: str) -> str:
    """Return an answer without the summary of tokens, cost or time that the CLI printed after it."""
    lines = text.split("\n")
    end = len(lines)
    for at in range(len(lines) - 1, 0, -1):
        line = lines[at][:_LONGEST_SUMMARY].strip()
        is_count = _NUMBER.fullmatch(line) and lines[at - 1].strip().lower() == "tokens used"
        if is_count or _SUMMARY.fullmatch(line):
            end = at
        elif lines[at].strip():
            break
    return "\n".join(lines[:end]).rstrip("\n") if end < len(lines) else text


_OPEN_CALLS = 1000
_LONGEST_NAME = 200
_MOST_DENIALS = 50
_LONGEST_DENIED = 60  # characters of what a tool was not allowed to do

Handler = Callable[[Table], Iterable[AgentEvent] | None]


class Reader:
    """A parser of line-delimited JSON. A subclass has a method for each `type` of line: `on_turn_failed` for
    "turn.failed". Lines of the types in SILENT are skipped.
    """

    ALLOW_LIST: ClassVar[str] = ""  # the setting in which the user can allow tools
    TELLS_TOOLS: ClassVar[bool] = True  # the stream reports when a tool starts, not only when it ends
    SILENT: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, request: TurnRequest) -> None:
        self.request = request
        self.skipped = self.tool_errors = self.tool_calls = 0
        self.steps: int | None = None
        self.usage = Usage()
        self.spent: Usage | None = None
        self.session: str | None = None
        self.model = request.model
        self.final: str | None = None  # the final answer, if the agent marks one
        self.trouble: Trouble | None = None
        self.is_over = False  # whether it has reported the end of its turn
        self.notice = ""  # the last error that it reported before it retried
        self._said = ""
        self._working = False  # whether a tool was called since its last text
        self._open: dict[str, str] = {}
        self._given: dict[str, str] = {}  # a summary of the arguments of each open call
        self._denied: dict[str, str] = {}  # tool by call id
        self._understood = False
        self._unread = 0
        self._plain = PlainText(request.prompt)

    @property
    def is_heard(self) -> bool:
        """Whether the stream reports everything that the agent does, with every tool call."""
        return self.request.stream and self.TELLS_TOOLS

    @property
    def is_waiting(self) -> bool:
        """Whether a tool call is running, so that silence is normal."""
        return bool(self._open)

    def feed(self, line: bytes) -> Iterable[AgentEvent]:
        if line.startswith(BOM_UTF8):
            line = line.removeprefix(BOM_UTF8)
        table = wire.read(line) if line.lstrip().startswith(b"{") else None
        if table is None:
            return self.unread(line)
        kind = wire.text(table, "type")
        handler = self.handler(kind)
        if handler is None and kind not in self.SILENT:
            return self.unknown(kind, line)
        self._understood = True
        return (handler(table) if handler else None) or ()

    def handler(self, kind: str, prefix: str = "on") -> Handler | None:
        """Return the method for lines of this `type`."""
        return getattr(self, f"{prefix}_{kind.replace('.', '_')}", None)

    def unread(self, line: bytes) -> Iterable[AgentEvent]:
        """Handle a line that is not JSON. It is plain text unless a line of the stream came before it."""
        blank = not line.strip()
        self._unread += not blank
        is_tail = line.rstrip().endswith((b'"}', b"]}", b"}}")) or (b'":' in line and line.rstrip().endswith(b"}"))
        if self.request.stream and (line.startswith(b'{"') or is_tail):
            return ()  # a broken line of the stream
        if not self._understood:
            return self._plain.feed(line)
        self.skipped = self._unread
        if not blank:
            self._plain.feed(line)
        return ()

    def unknown(self, kind: str, line: bytes) -> Iterable[AgentEvent]:
        """Handle a line of JSON of an unknown type. In text mode it is part of the answer.

        The text of an unknown error is kept: if the agent fails, it may say why.
        """
        if kind == "error" and self.request.stream:
            self._plain.feed(line)
        return (AgentUnknown(kind[:100]),) if self.request.stream else self._plain.feed(line)

    def says(self, text: str) -> Iterable[AgentEvent]:
        """Report text of the agent itself."""
        if not text:
            return ()
        self._said, self._working = text, False
        return (AgentText(text),)

    def starts(self, call: str, tool: str, arguments: Any, parent: str = "") -> list[AgentEvent]:
        call, tool = call[:_LONGEST_NAME], tool[:_LONGEST_NAME]
        self.tool_calls += 1
        self._working = True
        if len(self._open) >= _OPEN_CALLS:
            oldest = next(iter(self._open))
            del self._open[oldest], self._given[oldest]
        self._open[call], self._given[call] = tool, wire.summary(arguments)
        events: list[AgentEvent] = [
            ToolStarted(call, tool, self._given[call], wire.edit(arguments), parent[:_LONGEST_NAME])
        ]
        if tool in wire.TODO_TOOLS and (items := wire.todo_items(arguments)) is not None:
            events.append(TodoUpdated(items))
        return events

    def ends(self, call: str, ok: bool, output: str, *, is_denied: bool = False) -> list[AgentEvent]:
        call = call[:_LONGEST_NAME]
        denial = self.denied(call, self._open.get(call, "")) if is_denied else []
        self.tool_errors += not ok
        excerpt, lines, chars = wire.measured(output)
        self._given.pop(call, None)
        name = self._open.pop(call, "")
        return [*denial, ToolFinished(id=call, name=name, ok=ok, output=excerpt, lines=lines, chars=chars)]

    def denied(self, call: str, tool: str, arguments: Any = None) -> list[AgentEvent]:
        """Report that a tool was denied, such as `Bash(npm test)`. Do so once: some agents repeat it at the end."""
        call, tool = call[:_LONGEST_NAME], tool[:_LONGEST_NAME] or "a tool"
        what = wire.summary(arguments) or self._given.get(call, "")
        tool = f"{tool}({one_line(what, _LONGEST_DENIED)})" if what not in ("", tool) else tool
        if call in self._denied or len(self._denied) >= _MOST_DENIALS:
            return []
        self._denied[call] = tool
        return [PermissionDenied(tool, self.ALLOW_LIST)]

    def pays(self, usage: Usage) -> Iterable[AgentEvent]:
        """Report the usage of the whole turn so far."""
        self.usage = usage
        return (AgentResult(**asdict(usage)),)

    def since(self, total: Usage) -> Usage:
        """Return this turn's share of a session's total."""
        names = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")
        difference = {name: getattr(total, name) - getattr(self.request.usage_before, name) for name in names}
        return replace(Usage(), **difference) if self.request.session and min(difference.values()) >= 0 else total

    def turn(self, ended: Exit) -> Turn:
        self.skipped = self._unread if self._understood else 0
        failure = self._failure(ended)
        return Turn(
            text=self._answer(failure),
            exit_code=ended.code,
            tool_calls=self.tool_calls if self._understood else None,
            usage=self.usage,
            failure=failure,
            session=self.session or self.request.session,
            steps=self.steps,
            ended_at=ended.at,
            duration=ended.duration,
            ended_by=ended.ended_by,
            denials=tuple(self._denied.values()),
        )

    def verdict(self, ended: Exit) -> Trouble | None:
        """Return the agent's own error, or one that its exit code stands for; None if there is none."""
        return self.trouble

    def _answer(self, failure: Failure | None) -> str:
        if self.trouble is not None or (failure and failure.kind != "ordinary"):
            return ""  # the turn broke off, so the last text is not a final answer
        if not self._understood:
            return without_summary(self._plain.text)
        if self.final is not None:
            return self.final
        return self._said if failure is None or not self._working else ""

    def _failure(self, ended: Exit) -> Failure | None:
        self.trouble = self.verdict(ended)
        if self.trouble is None and self._understood and not self.is_over and ended.code == 0 and not ended.ended_by:
            self.trouble = Trouble("it ended in the middle of a turn", kind="ordinary")
        if self.trouble is None and not ended.ended_by and ended.code == 0:
            self.trouble = error_in_answer(self._answer(None))
            if self.trouble is None:
                return None
        if self.trouble is None and ended.code:
            self.trouble = stated_in(self._plain.text) or error_record(self._plain.text)
        return failure(self.trouble, self.notice, ended)
