"""What the backlog formats share: the content of a backlog, its validation, keys, and the settings of single tasks."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ralph.core.backlog import BacklogTask, cycle
from ralph.core.text import clean, one_line
from ralph.errors import UserError

OWN_KEYS = ("check", "exam", "after", "touches", "agent", "model", "max-cost")
OWN = re.compile(rf"\A\s*+(?:[-*+]\s++)?({'|'.join(OWN_KEYS)}):(.*)", re.IGNORECASE)
PRIORITIES = {"critical": -2, "urgent": -2, "high": -1, "medium": 0, "normal": 0, "low": 1}
LONGEST_KEY = 48
TARGET_KEY = "merged"  # the last part of the target's branch name, so no task may have it


class BacklogContent(Struct, frozen=True):
    """The content of a backlog: its tasks and checks, and its problems with file and line. A plan also has a `title`
    and unanswered `questions`.
    """

    tasks: tuple[BacklogTask, ...]
    checks: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    title: str = ""
    questions: tuple[str, ...] = ()


class Format(Struct, frozen=True):
    """A file format for backlogs. `ticked` ticks tasks and returns the files that change; every other byte stays."""

    read: Callable[[Mapping[str, bytes]], BacklogContent]
    ticked: Callable[[Mapping[str, bytes], Collection[str]], dict[str, bytes]]


def apply_edits(text: str, edits: Iterable[tuple[int, int, str]]) -> str:
    """Return the text with each (start, end, words) replaced. All edits are applied in one pass."""
    pieces, at = list[str](), 0
    for start, end, words in sorted(edits):
        pieces += [text[at:start], words]
        at = end
    return "".join([*pieces, text[at:]])


def require_valid(reading: BacklogContent, name: str) -> BacklogContent:
    """Return the content if it has no problems; otherwise raise a UserError with file and line."""
    problems = [*find_problems(reading), *reading.questions]
    if problems:
        more = f" (and {len(problems) - 1} more: {'; '.join(problems[1:6])})" if len(problems) > 1 else ""
        raise UserError(f"{problems[0]}{more}", "fix the backlog, then start again")
    if not reading.tasks:
        raise UserError(f"{name} names no task", 'write one per line: "- [ ] text"')
    return reading


def find_problems(reading: BacklogContent) -> list[str]:
    """Return the problems of a backlog, except its open questions."""
    tasks, problems = reading.tasks, [*reading.problems]
    tasks_by_key: dict[str, BacklogTask] = {}
    for task in tasks:
        other = tasks_by_key.setdefault(task.key.casefold(), task)  # some file systems ignore case
        if other is not task:
            problems.append(f"{task.place}: the key {task.key} is taken by {other.place}; give each another key")
        if task.key.casefold() == TARGET_KEY:
            problems.append(f"{task.place}: the key {task.key} is the name of the target's branch; give it another")
    names = {task.key for task in tasks}
    for task in tasks:
        problems += [f"{task.place}: {task.key} comes after {key}, which is not in the list"
                     for key in task.after if key not in names]  # fmt: skip
    if ring := cycle(tasks):
        problems.append(f"{' → '.join(ring)}: each comes after the next, so none can start")
    return problems


def is_id(word: str) -> bool:
    """Return whether a word looks like a task id: `T012`, `1.2`, `hot1`, `US-003`."""
    return re.fullmatch(r"#?[A-Za-z]*[-_]?\d+(?:[.-]\d+)*[a-z]?", word) is not None


def key_of(word: str) -> str:
    """Return the word as a key that is valid in branch and folder names."""
    name = "".join(char if char.isalnum() or char in "._-" else "-" for char in word.removeprefix("#"))
    while ".." in name or "--" in name:
        name = name.replace("..", ".").replace("--", "-")
    name = name.strip(".-")[:LONGEST_KEY].rstrip(".-")
    return f"{name}-" if name.endswith(".lock") else name  # git reserves this ending


def slug(title: str) -> str:
    """Return a key made from a title, cut between words."""
    words = "".join(char.lower() if char.isalnum() else " " for char in title).split()
    key = ""
    for word in words:
        if key and len(key) + 1 + len(word) > LONGEST_KEY:
            break
        key = f"{key}-{word}" if key else word[:LONGEST_KEY]
    return f"{key}-task" if key == TARGET_KEY else key


def add_own_settings(task: BacklogTask, own: Sequence[tuple[str, str, str]], problems: list[str]) -> BacklogTask:
    """Return the task with its own settings, given as (name, value, place) tuples."""
    values: dict[str, Any] = {"check": list(task.checks), "exam": list(task.exams)}
    values |= {"after": list(task.after), "touches": list(task.touches)}
    for name, value, place in own:
        text = value.strip().strip("`").strip()
        if not text:
            problems.append(f"{place}: {name}: is empty")
        elif name in ("check", "exam"):
            values[name].append(text)
        elif name in ("after", "touches"):
            values[name] += [part.strip("`") for part in text.replace(",", " ").split()]
        elif name == "max-cost":
            values[name] = _dollars(text, place, problems)
        else:
            values[name] = text
    return replace(
        task,
        checks=tuple(values["check"]),
        exams=tuple(values["exam"]),
        after=tuple(dict.fromkeys(key_of(word) for word in values["after"])),
        touches=tuple(dict.fromkeys(values["touches"])),
        agent=values.get("agent", task.agent),
        model=values.get("model", task.model),
        max_cost=values.get("max-cost", task.max_cost),
    )


def _dollars(text: str, place: str, problems: list[str]) -> float | None:
    try:
        amount = float(text.removeprefix("$").removesuffix("USD"))
    except ValueError:
        amount = 0.0
    if not 0 < amount < 1e9:
        problems.append(f"{place}: max-cost: {text!r} is not an amount of dollars")
        return None
    return amount


def title_of(text: str) -> str:
    return one_line(clean(text), 200)


def decode_file(data: bytes) -> str:
    """Decode a file; bytes that are not UTF-8 survive the round trip."""
    return data.decode("utf-8", "surrogateescape")


def encode_file(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
