"""`ralph task`, `job`, `tasks`, `bus`: how is a task supervised, how does its agent get help, how do all tasks stand,
and how do agents, children and people speak on a message bus?

A task's folder is found or made; then it is played as every run is. A job is another agent that is run once, as a child
of the run that calls it."""

from __future__ import annotations

import os
import sys
import time

from ralph.cli.table import JSON, CliCommand, command, no_words, print_objects
from ralph.errors import UserError
from ralph.processes.spawning import import_leanly
from ralph.run import options
from ralph.run.options import Option

# Nothing is imported before the keeper is forked that its copy need not hold.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from ralph.processes.keeper import Keeper
    from ralph.settings import Settings
    from ralph.supervise.bus import Message
    from ralph.supervise.run_info import RunInfo
    from ralph.supervise.task_folder import TaskFolder
    from ralph.supervise.task_list import TaskRow

NAMES = ("root", "project", "task")
TITLES = ("project", "task", "state", "attempt", "age", "last message")


@command(
    *options.TASK,
    words="[GOAL] [PATH]",
    examples=(
        'ralph task --root ~/tasks --project shop --task login --prompt "… then create $TASK_FOLDER/DONE"',
        "ralph task --root ~/tasks --project shop --task login --max-restarts 10 --turn-timeout 1h",
    ),
)
def task(values: dict[str, Any], words: list[str]) -> int:
    """Supervise a root agent: start it again until it has left the file DONE in the task's folder.

    The task lives in ROOT/PROJECT/TASK; the agent finds it in $TASK_FOLDER. Without a prompt, TASK.md is read."""
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
        asked = understood("task", values, words)
        loaded = load(asked.workspace, asked.overrides, env=os.environ, options=options.spelling("task"))
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
            from ralph.cli.request import explain

            return explain(order, loaded, sys.stdout)
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
    from ralph.supervise.task_folder import task_folder

    missing = [f"--{name}" for name in NAMES if name not in values]
    if missing:
        example = "ralph task --root DIR --project NAME --task NAME"
        raise UserError(f"which task? missing: {', '.join(missing)}", f"name it: {example}")
    return task_folder(values["root"], values["project"], values["task"])


@command(*options.JOB, words="[GOAL] [PATH]", examples=('ralph job --prompt "Write the tests for the parser"',))
def job(values: dict[str, Any], words: list[str]) -> int:
    """Run an agent once, as a child of the run that calls this. A task waits for its children when it is done."""
    from ralph.processes.keeper import Keeper

    with Keeper.start(adopts=True) as keeper:
        import_leanly("msgspec", "pathlib")
        from ralph.supervise import run_info

        if "RALPH_SANDBOX" in os.environ:
            raise UserError(
                "child runs cannot be started in a box", "do it yourself, or run the task without --sandbox"
            )
        folder, parent = task_around(values)
        # Known to the task before anything else: its supervisor may be about to ask who is at work.
        info = run_info.create(folder, "", time.time(), parent=values.get("parent", parent))
        try:
            return _play(values, words, keeper, folder, info)
        except UserError as error:
            path = folder.runs / info.run_id
            run_info.ended(path, time.time(), "failed", None, error.message)
            run_info.release(path)
            raise


def _play(values: dict[str, Any], words: list[str], keeper: Keeper, folder: TaskFolder, info: RunInfo) -> int:
    from ralph import __version__
    from ralph.cli.request import understood
    from ralph.cli.run import Shown, play
    from ralph.run.order import Order
    from ralph.settings import load
    from ralph.supervise.supervision import ChildPlace

    asked = understood("job", values, words)
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
    run, stop = play(order, keeper, shown, place=ChildPlace(order, folder, info), answers=not asked.json)
    if run.last and not asked.json:
        text = run.last.turn.text
        try:
            sys.stdout.write(text.rstrip("\n") + "\n" if text.strip() else "")
            sys.stdout.flush()
        except BrokenPipeError:  # the caller may be gone by now: its children outlive it
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return stop.outcome.exit_code


def task_around(values: dict[str, Any]) -> tuple[TaskFolder, str]:
    """The task that is named, else the one whose agent calls this, and the run that called."""
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


@command(
    Option("--root DIR", "The folder of all projects (default: that of the task around)."),
    Option("--project NAME", "Only this project."),
    JSON,
)
def tasks(values: dict[str, Any], words: list[str]) -> int:
    """Show how the tasks of a root stand."""
    from ralph.supervise.task_folder import around
    from ralph.supervise.task_list import every

    no_words(words, "name a project with --project")
    here = around(os.environ)
    rows = every(values.get("root") or (here[0].root if here else "."), time.time(), values.get("project"))
    if values.get("json"):
        return print_objects(rows)
    if rows:
        print("\n".join(table(rows)))
    else:
        print("No tasks here. --root DIR names the folder of the projects.", file=sys.stderr)
    return 0


