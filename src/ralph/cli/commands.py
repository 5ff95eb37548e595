"""How are commands explained? click makes the help, the errors and the shell completion from the table of options."""

import importlib
import os
from collections.abc import Callable, Sequence
from typing import Any

import click

from ralph import __version__
from ralph.cli.main import start
from ralph.run import options

SECTIONS = {
    "Begin": {
        "demo": "watch a run on a small example, with a scripted agent",
        "doctor": "say what is missing here, and what to do about it",
        "init": "write the project's settings, by questions",
    },
    "Run an agent": {
        "run": "loop an agent on a goal",
        "loop": "fresh context until every check passes",
        "work": "work off a backlog: many loops behind a merge gate",
        "resume": "go on with a run that was paused, stopped, killed or exhausted",
        "ui": "watch, steer and start runs in a full screen",
    },
    "Watch and steer, from any terminal": {
        "ps": "the runs on this machine: what they do, and want of you",
        "show": "what a run did, iteration by iteration",
        "logs": "what a run said and did, as it was on the screen",
        "tell": "say a word to a run, or answer what its agent asks",
        "pause": "hold a run before its next turn",
        "stop": "end a run, after its current turn or now",
        "serve": "a page to see and steer all runs, also from a phone",
    },
    "The morning after": {
        "report": "a page that says what a run did and what needs you",
        "diff": "show what a run changed, or one iteration of it",
        "rewind": "make the files what they were after an earlier iteration",
    },
    "Inside the agent": {
        "hook": "keep an agent in its session until its promise is kept",
        "ask": "ask the person who started the run",
    },
    "Root agents and their children": {
        "task": "supervise a root agent until its DONE file is there",
        "tasks": "how the tasks of a root stand",
        "job": "run an agent once, as a child of a supervised one",
        "bus": "post to a message bus, read it, follow it",
    },
    "For programs and shells": {
        "schema": "print the JSON Schema of events or settings",
        "completion": "print the completion script for your shell",
    },
}
COMMANDS = {name: summary for section in SECTIONS.values() for name, summary in section.items()}

EXAMPLES = {
    "run": (
        'ralph run "Make the tests pass" --check "pytest -q" --until checks',
        "ralph run -f PROMPT.md -m 5 -c DONE -V",
        'ralph run --print "Tidy the docs" --ralph 5 --json',
    ),
    "loop": (
        'ralph loop "implement JWT login" --check "pytest tests/test_auth.py"',
        'ralph loop "see the spec" --spec spec.md --check "pytest -x" --max-cost 3 --worktree',
    ),
    "task": (
        'ralph task --root ~/tasks --project shop --task login --prompt "… then create $TASK_FOLDER/DONE"',
        "ralph task --root ~/tasks --project shop --task login --max-restarts 10 --turn-timeout 1h",
    ),
    "work": (
        'ralph work TASKS.md -j 4 --check "pytest -q"',
        'ralph work github:label=ready -j 2 --check "make test" --push',
        'ralph work prd.json --check "npm test" --setup "npm ci" --max-cost 20',
    ),
    "job": ('ralph job --prompt "Write the tests for the parser"',),
}


class Grouped(click.Command):
    """A command whose help shows options in groups, then examples."""

    groups: dict[str, str]
    examples: Sequence[str] = ()

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
            if record:
                rows.setdefault(self.groups.get(param.name or "", "Other"), []).append(record)
        for title, records in rows.items():
            with formatter.section(title):
                formatter.write_dl(records)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.examples:
            with formatter.section("Examples"):
                for example in self.examples:
                    formatter.write_text(example)


