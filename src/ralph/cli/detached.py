"""How does a run go on without the terminal? As a process of its own, which is let go once it is found on record."""

import os
import time
from typing import Any

from ralph.errors import UserError, complain
from ralph.records.register import Listed, recorded_in, registry, runs
from ralph.run.launch import Launched, words_of
from ralph.run.options import COMMANDS

_GLANCE = 0.02


def start(command: str, values: dict[str, Any], words: list[str]) -> int:
    """Starts the run, and says how to find it; where it cannot begin, why."""
    _refuse_what_needs_a_terminal(values, words)
    given = {name: value for name, value in values.items() if name not in ("detach", "verbose", "quiet")}
    launched = Launched([command, "--quiet", *words_of(given, COMMANDS[command]), "--", *words], os.environ)
    while not (found := _found(launched, values)):
        if launched.exit_code is not None:
            code = launched.exit_code
            message, _, hint = launched.last_words().partition(" · ")
            complain(message, hint)
            return code
        time.sleep(_GLANCE)
    launched.let_go()
    name = found.id.rpartition("-")[2]
    print(f"run {found.id} goes on without this terminal")
    print(f"  ralph logs -f {name}   follow it\n  ralph ui             watch and steer all runs")
    print(f"  ralph stop {name}      end it")
    return 0


def _refuse_what_needs_a_terminal(values: dict[str, Any], words: list[str]) -> None:
    if values.get("json") or values.get("dry_run"):
        other = "--json" if values.get("json") else "--dry-run"
        raise UserError(f"--detach and {other} at once", "follow it with `ralph logs -f --json`")
    if "-" in words or values.get("prompt_file") == "-":
        raise UserError("--detach cannot read the goal from standard input", "put it into a file: -f FILE")
    place = registry(os.environ)
    try:
        os.makedirs(place, mode=0o700, exist_ok=True)
        if not os.access(place, os.W_OK):
            raise PermissionError(0, "Permission denied")
    except OSError as error:
        hint = "nobody would find a run that is not listed: name another folder with XDG_STATE_HOME"
        raise UserError(f"cannot write to {place}: {error.strerror}", hint) from None


def _found(launched: Launched, values: dict[str, Any]) -> Listed | None:
    here = os.path.join(values.get("directory", "."), ".ralph")
    return next((run for run in (*runs(), *recorded_in(here)) if launched.plays(run)), None)
