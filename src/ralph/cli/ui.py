"""`ralph ui`: how is the full screen opened, and what is said where it cannot be?"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ralph.cli.table import DB, CliCommand, Values, no_words
from ralph.errors import UserError, to_install

OLDEST = 8  # the first textual that leaves the colours to the terminal
HELP = """Watch and steer runs in a full screen, and start new ones in PATH.

Type a goal, or a command such as /ralph 5, /check CMD, /help. A run that was started here ends with the screen, unless
you say on leaving that it shall go on.

With --db the works of a fleet are there too: what you ask of one is asked of all its machines.

`ralph run PATH` opens it too, and takes options (--agent, --max-cost, ...) that hold for every run started there."""


def ui(values: Values, words: list[str]) -> int:
    no_words(words[1:], "name one folder")
    path = words[0] if words else "."
    place = Path(path)
    if not place.is_dir():
        raise UserError(f"no such folder: {path}", "name a folder")
    if not is_possible():
        raise UserError("the full screen needs a terminal", "`ralph ps` and `ralph logs -f` work anywhere")
    if "db" not in values:
        return open_screen(place)
    from ralph.cli.worker import mirrored

    with mirrored(values["db"], follows=True):
        return open_screen(place)


def instead_of_a_goal(values: Mapping[str, Any], path: str) -> int:
    """`ralph run PATH`: what else was said holds for every run that is started in there."""
    from ralph.cli.request import no_goal

    if any(name in values for name in ("json", "quiet", "dry_run", "print")) or not is_possible():
        raise no_goal()
    return open_screen(Path(path), {name: value for name, value in values.items() if name != "verbose"})


def is_possible() -> bool:
    """Whether a person sits at a terminal that can draw: keys come from stdin, and textual draws on stderr."""
    is_terminal = all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))
    return is_terminal and os.environ.get("TERM", "") not in ("", "dumb")


def _refuse_without_textual() -> None:
    try:
        from textual import __version__ as version
    except ModuleNotFoundError:
        raise UserError("the full screen needs textual", to_install("tui")) from None
    if int(version.partition(".")[0]) < OLDEST:
        raise UserError(f"the full screen needs textual {OLDEST}, not {version}", "pip install --upgrade textual")


def open_screen(place: Path, given: Mapping[str, Any] | None = None) -> int:
    """Returns when the person has left. `given` are options that hold for every run started there."""
    _refuse_without_textual()
    from ralph.show.words import nickname
    from ralph.ui.app import FullScreen
    from ralph.ui.draw import look_for
    from ralph.ui.screen_state import ScreenState

    state = ScreenState(place.resolve(), given)
    app = FullScreen(state, look_for(sys.stdout))
    try:
        kept = app.run() or []
    finally:
        state.close()
    for name in map(nickname, kept):
        how = f"run {name} goes on: `ralph logs -f {name}` shows it, `ralph stop {name}` ends it"
        print(how if name else "a run goes on: `ralph ps` shows it", file=sys.stderr)
    return 3 if app.return_code else 0


UI = CliCommand("ui", HELP, ui, (DB,), words="[PATH]")
