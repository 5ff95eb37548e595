"""Which beads are the backlog? Asked of `bd`, which also closes what has landed."""

from typing import Any

from msgspec.structs import replace

from ralph.backlog.lists import ListContent, key_of, title_of, with_own
from ralph.core.backlog import Item
from ralph.errors import UserError

PROGRAM = "bd"
HINT = "install bd, and run `bd init` in the repository"
BLOCKING = ("", "blocks", "conditional-blocks", "waits-for")
TEXTS = ("description", "design", "acceptance_criteria", "notes")


def command(wanted: str) -> tuple[str, ...]:
    if wanted:
        raise UserError(f"cannot understand beads:{wanted}", "write beads:")
    return (PROGRAM, "list", "--json")


def closing(key: str, commit: str) -> tuple[str, ...]:
    """The command that settles an item."""
    return (PROGRAM, "close", key, "--reason", f"landed as {commit[:12]}")


def read(said: bytes) -> ListContent:
    import json

    try:
        beads = [bead for bead in json.loads(said or b"[]") or [] if bead.get("issue_type") != "epic"]
        problems: list[str] = []
        items = [_item(bead, problems) for bead in beads]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"cannot understand what bd says: {error}", "is it a recent version?") from None
    known = {item.key for item in items}
    items = [replace(item, after=tuple(key for key in item.after if key in known)) for item in items]
    return ListContent(tuple(items), problems=tuple(problems))


def _item(bead: dict[str, Any], problems: list[str]) -> Item:
    title = str(bead["title"])
    texts = [title, *(str(bead[name]) for name in TEXTS if bead.get(name))]
    item = Item(
        key=key_of(str(bead["id"])),
        title=title_of(title),
        text="\n\n".join(texts),
        place=str(bead["id"]),
        done=bead.get("status") == "closed",
        priority=int(bead.get("priority") or 0),
    )
    return with_own(item, [("after", key, item.place) for key in _blockers(bead)], problems)


def _blockers(bead: dict[str, Any]) -> list[str]:
    found = []
    for one in bead.get("dependencies") or ():
        kind = str(one.get("type") or one.get("dependency_type") or "")
        name = one.get("depends_on_id") or one.get("id")
        if name and kind in BLOCKING and one.get("status") != "closed":
            found.append(str(name))
    return found
