"""How does an agent get help? `ralph job` runs another agent once, as a child of the run that calls it."""

from __future__ import annotations

import os
import sys
import time

from ralph.cli.table import CliCommand
from ralph.lean import import_leanly
from ralph.run import options

# Nothing is imported before the keeper is forked that its copy need not hold.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ralph.processes.keeper import Keeper
    from ralph.settings import Settings
    from ralph.supervise.run_info import RunInfo
    from ralph.supervise.task_folder import TaskFolder

NAMES = ("root", "project", "task")


def run_command(command: str, values: dict[str, Any], words: list[str]) -> int:
    """`ralph job`: prints the answer of the agent; the exit code is the outcome's."""
    from ralph.processes.keeper import Keeper

    with Keeper.start(adopts=True) as keeper:
        import_leanly("msgspec", "pathlib")
        from ralph.errors import UserError
        from ralph.supervise import run_info

        if "RALPH_SANDBOX" in os.environ:
            raise UserError(
                "child runs cannot be started in a box", "do it yourself, or run the task without --sandbox"
            )
        folder, parent = task_around(values)
        # Known to the task before anything else: its supervisor may be about to ask who is at work.
        info = run_info.create(folder, "", time.time(), parent=values.get("parent", parent))
        try:
            return _play(command, values, words, keeper=keeper, folder=folder, info=info)
        except UserError as error:
            path = folder.runs / info.run_id
            run_info.ended(path, time.time(), "failed", None, error.message)
            run_info.release(path)
            raise


def _play(
    command: str, values: dict[str, Any], words: list[str], *, keeper: Keeper, folder: TaskFolder, info: RunInfo
) -> int:
    from ralph import __version__
    from ralph.cli.request import understood
    from ralph.cli.run import Shown, play
    from ralph.run.order import Order
    from ralph.settings import load
    from ralph.supervise.supervision import ChildPlace

    asked = understood(command, values, words)
    loaded = load(asked.workspace, asked.overrides, env=os.environ, options=options.spelling("job"))
    order = Order(
        settings=once(loaded.settings, "grace" in values),
        workspace=str(asked.workspace),
        goal_text=asked.goal_text,
        goal_file=asked.goal_file,
        agent_args=asked.agent_args,
        one_shot=True,
        version=__version__,
        task=str(folder.path),
    )
    order.goal()
    shown = Shown(asked.json, not asked.verbose, asked.verbose)
    run, stop = play(order, keeper, shown, place=ChildPlace(order, info))
    if run.last and not asked.json:
        _print(run.last.turn.text)
    return stop.outcome.exit_code


def task_around(values: dict[str, Any]) -> tuple[TaskFolder, str]:
    """The task that is named, else the one whose agent calls this, and the run that called."""
    from ralph.cli.task import named
    from ralph.errors import UserError
    from ralph.supervise.task_folder import around

    found = around(os.environ)
    if any(name in values for name in NAMES):
        found = named(values), found[1] if found else ""
    if found is None:
        hint = "call it from a supervised agent, or name the task with --root, --project and --task"
        raise UserError("this is no task's agent: TASK_FOLDER is not set", hint)
    if not found[0].path.is_dir():
        raise UserError(f"there is no task {found[0].name} in {found[0].root}", "`ralph tasks` shows which there are")
    return found


def once(settings: Settings, has_grace: bool) -> Settings:
    """One turn, whatever comes of it; what verifies the task is the task's own business."""
    from msgspec.structs import replace

    return replace(
        settings,
        maximum_iterations=1,
        guardrails=(),
        tasks="",
        protect=(),
        min_tool_calls=0,
        scm=None,
        reviews=None,
        worktree=False,
        # There is nothing to come to an end with before the next turn: a job that is told to stop stops.
        grace=settings.grace if has_grace else 0.0,
    )


def _print(text: str) -> None:
    """The caller may be gone by now: its children outlive it."""
    try:
        sys.stdout.write(text.rstrip("\n") + "\n" if text.strip() else "")
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


COMMAND = CliCommand(
    "job",
    "Run an agent once, as a child of the run that calls this. A task waits for its children when it is done.",
    lambda values, words: run_command("job", values, words),
    options.JOB,
    words="[GOAL] [PATH]",
    examples=('ralph job --prompt "Write the tests for the parser"',),
)
