"""`ralph clean`: what is left of runs that are over, and who takes it away?"""

import os
import sys
from typing import TYPE_CHECKING

from ralph.cli.table import DIRECTORY, CliCommand, Values, no_words
from ralph.core.text import clean as cleaned
from ralph.run.options import Option

if TYPE_CHECKING:
    from ralph.run.remains import Remains

OLDER = "14d"
HELP = """Take away what is left of runs that ended long ago: their records, checkpoints, merged worktrees and branches,
and the folders of demonstrations. Processes of runs that were killed together with their keeper are ended at once;
every start of a run does so, too.

What would go is said first: on a terminal you are asked, elsewhere nothing is done without --yes. Work that is merged
nowhere stays, and so does all of a run that is at work."""


def clean(values: Values, words: list[str]) -> int:
    from ralph.records.leftovers import end_left_behind, remark
    from ralph.run.remains import remains, take_away
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


COMMAND = CliCommand(
    "clean",
    HELP,
    clean,
    (
        Option(("--older-than",), f"How long ago they ended (default: {OLDER}).", "Options", metavar="TIME"),
        Option(("-y", "--yes"), "Do it without asking.", "Options", kind="flag"),
        DIRECTORY,
    ),
    examples=("ralph clean", "ralph clean --older-than 2d --yes"),
)
