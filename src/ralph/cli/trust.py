"""`ralph trust`: which settings were changed while a run was at work, and may the next run obey them?"""

import os
import sys
from pathlib import Path

from ralph.cli.table import DIRECTORY, CliCommand, Values
from ralph.core.secrets import redact_text
from ralph.core.text import clean
from ralph.errors import UserError
from ralph.settings.trust import Untrusted, difference_in
from ralph.settings.trust import trust as accept


def trust(values: Values, words: list[str]) -> int:
    if words:
        return accept_run(values, words)
    workspace = Path(values.get("directory", ".")).absolute()
    if not workspace.is_dir():
        raise UserError(f"no such folder: {workspace}", "name a workspace with -C DIR")
    difference = difference_in(workspace, os.environ)
    if not difference:
        print("no settings have changed while a run was at work here")
        return 0
    print(_shown(difference))
    accept(workspace, os.environ)
    print("accepted: the next run obeys these settings")
    return 0


def accept_run(values: Values, words: list[str]) -> int:
    """Takes a run as it is: its journal, its order and its protected files are no longer compared."""
    from ralph.cli.named_run import one_run
    from ralph.records.seal import break_seal

    run = one_run(values, words)
    known = break_seal(run.id, os.environ)
    print(f"run {run.id} is accepted as it is" if known else f"nothing is known of run {run.id} to compare it with")
    return 0


def ask_for_trust(workspace: str) -> None:
    """Shows what has changed and asks, where there is somebody to ask; else refuses."""
    difference = difference_in(Path(workspace), os.environ)
    if not difference:
        return
    if not all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr)):
        raise Untrusted(difference)
    print(f"ralph: {Untrusted(difference).message}:\n{_shown(difference)}", file=sys.stderr)
    print("Go on with them? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Untrusted(difference)
    accept(Path(workspace), os.environ)


def _shown(difference: str) -> str:
    return "\n".join(clean(redact_text(line)) for line in difference.split("\n"))


COMMAND = CliCommand(
    "trust",
    "Show which settings were changed while a run was at work here, and accept them. Until then no run obeys them.\n\n"
    "With RUN: accept a run whose files are not as ralph left them, so that it can be resumed.",
    trust,
    (DIRECTORY,),
    words="[RUN]",
    examples=("ralph trust", "ralph trust 20260101-120000-k3fa"),
)
