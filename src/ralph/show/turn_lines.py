"""What does the agent say and do, for a person to read? It is indented: only ralph speaks at the left margin."""

from msgspec import Struct

from ralph.core.events import (
    AgentFinished,
    AgentProgress,
    AgentResult,
    AgentText,
    TodoUpdated,
    ToolFinished,
    ToolStarted,
)
from ralph.core.text import clean, head, short
from ralph.show.outlet import Style
from ralph.show.words import count, duration, exit_words, money, plural


class LineLimits(Struct, frozen=True):
    """How much of what others wrote is shown. All of it is in the logs."""

    output_lines: int = 3
    output_chars: int = 300
    check_lines: int = 8
    text_chars: int = 4000
    todo_items: int = 30


VERBOSE = LineLimits(output_lines=20, output_chars=2000, check_lines=40, text_chars=20_000, todo_items=200)
_OPEN_TOOLS = 500


class TurnLines:
    """Lines for what happens inside a turn. `columns` is the room on a line, 0 where there is no limit."""

    def __init__(self, style: Style, limits: LineLimits, columns: int = 0) -> None:
        self.style, self.limits, self.columns = style, limits, columns
        self._open: dict[str, tuple[str, str]] = {}
        self._last_tool = ""
        self._todo: TodoUpdated | None = None
        self._progress = ""
        self._tools = self._errors = 0
        self._result: AgentResult | None = None

    def begin(self) -> None:
        """A new turn starts."""
        self._open.clear()
        self._last_tool = self._progress = ""
        self._tools = self._errors = 0
        self._result = self._todo = None

    def result(self, event: AgentResult) -> list[str]:
        self._result = event
        return []

    def text(self, event: AgentText) -> list[str]:
        limit = self.limits.text_chars
        text = head(clean(event.text[: 2 * limit]), limit).strip("\n")
        if not text or text.isspace():
            return []
        rows = text.expandtabs(4).split("\n")
        if self.columns:
            rows = [row for line in rows for row in self.rows(line, 2)]
        lines = [f"  {row}".rstrip() for row in rows]
        if len(event.text) > limit:
            lines.append(self._dim(f"  {self.style.marks.more} {len(event.text) - limit} more characters in the log"))
        return lines

    def tool_started(self, event: ToolStarted) -> list[str]:
        name, given = short(event.name, 80), short(event.input, 200)
        if len(self._open) >= _OPEN_TOOLS:
            del self._open[next(iter(self._open))]
        self._open[event.id] = (name, given)
        self._last_tool = event.id
        self._tools += 1
        paint, mark = self.style.paint, self.style.marks.tool
        if not given:
            return [f"{paint('cyan', mark)} {paint('bold', self.cut(name, 2))}"]
        room = len(mark) + len(name) + 3
        return [f"{paint('cyan', mark)} {paint('bold', name)}({self.cut(given, room)})"]

    def tool_finished(self, event: ToolFinished) -> list[str]:
        known, given = self._open.pop(event.id, ("", ""))
        name = short(event.name, 80) or known or "tool"
        if given and event.id != self._last_tool:  # another tool was started since: say which call this answers
            name = f"{name}({head(given, 60, self.style.marks.more)})"
        self._errors += not event.ok
        marks, paint = self.style.marks, self.style.paint
        size = f"({plural(event.lines, 'line')}, {plural(event.chars, 'char')})" if event.chars else "(no output)"
        if event.ok:
            title = f"{paint('green', marks.ok)} {self._dim(f'Result {marks.from_} {name} {size}')}"
        else:
            title = f"{paint('red', marks.error)} {paint('red', f'Error {marks.from_} {name}')} {self._dim(size)}"
        return [title, *self._excerpt(event.output, event.lines)]

    def _excerpt(self, output: str, lines: int) -> list[str]:
        """The first lines of a tool's output."""
        limit = self.limits.output_chars
        text = head(clean(output[: 2 * limit + 200].lstrip("\r\n")), limit, self.style.marks.more).rstrip()
        if not text:
            return []
        marks = self.style.marks
        written = [(at, line) for at, line in enumerate(text.expandtabs(4).split("\n"), start=1) if line.strip()]
        shown = written[: self.limits.output_lines]
        rows = [self.cut(line.rstrip(), 5) for _, line in shown]
        hidden = lines - shown[-1][0]
        if hidden > 0:
            rows.append(f"{marks.more} {plural(hidden, 'more line')}")
        return [self._dim(f"  {marks.output if not at else ' '}  {row}".rstrip()) for at, row in enumerate(rows)]

    def todo(self, event: TodoUpdated) -> list[str]:
        if event == self._todo or not event.items:
            return []
        self._todo = event
        marks, paint = self.style.marks, self.style.paint
        done = sum(item.status == "done" for item in event.items)
        lines = [paint("bold", f"{marks.todo}Todo List")]
        for item in event.items[: self.limits.todo_items]:
            text = self.cut(short(item.text, 200), 18)
            if item.status == "done":
                lines.append(f"  {paint('green', marks.todo_done)} {self._dim(text)}")
            elif item.status == "active":
                lines.append(
                    f"  {paint('yellow', marks.todo_active)} {text} {paint('yellow', marks.from_ + ' ACTIVE')}"
                )
            else:
                lines.append(f"  {self._dim(marks.todo_pending)} {text}")
        if len(event.items) > self.limits.todo_items:
            lines.append(self._dim(f"  {marks.more} {len(event.items) - self.limits.todo_items} more"))
        share = f"{done}/{len(event.items)} ({100 * done // len(event.items)}%)"
        return [*lines, f"  {marks.progress}Progress: {share}"]

    def progress(self, event: AgentProgress) -> list[str]:
        text = self.cut(short(event.text, 300), 4)
        if not text or text == self._progress:
            return []
        self._progress = text
        return [self._dim(f"  {self.style.marks.dot} {text}")]

    def finished(self, event: AgentFinished) -> list[str]:
        marks, paint = self.style.marks, self.style.paint
        details = ", ".join(self._details(event))
        if event.failure or event.ended_by:
            why = f"Failed: {event.reason or event.failure}"
            if event.ended_by:
                why = f"Ended by ralph: {event.ended_by.replace('-', ' ')}"
            lines = [f"{paint('red', marks.error)} {paint('red', short(why, 500))} {self._dim(f'({details})')}"]
        else:
            lines = [f"{paint('green', marks.ok)} Complete {self._dim(f'({details})')}"]
        if event.skipped_lines:
            lost = plural(event.skipped_lines, "line")
            lines.append(self._dim(f"  {lost} of the agent's output could not be read; the log has them"))
        if event.leftovers and not event.ended_by:
            were = "process was" if event.leftovers == 1 else "processes were"
            lines.append(self._dim(f"  {event.leftovers} {were} left behind by the agent, and ended"))
        return lines

    def _details(self, event: AgentFinished) -> list[str]:
        details = []
        if event.exit_code and not event.ended_by:
            details.append(exit_words(event.exit_code))
        if self._result:
            details += _spent(self._result)
        tools = event.tool_calls if event.tool_calls is not None else self._tools
        errors = event.tool_errors or self._errors
        if tools:
            details.append(f"tools: {tools}")
        if errors:
            details.append(f"errors: {errors}")
        return [*details, f"time: {duration(event.duration_s)}"]

    def _dim(self, text: str) -> str:
        return self.style.paint("dim", text)

    def cut(self, text: str, used: int) -> str:
        """`text` in the room that is left on its line."""
        if not self.columns or 2 * len(text) <= self.columns - used:  # no character takes more than two columns
            return text
        from ralph.show.words import cut

        return cut(text, max(self.columns - used, 8), self.style.marks.more)

    def rows(self, line: str, used: int) -> list[str]:
        """`line` on as many lines as it needs."""
        if not self.columns or 2 * len(line) <= self.columns - used:
            return [line]
        from ralph.show.words import wrap

        return wrap(line, max(self.columns - used, 8))


def _spent(result: AgentResult) -> list[str]:
    spent = []
    if result.cost_usd is not None:
        spent.append(f"cost: {'~' if result.estimated else ''}{money(result.cost_usd)}")
    taken = result.input_tokens + result.cache_read_tokens + result.cache_write_tokens
    if taken or result.output_tokens:
        cached = f" ({count(result.cache_read_tokens)} cached)" if result.cache_read_tokens else ""
        spent.append(f"tokens: {count(taken)} in{cached} / {count(result.output_tokens)} out")
    return spent
