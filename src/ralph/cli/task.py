"""`ralph task`, `job` and `bus`: supervise a task, run a child agent, use the message bus."""

import os
import sys
from typing import Any

import msgspec
from msgspec.structs import replace

from ralph.cli.play import play
from ralph.cli.request import Shown, explain, parse_request
from ralph.cli.run import verbose_notices
from ralph.cli.table import JSON, command, command_group
from ralph.core.text import clean, escaped
from ralph.errors import UserError
from ralph.options import command_options
from ralph.options.option import Option
from ralph.process.keeper import Keeper
from ralph.settings import Protection
from ralph.supervise.bus import MessageBus, timestamp
from ralph.supervise.supervision import ChildRun, supervise_task
from ralph.supervise.task import RunInfo, TaskFolder, current_task, task_folder

NAMES = ("root", "project", "task")


@command(
    *command_options.TASK,
    words="[GOAL] [PATH]",
    examples=(
        'ralph task --root ~/tasks --project shop --task login --prompt "… then create $TASK_FOLDER/DONE"',
        "ralph task --root ~/tasks --project shop --task login --max-restarts 10 --turn-timeout 1h",
    ),
)
def task(values: dict[str, Any], words: list[str]) -> int:
    """Supervise a root agent: restart it until it has left the file DONE in the task's folder.

    The task lives in ROOT/PROJECT/TASK; the agent finds it in $TASK_FOLDER. Without a prompt, TASK.md is read."""
    with Keeper.start() as keeper:
        folder = task_named(values)
        parsed, display = parse_request("task", values, words), Shown.parse(values)
        request, sources = replace(parsed.request, task=str(folder.path)), parsed.loaded.sources
        has_goal = bool(request.goal_text or request.goal_file)
        request = request if has_goal else replace(request, goal_file=str(folder.prompt))
        if values.get("dry_run"):
            return explain(request, sources, sys.stdout)
        folder.save_prompt(request.goal() if has_goal else None)
        notices = verbose_notices(request, sources) if display.verbose else ()
        _, stop = play(request, keeper, display, place=supervise_task(request), notices=notices)
        return stop.outcome.exit_code


def task_named(values: dict[str, Any]) -> TaskFolder:
    """Return the task that the options name."""
    missing = [f"--{name}" for name in NAMES if name not in values]
    if missing:
        example = "ralph task --root DIR --project NAME --task NAME"
        raise UserError(f"no task named: missing {', '.join(missing)}", f"name it: {example}")
    return task_folder(values["root"], values["project"], values["task"])


@command(*command_options.JOB, words="[GOAL] [PATH]", examples=('ralph job --prompt "Write the tests for the parser"',))
def job(values: dict[str, Any], words: list[str]) -> int:
    """Run an agent once, as a child of the run that calls this. A task waits for its child runs before it is done."""
    with Keeper.start() as keeper:
        if "RALPH_SANDBOX" in os.environ:
            raise UserError("child runs can't be started in a sandbox", "run the task without --sandbox")
        folder, parent = parent_task()
        # Create the run before anything else: the supervisor may be about to look for running children.
        info = folder.create_run("", parent=parent)
        try:
            return _play_job(values, words, keeper, folder, info)
        except UserError as error:
            fields = {"status": "failed", "error_summary": error.message, "ended_at": timestamp()}
            folder.update_run(info.run_id, **fields, owner_pid=0, owner_start="")
            raise


def _play_job(values: dict[str, Any], words: list[str], keeper: Keeper, folder: TaskFolder, info: RunInfo) -> int:
    request = parse_request("job", values, words).request
    settings = replace(
        request.settings,
        maximum_iterations=1,
        checks=(),  # checks, commits and reviews are up to the task's own run
        tasks="",
        protect=Protection(),
        min_tool_calls=0,
        scm=None,
        reviews=None,
        worktree=False,
        grace=request.settings.grace if "grace" in values else 0.0,
    )
    request = replace(request, settings=settings, one_shot=True, task=str(folder.path))
    request.goal()
    display, child = Shown.parse({**values, "quiet": not values.get("verbose")}), ChildRun(request, folder, info)
    run, stop = play(
        request, keeper, display, place=child.place, ticks=[child.watch_supervisor], answers=not display.json
    )
    if run.last and not display.json and (text := run.last.turn.text).strip():
        print(text.rstrip("\n"))
    return stop.outcome.exit_code


def parent_task() -> tuple[TaskFolder, str]:
    """Return the task whose agent calls this, and the id of the calling run."""
    found = current_task(os.environ)
    if found is None:
        raise UserError("not called by the agent of a task: TASK_FOLDER is not set", "start it with `ralph task`")
    return found


BUS = Option("--bus FILE", "The bus; by default $MESSAGE_BUS.")


@command(
    BUS,
    Option("--type TYPE", "INFO (default), FACT, QUESTION, ..."),
    Option("--body TEXT", "The text; without it, stdin is read."),
)
def post(values: dict[str, Any], words: list[str]) -> int:
    """Append a message and print its id."""
    target, body = named_bus(values), values.get("body")
    if body is None:
        if sys.stdin.isatty():
            raise UserError("the message is empty", "give --body TEXT, or pipe the text in")
        body = sys.stdin.buffer.read().decode("utf-8", "replace")
    project, task, run = (os.environ.get(f"JRUN_{name}", "") for name in ("PROJECT_ID", "TASK_ID", "ID"))
    print(target.post(values.get("type", "INFO"), body, project=project, task=task, run=run))
    return 0


@command(BUS, Option("--type TYPE ...", "Only this type; may be repeated."), JSON)
def read(values: dict[str, Any], words: list[str]) -> int:
    """Print the messages."""
    target = named_bus(values)
    if not os.path.lexists(target.path):
        raise UserError(f"no message bus {target.path}", "its first message creates it: `ralph bus post`")
    for message in target.read(values.get("type", ())):
        if values.get("json"):
            line = escaped(msgspec.json.encode(message))
        else:
            run = f" run={message.run}" if message.run else ""
            line = clean(f"[{message.ts}] {message.type} {message.msg_id}{run}\n{message.body}\n").encode()
        sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()
    return 0


def named_bus(values: dict[str, Any]) -> MessageBus:
    """Return the bus given with --bus, else that of the current task."""
    path = values.get("bus") or os.environ.get("MESSAGE_BUS") or os.environ.get("JRUN_MESSAGE_BUS")
    if not path:
        raise UserError("no message bus given", "give --bus FILE, or set MESSAGE_BUS")
    return MessageBus(path)


bus = command_group("bus", "The message bus of a task or project.", post, read)
