"""Render the agent's words and tools for a person. They are indented: only ralph writes at the left margin."""

from collections.abc import Iterator

from msgspec import Struct

from ralph.core.events import (
    AgentFinished,
    AgentProgress,
    AgentResult,
    AgentText,
    Event,
    FileEdit,
    TodoUpdated,
    ToolFinished,
    ToolStarted,
)
from ralph.core.text import clean, head, plural, short, tail
from ralph.show.outlet import Style
from ralph.show.words import count, cut, duration, exit_words, money, wrap


class LineLimits(Struct, frozen=True, kw_only=True):
    """Limits on how much of the agents' and tools' text is shown. The logs contain all of it."""

    output_lines: int = 3
    output_chars: int = 300
    diff_lines: int = 6
    check_lines: int = 8
    text_chars: int = 4000
    todo_items: int = 30


VERBOSE = LineLimits(
    output_lines=20, output_chars=2000, diff_lines=40, check_lines=40, text_chars=20_000, todo_items=200
)
_OPEN_TOOLS = 500
_MOST_PARENTS = 200  # calls with a sub-agent that are shown when they start
_HEADINGS = ("# ", "## ", "### ", "#### ")
_SHELLS = ("bash", "shell", "exec", "command", "terminal")  # in the names of tools that run commands


