"""How is a backlog kept as `prd.json`? A list of stories, each with an id and `passes`."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from ralph.backlog.jsontext import Path, parsed, with_values
from ralph.backlog.lists import ListContent, decoded, encoded, key_of, slug, title_of, with_own
from ralph.core.backlog import Item
from ralph.core.tasks_file import LISTS, entry_text, is_done

PRIORITIES = {"critical": -2, "urgent": -2, "high": -1, "medium": 0, "normal": 0, "low": 1}
OWN = {
    "check": ("check", "checks"),
    "after": ("after", "dependsOn", "depends_on", "dependencies"),
    "touches": ("touches", "files"),
    "agent": ("agent",),
    "model": ("model",),
    "max-cost": ("max-cost", "maxCost", "max_cost"),
}


def read(files: Mapping[str, bytes]) -> ListContent:
    ((name, data),) = files.items()
    problems: list[str] = []
    stories = list(_stories(parsed(decoded(data), name)))
    items = [_item(story, f"{name} {at + 1}", problems) for at, (_, story) in enumerate(stories)]
    return ListContent(tuple(items), problems=tuple(problems))


def ticked(files: Mapping[str, bytes], keys: Collection[str]) -> dict[str, bytes]:
    ((name, data),) = files.items()
    text = decoded(data)
    chosen = [(path, story) for path, story in _stories(parsed(text, name)) if _key(story) in keys]
    values = {path: value for at, story in chosen if not is_done(story) for path, value in _done(at, story)}
    return {name: encoded(with_values(text, values))} if values else {}


def _stories(document: Any) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Each story and where it stands."""
    lists: dict[Path, Any] = {(): document}
    if isinstance(document, dict):
        lists = {(key,): document[key] for key in LISTS if key in document}
    for at, entries in lists.items():
        for number, entry in enumerate(entries if isinstance(entries, list) else ()):
            if isinstance(entry, dict):
                yield (*at, number), entry


def _key(story: Mapping[str, Any]) -> str:
    named = story.get("id", story.get("key", ""))
    return key_of(str(named)) if named not in ("", None) else slug(entry_text(story))


def _item(story: Mapping[str, Any], place: str, problems: list[str]) -> Item:
    key, title = _key(story), title_of(entry_text(story))
    if not key or not title:
        problems.append(f"{place}: a story without id or title")
    item = Item(key=key or "story", title=title, text=_text(story), place=place, done=is_done(story),
                priority=_priority(story))  # fmt: skip
    own = [(name, str(value), place) for name, keys in OWN.items() for value in _values(story, keys)]
    return with_own(item, own, problems)


def _values(story: Mapping[str, Any], keys: tuple[str, ...]) -> list[Any]:
    for key in keys:
        if story.get(key) not in (None, "", []):
            value = story[key]
            return value if isinstance(value, list) else [value]
    return []


def _text(story: Mapping[str, Any]) -> str:
    """All that a story says of what is wanted."""
    parts = [entry_text(story)]
    parts += [story[name] for name in ("description", "details", "notes") if isinstance(story.get(name), str)]
    for name in ("acceptanceCriteria", "acceptance_criteria", "steps"):
        if isinstance(story.get(name), list) and story[name]:
            parts.append("\n".join(["Acceptance criteria:", *(f"- {one}" for one in story[name])]))
    return "\n\n".join(dict.fromkeys(part.strip() for part in parts if part.strip()))


def _priority(story: Mapping[str, Any]) -> int:
    value = story.get("priority", 0)
    if isinstance(value, str):
        return int(value) if value.lstrip("-").isdigit() else PRIORITIES.get(value.strip().lower(), 0)
    return int(value) if isinstance(value, int | float) else 0


def _done(at: Path, story: Mapping[str, Any]) -> Iterator[tuple[Path, Any]]:
    """What has to change so that it is."""
    if "passes" not in story and "status" in story:
        yield (*at, "status"), "done"
    else:
        yield (*at, "passes"), True
