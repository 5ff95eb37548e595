"""`ralph accept`, `discard` and `rewind`: what becomes of the work of a run or a backlog."""

import sys
from functools import partial

from ralph.actions import control
from ralph.actions.accept import accept_run
from ralph.actions.candidate import NotAccepted
from ralph.actions.discard import discard_run
from ralph.actions.discard import rewind as rewind_run
from ralph.actions.run_worktree import why_no_branch
from ralph.backlog.accept_backlog import accept_backlog, discard_backlog, why_not_accept
from ralph.cli.request import one_run, run_and_number
from ralph.cli.table import DIRECTORY, Values, command
from ralph.core.text import clean as cleaned
from ralph.core.text import listed, nickname, plural
from ralph.errors import UserError, complain
from ralph.options.option import Option
from ralph.process.keeper import Keeper
from ralph.process.signals import Interrupt
from ralph.show.screen import make_screen
from ralph.store.register import Listed


@command(
    Option("-m --message TEXT", "The commit's message, instead of one made of goal, changed files and checks."),
    Option("--no-squash", "Keep the commits of the iterations."),
    DIRECTORY,
    words="[RUN]",
    examples=("ralph accept", 'ralph accept k3fa -m "Handle empty input"'),
)
def accept(values: Values, words: list[str]) -> int:
    """Merge the work that a run did with --worktree, or what a backlog run has merged on its own branch.

    ralph runs the checks once more in a clean copy of the merged commit, then your pre-commit hook. If all of them
    pass, the work becomes one commit on your branch, and its worktree and branch are removed. The worktree stays if it
    has the only copy of a file, which ralph names. If the work no longer merges, a check fails, the hook refuses, or
    your own changes are in the way, ralph says so and changes nothing. A backlog's merges stay as they are. RUN is the
    last run here with its own branch unless given."""
    squash, message = not values.get("no_squash"), values.get("message", "")
    if message and not squash:
        raise UserError("-m can't be combined with --no-squash", "leave one of them out")
    with Keeper.start() as keeper:
        run = one_run(values, words, _why_not_accept)
        try:
            with Interrupt(lambda: None) as interrupt:
                how = run, keeper, interrupt, message
                return run.by_kind(partial(_accept_run, *how, squash=squash), partial(_accept_backlog, *how))()
        except NotAccepted as refused:
            complain(refused.message, refused.hint)
            return 1
        except (UserError, KeyboardInterrupt):
            if interrupt.level:  # Ctrl-C caused the error
                complain("interrupted", f"to accept it after all: ralph accept {nickname(run.id)}")
                raise KeyboardInterrupt from None
            raise


def _accept_run(run: Listed, keeper: Keeper, interrupt: Interrupt, message: str, *, squash: bool) -> int:
    screen = make_screen(sys.stderr, live=False)
    accepted = accept_run(run, keeper, interrupt, screen, squash=squash, message=message)
    place = "Its worktree and its branch are gone"
    if accepted.left:
        control.dismiss(run)
        remove = f"`ralph discard {nickname(run.id)}` removes it"
        place = f"Its worktree stays, because only it has {listed(accepted.left, 5)}: {accepted.worktree}; {remove}"
    if not accepted.is_new:
        print(f"{accepted.branch} has nothing to merge: your branch has all of it. {place}.")
        return 0
    checked = f"{plural(accepted.checks, 'check')} passed" if accepted.checks else "no check was configured"
    changed = f"{plural(accepted.files, 'file')} changed"
    print(f"{accepted.branch} is merged: {changed}, {checked}; now at {accepted.commit[:12]}.")
    if accepted.compared and accepted.compared.finding.kind != "green":
        print(f"Changed tests: {accepted.compared.describe()}.")
    print(f"{place}. `git reset --keep ORIG_HEAD` would undo the merge.")
    return 0


def _why_not_accept(run: Listed) -> str:
    return run.by_kind(why_no_branch, why_not_accept)(run)


def _accept_backlog(run: Listed, keeper: Keeper, interrupt: Interrupt, message: str) -> int:
    if message:
        raise UserError(f"{run.id} is a backlog: its merges stay as they are", "leave out -m")
    work = accept_backlog(run, keeper, interrupt)
    if work.is_done:
        control.dismiss(run)
    what = f"{work.merged} of {plural(work.tasks, 'task')} merged"
    still_red = f", {work.red} no worse than before" if work.red else ""
    checked = f"{plural(work.checks, 'check')} passed{still_red}"
    print(f"{what}: {plural(work.files, 'file')} changed, {checked}; now at {work.commit[:12]}.")
    stays = f"{work.target} is gone" if work.is_done else f"{work.target} stays for the other tasks: ralph resume"
    print(f"{stays}; `git reset --keep ORIG_HEAD` would undo the merge.")
    return 0


@command(DIRECTORY, words="[RUN]", examples=("ralph discard k3fa",))
def discard(values: Values, words: list[str]) -> int:
    """Throw away the work that a run did with --worktree, or of a backlog run: remove its worktrees and branches.

    The last state is kept under a ref, which is printed, until `ralph clean` removes the run. RUN is the last run here
    with its own branch unless given."""
    run = one_run(values, words, _why_not_accept)
    for branch, kept_as in run.by_kind(_discard_run, _discard_backlog)(run):
        print(f"{branch} is gone. To restore it: git branch {branch} {kept_as}")
    return 0


def _discard_run(run: Listed) -> list[tuple[str, str]]:
    return [(run.facts.branch, discard_run(run))]


def _discard_backlog(run: Listed) -> list[tuple[str, str]]:
    with Interrupt(lambda: None) as interrupt:
        branches = discard_backlog(run, interrupt)
    control.dismiss(run)
    return branches


@command(DIRECTORY, words="[RUN] N")
def rewind(values: Values, words: list[str]) -> int:
    """Restore the files as they were after iteration N of a run (0: before the first).

    ralph saves the current state first and overwrites nothing that it can't save, so a rewind can be undone. Branches,
    commits and staged changes stay as they are, and so do files that git ignores. git
    converts line ends and, for files that a filter such as git-lfs wrote, runs that filter; ralph lists what the
    checkpoint does not contain. RUN is the last run here unless given."""
    run, number = run_and_number(values, words)
    if number is None:
        raise UserError("no iteration given", "ralph rewind N; 0 is the state before the first")
    result = rewind_run(run, number, lambda notice: print(cleaned(notice), file=sys.stderr))
    state = f"after iteration {number}" if number else "before the first iteration"
    print(f"{plural(result.files, 'file')} changed: this is the state {state} of run {run.id}.", file=sys.stderr)
    for missed in result.missed:
        print(f"Not restored: {missed}.", file=sys.stderr)
    print(f"The state before the rewind is saved as {result.kept_as}.", file=sys.stderr)
    return 0
