"""Start a run in the background."""

from __future__ import annotations

import os
import time
from typing import Any

from ralph.actions.launch import Launched
from ralph.core.text import nickname
from ralph.errors import UserError, complain
from ralph.options import command_options
from ralph.store.register import runs, runs_in


def detach(command: str, values: dict[str, Any], words: list[str]) -> int:
    """Start the run as another process; return once it is on record, or report why it can't start."""
    if values.get("json") or values.get("dry_run"):
        other = "--json" if values.get("json") else "--dry-run"
        raise UserError(f"--detach can't be combined with {other}", "follow the run with `ralph logs -f --json`")
    if "-" in words or values.get("prompt_file") == "-":
        raise UserError("--detach can't read the goal from standard input", "put it into a file: -f FILE")
    options = {name: value for name, value in values.items() if name not in ("detach", "verbose", "quiet")}
    launched = Launched()
    launched.start(
        [command, "--quiet", *command_options.words_of(options, command_options.COMMANDS[command]), "--", *words],
        os.environ,
    )
    here = os.path.join(values.get("directory", "."), ".ralph")
    while not (resumed := next((run for run in (*runs(), *runs_in(here)) if launched.plays(run)), None)):
        if launched.exit_code is not None:
            complain(*launched.complaint())
            return launched.exit_code
        time.sleep(0.02)
    launched.let_go()
    name = nickname(resumed.id)
    print(f"run {resumed.id} continues in the background")
    print(f"  ralph logs -f {name}   follow it\n  ralph ui             watch and steer all runs")
    print(f"  ralph stop {name}      stop it")
    return 0