class TurnLines:
    """Lines for the events inside a turn. `columns` is the width of a line, 0 for no limit; paths are shown relative to
    `root`.
    """

    def __init__(self, style: Style, limits: LineLimits, columns: int = 0) -> None:
        self.style, self.limits, self.columns, self.root = style, limits, columns, ""
        self.is_verbose = limits.text_chars > LineLimits().text_chars
        self.reset()

    def reset(self) -> None:
        """Get ready for a new turn."""
        self._open: dict[str, ToolStarted] = {}
        self._depths: dict[str, int] = {}
        self._todo: TodoUpdated | None = None
        self._result: AgentResult | None = None
        self._progress = ""
        self._tools = self._errors = 0

    def __call__(self, event: Event) -> list[str]:
        """Return the lines for an event of a turn; none for any other event."""
        match event:
            case AgentText():
                return self._text(event)
            case ToolStarted():
                return self._tool_started(event)
            case ToolFinished():
                return self._tool_finished(event)
            case TodoUpdated():
                return self._todo_lines(event)
            case AgentProgress():
                return self._progress_line(event)
            case AgentFinished():
                return self._finished(event)
            case AgentResult():
                self._result = event
        return []

    def _text(self, event: AgentText) -> list[str]:
        limit = self.limits.text_chars
        text = head(clean(event.text[: 2 * limit]), limit).strip("\n")
        if not text or text.isspace():
            return []
        rows = text.expandtabs(4).split("\n")
        if self.columns:
            rows = [row for line in rows for row in self.rows(line, 2)]
        lines = [f"  {row}".rstrip() for row in (self._emphasize(rows) if self.style.color else rows)]
        if len(event.text) > limit:
            lines.append(self._dim(f"  {self.style.marks.more} {len(event.text) - limit} more characters in the log"))
        return lines

    def _emphasize(self, rows: list[str]) -> Iterator[str]:
        """Render headings, `code` and **emphasis** as the agents' own screens do; leave code blocks as they are."""
        is_code = False
        for row in rows:
            if row.lstrip().startswith("```"):
                is_code = not is_code
            elif row.startswith(_HEADINGS) and not is_code:
                row = self.style.paint("bold", row.lstrip("#").lstrip())
            elif not is_code:
                row = self._paint_marked(self._paint_marked(row, "`", "cyan"), "**", "bold")
            yield row

    def _paint_marked(self, row: str, mark: str, tone: str) -> str:
        """Paint the text between two marks and drop the marks. A mark without a partner, or next to a space, stays."""
        pieces = row.split(mark)
        inner = pieces[1::2]
        if not inner or len(pieces) % 2 == 0 or any(piece.strip() != piece or not piece for piece in inner):
            return row
        return "".join(self.style.paint(tone, piece) if at % 2 else piece for at, piece in enumerate(pieces))

    def _tool_started(self, event: ToolStarted) -> list[str]:
        """Show a call when it has finished, in one line with its outcome. A call with a sub-agent is also shown when it
        starts."""
        if len(self._open) >= _OPEN_TOOLS:
            del self._open[next(iter(self._open))]
        self._open[event.id] = event
        self._tools += 1
        parent = self._open.get(event.parent)
        if not parent or event.parent in self._depths or len(self._depths) >= _MOST_PARENTS:
            return []
        self._depths[event.parent] = self._depth(parent)
        return [self._call(parent, self.style.paint("cyan", self.style.marks.tool))]

    def _tool_finished(self, event: ToolFinished) -> list[str]:
        call = self._open.pop(event.id, None) or ToolStarted(event.id, event.name or "tool")
        self._errors += not event.ok
        if event.ok and "todo" in call.name.lower() and not self.is_verbose:  # the list itself is shown
            return []
        edit, marks, paint = call.edit if event.ok else None, self.style.marks, self.style.paint
        outcome = plural(event.lines, "line") if event.lines else ""
        if not event.ok:
            result = f"failed, {outcome}" if event.lines > self.limits.output_lines else "failed"
            line = self._call(call, paint("red", marks.failed), "red", result)
        else:
            outcome = f"+{edit.added_lines} -{edit.removed_lines}" if edit else outcome
            line = self._call(call, paint("green", marks.tool), "dim", outcome)
        is_command = any(word in call.name.lower() for word in _SHELLS)
        below = self._diff(edit) if edit else []
        if is_command or not event.ok or (self.is_verbose and not edit):
            below = self._last_lines(event)
        margin = "  " * self._depth(call)
        return [line, *(margin + row for row in below)]

    def _depth(self, call: ToolStarted) -> int:
        return self._depths[call.parent] + 1 if call.parent in self._depths else 0

    def _call(self, call: ToolStarted, mark: str, tone: str = "plain", outcome: str = "") -> str:
        """Return `• Read(src/parser.py) 45 lines`."""
        name, argument, margin = short(call.name, 80), self.relative(short(call.input, 200)), "  " * self._depth(call)
        end = f"  {self.style.paint(tone, outcome)}" if outcome else ""
        text = self.cut(
            f"{name}({argument})" if argument else name, len(margin) + 4 + (len(outcome) + 2 if outcome else 0)
        )
        bold = text[: len(name)]
        return f"{margin}  {mark} {self.style.paint('bold', bold)}{text[len(bold) :]}{end}"

    def relative(self, text: str) -> str:
        """Return a path in the workspace, or a command with such paths, relative to it."""
        root = self.root
        if not root or root not in text:
            return text
        text = text.removeprefix(f"cd {root} && ")
        return "." if text == root else text.replace(f" {root}/", " ").removeprefix(f"{root}/")

    def without_root(self, text: str) -> str:
        """Return program output with paths relative to the workspace."""
        return text.replace(f"{self.root}/", "") if len(self.root) > 1 else text

    def _diff(self, edit: FileEdit) -> list[str]:
        """Return a short coloured diff. If not everything fits, it has as many removed as added lines."""
        most = self.limits.diff_lines
        removed, come = (clean(text).expandtabs(4).split("\n") if text else [] for text in (edit.removed, edit.added))
        colored = [("red", f"      - {line}") for line in removed[: max(most - len(come), most // 2)]]
        colored += [("green", f"      + {line}") for line in come[: max(most - len(removed), most // 2)]]
        pieces = [self.style.paint(tone, self.cut(line.rstrip(), 0)) for tone, line in colored]
        if hidden := edit.removed_lines + edit.added_lines - len(pieces):
            pieces.append(self._dim(f"      {self.style.marks.more} {plural(hidden, 'more line')}"))
        return pieces

    def _last_lines(self, event: ToolFinished) -> list[str]:
        """Return the end of a tool's output, where commands summarise what they did."""
        limit, most, marks = self.limits.output_chars, self.limits.output_lines, self.style.marks
        text = self.without_root(clean(tail(event.output, 4 * limit)).expandtabs(4))
        written = lines_with_words(tail(text.rstrip(), limit, marks.more).split("\n"))
        rows = [self.cut(line, 6) for line in (written[-most:] if most else ())]
        return [self._dim(f"    {marks.output if not at else ' '} {row}".rstrip()) for at, row in enumerate(rows)]

    def _todo_lines(self, event: TodoUpdated) -> list[str]:
        """Return the whole list if its tasks changed, else one line."""
        before, items = self._todo, event.items
        if event == before or not items:
            return []
        self._todo = event
        marks, paint = self.style.marks, self.style.paint
        finished = sum(item.status == "done" for item in items)
        title = f"  {self._dim('todo')} {finished}/{len(items)}"
        if before and [item.text for item in before.items] == [item.text for item in items]:
            active = next((item.text for item in items if item.status == "active"), "")
            now = f"  {paint('yellow', marks.todo_active)} {self.cut(short(active, 200), 16)}" if active else ""
            return [title + now]
        lines = [title]
        signs = {"done": paint("green", marks.todo_done), "active": paint("yellow", marks.todo_active)}
        for item in items[: self.limits.todo_items]:
            text = self.cut(short(item.text, 200), 8)
            sign = signs.get(item.status, self._dim(marks.todo_pending))
            lines.append(f"    {sign} {self._dim(text) if item.status == 'done' else text}")
        if len(items) > self.limits.todo_items:
            lines.append(self._dim(f"    {marks.more} {len(items) - self.limits.todo_items} more"))
        return lines

    def _progress_line(self, event: AgentProgress) -> list[str]:
        text = self.cut(short(event.text, 300), 4)
        if not text or text == self._progress or (event.routine and not self.is_verbose):
            return []
        self._progress = text
        return [self._dim(f"  {self.style.marks.dot} {text}")]

    def _finished(self, event: AgentFinished) -> list[str]:
        dot, marks, paint = f" {self.style.marks.dot} ", self.style.marks, self.style.paint
        details = dot.join(self._spent(event))
        calls, self._open = list(self._open.values())[:20], {}
        lines = [self._call(call, self._dim(marks.tool), "dim", "not finished") for call in calls]
        lines += [""] if calls else []
        if event.failure or event.ended_by:
            ended = f"turn ended by ralph: {event.ended_by.replace('-', ' ')}"
            why = ended if event.ended_by else f"turn failed: {event.reason or event.failure}"
            rows = self.rows(f"{marks.failed} {short(why, 500)}{dot}{details}", 2)
            lines += [paint("red", row if not at else f"  {row}") for at, row in enumerate(rows)]
        else:
            lines += [self._dim(row) for row in self.rows(f"turn ended{dot}{details}", 0)]
        if event.skipped_lines:
            skipped = plural(event.skipped_lines, "line")
            lines += self._aside(f"{skipped} of the agent's output could not be read; the log has them")
        if event.leftovers and not event.ended_by:
            were = "process was" if event.leftovers == 1 else "processes were"
            lines += self._aside(f"{event.leftovers} {were} left running by the agent, and killed")
        return lines

    def _spent(self, event: AgentFinished) -> list[str]:
        details = [exit_words(event.exit_code)] if event.exit_code and not event.ended_by else []
        details.append(duration(event.duration_s))
        tools = event.tool_calls if event.tool_calls is not None else self._tools
        errors, result = event.tool_errors or self._errors, self._result
        if tools:
            details.append(plural(tools, "tool call") + (f", {errors} failed" if errors else ""))
        if result and result.cost_usd is not None:
            details.append(f"{'~' if result.estimated else ''}{money(result.cost_usd)}")
        tokens = result.input_tokens + result.cache_read_tokens + result.cache_write_tokens if result else 0
        if result and (tokens or result.output_tokens):
            cached = f" ({count(result.cache_read_tokens)} cached)" if result.cache_read_tokens else ""
            details.append(f"{count(tokens)} in{cached}, {count(result.output_tokens)} out")
        return details

    def _aside(self, text: str) -> list[str]:
        return [self._dim(f"  {row}") for row in self.rows(text, 2)]

    def _dim(self, text: str) -> str:
        return self.style.paint("dim", text) if text else ""

    def cut(self, text: str, used: int) -> str:
        """Return `text` cut to the rest of its line."""
        if not self.columns or 2 * len(text) <= self.columns - used:  # no character takes more than two columns
            return text
        return cut(text, max(self.columns - used, 8), self.style.marks.more)

    def rows(self, line: str, used: int) -> list[str]:
        """Return `line` broken into as many lines as it needs."""
        if not self.columns or 2 * len(line) <= self.columns - used:
            return [line]
        return wrap(line, max(self.columns - used, 8))


def lines_with_words(lines: list[str]) -> list[str]:
    """Return the rows that contain letters or digits; if there are none, all rows that aren't blank."""
    written = [line.rstrip() for line in lines if line.strip()]
    return [line for line in written if any(map(str.isalnum, line))] or written
