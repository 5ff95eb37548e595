"""How does a small command answer in a blink? Its options are rows of a table; click is asked to explain them only."""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ralph.errors import UserError
from ralph.run.options import Option

if TYPE_CHECKING:
    import click

    from ralph.records.register import Listed
    from ralph.steering.which_run import Objection

Values = dict[str, Any]


class Plain(Struct, frozen=True, kw_only=True):
    """A command: what it takes, and what answers it."""

    name: str
    help: str
    answer: Callable[[Values, list[str]], int]
    options: tuple[Option, ...] = ()
    metavar: str = "[RUN]"
    examples: tuple[str, ...] = ()


DIRECTORY = Option(("-C", "--directory"), "The workspace (default: the current folder).", "Options", metavar="DIR")
JSON = Option(("--json",), "For programs: an object a line.", "Options", kind="flag")


def one_run(values: Values, words: list[str], objection: "Objection | None" = None) -> "Listed":
    """The run that the words of a command mean."""
    from pathlib import Path

    from ralph.steering.which_run import which_run, workspace_around

    if len(words) > 1:
        raise UserError(f"too many words: {words[1]!r}", "name one run")
    folder = Path(values.get("directory", ".")).absolute()
    if not folder.is_dir():
        raise UserError(f"no such folder: {folder}", "name a workspace with -C DIR")
    here = folder if "directory" in values else workspace_around(folder)
    return which_run(words[0] if words else "", here, objection or (lambda run: ""))


def read_run(values: Values, words: list[str]) -> "Listed":
    """The run that is meant, for a command that reads its journal."""
    from ralph import __version__

    run = one_run(values, words)
    if _numbers(run.facts.version) > _numbers(__version__):
        said = f"run {run.id} was recorded by ralph {run.facts.version}, which is newer: some of it may be missing here"
        print(f"ralph: {said}", file=sys.stderr)
    return run


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".") if part.isdecimal()]


def click_command(plain: Plain) -> "click.Command":
    import click

    from ralph.cli.commands import CONTEXT, Grouped, click_option

    def callback(words: tuple[str, ...], **given: Any) -> int:
        values = {key: list(v) if isinstance(v, tuple) else v for key, v in given.items() if v not in (None, (), False)}
        return plain.answer(values, list(words))

    params: list[click.Parameter] = [click_option(row) for row in plain.options]
    params.append(click.Argument(["words"], nargs=-1, metavar=plain.metavar))
    command = Grouped(plain.name, params=params, callback=callback, help=plain.help, context_settings=CONTEXT)
    command.groups = {row.name: row.group for row in plain.options}
    command.examples = plain.examples
    return command
