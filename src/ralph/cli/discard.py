"""`ralph discard`: how is the work of a run thrown away? Its worktree and its branch go; a name keeps it a while."""

from ralph.cli.named_run import one_run
from ralph.cli.table import DIRECTORY, CliCommand, Values

HELP = """Throw away the work that a run did with --worktree: the worktree and the branch are removed.

What was there is kept under a name of its own, which is said, until `ralph clean` takes the run away. RUN is the last
one here with a branch of its own unless it is named."""


def discard(values: Values, words: list[str]) -> int:
    from ralph.run.afterwards import has_no_branch, throw_away

    run = one_run(values, words, has_no_branch)
    kept_as = throw_away(run)
    print(f"{run.facts.branch} and its worktree are gone.")
    print(f"To have it back: git branch {run.facts.branch} {kept_as}")
    return 0


COMMAND = CliCommand("discard", HELP, discard, (DIRECTORY,), words="[RUN]", examples=("ralph discard k3fa",))
