"""`ralph accept`: how is the work of a run taken over? Checked once more as it would be merged, merged, tidied up."""

import sys

from ralph.cli.named_run import one_run
from ralph.cli.table import DIRECTORY, CliCommand, Values
from ralph.errors import complain

HELP = """Take over the work that a run did with --worktree.

Its checks run once more on exactly what the merge would bring; only if all pass, your branch gets it, and the worktree
and the run's branch go. Where it no longer merges, where a check is red or where your own changes are in the way, that
is said and nothing is changed. RUN is the last one here with a branch of its own unless it is named."""


def accept(values: Values, words: list[str]) -> int:
    from ralph.processes.keeper import Keeper

    with Keeper.start() as keeper:
        from ralph.processes.interrupt import Interrupt
        from ralph.run.afterwards import NotTaken, has_no_branch, take_over
        from ralph.show.screen import make_screen
        from ralph.show.words import plural

        run = one_run(values, words, has_no_branch)
        screen = make_screen(sys.stderr, live=False)
        try:
            with Interrupt(lambda: None) as interrupt:
                taken = take_over(run, keeper, interrupt, screen)
        except NotTaken as refused:
            complain(refused.message, refused.hint)
            return 1
    checked = f"{plural(taken.checks, 'check')} passed" if taken.checks else "no check was configured"
    print(f"{taken.branch} is merged: {plural(taken.files, 'file')} changed, {checked}; now at {taken.commit[:12]}.")
    print("Its worktree and its branch are gone; `git reset --keep ORIG_HEAD` would undo the merge.")
    return 0


COMMAND = CliCommand(
    "accept", HELP, accept, (DIRECTORY,), words="[RUN]", examples=("ralph accept", "ralph accept k3fa")
)
