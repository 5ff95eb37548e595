"""Open the TUI."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ralph.cli.table import is_terminal, needs_extra
from ralph.core.text import nickname


def is_folder_alone(values: dict[str, Any], words: list[str]) -> bool:
    """Whether the command names a folder and no goal: the goal is then typed in the TUI, or piped in."""
    other_goals = ("prompt", "prompt_file", "spec", "directory", "issue")
    if len(words) != 1 or any(name in values for name in other_goals) or not os.path.isdir(words[0]):
        return False
    # After --print a plain word is the goal, even if there is a folder of that name.
    return "print" not in values or os.sep in words[0] or words[0] in (os.curdir, os.pardir)


def has_usable_terminal() -> bool:
    """Whether this is a terminal that the TUI can use: textual reads stdin and draws on stderr."""
    return is_terminal(sys.stdin, sys.stdout, sys.stderr) and os.environ.get("TERM", "") not in ("", "dumb")


def open_screen(place: Path, options: Mapping[str, Any] | None = None) -> int:
    """Open the TUI and return when the user leaves. `given` are options for every run that is started there."""
    with needs_extra("the TUI", "tui"):
        from ralph.tui.app import RalphApp
        from ralph.tui.draw import tui_style
        from ralph.tui.tui_state import TuiState

    state = TuiState(place.resolve(), options)
    app = RalphApp(state, tui_style(sys.stdout))
    try:
        running = app.run() or []
    finally:
        state.close()
    for name in map(nickname, running):
        how = f"run {name} continues: `ralph logs -f {name}` follows it, `ralph stop {name}` stops it"
        print(how if name else "a run continues: `ralph ps` lists it", file=sys.stderr)
    return 3 if app.return_code else 0
