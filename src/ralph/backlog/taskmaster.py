"""How does task-master keep a backlog? `tasks.json`: tasks with a number, a status and dependencies, maybe by tag."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from ralph.backlog.jsontext import Path, parsed, with_values
from ralph.backlog.lists import ListContent, decoded, encoded, key_of, title_of, with_own
from ralph.backlog.prd import PRIORITIES
from ralph.core.backlog import Item

SETTLED = frozenset({"done", "completed", "cancelled", "canceled", "deferred"})
FIRST_TAG = "master"


def is_one(document: Any) -> bool:
    """Whether a JSON document is a list of task-master's."""
    tasks = [task for _, task in _tasks(document)]
    return bool(tasks) and all("status" in task and "id" in task and "passes" not in task for task in tasks)


def read(files: Mapping[str, bytes]) -> ListContent:
    ((name, data),) = files.items()
    problems: list[str] = []
    items = [_item(task, name, problems) for _, task in _tasks(parsed(decoded(data), name))]
    return ListContent(tuple(items), problems=tuple(problems))


def ticked(files: Mapping[str, bytes], keys: Collection[str]) -> dict[str, bytes]:
    ((name, data),) = files.items()
    text = decoded(data)
    values: dict[Path, Any] = {}
    for at, task in _tasks(parsed(text, name)):
        if key_of(str(task.get("id"))) in keys and _status(task) != "done":
            values[(*at, "status")] = "done"
            for number, part in enumerate(task.get("subtasks") or ()):
                if isinstance(part, dict) and _status(part) not in SETTLED:
                    values[(*at, "subtasks", number, "status")] = "done"
    return {name: encoded(with_values(text, values))} if values else {}


def _tasks(document: Any) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The tasks of the file, or of its first tag: `master` where there is one."""
    at: Path = ("tasks",)
    found = document.get("tasks") if isinstance(document, dict) else None
    if found is None and isinstance(document, dict):
        tags = [tag for tag, inside in document.items() if isinstance(inside, dict) and "tasks" in inside]
        tag = FIRST_TAG if FIRST_TAG in tags else next(iter(tags), "")
        at, found = (tag, "tasks"), document[tag]["tasks"] if tag else ()
    for number, task in enumerate(found if isinstance(found, list) else ()):
        if isinstance(task, dict):
            yield (*at, number), task


def _status(task: Mapping[str, Any]) -> str:
    return str(task.get("status", "")).strip().lower()


def _item(task: Mapping[str, Any], name: str, problems: list[str]) -> Item:
    place = f"{name} {task.get('id')}"
    title = str(task.get("title") or task.get("description") or "")
    if not title.strip():
        problems.append(f"{place}: a task without a title")
    parts = [title, *(str(task[key]) for key in ("description", "details") if task.get(key))]
    if task.get("testStrategy"):
        parts.append(f"How it is tested: {task['testStrategy']}")
    parts += [f"- {part.get('title')}: {part.get('description') or ''}".rstrip(": ")
              for part in task.get("subtasks") or () if isinstance(part, dict)]  # fmt: skip
    item = Item(
        key=key_of(str(task.get("id"))),
        title=title_of(title),
        text="\n\n".join(dict.fromkeys(part.strip() for part in parts if part.strip())),
        place=place,
        done=_status(task) in SETTLED,
        priority=PRIORITIES.get(str(task.get("priority", "")).lower(), 0),
    )
    own = [("after", str(key).split(".", 1)[0], place) for key in task.get("dependencies") or ()]
    own += [
        (name, str(task[name]), place) for name in ("check", "touches", "agent", "model", "max-cost") if name in task
    ]
    return with_own(item, own, problems)
