"""The root command: it loads a command when that is used, lists the commands, and suggests one for a wrong name."""

import difflib
import os
from shlex import quote

import click
from click.shell_completion import get_completion_class

from ralph import __version__
from ralph.cli import table
from ralph.cli.table import CONTEXT, CommandGroup, Values, command
from ralph.errors import UserError
from ralph.run.options import Option

# Names that people may try, and the command that does what they mean.
SYNONYMS = {
    **dict.fromkeys(("status", "stats", "list", "ls", "jobs", "tasks", "top"), "ps"),
    **dict.fromkeys(("cancel", "kill", "abort", "end", "quit"), "stop"),
    **dict.fromkeys(("merge", "apply", "land"), "accept"),
    **dict.fromkeys(("undo", "restore", "rollback", "reset"), "rewind"),
    **dict.fromkeys(("continue", "restart", "retry"), "resume"),
    **dict.fromkeys(("config", "setup", "settings"), "init"),
    **dict.fromkeys(("check", "diagnose"), "doctor"),
    **dict.fromkeys(("log", "tail", "follow"), "logs"),
    **dict.fromkeys(("web", "server", "dashboard"), "serve"),
    **dict.fromkeys(("start", "exec"), "run"),
    **dict.fromkeys(("rm", "remove", "reject", "drop"), "discard"),
    **dict.fromkeys(("gc", "prune"), "clean"),
    **dict.fromkeys(("tui", "screen"), "ui"),
    **dict.fromkeys(("answer", "say", "note"), "tell"),
    "supervise": "task",
    "supervisor": "task",
    "example": "demo",
}
COMPLETE_VARIABLE = "_RALPH_COMPLETE"  # set by the shell that asks for completions


class Root(CommandGroup):
    """The command `ralph`. Without arguments it lists the everyday commands, with `--help` all of them."""

    shows_all = True

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(table.SUMMARIES)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        return table.find(name) if name in table.SUMMARIES else None

    def unknown_command(self, ctx: click.Context, name: str) -> UserError:
        if found := difflib.get_close_matches(name, [*SYNONYMS, *table.SUMMARIES], 1):
            near = SYNONYMS.get(found[0], found[0])
            hint = f"did you mean `ralph {near}` ({table.SUMMARIES[near]})?"
        else:
            start = f"ralph run -f {quote(name)}" if os.path.isfile(name) else f'ralph run "{name} …"'
            hint = f"`ralph help --all` lists the commands; to start an agent: {start}"
        return UserError(f"no such command: {name}", hint)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        wide = max(map(len, table.SUMMARIES))
        sections = table.SECTIONS
        if not self.shows_all:
            sections = {"Everyday commands": {name: table.SUMMARIES[name] for name in table.EVERYDAY}}
        for title, section in sections.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(wide), summary) for name, summary in section.items()])

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self.format_commands(ctx, formatter)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_paragraph()
        more = "ralph help COMMAND explains one" + ("" if self.shows_all else ", ralph help --all lists the rest")
        formatter.write_text(f"{more}.")


@click.group(cls=Root, context_settings=CONTEXT)
@click.version_option(__version__, "-v", "-V", "--version", message="ralph %(version)s")
def root() -> None:
    """Run a coding agent in a loop until the work is verifiably done.

    Try `ralph demo`. Then, in your repository: ralph loop "Make the tests pass" --check "pytest -q"
    """


@command(Option("--all", "List every command."), words="[COMMAND]")
def help(values: Values, words: list[str]) -> int:  # noqa: A001 (the command's name)
    """Show the help of a command, or list the commands."""
    root.shows_all = bool(values.get("all"))
    root.main([*words, "--help"], prog_name="ralph", standalone_mode=False)
    return 0


@command(words="bash|zsh|fish")
def completion(values: Values, words: list[str]) -> int:
    """Print the completion script for your shell.

    eval "$(ralph completion bash)"   # in ~/.bashrc

    eval "$(ralph completion zsh)"    # in ~/.zshrc, after compinit

    ralph completion fish > ~/.config/fish/completions/ralph.fish
    """
    if len(words) != 1 or words[0] not in ("bash", "zsh", "fish"):
        raise UserError("no shell named", "ralph completion bash, zsh or fish")
    shell = get_completion_class(words[0])
    assert shell is not None
    print(shell(click.Command("ralph"), {}, "ralph", COMPLETE_VARIABLE).source())
    return 0
