"""Plans: in a separate run, an agent that may only read turns a goal into tasks with checks.

A plan is Markdown with a goal, checks, tasks and questions; edits change nothing else in the file. `--tasks` and `ralph
work` read the same file. Each check is tried once, as a run would run it: green, red, or not runnable.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from ralph.backlog.backlog_content import OWN, BacklogContent, decode_file, encode_file, find_problems, require_valid
from ralph.backlog.backlog_plan import with_checks
from ralph.backlog.markdown_backlogs import CODE, open_questions, read_boxes
from ralph.core.model import Note, Opinion, Outcome, Run, Stop, configured
from ralph.core.tasks_file import PLAN, box_lines
from ralph.core.text import clean
from ralph.errors import UserError
from ralph.files import read_given, read_head, replace_file
from ralph.process.keeper import Keeper
from ralph.process.signals import Deadline, Interrupt
from ralph.settings import PRESET_OF, CheckCommand, Settings
from ralph.store.folder import RunFolder, new_run_id, prepare, report_write_errors
from ralph.verdict.checks import Checks
from ralph.verdict.context import Context
from ralph.verdict.copies import open_check_sandbox

MAX_BYTES = 1 << 20
GOAL = """\
Carry out the plan in {name}: {title}

Do its open tasks one after the other. Tick a task in the file, `[x]`, once what it says is true and its check passes.
"""
LIST_GOAL = """\
Do the open tasks in {name}, one after the other. Tick a task in the file, `[x]`, once what it says is true.
"""
JSON_GOAL = """\
Do the stories in {name} that have not passed, one after the other. Set `"passes": true` in the file once a story's \
acceptance criteria are met.
"""
SHAPE = """\
# Plan: TITLE

The goal: what will be true, and for whom.

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
    """The text of a plan. `name` is its file name, for messages."""

    text: str
    name: str = "PLAN.md"

    def read(self) -> BacklogContent:
        return read_boxes({self.name: encode_file(self.text)})

    def problems(self) -> list[str]:
        """Return what is wrong with the plan, apart from open questions."""
        reading = self.read()
        if not reading.title:
            return [f'{self.name}: expected "{PLAN} TITLE" on the first line']
        if not reading.tasks:
            return [f'{self.name}: no tasks; under "## Tasks" write "- [ ] T1 Title: what is true then"']
        if not self.commands():
            return [f'{self.name}: no checks; under "## Checks" write a command in backticks on each line']
        return find_problems(reading)

    def questions(self) -> list[str]:
        return [line.words for line in open_questions(box_lines(self.text))]

    def commands(self) -> list[str]:
        """Return every check once, including those of the tasks."""
        reading = self.read()
        return list(dict.fromkeys((*reading.checks, *(check for task in reading.tasks for check in task.checks))))

    def with_answers(self, answers: Mapping[str, str]) -> "Plan":
        """Return the plan with answers below their questions, which are ticked."""
        lines = box_lines(self.text)
        texts = self.text.split("\n")
        below: dict[int, list[str]] = {}  # by the last line of a question
        for line in open_questions(lines):
            if not (answer := " ".join(clean(answers.get(line.words, "")).split())):
                continue
            box = texts[line.number - 1]
            last = line.number
            while last < len(lines) and texts[last].strip() and lines[last].indent > line.indent:
                last += 1
            ending = "\r" if box.endswith("\r") else ""
            below.setdefault(last, []).append(f"{' ' * (line.indent + 2)}Answer: {answer}{ending}")
            at = box.index("[") + 1
            texts[line.number - 1] = f"{box[:at]}x{box[at + len(line.mark) :]}"
        return Plan("\n".join(row for n, text in enumerate(texts, 1) for row in (text, *below.get(n, ()))), self.name)

    def without_commands(self, is_taken: Callable[[str], bool]) -> "Plan":
        """Return the plan with its agents, and the checks that `is_taken` rejects, turned into plain remarks."""
        texts = self.text.split("\n")
        for line in box_lines(self.text):
            own = OWN.fullmatch(line.text) if line.is_plain else None
            code = CODE.search(line.text) if line.section == "checks" else None
            kind = own[1].lower() if own else "check" if code else ""
            command = (own[2].strip().strip("`") if own else code[1] if code else "").strip()
            if command and (kind == "agent" or (kind == "check" and not is_taken(command))):
                texts[line.number - 1] = f"{' ' * line.indent}(not taken as {kind}: {command.replace('`', '')})"
        return Plan("\n".join(texts), self.name)

    def with_checks(self, commands: Sequence[str]) -> "Plan":
        """Return the plan with these checks added to those of the whole plan."""
        present = {*self.read().checks}
        bullets = [f"- `{command}`" for command in commands if command not in present]
        texts = self.text.split("\n")
        heads = {line.section: line.number for line in reversed(box_lines(self.text)) if line.text.startswith("## ")}
        if bullets and "checks" in heads:
            texts[heads["checks"] : heads["checks"]] = ["", *bullets]
        elif bullets:
            at = heads.get("tasks", len(texts) + 1) - 1
            texts[at:at] = ["## Checks", "", *bullets, ""]
        return Plan("\n".join(texts), self.name)


