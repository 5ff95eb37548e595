"""What did a run change, or one iteration of it?"""

import os
import sys
from collections.abc import Iterable

import click

from ralph.cli.commands import simple
from ralph.steering.which_run import repository_of, run_and_number

HELP = """Show what a run changed, or what iteration N of it changed; new files included.

RUN is the last one here unless it is named; any unambiguous part of its id will do. Into a file or a pipe goes a patch
that `git apply` takes."""

COLORS = {"+": "green", "-": "red", "@": "cyan"}


def command() -> click.Command:
    return simple(
        "diff",
        diff,
        click.Argument(["words"], nargs=-1, metavar="[RUN] [N]"),
        click.Option(["--stat"], is_flag=True, help="The files alone, with the lines added and deleted."),
        click.Option(["-C", "--directory"], default=".", metavar="DIR", help="The workspace."),
        help=HELP,
    )


def diff(words: tuple[str, ...], stat: bool, directory: str) -> int:
    from ralph.repository.changes import changed_files, patch
    from ralph.repository.checkpoints import Checkpoints

    run, number = run_and_number(directory, words)
    if run.facts.kind == "work":
        from ralph.cli.work import ends_of_work

        repository, before, after = ends_of_work(run)
    else:
        repository = repository_of(run)
        saved = Checkpoints(repository, run.id)
        before, after = saved.ends() if number is None else saved.around(number)
    if stat:
        for change in changed_files(repository, before, after):
            lines = "binary" if change.added is None else f"+{change.added} -{change.deleted}"
            click.echo(f"{change.status} {_plain(change.path)} ({lines})")
    else:
        _print(patch(repository, before, after))
    return 0


def _print(chunks: Iterable[bytes]) -> None:
    """To the letter, but a terminal is not let in for what a file may hold."""
    if not sys.stdout.isatty():
        for chunk in chunks:
            sys.stdout.buffer.write(chunk)
        sys.stdout.buffer.flush()
        return
    for line in _lines(chunks):
        color = None if os.environ.get("NO_COLOR") else COLORS.get(line[:1])
        click.secho(_plain(line), fg=color, reset=color is not None)


def _lines(chunks: Iterable[bytes]) -> Iterable[str]:
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (line.decode("utf-8", "replace") for line in lines)
    if rest:
        yield rest.decode("utf-8", "replace")


def _plain(line: str) -> str:
    from ralph.core.secrets import redact_text
    from ralph.core.text import clean

    return redact_text(clean(line))
