"""How is a line read that may be broken? Typed where it is hot, lenient where it is rare, never with an exception."""

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
    """The one thing that all dialects have in common. Decoding it alone skips the rest of the line."""

    type: str = ""


HEAD = Decoder(Head)
TABLE: Decoder[Table] = Decoder(Table)


def read(line: bytes, decoder: Decoder[T]) -> T | None:
    """What `line` says, or None where it cannot be read."""
    try:
        return decoder.decode(line)
    except (ValueError, RecursionError):
        pass
    try:
        return decoder.decode(_repaired(line))
    except (ValueError, RecursionError):
        return None


def _repaired(line: bytes) -> bytes:
    """The line with what JSON itself allows and strict readers refuse: Node escapes half an emoji as a lone surrogate,
    and tool output brings bytes that are no UTF-8."""
    if b"\\u" not in line and line.isascii():
        raise ValueError("nothing to repair")
    import json

    value = json.loads(line.decode(errors="replace"), strict=False)
    return json.dumps(value, ensure_ascii=False).encode(errors="replace")


def text(table: Table, key: str) -> str:
    value = table.get(key)
    return value if isinstance(value, str) else ""


def table(table: Table, key: str) -> Table:
    value = table.get(key)
    return value if isinstance(value, dict) else {}


def rows(table: Table, key: str) -> list[Table]:
    """The objects in the list at `key`."""
    value = table.get(key)
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def count(table: Table, key: str) -> int:
    """A number of things: what is negative, absurd or no number counts as none."""
    value = table.get(key)
    if isinstance(value, float) and value == value and abs(value) < 1 << 53:
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53 else 0


def amount(table: Table, key: str) -> float | None:
    """A sum of money, or a part of something, if there is one."""
    value = table.get(key)
    sane = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e15
    return float(value) if sane and value is not None else None


def moment(table: Table, key: str) -> float | None:
    """A moment in epoch seconds, whether it is stated in seconds or in milliseconds."""
    value = amount(table, key)
    return value / 1000 if value is not None and value > 1e11 else value


def usage(table: Table, names: tuple[str, ...], cost: float | None = None, *, whole_input: bool = False) -> Usage:
    """Tokens under the names for input, output, cache read and cache written; what has no name is none. A `whole_input`
    is stated with what came from the cache and went into it."""
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
    """An HTTP status, if there is one."""
    value = table.get(key)
    return value if isinstance(value, int) and 100 <= value < 600 else None


def file(path: str) -> str:
    """The beginning of a file that an agent may have written for us."""
    try:
        return read_head(path, 1 << 20).decode(errors="replace")
    except OSError:
        return ""


OUTPUT = 2000
EDITED = 40
TODO_TOOLS = frozenset({"TodoWrite", "todowrite", "todo_write", "write_todos", "update_plan", "todo_list"})

_STATES = {"in_progress": "active", "active": "active", "completed": "done", "done": "done", "cancelled": "done"}


class Arguments(Struct, gc=False, kw_only=True):
    """What a person wants to read of a tool's arguments, the most telling first; then of to-do lists and of edits."""

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
    """What can be told of the arguments in `value`, whatever it is."""
    if isinstance(value, _TOLD):
        return value
    return convert(value, Arguments) if isinstance(value, dict) and all(isinstance(key, str) for key in value) else ""


def summary(given: Arguments | str) -> str:
    """The path, the command or the pattern, in one short line."""
    if isinstance(given, str):
        return one_line(whole_words(given, 1000))
    for name in _TELLING:
        value = getattr(given, name)
        if value:
            told = _told(value)
            if told:
                return one_line(told)
    return ""


def _told(value: Any) -> str:
    if isinstance(value, str):
        return whole_words(value, 1000)
    if not isinstance(value, list):
        return ""
    words = (
        item if isinstance(item, str) else text(item, "path") for item in value[:20] if isinstance(item, str | dict)
    )
    return whole_words("; ".join(word for word in words if word), 1000)


def measured(output: str) -> tuple[str, int, int]:
    """A tool's output, of a long one both ends, and how many lines and characters there are in all. The mark is ASCII,
    as most output is: one other sign, and each character takes twice the room and time."""
    lines = output.count("\n") + (not output.endswith("\n")) if output else 0
    return both_ends(output, OUTPUT, "\n... [cut] ...\n"), lines, len(output)


def edit(given: Arguments | str) -> FileEdit | None:
    """What an editing tool takes out and puts in, less the lines around it that stay."""
    if isinstance(given, str) or not (given.file_path or given.filePath or given.path):
        return None
    new = _said(given, _NEW)
    if new is None and not isinstance(given.content, str):  # as for most tools
        return None
    old = _said(given, _OLD)
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


def _said(given: Arguments, names: tuple[str, ...]) -> str | None:
    for name in names:
        if isinstance(said := getattr(given, name), str):
            return said
    return None


def todo_items(given: Arguments | str) -> tuple[TodoItem, ...] | None:
    """The list that a to-do tool was given."""
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