def is_plan(text: str) -> bool:
    return any(line.startswith(PLAN) for line in text.lstrip("\ufeff").splitlines()[:50])


def plan_in(answer: str, name: str = "PLAN.md") -> Plan | None:
    """Return the plan in an agent's answer, which may have a fence or text around it; None if there is none."""
    lines = answer.replace("\r\n", "\n").split("\n")
    begin = next((at for at, line in enumerate(lines) if line.startswith(PLAN)), None)
    if begin is None:
        return None
    before = next((line.strip() for line in reversed(lines[:begin]) if line.strip()), "")
    fence = before[: len(before) - len(before.lstrip("`~"))]
    plan_lines = lines[begin:]
    if len(fence) >= 3:
        plan_lines = plan_lines[
            : max((at for at, line in enumerate(plan_lines) if line.strip() == fence), default=len(plan_lines))
        ]
    return Plan(clean("\n".join(plan_lines)).strip("\n") + "\n", name)


def with_tasks(settings: Settings, workspace: Path) -> tuple[Settings, str]:
    """Return the settings and the goal of a run that does the tasks of a file. The checks of a plan must pass."""
    path = workspace / settings.tasks
    if not path.exists():
        raise UserError(
            f"tasks file not found: {settings.tasks}", "name a file with Markdown checkboxes, or a prd.json"
        )
    if path.suffix == ".json":
        return settings, JSON_GOAL.format(name=settings.tasks)
    if not is_plan((plan := load_plan(path)).text):
        return settings, LIST_GOAL.format(name=settings.tasks)
    reading = require_valid(plan.read(), settings.tasks)
    goal = GOAL.format(name=settings.tasks, title=reading.title)
    return with_checks(settings, replace(reading, checks=tuple(plan.commands()))), goal


def load_plan(path: Path) -> Plan:
    """Read a plan from a file."""
    try:
        data = read_head(path, MAX_BYTES + 1)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}", "name a file with a plan") from None
    if len(data) > MAX_BYTES:
        raise UserError(f"{path} is too large for a plan", "a plan has at most 1 MB")
    return Plan(decode_file(data), path.name)


def save_plan(plan: Plan, path: Path) -> None:
    """Write the plan, unless the file already has this content."""
    data = encode_file(plan.text)
    with report_write_errors(path):
        if not path.exists() or read_given(path) != data:
            replace_file(path, data)


MAX_TURNS = 3
_MAX_QUOTE = 12_000

