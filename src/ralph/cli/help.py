"""How are commands explained? click makes the help, the errors and the shell completion from the table."""

import os
from collections.abc import Sequence
from typing import Any

import click

from ralph import __version__
from ralph.cli import table
from ralph.cli.table import CliCommand
from ralph.errors import complain
from ralph.run.options import Option

COMPLETING = "_RALPH_COMPLETE"  # set by the shell that asks for completions
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


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
        return list(table.SUMMARIES)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        return click_command(table.find(name)) if name in table.SUMMARIES else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0] if args else ""
        if name and not name.startswith("-") and name not in table.SUMMARIES:
            import difflib

            near = difflib.get_close_matches(name, table.SUMMARIES, 1)
            raise click.UsageError(f"no command {name!r}." + (f" Did you mean {near[0]!r}?" if near else ""), ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        wide = max(map(len, table.SUMMARIES))
        for title, section in table.SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(wide), summary) for name, summary in section.items()])


def click_command(command: CliCommand) -> click.Command:
    if command.commands:
        group = click.Group(command.name, help=command.help, context_settings=CONTEXT, no_args_is_help=False)
        for inner in command.commands:
            group.add_command(click_command(inner))
        return group

    def callback(words: tuple[str, ...], **given: Any) -> int:
        said = {
            name: value for name, value in given.items() if value is not None and value is not False and value != ()
        }
        values = {name: list(value) if isinstance(value, tuple) else value for name, value in said.items()}
        assert command.answer is not None
        return command.answer(values, list(words))

    params: list[click.Parameter] = [_click_option(row) for row in command.options]
    params.append(click.Argument(["words"], nargs=-1, metavar=command.words))
    made = Grouped(command.name, params=params, callback=callback, help=command.help, context_settings=CONTEXT)
    made.groups = {row.name: row.group for row in command.options}
    made.examples = command.examples
    return made


def _click_option(row: Option) -> click.Option:
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
