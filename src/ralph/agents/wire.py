"""Lenient readers for lines and tables of agents' streams: they never raise."""

import json
from typing import Any, TypeVar

from msgspec import Struct, convert
from msgspec.json import Decoder

from ralph.core.events import FileEdit, TodoItem
from ralph.core.model import Usage
from ralph.core.text import both_ends, one_line, whole_words
from ralph.files import read_head

T = TypeVar("T")
Table = dict[str, Any]


class Head(Struct):
    """The one field that all dialects share. Decoding it alone skips the rest of the line."""

    type: str = ""


HEAD = Decoder(Head)
TABLE: Decoder[Table] = Decoder(Table)


def read(line: bytes, decoder: Decoder[T]) -> T | None:
    """Decode `line`; None if it cannot be read."""
    try:
        return decoder.decode(line)
    except (ValueError, RecursionError):
        pass
    try:
        return decoder.decode(_repair(line))
    except (ValueError, RecursionError):
        return None


def _repair(line: bytes) -> bytes:
    """Replace what strict readers refuse: lone surrogates (Node's half emoji) and bytes that are not UTF-8."""
    if b"\\u" not in line and line.isascii():
        raise ValueError("nothing to repair")

    value = json.loads(line.decode(errors="replace"), strict=False)
    return json.dumps(value, ensure_ascii=False).encode(errors="replace")


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
    """Return a count; 0 if the value is negative, absurd or not a number."""
    value = table.get(key)
    if isinstance(value, float) and value == value and abs(value) < 1 << 53:
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53 else 0


def amount(table: Table, key: str) -> float | None:
    """Return a non-negative number; None if there is none."""
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


def file(path: str) -> str:
    """Return the beginning of a file that the agent may have written; empty if there is none."""
    try:
        return read_head(path, 1 << 20).decode(errors="replace")
    except OSError:
        return ""


OUTPUT = 2000
EDITED = 40
TODO_TOOLS = frozenset({"TodoWrite", "todowrite", "todo_write", "write_todos", "update_plan", "todo_list"})

_STATES = {"in_progress": "active", "active": "active", "completed": "done", "done": "done", "cancelled": "done"}


class Arguments(Struct, gc=False, kw_only=True):
    """Tool arguments worth showing, the most telling first; then those of todo lists and edits."""

    command: Any = None
    file_path: Any = None
    pattern: Any = None
    path: Any = None
    cmd: Any = None
    commands: Any = None
    filePath: Any = None
    absolute_path: Any = None
    notebook_path: Any = None
    files: Any = None
    query: Any = None
    url: Any = None
    subject: Any = None
    description: Any = None
    prompt: Any = None
    skill: Any = None
    name: Any = None
    taskId: Any = None
    todos: Any = None
    plan: Any = None
    items: Any = None
    old_string: Any = None
    oldString: Any = None
    old_str: Any = None
    oldText: Any = None
    new_string: Any = None
    newString: Any = None
    new_str: Any = None
    newText: Any = None
    content: Any = None


_TOLD = (Arguments, str)
_OLD = ("old_string", "oldString", "old_str", "oldText")
_NEW = ("new_string", "newString", "new_str", "newText")
_UNTOLD = ("todos", "plan", "items", *_OLD, *_NEW, "content")
_TELLING = tuple(name for name in Arguments.__struct_fields__ if name not in _UNTOLD)


def arguments(value: Any) -> Arguments | str:
    """Return the known arguments in `value`, whatever it is."""
    if isinstance(value, _TOLD):
        return value
    return convert(value, Arguments) if isinstance(value, dict) and all(isinstance(key, str) for key in value) else ""


def summary(given: Arguments | str) -> str:
    """Return the path, the command or the pattern in one short line."""
    if isinstance(given, str):
        return one_line(whole_words(given, 1000))
    for name in _TELLING:
        value = getattr(given, name)
        if value:
            told = _value_text(value)
            if told:
                return one_line(told)
    return ""


def _value_text(value: Any) -> str:
    if isinstance(value, str):
        return whole_words(value, 1000)
    if not isinstance(value, list):
        return ""
    words = (
        item if isinstance(item, str) else text(item, "path") for item in value[:20] if isinstance(item, str | dict)
    )
    return whole_words("; ".join(word for word in words if word), 1000)


def measured(output: str) -> tuple[str, int, int]:
    """Return a tool's output (both ends if it is long) and its number of lines and characters.

    The cut mark is ASCII, because another character would double the memory of an ASCII text.
    """
    lines = output.count("\n") + (not output.endswith("\n")) if output else 0
    return both_ends(output, OUTPUT, "\n... [cut] ...\n"), lines, len(output)


def edit(given: Arguments | str) -> FileEdit | None:
    """Return what an editing tool removes and adds, without unchanged lines around it."""
    if isinstance(given, str) or not (given.file_path or given.filePath or given.path):
        return None
    new = _first_text(given, _NEW)
    if new is None and not isinstance(given.content, str):  # as for most tools
        return None
    old = _first_text(given, _OLD)
    if old is None and new is None:
        new = given.content
    if new is None or new == old:
        return None
    before, after = (old or "").splitlines(), new.splitlines()
    most = min(len(before), len(after))
    first = next((at for at in range(most) if before[at] != after[at]), most)
    same = next((at for at in range(most - first) if before[-1 - at] != after[-1 - at]), most - first)
    before, after = before[first : len(before) - same], after[first : len(after) - same]
    removed, added = (whole_words("\n".join(lines[:EDITED]), OUTPUT) for lines in (before, after))
    return FileEdit(removed, added, len(before), len(after))


def _first_text(given: Arguments, names: tuple[str, ...]) -> str | None:
    for name in names:
        if isinstance(said := getattr(given, name), str):
            return said
    return None


def todo_items(given: Arguments | str) -> tuple[TodoItem, ...] | None:
    """Return the list that a todo tool was given."""
    for name in ("todos", "plan", "items"):
        listed = getattr(given, name, None)
        if isinstance(listed, list):
            return tuple(todo_item(row) for row in rows({name: listed[:200]}, name))
    return None


def todo_item(row: Table) -> TodoItem:
    names = ("content", "description", "step", "text", "subject", "title")
    said = next((value for name in names if (value := text(row, name))), "")
    state = "completed" if row.get("completed") is True else text(row, "status")
    return TodoItem(one_line(said), _STATES.get(state, "pending"))
