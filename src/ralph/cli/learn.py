"""`ralph learn`: what have earlier runs learned here, and what should later ones know?"""

import os
import sys
from pathlib import Path
from typing import Any

from ralph.cli.table import DIRECTORY, CliCommand
from ralph.core.text import clean
from ralph.errors import UserError
from ralph.run.options import Option


def learn(values: dict[str, Any], words: list[str]) -> int:
    from ralph.run.learning import FILE, LARGEST, added, read, write
    from ralph.settings import load

    workspace = Path(values.get("directory", ".")).absolute()
    if not workspace.is_dir():
        raise UserError(f"no such folder: {workspace}", "name a workspace with -C DIR")
    path = workspace / (load(workspace, {}, env=os.environ).settings.learn or FILE)
    if values.get("edit"):
        _edit(path)
    elif words:
        write(path, added(read(path), " ".join(words)))
    notes = read(path)
    for note in notes:
        print(f"- {clean(note)}")
    if not notes:
        print("ralph: nothing is learned here yet; --learn has a run leave a note", file=sys.stderr)
    if path.exists() and path.stat().st_size > LARGEST:
        print(f"ralph: {path.name} is longer than {LARGEST} bytes: the oldest notes go next time", file=sys.stderr)
    return 0


def _edit(path: Path) -> None:
    import subprocess

    if sys.stdin is None or not sys.stdin.isatty():
        raise UserError("--edit needs a terminal", f"edit {path} as you like")
    path.parent.mkdir(parents=True, exist_ok=True)
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    if code := subprocess.run(["sh", "-c", f'{editor} "$@"', editor, str(path)], check=False).returncode:
        raise UserError(f"{editor} ended with exit code {code}", "EDITOR says which one is used")


COMMAND = CliCommand(
    "learn",
    "Show what earlier runs learned in this repository, one note a line; with words, add a note of your own.\n\n"
    "A run with --learn carries the notes in its prompts, and leaves one more when it ends done.",
    learn,
    (Option(("--edit",), "Open the notes in $EDITOR.", "Options", kind="flag"), DIRECTORY),
    words="[NOTE]",
    examples=("ralph learn", 'ralph learn "The tests need a database: make db"', "ralph learn --edit"),
)
