"""How is a backlog kept as Markdown? One box a line, `- [ ] T1 Title`, with what belongs to it indented below.

Plans of `ralph plan`, spec-kit's and OpenSpec's `tasks.md` are read too: a plan brings its checks, and its questions
must be answered; in spec-kit's phases, whatever bears no `[P]` comes in order.
"""

import re
from collections.abc import Collection, Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from ralph.backlog.lists import OWN_KEYS, ListContent, decoded, encoded, is_id, key_of, slug, title_of, with_own
from ralph.core.backlog import Item
from ralph.core.tasks_file import ASIDE, BoxLine, box_lines, plan_title

OWN = re.compile(rf"\s*(?:[-*+]\s+)?({'|'.join(OWN_KEYS)}):(.*)", re.IGNORECASE)
LONGEST_AROUND = 8000  # characters of a plan that go with each of its tasks
CODE = re.compile(r"(?<!`)`++([^`]++)`++")


class ListedBox(Struct):
    """A box at the top of a list, and the lines that belong to it."""

    box: BoxLine
    below: list[BoxLine]


def read(files: Mapping[str, bytes]) -> ListContent:
    ((name, data),) = files.items()
    lines = box_lines(decoded(data))
    plan = plan_title(lines)
    problems: list[str] = []
    entries = [entry for entry in _entries(lines) if not (plan and entry.box.section in ASIDE)]
    named = {word for entry in entries for key, value, _ in _own(entry, name) if key == "after"
             for word in value.replace(",", " ").split()}  # fmt: skip
    items = [_item(entry, name, {word.strip("`") for word in named}, problems) for entry in entries]
    if plan:
        around = f"This is one task of the plan: {plan}{_around(lines)}"
        items = [replace(item, text=f"{item.text}\n\n{around}") for item in items]
    if _is_in_phases(entries, lines):
        items = [*_in_phases(items, entries)]
    if not plan:
        return ListContent(tuple(items), problems=tuple(problems))
    asked = (f"{name}:{line.number}: answer and tick this question first: {title_of(line.words)}"
             for line in open_questions(lines))  # fmt: skip
    return ListContent(tuple(items), tuple(_checks(lines)), tuple(problems), plan, tuple(asked))


def open_questions(lines: list[BoxLine]) -> list[BoxLine]:
    """The questions of a plan that bear no tick."""
    return [line for line in lines if line.section == "questions" and line.at >= 0 and not line.is_ticked]


def ticked(files: Mapping[str, bytes], keys: Collection[str]) -> dict[str, bytes]:
    ((name, data),) = files.items()
    text, marks = decoded(data), []
    by_place = {item.place: item.key for item in read(files).items}
    for entry in _entries(box_lines(text)):
        if by_place.get(f"{name}:{entry.box.number}") in keys:
            marks += [line for line in (entry.box, *entry.below) if line.at >= 0 and not line.is_ticked]
    for line in reversed(marks):
        text = f"{text[: line.at]}x{text[line.at + len(line.mark) :]}"
    return {name: encoded(text)} if marks else {}


def _entries(lines: list[BoxLine]) -> Iterator[ListedBox]:
    """The boxes that lie in no other box, each with all that is indented below it."""
    entry: ListedBox | None = None
    for line in lines:
        is_below = entry is not None and line.indent > entry.box.indent
        if entry is not None and is_below:
            entry.below.append(line)
            continue
        if entry is not None:
            yield entry
        entry = ListedBox(line, []) if line.at >= 0 else None
    if entry is not None:
        yield entry


def _own(entry: ListedBox, name: str) -> Iterator[tuple[str, str, str]]:
    for line in entry.below:
        found = OWN.fullmatch(line.text) if line.is_plain else None
        if found:
            yield found[1].lower(), found[2], f"{name}:{line.number}"


def _item(entry: ListedBox, name: str, named: set[str], problems: list[str]) -> Item:
    box, own = entry.box, [*_own(entry, name)]
    first, _, rest = box.words.partition(" ")
    bare = first.strip("*_`[]():").rstrip(".")
    has_id = bool(rest.strip()) and (is_id(bare) or bare in named)
    key = key_of(bare) if has_id else slug(box.words)
    if not key:
        problems.append(f"{name}:{box.number}: an item without a name")
        key = f"line-{box.number}"
    ours = {line for _, _, line in own}
    body = [line.text for line in entry.below if f"{name}:{line.number}" not in ours]
    text = "\n".join([box.words, *_dedented(body)]).strip()
    item = Item(key=key, title=title_of(box.words), text=text, place=f"{name}:{box.number}", done=box.is_ticked)
    return with_own(item, own, problems)


def _dedented(lines: list[str]) -> list[str]:
    from textwrap import dedent

    return dedent("\n".join(lines)).rstrip().split("\n") if lines else []


def _checks(lines: list[BoxLine]) -> Iterator[str]:
    """The commands of a plan: what stands in backticks, item by item."""
    for line in lines:
        is_item = re.match(r"\s*(?:[-*+]|\d+[.)])\s", line.text)
        if line.section == "checks" and line.is_plain and is_item and (command := CODE.search(line.text)):
            yield command[1].strip()


def _around(lines: list[BoxLine]) -> str:
    """What a plan says beside its tasks and checks: goal, assumptions, questions with their answers."""
    begin = next(at for at, line in enumerate(lines) if line.text.removeprefix("\ufeff").startswith("# "))
    rest = [line.text for line in lines[begin + 1 :] if line.section not in ("checks", "tasks")]
    text = "\n".join(rest).strip()
    return f"\n\n{text[:LONGEST_AROUND]}" if text else ""


def _is_in_phases(entries: list[ListedBox], lines: list[BoxLine]) -> bool:
    has_phases = any(line.section.startswith("phase ") for line in lines)
    return has_phases and any("[P]" in entry.box.words.split() for entry in entries)


def _in_phases(items: list[Item], entries: list[ListedBox]) -> Iterator[Item]:
    """spec-kit's order: a phase begins when the one before it is over; in it, what bears `[P]` may go side by side,
    and everything else comes after all that stands above it."""
    before: tuple[str, ...] = ()  # of the phases before
    phase: list[str] = []
    above: tuple[str, ...] = ()  # the last one in this phase that goes alone
    section = ""
    for item, entry in zip(items, entries, strict=True):
        if entry.box.section != section:
            section, before, phase, above = entry.box.section, tuple(phase) or before, [], ()
        is_beside = "[P]" in entry.box.words.split()
        waits = (above or before) if is_beside else (tuple(phase) or before)
        phase.append(item.key)
        if not is_beside:
            above = (item.key,)
        yield item if item.after else replace(item, after=waits)
