"""`ralph plan`: turn a goal into a list of tasks with checks that the user has reviewed."""

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ralph.cli.init import Dialog
from ralph.cli.play import play
from ralph.cli.request import Shown, no_goal, parse_request
from ralph.cli.table import command, is_terminal
from ralph.core.model import Outcome, Stop
from ralph.core.text import clean, one_line
from ralph.errors import UserError
from ralph.forge.host import Issue
from ralph.options import command_options
from ralph.planning.plans import (
    Plan,
    Trial,
    change_prompt,
    is_plan,
    load_plan,
    plan_in,
    planning_prompt,
    planning_settings,
    require_plan,
    save_plan,
    try_checks,
)
from ralph.process.keeper import Keeper
from ralph.process.program import DetachedProcess
from ralph.process.signals import Interrupt, ignore_ctrl_c
from ralph.settings.detect_checks import installed_checks
from ralph.store.folder import prepare, remember_red, report_write_errors, seen_red

OUTPUT = "PLAN.md"
CHOICES = "[a]ccept, [e]dit, [t]ell it what to change, [l]eave: "


@command(
    *command_options.PLAN,
    words="GOAL|FILE",
    examples=(
        'ralph plan "Add coupons to the cart"',
        "ralph plan docs/coupons.md -o plans/coupons.md",
        "ralph plan PLAN.md",
        "ralph plan --issue 42",
    ),
)
def plan(values: dict[str, Any], words: list[str]) -> int:
    """Turn a goal into a plan: an agent that may only read the repository splits it into tasks with checks.

    GOAL is text, or a file that describes it; an existing plan is reviewed again. Each check is tried once, and its
    result shown. You answer the agent's questions, then accept the plan, edit it, or say what to change. `ralph work`
    and `--tasks` read the plan."""
    if not values.get("yes") and not is_terminal(sys.stdin):
        raise UserError("ralph plan asks questions and needs a terminal", "accept the plan as it comes: --yes")
    with Keeper.start() as keeper:
        return Planning(values, words, keeper).play()


