"""How does Backlog.md keep a backlog? A folder with one Markdown file a task, whose front matter bears its status."""

import re
from collections.abc import Collection, Mapping
from typing import Any

from msgspec.structs import replace

from ralph.backlog.lists import OWN_KEYS, ListContent, decoded, encoded, key_of, title_of, with_own
from ralph.backlog.prd import PRIORITIES
from ralph.core.backlog import Item

FRONT = re.compile(r"\ufeff?---\r?\n(.*?\n)---[ \t]*(?:\r?\n|\Z)", re.DOTALL)
STATUS = re.compile(r"^(status[ \t]*:[ \t]*)([^\r\n#]*?)([ \t]*(?:#[^\r\n]*)?\r?)$", re.MULTILINE)
DONE = "Done"


def read(files: Mapping[str, bytes]) -> ListContent:
    problems: list[str] = []
    found = [_item(name, *_parts(data, name, problems), problems) for name, data in sorted(files.items(), key=_order)]
    items = [item for item in found if item]
    spelled = {item.key.casefold(): item.key for item in items}  # `TASK-1` and `task-1` are one there
    named = [tuple(spelled.get(key.casefold(), key) for key in item.after) for item in items]
    items = [replace(item, after=after) for item, after in zip(items, named, strict=True)]
    return ListContent(tuple(items), problems=tuple(problems))


def ticked(files: Mapping[str, bytes], keys: Collection[str]) -> dict[str, bytes]:
    changed = {}
    for name, data in files.items():
        front, _ = _parts(data, name, [])
        if key_of(str(front.get("id", ""))) in keys and not _is_done(front):
            changed[name] = encoded(_with_status(decoded(data)))
    return changed


def _with_status(text: str) -> str:
    """The text with the status changed in the way in which it is written."""
    found = FRONT.match(text)
    if found is None:
        return text
    front = found[1]
    status = STATUS.search(front)
    if status is None:
        return text[: found.start(1)] + f"status: {DONE}\n" + text[found.start(1) :]
    quote = status[2][:1] if status[2][:1] in ("'", '"') else ""
    new = front[: status.start()] + f"{status[1]}{quote}{DONE}{quote}{status[3]}" + front[status.end() :]
    return text[: found.start(1)] + new + text[found.end(1) :]


def _order(entry: tuple[str, bytes]) -> tuple[int, str]:
    number = re.search(r"(\d+)", entry[0].rpartition("/")[2])
    return int(number[1]) if number else 1 << 30, entry[0]


def _parts(data: bytes, name: str, problems: list[str]) -> tuple[dict[str, Any], str]:
    """The front matter of a task, and what follows it."""
    import yaml

    text = decoded(data)
    found = FRONT.match(text)
    if found is None:
        return {}, text
    try:
        front = yaml.safe_load(found[1])
    except yaml.YAMLError as error:
        line = getattr(getattr(error, "problem_mark", None), "line", 0) + 2
        problems.append(f"{name}:{line}: its front matter cannot be read")
        return {}, text
    return front if isinstance(front, dict) else {}, text[found.end() :]


def _is_done(front: Mapping[str, Any]) -> bool:
    return str(front.get("status", "")).strip().lower() in ("done", "complete", "completed")


def _item(name: str, front: Mapping[str, Any], body: str, problems: list[str]) -> Item | None:
    if not front:  # a page about the tasks, or one whose front matter was told of
        return None
    if not front.get("id"):
        problems.append(f"{name}:1: a task without id in its front matter")
        return None
    title = str(front.get("title") or front["id"])
    item = Item(
        key=key_of(str(front["id"])),
        title=title_of(title),
        text=f"{title}\n\n{_without_marks(body)}".strip(),
        place=name,
        done=_is_done(front),
        priority=PRIORITIES.get(str(front.get("priority", "")).lower(), 0),
    )
    own = [("after", str(key), name) for key in front.get("dependencies") or ()]
    for key in OWN_KEYS:
        values = front.get(key)
        own += [(key, str(value), name) for value in (values if isinstance(values, list) else [values]) if value]
    return with_own(item, own, problems)


def _without_marks(body: str) -> str:
    """Without the marks by which Backlog.md finds its sections again."""
    return re.sub(r"^<!--[^>\n]*>\r?\n?", "", body, flags=re.MULTILINE).strip()
