"""What did a run change, or one iteration of it?"""

import os
import sys
from collections.abc import Iterable

from ralph.cli.table import DIRECTORY, CliCommand, Values
from ralph.core.text import one_line
from ralph.run.options import Option
from ralph.steering.which_run import repository_of, run_and_number

HELP = """Show what a run changed, or what iteration N of it changed; new files included.

RUN is the last one here unless it is named; any unambiguous part of its id will do. Into a file or a pipe goes a patch
that `git apply` takes."""

COLORS = {"+": "32", "-": "31", "@": "36"}  # green, red, cyan


def diff(values: Values, words: list[str]) -> int:
    from ralph.repository.changes import changed_files, patch
    from ralph.repository.checkpoints import Checkpoints

    run, number = run_and_number(values.get("directory", "."), words)
    if run.facts.kind == "work":
        from ralph.cli.work import ends_of_work

        repository, before, after = ends_of_work(run)
    else:
        repository = repository_of(run)
        saved = Checkpoints(repository, run.id)
        before, after = saved.ends() if number is None else saved.around(number)
    if values.get("stat"):
        for change in changed_files(repository, before, after):
            lines = "binary" if change.added is None else f"+{change.added} -{change.deleted}"
            print(f"{change.status} {one_line(_plain(change.path), 4096)} ({lines})")
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
    from ralph.cli.pager import paged

    with paged() as out:
        for line in _lines(chunks):
            color = "" if os.environ.get("NO_COLOR") else COLORS.get(line[:1], "")
            print(f"\x1b[{color}m{_plain(line)}\x1b[0m" if color else _plain(line), file=out)


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


COMMAND = CliCommand(
    "diff",
    HELP,
    diff,
    (Option(("--stat",), "The files alone, with the lines added and deleted.", "Options", kind="flag"), DIRECTORY),
    words="[RUN] [N]",
)