class Planning:
    """One plan, from the goal to the file."""

    def __init__(self, values: dict[str, Any], words: list[str], keeper: Keeper) -> None:
        if words and not {"prompt", "prompt_file"}.intersection(values) and os.path.isfile(words[0]):
            values["prompt_file"], *words = words  # a plan, or a description of the goal
        parsed = parse_request("plan", values, words)
        self.asked, self.issue, self.settings = parsed.request, parsed.issue, parsed.loaded.settings
        self.workspace = Path(self.asked.workspace)
        self.keeper, self.shown = keeper, Shown.parse(values)
        self.path = self.workspace / values.get("output", OUTPUT)
        self.draft = self.workspace / ".ralph" / "plan.md"
        self.is_attended = not values.get("yes")
        own = [check.command for check in self.settings.checks]
        self.known = tuple(dict.fromkeys((*own, *installed_checks(self.workspace))))
        self.dialog = Dialog(sys.stdin, sys.stderr)
        self.goal = "Carry out the plan below."
        self._trials: dict[str, Trial] = {}
        self._decided: dict[str, bool] = {}

    def play(self) -> int:
        """Return 0 if the plan was written, 1 if it was not accepted or has open questions, else the outcome's code."""
        plan, stop = self._first()
        if plan and self.issue:
            plan = self._remove_suggested_commands(plan, self.issue)
        if plan is None:
            return stop.outcome.exit_code if stop else 2
        try:
            return self._discuss(plan) if self.is_attended else self._accept(plan)
        except (EOFError, KeyboardInterrupt):
            self.dialog.say(f"\nStopped; the plan so far is in {self.draft}")
            return 130

    def _first(self) -> tuple[Plan | None, Stop | None]:
        """Return the plan to review: an existing one, or one that an agent makes."""
        file = Path(self.asked.goal_file) if self.asked.goal_file else None
        text = load_plan(file).text if file else self.asked.goal_text
        if not file and not text:
            raise no_goal()
        if file and is_plan(text):
            self.path = file
            return load_plan(file), None
        if self.path.exists():
            hint = f"review it again: ralph plan {self.path.name}; or write another: -o FILE"
            raise UserError(f"{self.path.name} already exists", hint)
        folder = next(parent for parent in self.path.parents if parent.exists())
        if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):  # before the agent costs anything
            raise UserError(f"cannot write {self.path}", "name another file with -o FILE")
        self.goal = text
        return self._ask()

    def _remove_suggested_commands(self, plan: Plan, issue: Issue) -> Plan:
        """Remove commands that an issue suggests; without a person to review the plan, all but the known checks."""
        issue_words = " ".join(issue.text.split())

        def is_taken(command: str) -> bool:
            return command in self.known or (self.is_attended and " ".join(command.split()) not in issue_words)

        guarded = plan.without_commands(is_taken).with_checks(() if self.is_attended else self.known)
        if guarded.commands() != plan.commands():
            self.dialog.say("ralph: commands from the issue were removed; the plan says which")
        if not guarded.commands():
            raise UserError("every check comes from the issue, so none is used", 'name one: --check "CMD"')
        return guarded

    def _ask(self, change: str = "") -> tuple[Plan | None, Stop]:
        """Have an agent make or change a plan in a separate run."""
        request = replace(
            self.asked,
            settings=planning_settings(self.settings),
            goal_text=planning_prompt(self.goal, self.known, self.is_attended) + change,
            goal_file="",
            heading=f"plan: {one_line(self.goal, 200)}",
            looks_only=True,
        )
        run, stop = play(request, self.keeper, self.shown, rules=(require_plan(self.path.name),), answers=True)
        answer = run.last.turn.text if run.last else ""
        plan = plan_in(answer, self.path.name) if stop.outcome is Outcome.DONE else None
        return plan, stop

    def _discuss(self, plan: Plan) -> int:
        while True:
            self._keep(plan)
            if questions := plan.questions():
                self.dialog.say("\nThe agent asks (an empty answer leaves a question open):")
            plan = plan.with_answers(
                {question: self.dialog.ask(f"  {clean(question)}\n  > ") for question in questions}
            )
            self._keep(plan)
            self._show(plan)
            choice, _, words = self.dialog.ask(CHOICES).partition(" ")
            if choice.lower() in ("a", "accept") and not self._say_problems(plan):
                return self._write(plan)
            if choice.lower() in ("l", "leave"):
                self.dialog.say(f"Stopped; the plan is in {self.draft}")
                return 1
            if choice.lower() in ("e", "edit"):
                open_in_editor(self.draft)
                plan = Plan(load_plan(self.draft).text, plan.name)
            elif choice.lower() in ("t", "tell"):
                words = words.strip() or self.dialog.ask("What should change? ")
                changed = self._ask(change_prompt(plan, words))[0] if words else None
                plan = changed or plan

    def _accept(self, plan: Plan) -> int:
        """Write the plan as it is, without a review, if it has no problems."""
        self._keep(plan)
        self._show(plan)
        if problems := plan.problems():
            raise UserError(problems[0], f"the plan is in {self.draft}")
        self._write(plan)
        return 1 if self._say_problems(plan) else 0

    def _show(self, plan: Plan) -> None:
        self.dialog.say(f"\n{clean(plan.text)}")
        if problems := plan.problems():
            self.dialog.say("\n".join(f"! {problem}" for problem in problems))
        else:
            self._try(plan.commands())

    def _try(self, commands: list[str]) -> None:
        """Run the checks and show their results; commands that aren't the project's own need the user's consent."""
        strange = [command for command in commands if command not in self.known and command not in self._decided]
        if strange and self.is_attended:
            self.dialog.say("ralph would now run these commands, to see which checks pass today:")
            self.dialog.say("\n".join(f"  {clean(text)}" for text in strange))
            is_let = self.dialog.ask("Run them? [Y/n] ").lower() not in ("n", "no")
            self._decided |= dict.fromkeys(strange, is_let)
        with Interrupt() as interrupt:
            allowed = [command for command in commands if self._decided.get(command, True)]
            untried = [command for command in allowed if command not in self._trials]
            trials = try_checks(untried, self.workspace, self.settings, self.keeper, interrupt)
            self._trials |= {trial.command: trial for trial in trials}
            tried = [self._trials[command] for command in allowed]
        remember_red(self.workspace / ".ralph", (trial.command for trial in tried if trial.state == "red"))
        proven = seen_red(self.workspace / ".ralph")
        if tried:
            self.dialog.say("The checks today:")
        for trial in tried:
            unproven = "never seen red: unproven" if trial.state == "green" and trial.command not in proven else ""
            output = "" if trial.state == "green" else one_line(clean(trial.output), 100)
            why = ": ".join(filter(None, (trial.ending, output)))
            more = f"  ({unproven or why})" if unproven or why else ""
            self.dialog.say(f"  {trial.state:<12}  {clean(trial.command)}{more}")
        if tried and all(trial.state == "green" for trial in tried):
            self.dialog.say("Every check is green already, so they would prove nothing about this plan.")
        self.dialog.say("")

    def _say_problems(self, plan: Plan) -> bool:
        """Show the problems of a plan; return whether there are any."""
        problems = [*plan.problems(), *(f"answer and tick: {one_line(question)}" for question in plan.questions())]
        for problem in problems:
            self.dialog.say(f"! {problem}")
        return bool(problems)

    def _keep(self, plan: Plan) -> None:
        """Save the draft, so that nothing is lost."""
        prepare(self.workspace)
        save_plan(plan, self.draft)

    def _write(self, plan: Plan) -> int:
        with report_write_errors(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
        save_plan(plan, self.path)
        with suppress(OSError):
            self.draft.unlink(missing_ok=True)
        print(self.path)
        name = os.path.relpath(self.path)
        self.dialog.say(f"Next: ralph work {name}   or, in one loop: ralph loop --tasks {name}")
        return 0


def open_in_editor(path: Path) -> None:
    """Open a file in the user's editor, and wait until it is closed."""
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    # Like git, start the editor with a shell. Ctrl-C is for the editor, so the shell ignores it.
    words = ("/bin/sh", "-c", f'trap : INT; {editor} "$@"', editor, str(path))
    with ignore_ctrl_c():
        DetachedProcess.start(words, os.environ, (0, 1, 2), new_session=False).wait()
