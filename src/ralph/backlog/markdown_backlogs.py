"""Backlogs in Markdown: a file with one checkbox per task, `- [ ] T1 Title`, and its details indented below it; or a
folder of Backlog.md with one file per task, whose front matter has the status.

A file may be a plan of `ralph plan`, with checks and with questions that must be answered first, or the `tasks.md` of
spec-kit or OpenSpec. In the phases of spec-kit, tasks without `[P]` run one after another.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from textwrap import dedent
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ralph.backlog.backlog_content import (
    OWN,
    OWN_KEYS,
    PRIORITIES,
    BacklogContent,
    add_own_settings,
    apply_edits,
    decode_file,
    encode_file,
    is_id,
    key_of,
    slug,
    title_of,
)
from ralph.core.backlog import BacklogTask
from ralph.core.tasks_file import ASIDE, BoxLine, box_lines, plan_title

MAX_DEPENDENCIES = 250_000  # between the tasks of phases
MAX_CONTEXT = 8000  # characters of a plan that are appended to each of its tasks
MAX_TOTAL_CONTEXT = 16_000_000  # characters that are appended to all tasks together
MAX_FRONT_MATTER = 1 << 16  # characters; parsing a megabyte of YAML takes many seconds
CODE = re.compile(r"(?<!`)`++([^`]++)`++")
FRONT = re.compile(r"\ufeff?---\r?\n(.*?\n)---[ \t]*(?:\r?\n|\Z)", re.DOTALL)
_WORDS = r"[^ \t\r\n#]*+(?>(?:[ \t]++[^ \t\r\n#]++)*)"
STATUS = re.compile(rf"^(status[ \t]*+:[ \t]*+)({_WORDS})([ \t]*+(?:#[^\r\n]*+)?\r?)$", re.MULTILINE)
DONE = "Done"


class ListedBox(Struct):
    """A top-level checkbox, and the lines that are indented below it."""

    box: BoxLine
    below: list[BoxLine]


def read_boxes(files: Mapping[str, bytes]) -> BacklogContent:
    ((name, data),) = files.items()
    lines = box_lines(decode_file(data))
    plan = plan_title(lines)
    problems: list[str] = []
    entries = [entry for entry in _entries(lines) if not (plan and entry.box.section in ASIDE)]
    named = {word.strip("`") for entry in entries for key, value, _ in _own(entry, name) if key == "after"
             for word in value.replace(",", " ").split()}  # fmt: skip
    tasks = [_task_of_box(entry, name, named, problems) for entry in entries]
    if plan:
        around = f"This is one task of the plan: {plan}{_context_of(lines, len(tasks))}"
        tasks = [replace(task, text=f"{task.text}\n\n{around}") for task in tasks]
    has_phases = any(line.section.startswith("phase ") for line in lines)
    if has_phases and any("[P]" in entry.box.words.split() for entry in entries):
        tasks = [*_in_phases(tasks, entries, problems)]
    if not plan:
        return BacklogContent(tuple(tasks), problems=tuple(problems))
    questions = (f"{name}:{line.number}: answer and tick this question first: {title_of(line.words)}"
             for line in open_questions(lines))  # fmt: skip
    return BacklogContent(tuple(tasks), tuple(_checks(lines)), tuple(problems), plan, tuple(questions))


def open_questions(lines: list[BoxLine]) -> list[BoxLine]:
    """Return the unticked questions of a plan."""
    return [line for line in lines if line.section == "questions" and line.at >= 0 and not line.is_ticked]


def tick_boxes(files: Mapping[str, bytes], keys: Collection[str]) -> dict[str, bytes]:
    ((name, data),) = files.items()
    text, marks = decode_file(data), list[BoxLine]()
    by_place = {task.place: task.key for task in read_boxes(files).tasks}
    for entry in _entries(box_lines(text)):
        if by_place.get(f"{name}:{entry.box.number}") in keys:
            marks += [line for line in (entry.box, *entry.below) if line.at >= 0 and not line.is_ticked]
    ticked = apply_edits(text, [(line.at, line.at + len(line.mark), "x") for line in marks])
    return {name: encode_file(ticked)} if marks else {}


def _entries(lines: list[BoxLine]) -> Iterator[ListedBox]:
    """Yield the top-level checkboxes, each with the lines that are indented below it."""
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
        match = OWN.fullmatch(line.text) if line.is_plain else None
        if match:
            yield match[1].lower(), match[2], f"{name}:{line.number}"


def _task_of_box(entry: ListedBox, name: str, named: set[str], problems: list[str]) -> BacklogTask:
    box, own = entry.box, [*_own(entry, name)]
    first, _, rest = box.words.partition(" ")
    bare = first.strip("*_`[]():").rstrip(".")
    has_id = bool(rest.strip()) and (is_id(bare) or bare in named)
    key = key_of(bare) if has_id else slug(box.words)
    if not key:
        problems.append(f"{name}:{box.number}: a task without a name")
        key = f"line-{box.number}"
    ours = {line for _, _, line in own}
    body = [line.text for line in entry.below if f"{name}:{line.number}" not in ours]
    text = "\n".join([box.words, dedent("\n".join(body))]).strip()
    task = BacklogTask(key=key, title=title_of(box.words), text=text, place=f"{name}:{box.number}", done=box.is_ticked)
    return add_own_settings(task, own, problems)


def _checks(lines: list[BoxLine]) -> Iterator[str]:
    """Yield the checks of a plan: the text in backticks of each item."""
    for line in lines:
        is_item = re.match(r"\s*(?:[-*+]|\d+[.)])\s", line.text)
        if line.section == "checks" and line.is_plain and is_item and (command := CODE.search(line.text)):
            yield command[1].strip()


def _context_of(lines: list[BoxLine], tasks: int) -> str:
    """Return the rest of a plan, for each task: goal, assumptions, questions with their answers."""
    begin = next(at for at, line in enumerate(lines) if line.text.removeprefix("\ufeff").startswith("# "))
    rest = [line.text for line in lines[begin + 1 :] if line.section not in ("checks", "tasks")]
    text = "\n".join(rest).strip()
    return f"\n\n{text[: min(MAX_CONTEXT, MAX_TOTAL_CONTEXT // max(tasks, 1))]}" if text else ""


def _in_phases(tasks: list[BacklogTask], entries: list[ListedBox], problems: list[str]) -> Iterator[BacklogTask]:
    """Yield the tasks with the dependencies that follow from spec-kit's phases.

    A phase starts when the previous one is finished. Within a phase, tasks marked `[P]` run in parallel; every other
    task waits for all tasks above it.
    """
    edges = 0
    before: tuple[str, ...] = ()  # the tasks of the previous phase that the next phase waits for
    phase: list[str] = []  # the tasks of this phase that the next phase waits for
    above: tuple[str, ...] = ()  # the last task of this phase that runs alone
    section = ""
    for task, entry in zip(tasks, entries, strict=True):
        if entry.box.section != section:
            section, before, phase, above = entry.box.section, tuple(phase) or before, [], ()
        is_beside = "[P]" in entry.box.words.split()
        waits = (above or before) if is_beside else (tuple(phase) or before)
        if not is_beside:
            above = (task.key,)
            phase = phase if task.after else []
        phase.append(task.key)
        edges += len(waits)
        if edges > MAX_DEPENDENCIES and edges - len(waits) <= MAX_DEPENDENCIES:
            problems.append(f"{task.place}: too many tasks wait for too many others; put one without [P] between them")
        yield task if task.after or edges > MAX_DEPENDENCIES else replace(task, after=waits)


def read_folder(files: Mapping[str, bytes]) -> BacklogContent:
    problems: list[str] = []
    parsed = [_task(name, *_parts(files[name], name, problems), problems) for name in sorted(files, key=_order)]
    tasks = [task for task in parsed if task]
    spelled = {task.key.casefold(): task.key for task in tasks}  # Backlog.md ignores case
    named = [tuple(spelled.get(key.casefold(), key) for key in task.after) for task in tasks]
    tasks = [replace(task, after=after) for task, after in zip(tasks, named, strict=True)]
    return BacklogContent(tuple(tasks), problems=tuple(problems))


def tick_folder(files: Mapping[str, bytes], keys: Collection[str]) -> dict[str, bytes]:
    changed = {}
    for name, data in files.items():
        front, _ = _parts(data, name, [])
        if key_of(str(front.get("id", ""))) in keys and not _is_done(front):
            changed[name] = encode_file(_with_status(decode_file(data)))
    return changed


def _with_status(text: str) -> str:
    """Return the text with the status Done, quoted like the old one."""
    match = FRONT.match(text)
    if match is None:
        return text
    front = match[1]
    status = STATUS.search(front)
    if status is None:
        return text[: match.start(1)] + f"status: {DONE}\n" + text[match.start(1) :]
    quote = status[2][:1] if status[2][:1] in ("'", '"') else ""
    new = front[: status.start()] + f"{status[1]}{quote}{DONE}{quote}{status[3]}" + front[status.end() :]
    return text[: match.start(1)] + new + text[match.end(1) :]


def _order(name: str) -> tuple[int, str]:
    number = re.search(r"(\d+)", name.rpartition("/")[2])
    return int(number[1]) if number else 1 << 30, name


def _parts(data: bytes, name: str, problems: list[str]) -> tuple[dict[str, Any], str]:
    """Return the front matter of a task's file and the text after it."""
    text = decode_file(data)
    match = FRONT.match(text)
    if match is None:
        return {}, text
    if len(match[1]) > MAX_FRONT_MATTER:
        problems.append(f"{name}:1: the front matter is longer than {MAX_FRONT_MATTER >> 10} KB")
        return {}, text
    import yaml  # only lists with front matter need it

    try:
        if "*" in match[1] and any(isinstance(token, yaml.AliasToken) for token in yaml.scan(match[1])):
            raise ValueError("an alias")  # nested aliases can expand to more than the memory holds
        front = yaml.safe_load(match[1])
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # a ValueError: an invalid date
        line = getattr(getattr(error, "problem_mark", None), "line", 0) + 2
        problems.append(f"{name}:{line}: the front matter cannot be parsed")
        return {}, text
    return front if isinstance(front, dict) else {}, text[match.end() :]


def _is_done(front: Mapping[str, Any]) -> bool:
    return str(front.get("status", "")).strip().lower() in ("done", "complete", "completed")


def _task(name: str, front: Mapping[str, Any], body: str, problems: list[str]) -> BacklogTask | None:
    if not front:  # not a task, or its front matter was reported
        return None
    if not front.get("id"):
        problems.append(f"{name}:1: a task without id in its front matter")
        return None
    title = str(front.get("title") or front["id"])
    # Backlog.md marks its sections with comments.
    text = re.sub(r"^<!--[^>\n]*>\r?\n?", "", body, flags=re.MULTILINE).strip()
    task = BacklogTask(
        key=key_of(str(front["id"])),
        title=title_of(title),
        text=f"{title}\n\n{text}".strip(),
        place=name,
        done=_is_done(front),
        priority=PRIORITIES.get(str(front.get("priority", "")).lower(), 0),
    )
    waits = front.get("dependencies") or ()
    own = [("after", str(key), name) for key in (waits if isinstance(waits, list | tuple) else [waits])]
    for key in OWN_KEYS:
        values = front.get(key)
        own += [(key, str(value), name) for value in (values if isinstance(values, list) else [values]) if value]
    return add_own_settings(task, own, problems)
