"""How is a tool call told in a line? A summary of its input, the beginning of its output, the to-do list it writes."""

from typing import Any

from msgspec import Struct, convert

from ralph.agents.wire import Table, rows, text
from ralph.core.events import TodoItem
from ralph.core.text import one_line, whole_words

OUTPUT = 2000
TODO_TOOLS = frozenset({"TodoWrite", "todowrite", "todo_write", "write_todos", "update_plan", "todo_list"})

_STATES = {"in_progress": "active", "active": "active", "completed": "done", "done": "done", "cancelled": "done"}


class Arguments(Struct, gc=False):
    """What a person wants to read of a tool's arguments, the most telling first; then what a to-do list is called."""

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


_TOLD = (Arguments, str)
_TELLING = tuple(name for name in Arguments.__struct_fields__ if name not in ("todos", "plan", "items"))


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


def beginning(output: str) -> tuple[str, int, int]:
    """The first characters of a tool's output, and how many lines and characters there are in all."""
    lines = output.count("\n") + (not output.endswith("\n")) if output else 0
    return whole_words(output, OUTPUT), lines, len(output)


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
