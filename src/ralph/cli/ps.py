"""`ralph ps`: which runs are at work on this machine, and what does each of them do?"""

import os
import sys
import time
from typing import TYPE_CHECKING

from ralph.cli.table import JSON, CliCommand, Values
from ralph.core.text import clean, escaped
from ralph.errors import UserError
from ralph.run.options import Option

if TYPE_CHECKING:
    from ralph.history.overview import RunNow


def ps(values: Values, words: list[str]) -> int:
    from ralph.history.overview import runs_now

    if words:
        raise UserError(f"too many words: {words[0]!r}", "`ralph ps` lists all runs; `ralph show RUN` is about one")
    seen = runs_now(bool(values.get("all")))
    if values.get("json"):
        from msgspec.json import encode

        sys.stdout.buffer.write(escaped(b"".join(encode(run) + b"\n" for run in seen)))
        return 0
    if not seen:
        nothing = (
            "nothing has been run on this machine" if values.get("all") else "no run is at work; see `ralph ps -a`"
        )
        print(nothing, file=sys.stderr)
    else:
        _show(seen)
    _show_loops()
    _show_leftovers()
    return 0


def _show(seen: "list[RunNow]") -> None:
    from ralph.show.outlet import choose
    from ralph.show.summary import run_list

    is_terminal = sys.stdout.isatty()
    columns = _columns() if is_terminal else 0
    style = choose(sys.stdout, os.environ, is_terminal, None, None)
    print("\n".join(run_list(seen, style, columns, time.time(), os.path.expanduser("~"))))


def _show_loops() -> None:
    """Loops inside sessions are no runs of ralph's: only where they are is said."""
    from ralph.history.overview import loops_at_work

    for workspace, number in loops_at_work().items():
        loops = "a loop inside a session goes" if number == 1 else f"{number} loops inside sessions go"
        print(f"{loops} on in {clean(workspace)}: see `ralph hook status` there")


def _show_leftovers() -> None:
    from ralph.records.leftovers import left_behind, remark

    for left in left_behind():
        print(f"{clean(remark(left, 'lives on'))}; `ralph clean` ends it")


def _columns() -> int:
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns
    except OSError:
        return 0


COMMAND = CliCommand(
    "ps",
    "List the runs of this user on this machine, in any workspace: what they do, and what they want of you.",
    ps,
    (Option(("-a", "--all"), "Finished and killed ones too.", "Options", kind="flag"), JSON),
    words="",
    examples=("ralph ps", "ralph ps -a --json"),
)
