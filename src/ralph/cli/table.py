"""The table of commands, and what their modules share.

A command is a function with the decorator `@command`, and has a row in `SECTIONS`. Its module has the same name, or is
named in `MODULES`, and is imported when the command is used.
"""

import difflib
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO

import click
from msgspec.json import encode

from ralph.core.text import escaped, nickname
from ralph.errors import UserError, to_install
from ralph.options.command_options import DIRECTORY
from ralph.options.option import COMPATIBILITY, Option, OptionCommand, Values, option_values

__all__ = ["DIRECTORY", "Values"]  # which the commands import from here

CommandHandler = Callable[[Values, list[str]], int]

JSON = Option("--json", "Print one JSON object per line.")

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
MANY_OPTIONS = 20  # with more, `-h` shows only the common ones
COMMON = frozenset(
    {"prompt_file", "agent", "model", "yolo", "check", "exam", "tasks", "protect", "worktree", "sandbox"}
    | {"minimize", "maximize", "metric", "target"}
    | {"maximum_iterations", "max_restarts", "max_cost", "max_time", "dry_run", "root", "project", "task", "jobs"}
)
"""The options that `-h` shows; `--help` shows all of them."""
ALIASES = {"--maximum-iterations": "The same as --max-iterations."}
"""Option names with their own line in the help."""


HELP_ROW = ("-h, --help", "This help.")


class CliCommand(OptionCommand):
    """A command. Its handler takes the values of the given options by name, and the other words; it returns the exit
    code."""

    def __init__(
        self,
        name: str,
        text: str,
        handler: CommandHandler,
        options: tuple[Option, ...] = (),
        words: str = "",
        *examples: str,
    ) -> None:
        more: list[click.Option] = []
        context: dict[str, Any] = CONTEXT
        if len(options) > MANY_OPTIONS:
            more = [click.Option(["-h"], is_flag=True, is_eager=True, expose_value=False, callback=_show_short_help)]
            context = {**CONTEXT, "help_option_names": ["--help"]}
        takes_run = "RUN" in words.replace("[", " ").replace("]", " ").split()
        complete = complete_run if takes_run else None
        super().__init__(name, options, words=words, complete=complete, more=more, help=text, context_settings=context)
        self.handler, self.examples, self.takes_words, self.is_short = handler, examples, bool(words), False

    def invoke(self, ctx: click.Context) -> int:
        values, words = option_values(ctx)
        if words and not self.takes_words:
            raise UserError(f"too many words: {words[0]!r}", f"`{ctx.command_path} -h` lists what it takes")
        return self.handler(values, words)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the options in groups; those for compatibility come last."""
        rows: dict[str, list[tuple[str, str]]] = {}
        for option in self.options:
            record = option.get_help_record(ctx)
            if not record or (self.is_short and option.name not in COMMON):
                continue
            names, text = record
            for alias in ALIASES.keys() & set(option.names):
                names = names.replace(f", {alias}", "")
                if not self.is_short:
                    rows.setdefault(COMPATIBILITY, []).append((f"{alias} {option.metavar}", ALIASES[alias]))
            rows.setdefault(option.group, []).append((names, text))
        if COMPATIBILITY in rows:
            rows[COMPATIBILITY] = rows.pop(COMPATIBILITY)
        if not self.is_short:
            has_short = len(self.options) > MANY_OPTIONS
            rows["Help"] = [("-h", "The common options."), ("--help", "All options.")] if has_short else [HELP_ROW]
        for title, records in rows.items():
            with formatter.section(title):
                formatter.write_dl(records)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.examples:
            with formatter.section("Examples"):
                for example in self.examples:
                    formatter.write_text(example)
        if self.is_short:
            formatter.write_paragraph()
            formatter.write_text(f"These are the common options; all of them: {ctx.command_path} --help")


def _show_short_help(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and isinstance(ctx.command, CliCommand):
        ctx.command.is_short = True
        click.echo(ctx.get_help())
        ctx.exit()


def command(
    *options: Option, words: str = "", examples: tuple[str, ...] = ()
) -> Callable[[CommandHandler], CliCommand]:
    """Turn a function into a command: the function's name is the command's name, its docstring the help."""

    def decorate(handler: CommandHandler) -> CliCommand:
        return CliCommand(handler.__name__, handler.__doc__ or "", handler, options, words, *examples)

    return decorate


class CommandGroup(click.Group):
    """A command with subcommands."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            raise self.unknown_command(ctx, args[0])
        return super().resolve_command(ctx, args)

    def unknown_command(self, ctx: click.Context, name: str) -> UserError:
        """Return the error for a command that doesn't exist, with a suggestion."""
        near = next(iter(difflib.get_close_matches(name, self.list_commands(ctx), 1)), "")
        hint = f"did you mean `{ctx.command_path} {near}`?" if near else f"`{ctx.command_path} -h` lists the commands"
        return UserError(f"no such command: {ctx.command_path} {name}", hint)


