"""`ralph logs`: what has a run said and done so far? The lines that were on the screen, or those that `--json` gave."""

import os
import sys
import time
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING

from ralph.cli.named_run import read_run
from ralph.cli.table import DIRECTORY, CliCommand, Values
from ralph.run.options import Option

if TYPE_CHECKING:
    from ralph.records.register import Listed

_GLANCE = 0.1


def logs(values: Values, words: list[str]) -> int:
    run = read_run(values, words)
    lines = _lines(run, bool(values.get("follow")))
    if values.get("json"):
        return _copy(lines, at_once=bool(values.get("follow")))
    if run.facts.kind == "work":
        from ralph.cli.work import log_of_work

        return log_of_work(lines, bool(values.get("timestamps")))
    return _render(run, lines, values)


def _lines(run: "Listed", follows: bool) -> Iterator[bytes]:
    """The journal, line by line; where it is followed, until the run is over."""
    from ralph.records.journal import Following
    from ralph.records.register import listed

    following = Following(run.folder.journal)
    yield from following.lines()
    while follows:
        now = listed(run.place)
        follows = now is not None and now.is_alive
        yield from following.lines()
        time.sleep(_GLANCE if follows else 0)


def _copy(lines: Iterator[bytes], at_once: bool) -> int:
    from ralph.records.journal import decoded

    out = sys.stdout.buffer
    for line in lines:
        if decoded(line) is not None:  # one that was cut off is none
            out.write(line)
            if at_once:
                out.flush()
    out.flush()
    return 0


def _render(run: "Listed", lines: Iterator[bytes], values: Values) -> int:
    from contextlib import nullcontext

    from ralph.cli.pager import paged

    with nullcontext(sys.stdout) if values.get("follow") else paged() as out:
        read = _written(run, lines, values, out)
    return _last_word(run, read, values)


def _written(run: "Listed", lines: Iterator[bytes], values: Values, out: IO[str]) -> int:
    """Writes the lines of a run; how many of its journal could be read."""
    from ralph.cli.pager import columns
    from ralph.records.journal import decoded
    from ralph.show.outlet import GLYPHS, choose
    from ralph.show.screen import make_screen

    now = 0.0
    is_terminal = sys.stdout.isatty()
    color = False if values.get("no_color") else None
    style = choose(sys.stdout, os.environ, is_terminal, color, None)
    screen = make_screen(
        out,
        verbose=bool(values.get("verbose")),
        color=style.color,
        emoji=style.marks is GLYPHS if is_terminal else None,
        live=False,
        waits=True,
        timestamps=bool(values.get("timestamps")),
        width=columns() if is_terminal and out is not sys.stdout else None,
        clock=lambda: now,
    )
    screen.belongs_to(run.id)
    read = 0
    for line in lines:
        entry = decoded(line)
        event = entry.event() if entry else None
        if entry and event is not None:
            now = entry.at if values.get("timestamps") else now
            screen(event)
        read += event is not None
        if screen.is_gone:
            break
    screen.close()
    return read


def _last_word(run: "Listed", read: int, values: Values) -> int:
    """What the lines themselves do not say."""
    from ralph.errors import UserError
    from ralph.records.register import listed

    now, journal = listed(run.place), run.folder.journal
    if not read and journal.stat().st_size:
        raise UserError(f"cannot understand {journal}", "was it written by another version of ralph?")
    if not read:
        print(f"ralph: there is nothing yet in {journal}", file=sys.stderr)
    if now and now.state == "killed":
        print(f"ralph: run {run.id} was killed; go on with `ralph resume {run.id}`", file=sys.stderr)
    return 0


COMMAND = CliCommand(
    "logs",
    "Print what a run said and did, as it was on the screen; with -f also what is still to come.",
    logs,
    (
        Option(("-f", "--follow"), "Go on until the run ends.", "Options", kind="flag"),
        Option(("-t", "--timestamps"), "The time of day in front of every line.", "Options", kind="flag"),
        Option(("-V", "--verbose"), "Say more.", "Options", kind="flag"),
        Option(("--json",), "The lines that `ralph run --json` gave.", "Options", kind="flag"),
        Option(("--no-color",), "No colours.", "Options", kind="flag"),
        DIRECTORY,
    ),
    examples=("ralph logs -f", "ralph logs k3fa --json | jq .type"),
    words="[RUN]",
)