class Lazy(click.Group):
    """The commands, each loaded when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name in options.COMMANDS:
            return looping_command(name)
        if name in COMMANDS:
            command = importlib.import_module(f"ralph.cli.{name}").command()
            assert isinstance(command, click.Command)
            return command
        return None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0] if args else ""
        if name and not name.startswith("-") and name not in COMMANDS:
            import difflib

            near = difflib.get_close_matches(name, COMMANDS, 1)
            raise click.UsageError(f"no command {name!r}." + (f" Did you mean {near[0]!r}?" if near else ""), ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        wide = max(map(len, COMMANDS))
        for title, section in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(wide), summary) for name, summary in section.items()])


def looping_command(name: str) -> click.Command:
    """`run` and its kin, from the table."""
    rows = options.COMMANDS[name]
    params: list[click.Parameter] = [click_option(row) for row in rows]
    params.append(click.Argument(["words"], nargs=-1, metavar=WORDS.get(name, "[GOAL] [PATH]")))

    def callback(words: tuple[str, ...], **given: Any) -> int:
        said = {key: value for key, value in given.items() if value is not None and value is not False and value != ()}
        values = {key: list(value) if isinstance(value, tuple) else value for key, value in said.items()}
        return start(name, values, list(words))

    command = Grouped(name, params=params, callback=callback, help=HELP[name], context_settings=CONTEXT)
    command.groups = {row.name: row.group for row in rows}
    command.examples = EXAMPLES.get(name, ())
    return command


HELP = {
    "run": "Loop an agent on a goal until it is verifiably done.\n\nExactly one goal: GOAL (-: standard "
    "input), -p, -f, or --spec. Done means: the agent claims it, and every gate (checks, tasks, work, protected files) "
    "holds. PATH is the folder to work in.\n\nThere are five ways to loop, each a set of defaults:\n\n\b\n"
    "guardrails  your prompt to the letter, and what failed; the claim is <response>DONE</response>\n"
    "goal        the goal and the last answer (--ralph N); the claim is STOP\n"
    "checks      a fresh context: task, diff, errors, progress (ralph loop); the claim is COMPLETE\n"
    "promise     a reminder in the same session; the claim is <promise>DONE</promise>\n"
    'supervise   "continue working" (ralph task); the claim is a file DONE',
    "loop": "Give the agent a fresh context each time until every --check passes and it says COMPLETE.",
    "task": "Supervise a root agent: start it again until it has left the file DONE in the task's folder.\n\n"
    "The task lives in ROOT/PROJECT/TASK; the agent finds it in $TASK_FOLDER. Without a prompt, TASK.md is read.",
    "work": "Work off a backlog: each item is a loop in a worktree of its own, and a merge gate decides what lands.\n\n"
    "BACKLOG is a file (Markdown boxes, prd.json, tasks.json), a folder (Backlog.md), github:, github:label=NAME or "
    "beads:. Every commit on the target has passed every check, exactly as it stands there.\n\n\b\n"
    "ralph work status [WORK]      how the items stand\n"
    "ralph work retry KEY [NOTE]   try an item again that stands aside\n"
    "ralph work withdraw KEY       leave an item alone; its branch stays",
    "job": "Run an agent once, as a child of the run that calls this. A task waits for its children when it is done.",
}
WORDS = {"loop": "TASK [PATH]", "work": "BACKLOG"}
COMPLETING = "_RALPH_COMPLETE"  # set by the shell that asks for completions
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


def click_option(row: options.Option) -> click.Option:
    if row.kind in ("flag", "maybe"):
        return click.Option([*row.names, row.name], is_flag=True, help=row.help)
    kind: Any = {"int": click.INT, "float": click.FLOAT}.get(row.kind, click.STRING)
    if row.metavar in ("FILE", "DIR"):
        kind = click.Path()  # for the shell's completion; whether it is there is seen later
    if row.choices:
        kind = click.Choice(row.choices)
    return click.Option(
        [*row.names, row.name],
        type=kind,
        multiple=row.kind == "list" or row.once,
        callback=_only_one if row.once else None,
        metavar=None if row.choices else row.metavar,
        help=row.help,
    )


def _only_one(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> str | None:
    if len(values) > 1:
        raise click.UsageError(f"two goals: {param.opts[-1]} is given more than once.", ctx)
    return values[0] if values else None


@click.group(cls=Lazy, context_settings=CONTEXT)
@click.version_option(__version__, "-v", "--version", message="ralph %(version)s")
def cli() -> None:
    """Runs a coding agent in a loop until the work is verifiably done.

    Start with `ralph demo`. Then, in your repository:

        ralph loop "Make the tests pass" --check "pytest -q"
    """


def click_main(argv: list[str]) -> int:
    """Runs a command through click; bad usage is one line, a hint, and exit code 2."""
    from ralph.cli.main import complain

    if not argv and COMPLETING not in os.environ:
        click.echo(cli.get_help(click.Context(cli, info_name="ralph", help_option_names=["-h", "--help"])))
        return 0
    try:
        result = cli.main(argv, prog_name="ralph", standalone_mode=False)
    except click.UsageError as error:
        name = error.ctx.command_path if error.ctx else "ralph"
        complain(" ".join(error.format_message().split()), f"see `{name} --help`")
        return 2
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.Abort:
        return 130
    return result if isinstance(result, int) else 0


def simple(name: str, callback: Callable[..., int], *params: click.Parameter, help: str) -> click.Command:  # noqa: A002
    """A command of its own file."""
    return click.Command(name, params=list(params), callback=callback, help=help, context_settings=CONTEXT)
