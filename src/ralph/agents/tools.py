"""How is a tool call told in a line? A summary of its input, the beginning of its output, the to-do list it writes."""

from typing import Any

from ralph.agents.wire import Table, rows, text
from ralph.core.events import TodoItem
from ralph.core.text import head, one_line

OUTPUT = 2000
TODO_TOOLS = {"todowrite", "writetodos", "updateplan", "todolist"}

# What a person wants to read of the arguments, the most telling first.
_TELLING = (
    *("command", "cmd", "commands", "file_path", "filePath", "path", "absolute_path", "notebook_path", "files"),
    *("pattern", "query", "url", "subject", "description", "prompt", "skill", "name", "taskId"),
)
_STATES = {"in_progress": "active", "active": "active", "completed": "done", "done": "done", "cancelled": "done"}


def summary(arguments: Any) -> str:
    """The path, the command or the pattern, in one short line."""
    if isinstance(arguments, str):
        return one_line(arguments)
    if not isinstance(arguments, dict):
        return ""
    for key in _TELLING:
        if told := _told(arguments.get(key)):
            return one_line(told)
    return ""


def _told(value: Any) -> str:
    if isinstance(value, str):
        return head(value, 1000)
    if isinstance(value, list):
        words = [
            item if isinstance(item, str) else text(item, "path") for item in value[:20] if isinstance(item, str | dict)
        ]
        return head("; ".join(word for word in words if word), 1000)
    return ""


def beginning(output: str) -> tuple[str, int, int]:
    """The first characters of a tool's output, and how many lines and characters there are in all."""
    lines = output.count("\n") + (not output.endswith("\n")) if output else 0
    return head(output, OUTPUT), lines, len(output)


def todo_items(tool: str, arguments: Any) -> tuple[TodoItem, ...] | None:
    """The list that a to-do tool writes, or None where `tool` is none."""
    if tool.replace("_", "").lower() not in TODO_TOOLS or not isinstance(arguments, dict):
        return None
    for key in ("todos", "plan", "items"):
        if isinstance(arguments.get(key), list):
            return tuple(todo_item(row) for row in rows(arguments, key)[:200])
    return None


def todo_item(row: Table) -> TodoItem:
    said = next(
        (value for key in ("content", "description", "step", "text", "subject", "title") if (value := text(row, key))),
        "",
    )
    state = "completed" if row.get("completed") is True else text(row, "status")
    return TodoItem(one_line(said), _STATES.get(state, "pending"))
