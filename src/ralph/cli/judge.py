"""`ralph judge`: say whether a change holds."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

from ralph.actions.judge_change import JudgePlan, JudgeRequest, judge_planned, plan_judgement
from ralph.cli.play import confirm_settings
from ralph.cli.request import option_settings
from ralph.cli.table import Values, command, folder_of, is_terminal, print_objects
from ralph.core.text import plural
from ralph.errors import UserError
from ralph.options.command_options import JUDGE, option_names
from ralph.process.keeper import Keeper
from ralph.process.signals import Deadline, Interrupt
from ralph.show.judgement_lines import as_markdown, as_page, judgement_lines
from ralph.show.outlet import choose
from ralph.show.screen import make_screen
from ralph.show.words import from_home


@command(
    *JUDGE,
    words="[BASE | BASE..HEAD | RUN]",
    examples=(
        "ralph judge",
        "ralph judge origin/main",
        "ralph judge main..feature --markdown",
        "ralph judge k3fa --prove",
    ),
)
def judge(values: Values, words: list[str]) -> int:
    """Say whether a change holds: run the checks on it, on its base, and with the tests as they were.

    BASE: what came after it, with what is not committed. BASE..HEAD: exactly that, as in git. RUN: the change of a run.
    Nothing: what came after the default branch; on that branch, what is not committed.

    No agent runs, and nothing in your files changes: the checks run in a copy. Checks, exams, setup and protected files
    come from the options, else from the settings and the project as they are at the base.

    The exit code is 0 if the change holds, 1 if it is refuted, and 2 if it could not be judged."""
    if len(words) > 1:
        raise UserError(f"two words: {words[0]} and {words[1]}", f"ralph judge {words[0]}..{words[1]}")
    if "json" in values and "markdown" in values:
        raise UserError("--json and --markdown both print to standard output", "leave one of them out")
    is_screen = not {"json", "markdown"} & values.keys()
    request = JudgeRequest(
        workspace=folder_of(values),
        word=words[0] if words else "",
        head=values.get("head", ""),
        overrides=option_settings("judge", values),
        options=option_names("judge"),
    )
    out = sys.stdout if is_screen else sys.stderr
    with Keeper.start() as keeper, Interrupt() as interrupt:
        deadline = Deadline(interrupt, grace=0.0)
        try:
            plan = plan_judgement(request, deadline, confirm_settings)
            for line in (plan.title, *plan.notices):
                print(line, file=out, flush=True)
            with _Progress(plan) as step:
                tell = make_screen(sys.stderr, live=False)
                result = judge_planned(plan, request, keeper=keeper, deadline=deadline, tell=tell, step=step)
        except UserError:
            if interrupt.level:
                raise KeyboardInterrupt from None
            raise
    receipt = result.receipt
    if "html" in values:
        _write_page(values["html"], as_page(receipt))
    if "json" in values:
        print_objects([receipt])
    elif "markdown" in values:
        print(as_markdown(receipt), end="")
    else:
        for line in judgement_lines(receipt, choose(sys.stdout), from_home(result.path, os.path.expanduser("~"))):
            print(line)
    if result.hint:
        print(f"hint: {result.hint}", file=sys.stderr)
    return receipt.exit_code


class _Progress:
    """A line on the terminal that says which run of the checks is under way, and vanishes."""

    def __init__(self, plan: JudgePlan) -> None:
        self._checks, self._is_shown = plural(len(plan.settings.checks), "check"), is_terminal(sys.stderr)

    def __enter__(self) -> Callable[[int], None]:
        return self._show

    def __exit__(self, *_: object) -> None:
        self._write("")

    def _show(self, number: int) -> None:
        self._write(f"{self._checks}, run {number} …")

    def _write(self, text: str) -> None:
        if self._is_shown:
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def _write_page(name: str, text: str) -> None:
    path = Path(name)
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}", "name another file: --html FILE") from None
