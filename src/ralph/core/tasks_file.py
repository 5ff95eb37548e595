"""Read tasks from a list: boxes in Markdown or entries in JSON. `--tasks`, backlogs and plans all use this."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec import Struct

from ralph.core.model import Task
from ralph.core.text import one_line

PLAN = "# Plan:"
"""The first words of a list that is a plan."""
ASIDE = frozenset({"assumptions", "checks", "questions"})
"""The sections of a plan whose boxes are not tasks."""
LISTS = ("userStories", "user_stories", "stories", "tasks", "features", "items", "subtasks")
TEXTS = ("title", "name", "story", "task", "description", "text")
DONE = frozenset({"done", "complete", "completed", "passed", "passing"})
FAILED = frozenset({"failed", "failing", "blocked"})
TICKS = ("x", "X")
NO_TEXT = "(a task without text)"
MAX_TEXT = 500  # characters of a task

# A box with any mark but x or X is open.
_BOX = re.compile(r"[\s>]*+(?:[-*+]|\d{1,9}[.)])[ \t]+\[([^\w\[\]\r\n]?|[xX])\](?:[ \t]+(\S.*)?)?")
_FENCE = re.compile(r"[\s>]*+(?:(?:[-*+]|\d{1,9}[.)])\s++)?(`{3,}|~{3,})(.*)")
_HEADING = re.compile(r"(#{1,6})\s+(.*)")
_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)")


class BoxLine(Struct, kw_only=True):
    """One line of a list. If it has a box, `at` is the offset of the mark in the file, else -1. `is_plain`: it is
    neither code nor a comment."""

    number: int
    text: str
    indent: int
    is_plain: bool
    section: str = ""
    at: int = -1
    mark: str = ""
    words: str = ""

    @property
    def is_ticked(self) -> bool:
        return self.mark in TICKS


def box_lines(text: str) -> list[BoxLine]:
    """Return the lines of a file. Code and comments contain no boxes."""
    lines: list[BoxLine] = []
    at, closing, section, is_comment = 0, "", "", False
    for number, whole in enumerate(text.split("\n"), 1):
        line = whole.removesuffix("\r")
        is_plain = not closing and not is_comment
        fence = _FENCE.fullmatch(line) if not is_comment else None
        if fence and not closing:
            closing = fence[1] if "`" not in fence[2] or fence[1][0] == "~" else ""
            is_plain = not closing
        elif fence and fence[1].startswith(closing) and not fence[2].strip():
            closing = ""
        if is_plain or is_comment:
            is_comment = (is_comment or "<!--" in line) and "-->" not in line.rpartition("<!--")[2]
        if is_plain and (heading := _HEADING.fullmatch(line)):
            section = heading[2].strip().lower() if len(heading[1]) <= 2 else section
        match = _BOX.fullmatch(line) if is_plain and "<!--" not in line.partition("[")[0] else None
        bare = line.lstrip(" \t>")
        indent = len(line[: len(line) - len(bare)].expandtabs(4)) if bare else 1 << 30
        box = BoxLine(number=number, text=line, indent=indent, is_plain=is_plain, section=section)
        if match:
            box.at, box.mark, box.words = at + match.start(1), match[1], (match[2] or "").strip()
        lines.append(box)
        at += len(whole) + 1
    return lines


def plan_title(lines: Iterable[BoxLine]) -> str:
    """Return the title of a plan; "" for any other list."""
    texts = (line.text.removeprefix("\ufeff") for line in lines if line.is_plain)
    first = next((text for text in texts if text.startswith("# ")), "")
    return first.removeprefix(PLAN).strip() if first.startswith(PLAN) else ""


def tasks_in_markdown(text: str) -> Iterator[Task]:
    """Return every box as a task, nested ones included, except those of a plan's questions."""
    lines = box_lines(text)
    is_plan = bool(plan_title(lines))
    for line in lines:
        if line.at >= 0 and not (is_plan and line.section in ASIDE):
            yield Task(one_line(_COMMENT.sub("", line.words), MAX_TEXT) or NO_TEXT, line.is_ticked)


def tasks_in_json(content: Any) -> Iterator[Task]:
    """Return every entry as a task, nested ones included. An entry without text that contains others doesn't count."""
    for entry in content if isinstance(content, list) else _lists_in(content):
        if not isinstance(entry, dict):
            continue
        inner, text = _lists_in(entry), one_line(entry_text(entry), MAX_TEXT)
        if text or not inner:
            yield Task(text or NO_TEXT, is_done(entry), status_of(entry) in FAILED)
        yield from tasks_in_json(inner)


def _lists_in(entry: Any) -> list[Any]:
    lists = (entry[key] for key in LISTS if isinstance(entry.get(key), list)) if isinstance(entry, dict) else ()
    return [item for entries in lists for item in entries]


def entry_text(entry: Mapping[str, Any]) -> str:
    return next((entry[name] for name in TEXTS if isinstance(entry.get(name), str) and entry[name].strip()), "")


def is_done(entry: Mapping[str, Any]) -> bool:
    """Return whether an entry is done. If it has `passes`, only `true` counts."""
    if "passes" in entry:
        return entry["passes"] is True
    return entry.get("done") is True or entry.get("completed") is True or status_of(entry) in DONE


def status_of(entry: Mapping[str, Any]) -> str:
    return str(entry.get("status", "")).strip().lower()
