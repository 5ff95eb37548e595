"""What does a plan say? Markdown with a goal, checks, tasks and questions, kept to the letter: what is not changed on
purpose stays byte for byte as it was. `--tasks` and `ralph work` read the same file."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from ralph.backlog import boxes
from ralph.backlog.lists import ListContent, decoded, encoded, wrong_with
from ralph.core.tasks_file import PLAN, box_lines
from ralph.core.text import clean
from ralph.errors import UserError
from ralph.files import read_given, read_head, replace_file
from ralph.settings import Settings

LARGEST = 1 << 20
GOAL = """\
Carry out the plan in {name}: {title}

Do its open tasks one after the other. Tick a task in the file, `[x]`, once what it says is true and its check passes.
"""
SHAPE = """\
# Plan: TITLE

The goal: what shall be true, and for whom.

## Assumptions

- What you take for granted. Leave the section out if there is nothing.

## Checks

- `COMMAND` that exits 0 once all of it is done

## Tasks

- [ ] T1 Title: what is true when it is done
  check: `COMMAND` that is red today and green once this task is done
  touches: src/part/
- [ ] T2 Title: what is true when it is done
  after: T1

## Questions

- [ ] What only a person can decide. Leave the section out if there is nothing.
"""


class Plan(Struct, frozen=True):
    """A plan by its text. `name` is how its file is called in messages."""

    text: str
    name: str = "PLAN.md"

    def read(self) -> ListContent:
        return boxes.read({self.name: encoded(self.text)})

    def problems(self) -> list[str]:
        """What keeps it from being worked off; open questions aside."""
        reading = self.read()
        if not reading.title:
            return [f'{self.name}: it does not begin with "{PLAN} TITLE"']
        if not reading.items:
            return [f'{self.name}: it has no tasks; under "## Tasks" write "- [ ] T1 Title: what is true then"']
        if not self.commands():
            return [f'{self.name}: it has no checks; under "## Checks" write a command in backticks per item']
        return wrong_with(reading)

    def questions(self) -> list[str]:
        return [line.words for line in boxes.open_questions(box_lines(self.text))]

    def commands(self) -> list[str]:
        """Every check, those of the tasks too, each once."""
        reading = self.read()
        return list(dict.fromkeys((*reading.checks, *(check for item in reading.items for check in item.checks))))

    def answered(self, answers: Mapping[str, str]) -> "Plan":
        """With these answers below their questions, which are ticked."""
        lines = box_lines(self.text)
        texts = self.text.split("\n")
        for line in reversed(boxes.open_questions(lines)):
            if not (answer := " ".join(clean(answers.get(line.words, "")).split())):
                continue
            ending = "\r" if texts[line.number - 1].endswith("\r") else ""
            last = line.number  # of the lines that belong to it
            while last < len(lines) and texts[last].strip() and lines[last].indent > line.indent:
                last += 1
            texts.insert(last, f"{' ' * (line.indent + 2)}Answer: {answer}{ending}")
            box = texts[line.number - 1]
            at = box.index("[") + 1
            texts[line.number - 1] = f"{box[:at]}x{box[at + len(line.mark) :]}"
        return Plan("\n".join(texts), self.name)

    def without_commands(self, is_taken: Callable[[str], bool]) -> "Plan":
        """Without checks that are not taken, and without agents of its own: each stands as a plain remark."""
        texts = self.text.split("\n")
        for line in box_lines(self.text):
            own = boxes.OWN.fullmatch(line.text) if line.is_plain else None
            code = boxes.CODE.search(line.text) if line.section == "checks" else None
            kind = own[1].lower() if own else "check" if code else ""
            said = (own[2].strip().strip("`") if own else code[1] if code else "").strip()
            if said and (kind == "agent" or (kind == "check" and not is_taken(said))):
                texts[line.number - 1] = f"{' ' * line.indent}(not taken as {kind}: {said.replace('`', '')})"
        return Plan("\n".join(texts), self.name)

    def with_checks(self, commands: Sequence[str]) -> "Plan":
        """With these checks for the whole of it, beside those that it has."""
        known = self.read().checks
        items = [f"- `{command}`" for command in commands if command not in known]
        texts = self.text.split("\n")
        heads = {line.section: line.number for line in reversed(box_lines(self.text)) if line.text.startswith("## ")}
        if items and "checks" in heads:
            texts[heads["checks"] : heads["checks"]] = ["", *items]
        elif items:
            at = heads.get("tasks", len(texts) + 1) - 1
            texts[at:at] = ["## Checks", "", *items, ""]
        return Plan("\n".join(texts), self.name)


def is_plan(text: str) -> bool:
    return any(line.startswith(PLAN) for line in text.lstrip("\ufeff").splitlines()[:50])


def plan_in(answer: str, name: str = "PLAN.md") -> Plan | None:
    """The plan in an agent's answer, be it in a fence or with words around it."""
    lines = answer.replace("\r\n", "\n").split("\n")
    begin = next((at for at, line in enumerate(lines) if line.startswith(PLAN)), None)
    if begin is None:
        return None
    before = next((line.strip() for line in reversed(lines[:begin]) if line.strip()), "")
    fence = before[: len(before) - len(before.lstrip("`~"))]
    kept = lines[begin:]
    if len(fence) >= 3:
        kept = kept[: max((at for at, line in enumerate(kept) if line.strip() == fence), default=len(kept))]
    return Plan(clean("\n".join(kept)).strip("\n") + "\n", name)


def carried_out(settings: Settings, workspace: Path) -> tuple[Settings, str]:
    """The settings of a run that settles the tasks of a plan, whose checks must pass then, and its goal. Any other list
    of tasks changes nothing, and brings no goal."""
    path = workspace / settings.tasks
    if path.suffix == ".json" or not path.is_file() or not is_plan((plan := load(path)).text):
        return settings, ""
    from ralph.backlog.lists import sound
    from ralph.backlog.taking_on import with_checks

    reading = sound(plan.read(), settings.tasks)
    goal = GOAL.format(name=settings.tasks, title=reading.title)
    return with_checks(settings, replace(reading, checks=tuple(plan.commands()))), goal


def load(path: Path) -> Plan:
    """The plan in a file, to the letter."""
    try:
        data = read_head(path, LARGEST + 1)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}", "name a file with a plan") from None
    if len(data) > LARGEST:
        raise UserError(f"{path} is too large for a plan", "a plan has at most 1 MB")
    return Plan(decoded(data), path.name)


def save(plan: Plan, path: Path) -> None:
    """All or nothing; a file that says the same already is left alone."""
    from ralph.records.folder import cannot_write

    data = encoded(plan.text)
    try:
        if not path.exists() or read_given(path) != data:
            replace_file(path, data)
    except OSError as error:
        raise cannot_write(path, error) from None