def table(rows: list[TaskRow]) -> list[str]:
    """Columns as wide as they need to be; the message takes what is left of its 80 characters."""
    from ralph.core.text import clean
    from ralph.show.words import cut, duration, width

    def cells(row: TaskRow) -> tuple[str, ...]:
        attempt = str(row.attempt) if row.attempt else "-"
        return row.project, row.task, row.state, attempt, duration(row.age), cut(clean(row.last_message), 80, "…")

    lines = [TITLES, *map(cells, rows)]
    sizes = [max(map(width, column)) for column in zip(*lines, strict=True)]
    padded = ((cell + " " * (size - width(cell)) for cell, size in zip(line, sizes, strict=True)) for line in lines)
    return ["  ".join(line).rstrip() for line in padded]


def post(values: dict[str, Any], words: list[str]) -> int:
    """Appends a message and prints its id. Without --body, it is read from stdin, to the last byte."""
    from ralph.supervise import bus

    no_words(words, "the text is given with --body, or on stdin")
    target, body = bus_path(values), values.get("body")
    if body is None:
        if sys.stdin.isatty():
            raise UserError("the message has no body", "give --body TEXT, or pipe the text in")
        body = bus.decoded(sys.stdin.buffer.read())
    project, task, run = (os.environ.get(f"JRUN_{name}", "") for name in ("PROJECT_ID", "TASK_ID", "ID"))
    kind, parent = values.get("type", "INFO"), values.get("parent", "")
    print(bus.post(target, kind, body, project=project, task=task, run=run, parent=parent))
    return 0


def read(values: dict[str, Any], words: list[str]) -> int:
    """Prints the messages, or those that come after --since, have one of the types, belong to a thread."""
    from ralph.supervise.bus import BusReader, thread

    no_words(words, "name the bus with --bus")
    path, since, root = bus_path(values), values.get("since"), values.get("thread")
    if not os.path.lexists(path):
        raise UserError(f"there is no message bus {path}", "it appears with its first message: `ralph bus post`")
    reader = BusReader(path, since, values.get("type", ()))
    messages = reader.messages()
    _show(thread(messages, root) if root else messages, bool(values.get("json")))
    if reader.unread and not since:
        said = f"{reader.unread} bytes of {reader.path} belong to no message: they were passed over"
        print(f"ralph: {said}", file=sys.stderr)
    return 0


def follow(values: dict[str, Any], words: list[str]) -> int:
    """As `read`, and goes on with what arrives, until interrupted. The bus need not exist yet."""
    import threading

    from ralph.supervise import bus

    no_words(words, "name the bus with --bus")
    messages = bus.follow(bus_path(values), values.get("since"), threading.Event(), values.get("type", ()))
    _show(messages, bool(values.get("json")), at_once=True)
    return 0


def bus_path(values: dict[str, Any]) -> str:
    """The bus that is meant: the one named, else that of the task around us."""
    named = values.get("bus") or os.environ.get("MESSAGE_BUS") or os.environ.get("JRUN_MESSAGE_BUS")
    if not named:
        raise UserError("no message bus is named", "give --bus FILE, or set MESSAGE_BUS")
    return str(named)


def _show(messages: Iterable[Message], json: bool, at_once: bool = False) -> None:
    """For programs, or for people, who must not meet the control characters of a message."""
    import msgspec

    from ralph.core.text import clean, escaped
    from ralph.supervise.bus import encoded

    out = sys.stdout.buffer
    for one in messages:
        body = encoded(one.body).decode("utf-8", "replace")
        if json:
            out.write(escaped(msgspec.json.encode(msgspec.structs.replace(one, body=body))) + b"\n")
        else:
            where = "".join(f" {name}={value}" for name, value in (("run", one.run), ("re", one.parent)) if value)
            out.write(clean(f"[{one.ts}] {one.type} {one.msg_id}{where}\n{body}\n\n").encode())
        if at_once:
            out.flush()
    out.flush()


_BUS = Option("--bus FILE", "The bus; by default $MESSAGE_BUS.")
_SINCE = Option("--since ID", "Only what comes after this message.")
_TYPES = Option("--type TYPE ...", "Only this type; may be repeated.")
_POST = (
    _BUS,
    Option("--type TYPE", "INFO (default), FACT, QUESTION, ..."),
    Option("--body TEXT", "The text; without it, stdin is read."),
    Option("--parent ID", "The message that this one answers."),
)
_THREAD = Option("--thread ID", "Only this message and its answers.")

bus = CliCommand(
    "bus",
    "The message bus of a task or project.",
    commands=(
        CliCommand("post", "Append a message and print its id.", post, _POST),
        CliCommand("read", "Print the messages.", read, (_BUS, _SINCE, _TYPES, _THREAD, JSON)),
        CliCommand("follow", "Print the messages as they arrive.", follow, (_BUS, _SINCE, _TYPES, JSON)),
    ),
)
