"""`ralph clean`: remove what is left of old runs."""

import os
import sys

from ralph.actions.clean import Leftover, find_leftovers, remove_leftovers
from ralph.cli.table import DIRECTORY, Values, command, confirm, is_terminal
from ralph.core.text import clean as cleaned
from ralph.options.option import Option
from ralph.settings import parse_duration
from ralph.store.register import kill_orphans
from ralph.verdict.copies import remove_abandoned

OLDER = "14d"


@command(
    Option("--older-than TIME", f"How long ago they ended (default: {OLDER})."),
    Option("-y --yes", "Don't ask."),
    DIRECTORY,
    examples=("ralph clean", "ralph clean --older-than 2d --yes"),
)
def clean(values: Values, words: list[str]) -> int:
    """Delete what is left of runs that ended long ago: their records, checkpoints, merged worktrees and branches, the
    folders of demos, and temporary files of killed runs. Processes that killed runs left running are killed at once,
    and the copies in which their exams and checks ran are removed; every start of a run does the same.

    ralph lists what it would delete. On a terminal it then asks; elsewhere it deletes nothing without --yes. Unmerged
    work stays, and so does everything of a run that is running."""
    for orphan in kill_orphans():
        print(cleaned(orphan.killed_words))
    for path in remove_abandoned():
        print(f"removed what a killed run left: {cleaned(path)}")
    below = os.path.abspath(values["directory"]) if "directory" in values else ""
    leftovers = find_leftovers(parse_duration(values.get("older_than", OLDER)), below=below)
    going = [leftover for leftover in leftovers if not leftover.kept]
    for leftover in leftovers:
        _say(leftover)
    if not going:
        print(f"nothing to delete that is older than {values.get('older_than', OLDER)}")
        return 0
    print(f"total {_size(sum(leftover.size for leftover in going))}")
    if not values.get("yes"):
        if not is_terminal(sys.stdin, sys.stdout):
            print("nothing was deleted: `ralph clean --yes` deletes it")
            return 0
        if not confirm("Delete it?"):
            return 0
    stayed = remove_leftovers(going)
    for leftover in stayed:
        _say(leftover)
    print(f"{len(going) - len(stayed)} deleted")
    return 1 if stayed else 0


def _say(leftover: Leftover) -> None:
    """Print whether a leftover stays, and why, or goes."""
    run = leftover.run
    what = f"{run.id}  {run.state}  {cleaned(run.facts.workspace)}" if run else cleaned(leftover.place)
    print(f"{'stays' if leftover.kept else 'goes':<5}  {what}  {_size(leftover.size)}")
    if leftover.kept:
        print(f"       {cleaned(leftover.kept)}")


def _size(number: int) -> str:
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("kB", 1000)):
        if number >= scale:
            return f"{number / scale:.1f} {unit}"
    return f"{number} B"
