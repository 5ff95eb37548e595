"""How are commands explained? click makes the help and the errors from the table, and what a shell offers when Tab is
pressed behind `ralph`."""

import os
from collections.abc import Sequence
from typing import Any

import click

from ralph import __version__
from ralph.cli import table
from ralph.cli.table import CliCommand, Values, command
from ralph.errors import UserError, complain
from ralph.run.options import Option

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
MANY = 20  # options: more than anybody reads who only wants to begin
COMMON = frozenset(
    {"prompt_file", "agent", "model", "yolo", "check", "until", "tasks", "protect", "worktree", "sandbox"}
    | {"maximum_iterations", "max_restarts", "max_cost", "max_time", "dry_run", "root", "project", "task", "jobs"}
)
"""The options that matter to most: `-h` shows these, `--help` all."""


class Grouped(click.Command):
    """A command whose help shows options in groups, then examples."""

    groups: dict[str, str]
    examples: Sequence[str] = ()
    is_short = False

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
            if record and (not self.is_short or param.name in COMMON):
                rows.setdefault(self.groups.get(param.name or "", "Other"), []).append(record)
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
            formatter.write_text(f"These are the ones that matter to most; all of them: {ctx.command_path} --help")


def _show_short(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and isinstance(ctx.command, Grouped):
        ctx.command.is_short = True
        click.echo(ctx.get_help())
        ctx.exit()


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
    context: dict[str, Any] = CONTEXT
    if len(params) > MANY:
        params.append(
            click.Option(
                ["-h"],
                is_flag=True,
                is_eager=True,
                expose_value=False,
                callback=_show_short,
                help="The options that matter to most.",
            )
        )
        context = {**CONTEXT, "help_option_names": ["--help"]}
    known = run_names if "RUN" in command.words.replace("[", " ").replace("]", " ").split() else None
    params.append(click.Argument(["words"], nargs=-1, metavar=command.words, shell_complete=known))
    made = Grouped(command.name, params=params, callback=callback, help=command.help, context_settings=context)
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
        shell_complete=OF_OPTIONS.get(row.name),
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
    if COMPLETING in os.environ:
        understand_attached_values()
    elif not argv:
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


COMPLETING = "_RALPH_COMPLETE"  # set by the shell that asks
BREAKS = ("=", ":")  # where bash, and bash alone, takes a word apart


def agent_names(ctx: click.Context, param: click.Parameter, begun: str) -> list[str]:
    from ralph.agents import known

    return [name for name in known() if name.startswith(begun)]


def claim_kinds(ctx: click.Context, param: click.Parameter, begun: str) -> list[str]:
    kinds = ("checks", "word:STOP", "response:DONE", "suffix:DONE", "promise:DONE", "tag:COMPLETE", "file:DONE")
    return [kind for kind in kinds if kind.startswith(begun)]


def run_names(ctx: click.Context, param: click.Parameter, begun: str) -> list[str]:
    """Newest first, by the short name and by the whole."""
    from ralph.core.text import nickname
    from ralph.records.register import runs

    names = [name for run in reversed(runs()) for name in (nickname(run.id), run.id)]
    return [name for name in names if name.startswith(begun)]


OF_OPTIONS = {"agent": agent_names, "fallback_agent": agent_names, "until": claim_kinds}


def understand_attached_values() -> None:
    """click offers the value alone for `--until=pr`, and a shell puts it where its word was: zsh and fish would lose
    the option, and bash, whose word is what follows the last break, what stands before that."""
    from click.shell_completion import (
        BashComplete,
        CompletionItem,
        FishComplete,
        ShellComplete,
        ZshComplete,
        add_completion_class,
    )

    class WholeWords(ShellComplete):
        def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
            option, attached, _ = incomplete.partition("=")
            found = super().get_completions(args, incomplete)
            for item in found if attached and option.startswith("--") else ():
                item.value = f"{option}={item.value}"
            return found

    class OfZsh(WholeWords, ZshComplete):
        pass

    class OfFish(WholeWords, FishComplete):
        pass

    class OfBash(BashComplete):
        def get_completion_args(self) -> tuple[list[str], str]:
            args, incomplete = super().get_completion_args()
            *whole, self.word = _mended([*args, incomplete])
            self.part = "" if incomplete in BREAKS else incomplete
            return whole, self.word

        def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
            value = incomplete.partition("=")[2] if incomplete.startswith("--") else incomplete
            found = super().get_completions(args, incomplete)
            for item in found if self.word != self.part else ():
                item.value = item.value[len(value) - len(self.part) :]
            return found

    for kind in (OfBash, OfZsh, OfFish):
        add_completion_class(kind)


def _mended(words: list[str]) -> list[str]:
    """The words as they were before bash took them apart."""
    whole: list[str] = []
    is_open = False
    for word in words:
        if whole and (is_open or word in BREAKS):
            whole[-1] += word
        else:
            whole.append(word)
        is_open = word in BREAKS
    return whole


@command(words="bash|zsh|fish")
def completion(values: Values, words: list[str]) -> int:
    """Print the completion script for your shell.

    eval "$(ralph completion bash)"   # in ~/.bashrc

    eval "$(ralph completion zsh)"    # in ~/.zshrc, behind compinit

    ralph completion fish > ~/.config/fish/completions/ralph.fish
    """
    if len(words) != 1 or words[0] not in ("bash", "zsh", "fish"):
        raise UserError("the completion script for which shell?", "say bash, zsh, fish")
    from click.shell_completion import get_completion_class

    kind = get_completion_class(words[0])
    assert kind is not None
    print(kind(click.Command("ralph"), {}, "ralph", COMPLETING).source())
    return 0