def command_group(name: str, text: str, *commands: CliCommand) -> click.Group:
    """Return a command with subcommands."""
    group = CommandGroup(name, help=text, context_settings=CONTEXT, no_args_is_help=False)
    for member in commands:
        group.add_command(member)
    return group


def complete_run(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the names and ids of runs that begin with `incomplete`, newest first."""
    from ralph.store.register import runs

    names = [name for run in reversed(runs()) for name in (nickname(run.id), run.id)]
    return [name for name in names if name.startswith(incomplete)]


EVERYDAY = (
    "demo",
    "init",
    "doctor",
    "loop",
    "judge",
    "run",
    "plan",
    "work",
    "tune",
    "ps",
    "show",
    "stop",
    "resume",
    "accept",
)
SECTIONS = {
    "Start": {
        "demo": "watch a run on a small example, with a scripted agent",
        "init": "create .ralph/settings.json",
        "doctor": "check your setup",
    },
    "Run an agent": {
        "loop": "loop until the checks pass and the agent says so",
        "judge": "say whether a change holds, from any author",
        "run": "run an agent with your own prompts and presets",
        "plan": "turn a goal into tasks with checks",
        "work": "run a task list in parallel and merge what passes",
        "tune": "optimise a number, and keep what measures better",
        "worker": "run tasks from a shared database",
        "resume": "continue a paused, stopped or unfinished run",
        "ui": "open the terminal UI",
    },
    "Watch and steer": {
        "ps": "list runs",
        "show": "show a run, iteration by iteration",
        "logs": "print a run's output",
        "tell": "send a note to the agent, or answer its question",
        "pause": "pause a run after the current turn",
        "stop": "stop a run",
        "serve": "open the web UI",
    },
    "Afterwards": {
        "accept": "re-run the checks and merge a worktree run",
        "prove": "find parts of a run's change that no check notices",
        "report": "write an HTML report",
        "diff": "show what a run changed",
        "discard": "delete a worktree run",
        "rewind": "restore files to an earlier iteration",
        "clean": "remove old runs",
        "trust": "review and accept changed settings",
    },
    "Inside an agent": {
        "hook": "loop inside an agent's own session",
        "ask": "ask the person who started the run",
    },
    "Root agents and their children": {
        "task": "restart an agent until it writes DONE",
        "job": "start a child agent",
        "bus": "post to a message bus, read it",
    },
    "For programs and shells": {
        "schema": "print the JSON Schema of events, settings or a judgement",
        "completion": "print the completion script for your shell",
        "help": "explain a command, or list every command: help --all",
    },
}
SUMMARIES = {name: summary for section in SECTIONS.values() for name, summary in section.items()}

MODULES = {
    **dict.fromkeys(("loop", "tune"), "run"),
    **dict.fromkeys(("ps", "show", "logs", "ui", "serve"), "watch"),
    **dict.fromkeys(("tell", "pause", "stop", "resume", "ask"), "steer"),
    **dict.fromkeys(("discard", "rewind"), "accept"),
    **dict.fromkeys(("report", "diff", "trust"), "results"),
    "schema": "init",
    "worker": "work",
    **dict.fromkeys(("job", "bus"), "task"),
    **dict.fromkeys(("help", "completion"), "main"),
}
"""The modules of commands that aren't in a module of the same name."""


def find(name: str) -> click.Command:
    """Import the module of a command, and return the command."""
    module = import_module(f"ralph.cli.{MODULES.get(name, name)}")
    cli_command: click.Command = getattr(module, name)
    return cli_command


def folder_of(values: Values) -> Path:
    """Return the folder given with -C, or the current one."""
    folder = Path(values.get("directory", "."))
    if not folder.is_dir():
        raise UserError(f"folder not found: {folder}", "name a workspace with -C DIR")
    return folder.resolve()


@contextmanager
def needs_extra(what: str, extra: str) -> Iterator[None]:
    """Name the optional extra to install if an import inside this block fails."""
    try:
        yield
    except ImportError as error:
        missing = (error.name or "").partition(".")[0]
        if missing == "ralph":
            raise
        problem = f"{what} needs {missing}, which is not installed" if missing else f"{what}: {error}"
        raise UserError(problem, to_install(extra)) from None


def is_terminal(*streams: TextIO | None) -> bool:
    """Whether all of these standard streams are terminals. A stream that the caller closed is None."""
    return all(stream is not None and stream.isatty() for stream in streams)


def confirm(question: str, default: bool = False) -> bool:
    """Ask a question on stderr; return whether the answer is yes."""
    print(f"{question} [{'Y/n' if default else 'y/N'}] ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline().strip().lower()
    return answer in ("y", "yes") or (default and not answer)


def print_objects(objects: Iterable[object]) -> int:
    """Print one JSON object per line."""
    sys.stdout.buffer.write(escaped(b"".join(encode(item) + b"\n" for item in objects)))
    return 0
