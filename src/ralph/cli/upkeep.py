"""`ralph clean`, `learn`, `trust`: what is left of earlier runs, and what may later ones make of it?"""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ralph.cli.table import DIRECTORY, CliCommand, Values, no_words
from ralph.core.secrets import redact_text
from ralph.core.text import clean as cleaned
from ralph.errors import UserError
from ralph.run.options import Option
from ralph.settings.layers import Untrusted, difference_in
from ralph.settings.layers import trust as accept

if TYPE_CHECKING:
    from ralph.run.afterwards import Remains


OLDER = "14d"
CLEAN_HELP = """Take away what is left of runs that ended long ago: their records, checkpoints, merged worktrees and
branches, and the folders of demonstrations. Processes of runs that were killed together with their keeper are ended at
once; every start of a run does so, too.

What would go is said first: on a terminal you are asked, elsewhere nothing is done without --yes. Work that is merged
nowhere stays, and so does all of a run that is at work."""


def clean(values: Values, words: list[str]) -> int:
    from ralph.records.register import end_left_behind, remark
    from ralph.run.afterwards import remains, take_away
    from ralph.settings.shape import parse_duration

    no_words(words, "`ralph clean` looks after all runs of this user; -C DIR: those of one folder")
    for left in end_left_behind():
        print(cleaned(remark(left, "was ended")))
    below = os.path.abspath(values["directory"]) if "directory" in values else ""
    found = remains(parse_duration(values.get("older_than", OLDER)), below=below)
    going = [one for one in found if not one.kept]
    for one in found:
        if one.kept:
            _say("stays", one, one.kept)
    for one in going:
        _say("goes", one)
    if not going:
        print(f"nothing to take away that is older than {values.get('older_than', OLDER)}")
        return 0
    print(f"in all {_size(sum(one.size for one in going))}")
    if not values.get("yes") and not _agreed():
        return 0
    stayed = take_away(going)
    for one in stayed:
        _say("stays", one, one.kept)
    print(f"{len(going) - len(stayed)} taken away")
    return 1 if stayed else 0


def _say(verb: str, one: "Remains", why: str = "") -> None:
    run = one.run
    what = f"{run.id}  {run.state}  {cleaned(run.facts.workspace)}" if run else cleaned(one.place)
    print(f"{verb:<5}  {what}  {_size(one.size)}" + (f"\n       {cleaned(why)}" if why else ""))


def _size(number: int) -> str:
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("kB", 1000)):
        if number >= scale:
            return f"{number / scale:.1f} {unit}"
    return f"{number} B"


def _agreed() -> bool:
    if not sys.stdin.isatty() or not sys.stdout.isatty():
        print("nothing was done: `ralph clean --yes` does it")
        return False
    return input("Take it away? [y/N] ").strip().lower() in ("y", "yes")


CLEAN = CliCommand(
    "clean",
    CLEAN_HELP,
    clean,
    (
        Option("--older-than TIME", f"How long ago they ended (default: {OLDER})."),
        Option("-y --yes", "Do it without asking."),
        DIRECTORY,
    ),
    examples=("ralph clean", "ralph clean --older-than 2d --yes"),
)


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
        print(f"- {cleaned(note)}")
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


LEARN = CliCommand(
    "learn",
    "Show what earlier runs learned in this repository, one note a line; with words, add a note of your own.\n\n"
    "A run with --learn carries the notes in its prompts, and leaves one more when it ends done.",
    learn,
    (Option("--edit", "Open the notes in $EDITOR."), DIRECTORY),
    words="[NOTE]",
    examples=("ralph learn", 'ralph learn "The tests need a database: make db"', "ralph learn --edit"),
)


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
    _refuse_while_at_work(workspace)
    accept(workspace, os.environ)
    print("accepted: the next run obeys these settings")
    return 0


def _refuse_while_at_work(workspace: Path) -> None:
    """Who accepts settings in the middle of a run may be its agent, which wrote them."""
    from ralph.records.folder import is_occupied
    from ralph.records.register import recorded_in

    if is_occupied(workspace) or any(run.is_alive for run in recorded_in(workspace / ".ralph")):
        raise UserError("a run is at work here, and may have written these settings", "accept them when it has ended")


def accept_run(values: Values, words: list[str]) -> int:
    """Takes a run as it is: its journal, its order and its protected files are no longer compared."""
    from ralph.cli.request import one_run
    from ralph.records.seal import break_seal

    run = one_run(values, words)
    if run.is_alive:
        raise UserError(f"run {run.id} is at work", "accept it when it has ended")
    known = break_seal(run.id, os.environ)
    print(f"run {run.id} is accepted as it is" if known else f"nothing is known of run {run.id} to compare it with")
    return 0


def ask_for_trust(workspace: str, difference: str) -> None:
    """Shows what has changed and asks, where there is somebody to ask; else refuses."""
    if not all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr)):
        raise Untrusted(difference)
    print(f"ralph: {Untrusted(difference).message}:\n{_shown(difference)}", file=sys.stderr)
    print("Go on with them? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Untrusted(difference)
    accept(Path(workspace), os.environ)


def _shown(difference: str) -> str:
    return "\n".join(cleaned(redact_text(line)) for line in difference.split("\n"))


TRUST = CliCommand(
    "trust",
    "Show which settings were changed while a run was at work here, and accept them. Until then no run obeys them.\n\n"
    "With RUN: accept a run whose files are not as ralph left them, so that it can be resumed.",
    trust,
    (DIRECTORY,),
    words="[RUN]",
    examples=("ralph trust", "ralph trust 20260101-120000-k3fa"),
)
