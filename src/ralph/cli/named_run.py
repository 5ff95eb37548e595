"""Which run does a command mean? The one that is named, else the last one here."""

import sys
from typing import TYPE_CHECKING

from ralph.cli.table import Values
from ralph.errors import UserError

if TYPE_CHECKING:
    from ralph.records.register import Listed
    from ralph.steering.which_run import Objection


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
