"""Read lines and values of agents' streams. Nothing here raises: a value that is missing or wrong becomes a default."""

import json
from typing import Any

from msgspec.json import Decoder

from ralph.core.events import FileEdit, TodoItem
from ralph.core.model import Usage
from ralph.core.text import both_ends, one_line, whole_words
from ralph.errors import UNREADABLE
from ralph.files import read_head

Table = dict[str, Any]

_TABLE: Decoder[Table] = Decoder(Table)


def read(line: bytes) -> Table | None:
    """Decode a JSON object; return None if that is impossible.

    Lone surrogates (half an emoji, as Node prints it) and bytes that are not UTF-8 are replaced.
    """
    try:
        return _TABLE.decode(line)
    except UNREADABLE:
        pass
    if b"\\u" not in line and line.isascii():  # nothing to replace
        return None
    try:
        value = json.loads(line.decode(errors="replace"), strict=False)
        return _TABLE.decode(json.dumps(value, ensure_ascii=False).encode(errors="replace"))
    except UNREADABLE:
        return None


def text(table: Table, key: str) -> str:
    value = table.get(key)
    return value if isinstance(value, str) else ""


def table(table: Table, key: str) -> Table:
    value = table.get(key)
    return value if isinstance(value, dict) else {}


def rows(table: Table, key: str) -> list[Table]:
    """Return the objects in the list at `key`."""
    value = table.get(key)
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def count(table: Table, key: str) -> int:
    """Return a count; 0 if the value is negative, impossibly large or not a number."""
    value = table.get(key)
    if isinstance(value, float) and value == value and abs(value) < 1 << 53:
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53 else 0


def amount(table: Table, key: str) -> float | None:
    """Return a number of at least 0; None if there is none."""
    value = table.get(key)
    sane = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e15
    return float(value) if sane and value is not None else None


def moment(table: Table, key: str) -> float | None:
    """Return a time in epoch seconds, whether it is stated in seconds or in milliseconds."""
    value = amount(table, key)
    return value / 1000 if value is not None and value > 1e11 else value


def usage(table: Table, names: tuple[str, ...], cost: float | None = None, *, whole_input: bool = False) -> Usage:
    """Return the tokens under the `names` for input, output, cache read and cache write; missing names count as 0.

    `whole_input`: the input includes cached tokens, so subtract them.
    """
    numbers = [count(table, name) for name in names] + [0] * (4 - len(names))
    if whole_input:
        numbers[0] = max(numbers[0] - numbers[2] - numbers[3], 0)
    return Usage(
        input_tokens=numbers[0],
        output_tokens=numbers[1],
        cache_read_tokens=numbers[2],
        cache_write_tokens=numbers[3],
        cost_usd=cost,
    )


def status(table: Table, key: str) -> int | None:
    """Return an HTTP status; None if there is none."""
    value = table.get(key)
    return value if isinstance(value, int) and 100 <= value < 600 else None


def read_object(path: str) -> Table:
    """Return the JSON object in a file that the agent may have written; {} if there is none."""
    try:
        return read(read_head(path, 1 << 20)) or {}
    except OSError:
        return {}


OUTPUT = 2000
EDITED = 40
TODO_TOOLS = frozenset({"TodoWrite", "todowrite", "todo_write", "write_todos", "update_plan", "todo_list"})

_STATES = {"in_progress": "active", "active": "active", "completed": "done", "done": "done", "cancelled": "done"}

# Names of the argument that describes a tool call best, in order of preference.
_MAIN_ARGUMENTS = (
    *("command", "file_path", "pattern", "path", "cmd", "commands", "filePath", "absolute_path", "notebook_path"),
    *("files", "query", "url", "subject", "description", "prompt", "skill", "name", "taskId"),
)
_OLD = ("old_string", "oldString", "old_str", "oldText")
_NEW = ("new_string", "newString", "new_str", "newText")


def summary(value: Any) -> str:
    """Return the path, the command or the pattern in a tool's arguments in one short line."""
    if isinstance(value, str):
        return one_line(whole_words(value, 1000))
    values = (_value_text(value.get(name)) for name in _MAIN_ARGUMENTS) if isinstance(value, dict) else ()
    return next(filter(None, map(one_line, values)), "")


def _value_text(value: Any) -> str:
    if isinstance(value, list):
        value = "; ".join(
            item if isinstance(item, str) else text(item, "path") for item in value[:20] if isinstance(item, str | dict)
        )
    return whole_words(value, 1000) if isinstance(value, str) else ""


def measured(output: str) -> tuple[str, int, int]:
    """Return a tool's output (both ends if it is long) and its number of lines and characters.

    The cut mark is ASCII, because another character would double the memory of an ASCII text.
    """
    lines = output.count("\n") + (not output.endswith("\n")) if output else 0
    return both_ends(output, OUTPUT, "\n... [cut] ...\n"), lines, len(output)


def edit(arguments: Any) -> FileEdit | None:
    """Return what an editing tool removes and adds, without unchanged lines around it."""
    if not isinstance(arguments, dict) or not (
        arguments.get("file_path") or arguments.get("filePath") or arguments.get("path")
    ):
        return None
    old, new = _first_text(arguments, _OLD), _first_text(arguments, _NEW)
    if old is None and new is None:
        new = _first_text(arguments, ("content",))
    if new is None or new == old:
        return None
    before, after = (old or "").splitlines(), new.splitlines()
    most = min(len(before), len(after))
    first = next((at for at in range(most) if before[at] != after[at]), most)
    same = next((at for at in range(most - first) if before[-1 - at] != after[-1 - at]), most - first)
    before, after = before[first : len(before) - same], after[first : len(after) - same]
    removed, added = (whole_words("\n".join(lines[:EDITED]), OUTPUT) for lines in (before, after))
    return FileEdit(removed, added, len(before), len(after))


def _first_text(arguments: Table, names: tuple[str, ...]) -> str | None:
    return next((arguments[name] for name in names if isinstance(arguments.get(name), str)), None)


def todo_items(arguments: Any) -> tuple[TodoItem, ...] | None:
    """Return the list in the arguments of a todo tool."""
    for name in ("todos", "plan", "items"):
        if isinstance(arguments, dict) and isinstance(arguments.get(name), list):
            return tuple(map(todo_item, rows(arguments, name)[:200]))
    return None


def todo_item(row: Table) -> TodoItem:
    names = ("content", "description", "step", "text", "subject", "title")
    words = next((value for name in names if (value := text(row, name))), "")
    state = "completed" if row.get("completed") is True else text(row, "status")
    return TodoItem(one_line(words), _STATES.get(state, "pending"))
