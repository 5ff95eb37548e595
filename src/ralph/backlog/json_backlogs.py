"""Backlogs in JSON files: `prd.json` (stories with an id and `passes`) and task-master's `tasks.json` (numbered tasks
with status and dependencies, optionally by tag). A tick changes one value in place and keeps every other byte.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from ralph.backlog.backlog_content import (
    PRIORITIES,
    BacklogContent,
    add_own_settings,
    apply_edits,
    decode_file,
    encode_file,
    key_of,
    slug,
    title_of,
)
from ralph.core.backlog import BacklogTask
from ralph.core.tasks_file import LISTS, entry_text, is_done, status_of
from ralph.errors import UserError

JsonPath = tuple[str | int, ...]
JsonEntry = Mapping[str, Any]

TOKEN = re.compile(r'"(?>(?:[^"\\]++|\\.)*)"?|[{}\[\],:]|[^\s{}\[\],:"]+', re.DOTALL)
SPACE = re.compile(r"\s*+")
OWN_NAMES = {
    "check": ("check", "checks"),
    "exam": ("exam", "exams"),
    "after": ("after", "dependsOn", "depends_on", "dependencies"),
    "touches": ("touches", "files"),
    "agent": ("agent",),
    "model": ("model",),
    "max-cost": ("max-cost", "maxCost", "max_cost"),
}
SETTLED = frozenset({"done", "completed", "cancelled", "canceled", "deferred"})
FIRST_TAG = "master"
MAX_DEPTH = 6  # of a value that is ticked: TAG, tasks, NUMBER, subtasks, NUMBER, status


def parse_json(text: str, name: str) -> Any:
    """Return the parsed document; raise a UserError with line and column if it is malformed."""
    try:
        return json.loads(text.removeprefix("\ufeff"))
    except json.JSONDecodeError as error:
        raise UserError(f"{name}:{error.lineno}: invalid JSON: {error.msg}", "fix the backlog") from None
    except ValueError:
        raise UserError(f"{name} contains a number with thousands of digits", "fix the backlog") from None
    except RecursionError:
        raise UserError(f"{name} is nested too deeply to be read", "flatten it") from None


def spans(text: str, wanted: Collection[JsonPath]) -> dict[JsonPath, tuple[int, int, int]]:
    """Return start and end of these values in a valid JSON text, and where the last member of each ends (0: none)."""
    places: dict[JsonPath, tuple[int, int, int]] = {}
    path: list[str | int] = []  # of the next value
    starts, lasts = [0], [0]  # by nesting: where an object or list starts, and where its last member ends
    tokens = TOKEN.finditer(text, len(text) - len(text.removeprefix("\ufeff")))
    following = next(tokens, None)
    while token := following:
        word, following = token[0], next(tokens, None)
        if word in "{[":
            starts.append(token.start())
            lasts.append(0)
            path.append("" if word == "{" else 0)
        elif word == ",":
            path[-1] = path[-1] + 1 if isinstance(path[-1], int) else path[-1]
        elif following and following[0] == ":":
            path[-1] = json.loads(word, strict=False)
        elif word != ":":
            start, last = token.start(), 0
            if word in "}]":
                path.pop()
                start, last = starts.pop(), lasts.pop()
            lasts[-1] = token.end()
            if len(path) <= MAX_DEPTH and (at := tuple(path)) in wanted:
                places[at] = start, token.end(), last
    return places


def _with_values(text: str, values: dict[JsonPath, Any]) -> str:
    """Return the text with these values changed, or added as the last members of their objects."""
    places, edits = spans(text, {*values, *(path[:-1] for path in values)}), []
    for path, value in values.items():
        written = json.dumps(value, ensure_ascii=False)
        if path in places:
            edits.append((*places[path][:2], written))
        elif path[:-1] in places:
            edits.append(_insertion(text, *places[path[:-1]], f"{json.dumps(path[-1])}: {written}"))
    return apply_edits(text, edits)


def _insertion(text: str, start: int, end: int, last: int, member: str) -> tuple[int, int, str]:
    """Return the edit that adds a member after the last one, with the same indentation."""
    if not last:
        return start + 1, end - 1, member
    space = SPACE.match(text, start + 1)
    return last, last, f",{space[0] if space else ' '}{member}"


def read_prd(files: Mapping[str, bytes]) -> BacklogContent:
    ((name, data),) = files.items()
    problems: list[str] = []
    stories = _stories(parse_json(decode_file(data), name))
    items = [_story(story, f"{name} {number}", problems) for number, (_, story) in enumerate(stories, 1)]
    return BacklogContent(tuple(items), problems=tuple(problems))


def tick_prd(files: Mapping[str, bytes], keys: Collection[str]) -> dict[str, bytes]:
    ((name, data),) = files.items()
    text = decode_file(data)
    values: dict[JsonPath, Any] = {}
    for at, story in _stories(parse_json(text, name)):
        if _key(story) not in keys or is_done(story):
            continue
        if "passes" not in story and "status" in story:
            values[(*at, "status")] = "done"
        else:
            values[(*at, "passes")] = True
    return {name: encode_file(_with_values(text, values))} if values else {}


def _stories(document: Any) -> Iterator[tuple[JsonPath, dict[str, Any]]]:
    """Yield each story and its position."""
    lists: dict[JsonPath, Any] = {(): document}
    if isinstance(document, dict):
        lists = {(key,): document[key] for key in LISTS if key in document}
    for at, entries in lists.items():
        for number, entry in enumerate(entries if isinstance(entries, list) else ()):
            if isinstance(entry, dict):
                yield (*at, number), entry


def _key(story: JsonEntry) -> str:
    named = story.get("id", story.get("key", ""))
    return key_of(str(named)) if named not in ("", None) else slug(entry_text(story))


def _story(story: JsonEntry, place: str, problems: list[str]) -> BacklogTask:
    key, title = _key(story), title_of(entry_text(story))
    if not key or not title:
        problems.append(f"{place}: a story without id or title")
    parts = [entry_text(story)]
    parts += [story[name] for name in ("description", "details", "notes") if isinstance(story.get(name), str)]
    for name in ("acceptanceCriteria", "acceptance_criteria", "steps"):
        if isinstance(story.get(name), list) and story[name]:
            parts.append("\n".join(["Acceptance criteria:", *(f"- {criterion}" for criterion in story[name])]))
    item = BacklogTask(
        key=key or "story",
        title=title,
        text=_paragraphs(parts),
        place=place,
        done=is_done(story),
        priority=_priority(story.get("priority", 0)),
    )
    own = []
    for name, keys in OWN_NAMES.items():
        value: Any = next((story[key] for key in keys if story.get(key) not in (None, "", [])), [])
        own += [(name, str(part), place) for part in (value if isinstance(value, list) else [value])]
    return add_own_settings(item, own, problems)


def _paragraphs(parts: list[str]) -> str:
    return "\n\n".join(dict.fromkeys(part.strip() for part in parts if part.strip()))


def _priority(value: object) -> int:
    named = PRIORITIES.get(value.strip().lower()) if isinstance(value, str) else None
    if named is not None:
        return named
    try:
        return int(value) if isinstance(value, str | int | float) else 0
    except (ValueError, OverflowError):  # neither a known word nor a usable number
        return 0


def is_taskmasters(document: Any) -> bool:
    tasks = [task for _, task in _tasks(document)]
    return bool(tasks) and all("status" in task and "id" in task and "passes" not in task for task in tasks)


def read_taskmaster(files: Mapping[str, bytes]) -> BacklogContent:
    ((name, data),) = files.items()
    problems: list[str] = []
    items = [_task(task, name, problems) for _, task in _tasks(parse_json(decode_file(data), name))]
    return BacklogContent(tuple(items), problems=tuple(problems))


def tick_taskmaster(files: Mapping[str, bytes], keys: Collection[str]) -> dict[str, bytes]:
    ((name, data),) = files.items()
    text = decode_file(data)
    values: dict[JsonPath, Any] = {}
    for at, task in _tasks(parse_json(text, name)):
        if key_of(str(task.get("id"))) in keys and status_of(task) != "done":
            values[(*at, "status")] = "done"
            for number, part in enumerate(task.get("subtasks") or ()):
                if isinstance(part, dict) and status_of(part) not in SETTLED:
                    values[(*at, "subtasks", number, "status")] = "done"
    return {name: encode_file(_with_values(text, values))} if values else {}


def _tasks(document: Any) -> Iterator[tuple[JsonPath, dict[str, Any]]]:
    """Yield the tasks of the file, or of one tag: `master` if it exists, else the first."""
    at: JsonPath = ("tasks",)
    rows = document.get("tasks") if isinstance(document, dict) else None
    if rows is None and isinstance(document, dict):
        tags = [tag for tag, inside in document.items() if isinstance(inside, dict) and "tasks" in inside]
        tag = FIRST_TAG if FIRST_TAG in tags else next(iter(tags), "")
        at, rows = (tag, "tasks"), document[tag]["tasks"] if tag else ()
    for number, task in enumerate(rows if isinstance(rows, list) else ()):
        if isinstance(task, dict):
            yield (*at, number), task


def _task(task: JsonEntry, name: str, problems: list[str]) -> BacklogTask:
    place = f"{name} {task.get('id')}"
    title = str(task.get("title") or task.get("description") or "")
    if not title.strip():
        problems.append(f"{place}: a task without a title")
    parts = [title, *(str(task[key]) for key in ("description", "details") if task.get(key))]
    if task.get("testStrategy"):
        parts.append(f"How it is tested: {task['testStrategy']}")
    parts += [f"- {part.get('title')}: {part.get('description') or ''}".rstrip(": ")
              for part in task.get("subtasks") or () if isinstance(part, dict)]  # fmt: skip
    item = BacklogTask(
        key=key_of(str(task.get("id"))),
        title=title_of(title),
        text=_paragraphs(parts),
        place=place,
        done=status_of(task) in SETTLED,
        priority=PRIORITIES.get(str(task.get("priority", "")).lower(), 0),
    )
    own = [("after", str(key).split(".", 1)[0], place) for key in task.get("dependencies") or ()]
    names = ("check", "touches", "agent", "model", "max-cost")
    return add_own_settings(item, own + [(key, str(task[key]), place) for key in names if key in task], problems)
