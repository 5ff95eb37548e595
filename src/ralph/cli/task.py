"""How is a task supervised from the command line? Its folder is found or made; then it is played as every run is."""

from __future__ import annotations

import os

from ralph.cli.table import CliCommand
from ralph.lean import import_leanly
from ralph.run import options

# Nothing is imported before the keeper is forked that its copy need not hold.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ralph.supervise.task_folder import TaskFolder


def run_command(command: str, values: dict[str, Any], words: list[str]) -> int:
    """`ralph task`: the exit code is the outcome's."""
    from ralph.processes.keeper import Keeper

    with Keeper.start(adopts=True) as keeper:
        import_leanly("msgspec", "pathlib")
        from ralph import __version__
        from ralph.cli.request import understood
        from ralph.cli.run import Shown, play, spoken
        from ralph.run.order import Order
        from ralph.settings import load
        from ralph.supervise.supervision import TaskPlace
        from ralph.supervise.task_folder import keep_prompt

        folder = named(values)
        asked = understood(command, values, words)
        loaded = load(asked.workspace, asked.overrides, env=os.environ, options=options.spelling(command))
        order = Order(
            settings=loaded.settings,
            workspace=str(asked.workspace),
            goal_text=asked.goal_text,
            goal_file=asked.goal_file or ("" if asked.goal_text else str(folder.prompt)),
            agent_args=asked.agent_args,
            version=__version__,
            task=str(folder.path),
        )
        if asked.dry_run:
            from ralph.cli.dry import explain

            return explain(order, loaded)
        keep_prompt(folder, order.goal() if asked.goal_text or asked.goal_file else None)
        if "depends_on" in values:
            from ralph.supervise.task_list import depend

            depend(folder, values["depends_on"])
        notices = spoken(loaded) if asked.verbose else ()
        shown = Shown(asked.json, asked.quiet, asked.verbose)
        place = TaskPlace(order, reopens="resume" in values)
        _, stop = play(order, keeper, shown, place=place, notices=notices)
        return stop.outcome.exit_code


def named(values: dict[str, Any]) -> TaskFolder:
    """The task that the options name."""
    from ralph.errors import UserError
    from ralph.supervise.task_folder import task_folder

    missing = [f"--{name}" for name in ("root", "project", "task") if name not in values]
    if missing:
        example = "ralph task --root DIR --project NAME --task NAME"
        raise UserError(f"which task? missing: {', '.join(missing)}", f"name it: {example}")
    return task_folder(values["root"], values["project"], values["task"])


COMMAND = CliCommand(
    "task",
    "Supervise a root agent: start it again until it has left the file DONE in the task's folder.\n\n"
    "The task lives in ROOT/PROJECT/TASK; the agent finds it in $TASK_FOLDER. Without a prompt, TASK.md is read.",
    lambda values, words: run_command("task", values, words),
    options.TASK,
    words="[GOAL] [PATH]",
    examples=(
        'ralph task --root ~/tasks --project shop --task login --prompt "… then create $TASK_FOLDER/DONE"',
        "ralph task --root ~/tasks --project shop --task login --max-restarts 10 --turn-timeout 1h",
    ),
)
