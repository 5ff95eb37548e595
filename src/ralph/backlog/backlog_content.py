"""Which tasks does a backlog name? Each format reads the bytes of its files, and ticks a task in them without touching
anything else; what they have in common stands here."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ralph.core.backlog import BacklogTask, cycle
from ralph.core.text import clean, one_line
from ralph.errors import UserError

OWN_KEYS = ("check", "after", "touches", "agent", "model", "max-cost")
OWN = re.compile(rf"\A\s*+(?:[-*+]\s++)?({'|'.join(OWN_KEYS)}):(.*)", re.IGNORECASE)
PRIORITIES = {"critical": -2, "urgent": -2, "high": -1, "medium": 0, "normal": 0, "low": 1}
LONGEST_KEY = 48
TARGET_KEY = "merged"
"""The branch of the target is called so, beside those of the tasks."""


class BacklogContent(Struct, frozen=True):
    """What a list says: its tasks, the checks that it brings, and what is wrong with it, by file and line. A plan has a
    `title`, and `questions` that nobody has answered yet."""

    tasks: tuple[BacklogTask, ...]
    checks: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    title: str = ""
    questions: tuple[str, ...] = ()


class Format(Struct, frozen=True):
    """A way to write a backlog down in files, which are given by their paths. `ticked` has those of them that change
    when these tasks are done."""

    read: Callable[[Mapping[str, bytes]], BacklogContent]
    ticked: Callable[[Mapping[str, bytes], Collection[str]], dict[str, bytes]]


def edited(text: str, edits: Iterable[tuple[int, int, str]]) -> str:
    """The text with other words in these places, (start, end, words) each: put together once, however many."""
    pieces, at = list[str](), 0
    for start, end, words in sorted(edits):
        pieces += [text[at:start], words]
        at = end
    return "".join([*pieces, text[at:]])


def sound(reading: BacklogContent, name: str) -> BacklogContent:
    """The reading, once nothing is wrong with it; else one line that says what is, and where."""
    problems = [*wrong_with(reading), *reading.questions]
    if problems:
        more = f" (and {len(problems) - 1} more: {'; '.join(problems[1:6])})" if len(problems) > 1 else ""
        raise UserError(f"{problems[0]}{more}", "mend the list, then start again")
    if not reading.tasks:
        raise UserError(f"{name} names no task", 'write one a line as "- [ ] text"')
    return reading


def wrong_with(reading: BacklogContent) -> list[str]:
    """What keeps a list from being worked off, whatever its questions are."""
    tasks, problems = reading.tasks, [*reading.problems]
    known: dict[str, BacklogTask] = {}
    for task in tasks:
        other = known.setdefault(task.key.casefold(), task)  # some disks do not tell capitals from small letters
        if other is not task:
            problems.append(f"{task.place}: the key {task.key} is taken by {other.place}; give each its own")
        if task.key.casefold() == TARGET_KEY:
            problems.append(f"{task.place}: the key {task.key} is the name of the target's branch; give it another")
    names = {task.key for task in tasks}
    for task in tasks:
        problems += [f"{task.place}: {task.key} comes after {key}, which is not in the list"
                     for key in task.after if key not in names]  # fmt: skip
    if ring := cycle(tasks):
        problems.append(f"{' → '.join(ring)}: each waits for the next, so none can start")
    return problems


def is_id(word: str) -> bool:
    """Whether a word looks like the name of a task: `T012`, `1.2`, `hot1`, `US-003`."""
    return re.fullmatch(r"#?[A-Za-z]*[-_]?\d+(?:[.-]\d+)*[a-z]?", word) is not None


def key_of(word: str) -> str:
    """A word as a key: fit to be part of a branch's name and of a folder's."""
    kept = "".join(char if char.isalnum() or char in "._-" else "-" for char in word.removeprefix("#"))
    while ".." in kept or "--" in kept:
        kept = kept.replace("..", ".").replace("--", "-")
    kept = kept.strip(".-")[:LONGEST_KEY].rstrip(".-")
    return f"{kept}-" if kept.endswith(".lock") else kept  # git keeps this ending for itself


def slug(title: str) -> str:
    """A key made of a title, cut between words."""
    words = "".join(char.lower() if char.isalnum() else " " for char in title).split()
    key = ""
    for word in words:
        if key and len(key) + 1 + len(word) > LONGEST_KEY:
            break
        key = f"{key}-{word}" if key else word[:LONGEST_KEY]
    return f"{key}-task" if key == TARGET_KEY else key


def with_own(task: BacklogTask, own: Sequence[tuple[str, str, str]], problems: list[str]) -> BacklogTask:
    """The task with its own settings: (name, value, place) each."""
    known: dict[str, Any] = {"check": list(task.checks), "after": list(task.after), "touches": list(task.touches)}
    for name, value, place in own:
        text = value.strip().strip("`").strip()
        if not text:
            problems.append(f"{place}: {name}: is empty")
        elif name == "check":
            known["check"].append(text)
        elif name in ("after", "touches"):
            known[name] += [part.strip("`") for part in text.replace(",", " ").split()]
        elif name == "max-cost":
            known[name] = _dollars(text, place, problems)
        else:
            known[name] = text
    return replace(
        task,
        checks=tuple(known["check"]),
        after=tuple(dict.fromkeys(key_of(one) for one in known["after"])),
        touches=tuple(dict.fromkeys(known["touches"])),
        agent=known.get("agent", task.agent),
        model=known.get("model", task.model),
        max_cost=known.get("max-cost", task.max_cost),
    )


def _dollars(text: str, place: str, problems: list[str]) -> float | None:
    try:
        amount = float(text.removeprefix("$").removesuffix("USD"))
    except ValueError:
        amount = 0.0
    if not 0 < amount < 1e9:
        problems.append(f"{place}: max-cost: {text!r} is no amount of dollars")
        return None
    return amount


def title_of(text: str) -> str:
    return one_line(clean(text), 200)


def decoded(data: bytes) -> str:
    """The text of a file, byte for byte: whatever is no text comes back as it was."""
    return data.decode("utf-8", "surrogateescape")


def encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