PROMPT = """\
Plan the work below. Look at this repository as long as you need to, and change nothing: no file, no commit. Your \
final answer is the plan itself, in this shape and nothing else:

{shape}
Cut the work into tasks that can be done and verified one by one, in a fresh context each, by an agent that sees the \
task and the repository and nothing of this conversation. A task's title says what is true when it is done. Name what \
comes first with `after:`. Prefer checks that are red today: one that is green before anything was done proves \
nothing. Every check is a shell command that runs in the repository's top folder and needs no person. Write no task \
whose result nobody could check.
{project}{unattended}
{goal}"""
_PROJECT = "\nThis project's own checks are: {checks}.\n"
_UNATTENDED = "\nNobody can answer questions: decide them yourself, and write each decision under `## Assumptions`.\n"
_CHANGED = """\

This is the plan so far:

{plan}
Change it as this person says, and answer with the whole plan:

{words}"""
_UNUSABLE = """\
Your last answer cannot be used:
{problems}

It was:

{answer}

Answer with the whole plan, corrected."""


def planning_prompt(goal: str, checks: Sequence[str], is_attended: bool) -> str:
    """Return the prompt for a plan. `checks` are the project's own; without a person, nobody answers questions."""
    project = _PROJECT.format(checks=", ".join(f"`{check}`" for check in checks)) if checks else ""
    unattended = "" if is_attended else _UNATTENDED
    return PROMPT.format(shape=SHAPE, project=project, unattended=unattended, goal=f"# The work\n\n{goal}")


def change_prompt(plan: Plan, words: str) -> str:
    """Return the end of a prompt that asks to change a plan as a person says."""
    return _CHANGED.format(plan=plan.text, words=words)


def planning_settings(settings: Settings) -> Settings:
    """Return the settings of a planning run: the bare prompt, no checks, no commits."""
    return replace(
        settings,
        preset=PRESET_OF["plan"],
        until=(),
        checks=(),
        exams=(),
        tasks="",
        spec="",
        maximum_iterations=MAX_TURNS,
        stall=0,
        min_tool_calls=0,
        session="fresh",
        worktree=False,
        scm=None,
        reviews=None,
        rules=(),
    )


@configured
def require_plan(run: Run, name: str) -> Iterator[Opinion]:
    """Stop once the last answer is a valid plan; until then, note what is wrong with it."""
    last = run.last
    if last is None or last.turn.failure or not last.turn.text.strip():
        return
    plan = plan_in(last.turn.text, name)
    problems = plan.problems() if plan else ["it contains no plan"]
    if not problems:
        yield Stop(Outcome.DONE, "the plan is valid")
        return
    wrong = "\n".join(f"- {problem}" for problem in problems[:20])
    yield Note(_UNUSABLE.format(problems=wrong, answer=last.turn.text[:_MAX_QUOTE]), "plan")


NOT_RUNNABLE = (126, 127)  # a shell's exit codes for a command that it can't start
TRIAL_TIMEOUT = 120.0

CheckState = Literal["green", "red", "not runnable"]


class Trial(Struct, frozen=True):
    """The result of trying a check. `output` is the last line that it printed."""

    command: str
    state: CheckState
    ending: str = ""
    output: str = ""


def try_checks(
    commands: Sequence[str], workspace: Path, settings: Settings, keeper: Keeper, interrupt: Interrupt
) -> list[Trial]:
    """Run each command as a run would; in a sandbox if the settings ask for one.

    Raise KeyboardInterrupt if the user interrupts.
    """
    if not commands:
        return []
    limit = settings.check_timeout or TRIAL_TIMEOUT
    context = Context(
        root=workspace,
        workspace=str(workspace),
        settings=replace(settings, check_timeout=limit, fail_fast=False, keep_children=False),
        folder=RunFolder(prepare(workspace), new_run_id(time.time())),
        keeper=keeper,
        deadline=Deadline(interrupt),
    )
    with open_check_sandbox(context) as opened:
        checks = Checks(opened, [CheckCommand(command) for command in commands]).run(0)
    if checks is None:
        raise KeyboardInterrupt
    trials = []
    for command, check in zip(commands, checks, strict=True):
        last_line = next((line.strip() for line in reversed(check.tail.splitlines()) if line.strip()), "")
        is_started = check.exit_code not in NOT_RUNNABLE
        state: CheckState = "green" if check.passed else "red" if is_started else "not runnable"
        trials.append(Trial(command, state, "" if check.passed else check.ending, last_line))
    return trials
