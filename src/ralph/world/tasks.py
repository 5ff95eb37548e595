"""Which tasks does the tasks file name, and which of them are done? Markdown checkboxes, or a list in JSON."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ralph.core.model import Task
from ralph.core.text import clean, one_line
from ralph.errors import UserError

LISTS = ("userStories", "user_stories", "stories", "tasks", "features", "items", "subtasks")
TEXTS = ("title", "name", "description", "text", "story", "task")
DONE = frozenset({"done", "complete", "completed", "passed", "passing"})
FAILED = frozenset({"failed", "failing", "blocked"})
NO_TEXT = "(a task without text)"


def read_tasks(path: Path) -> tuple[Task, ...]:
    """Every task in the file, in its order."""
    try:
        text = path.read_bytes().decode("utf-8-sig", "replace")
    except OSError as error:
        raise UserError(f"cannot read the tasks file {path}: {error.strerror}", "name one with --tasks FILE") from None
    tasks = tuple(_in_json(text, path) if path.suffix.lower() == ".json" else _in_markdown(text))
    if not tasks:
        raise UserError(
            f"the tasks file {path} names no task",
            'write one a line as "- [ ] text", or a list of {"title": "...", "passes": false} in a .json file',
        )
    return tasks


def taken_off(first: tuple[Task, ...], now: tuple[Task, ...]) -> tuple[Task, ...]:
    """The open tasks of before that the list no longer names: to strike a task out is not to do it."""
    gone = [task for task in first if not task.done and not any(task.text in one.text for one in now)]
    return tuple(Task(f"{task.text} (it was taken off the list)", False) for task in gone)


def _in_markdown(text: str) -> Iterator[Task]:
    """Checkboxes of lists, nested ones too. In code and comments they are examples. A box with anything but a cross
    in it is open: a mark of one's own invention settles nothing."""
    import re

    box = re.compile(r"[\s>]*(?:[-*+]|\d{1,9}[.)])\s+\[([^\w\[\]]?|[xX])\](?:\s+(.*))?")
    fence = re.compile(r"[\s>]*(?:(?:[-*+]|\d{1,9}[.)])\s+)?(`{3,}|~{3,})(.*)")
    closing = ""
    for line in re.sub(r"<!--.*?(?:-->|\Z)", "", text, flags=re.DOTALL).splitlines():
        if mark := fence.fullmatch(line):
            if not closing:
                closing = mark[1] if "`" not in mark[2] or mark[1][0] == "~" else ""
            elif mark[1].startswith(closing) and not mark[2].strip():
                closing = ""
        elif not closing and (found := box.fullmatch(line)):
            yield Task(_line(found[2]) or NO_TEXT, found[1] in ("x", "X"))


def _in_json(text: str, path: Path) -> Iterator[Task]:
    import json

    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"the tasks file {path} is not JSON: {error}", "mend it, or name another with --tasks"
        ) from None
    yield from _in_list(content if isinstance(content, list) else _lists(content))


def _in_list(entries: list[Any]) -> Iterator[Task]:
    for entry in entries:
        if not isinstance(entry, dict):
            continue
        inner = _lists(entry)
        text = next((_line(entry[key]) for key in TEXTS if isinstance(entry.get(key), str)), "")
        if text or not inner:
            yield Task(text or NO_TEXT, _is_done(entry), _status(entry) in FAILED)
        yield from _in_list(inner)


def _lists(entry: Any) -> list[Any]:
    if not isinstance(entry, dict):
        return []
    return [one for key in LISTS if isinstance(entry.get(key), list) for one in entry[key]]


def _is_done(entry: dict[str, Any]) -> bool:
    """`passes` decides where it stands; nothing but `true` passes."""
    if "passes" in entry:
        return entry["passes"] is True
    return entry.get("done") is True or entry.get("completed") is True or _status(entry) in DONE


def _status(entry: dict[str, Any]) -> str:
    return str(entry.get("status", "")).strip().lower()


def _line(text: str | None) -> str:
    return one_line(clean(text or ""), 500)
