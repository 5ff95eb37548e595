"""The checks and exams of a run that is accepted, in a clean copy of the merged commit."""

import os

from msgspec import Struct
from msgspec.structs import replace

from ralph.actions.candidate import NotAccepted
from ralph.core import events
from ralph.core.findings import ComparedTests
from ralph.core.judgement import Cells
from ralph.core.model import Check
from ralph.core.text import listed, nickname, plural, tail
from ralph.git import worktree_setup
from ralph.git.client import Git
from ralph.git.index import display_path
from ralph.git.untracked import dependency_folders, untracked_files
from ralph.git.worktrees import Worktree
from ralph.run.request import RunRequest
from ralph.store.mailbox import Mailbox
from ralph.store.register import Listed
from ralph.verdict.checks import Checks
from ralph.verdict.context import Context
from ralph.verdict.copies import PreparedCopy
from ralph.verdict.exams import Exams
from ralph.verdict.old_tests import compare_in_copy, files_of_checks, find_changed_tests

OUTPUT_SHOWN = 1500  # characters of a check or a hook that are shown


class Verified(Struct, frozen=True):
    """A commit to merge, which passed everything."""

    commit: str
    checks: int
    """How many checks passed."""
    compared: ComparedTests | None
    """What the tests as they were say; None if no test file changed."""
    made_by_checks: frozenset[bytes]
    """The untracked files in the copy after setup, checks and hook."""


def without_logs(tell: events.TellAll) -> events.TellAll:
    """Return a `tell` that names no log of a check: it is in the copy, which is removed."""

    def tell_without_logs(*happened: events.Event) -> None:
        tell(*(replace(event, log="") if isinstance(event, events.CheckFinished) else event for event in happened))

    return tell_without_logs


def check_copy(run: Listed, tree: Worktree, copy: PreparedCopy) -> tuple[Check, ...]:
    """Run the checks of the run once more, in a copy. If one fails, raise NotAccepted with the files that only the
    run's worktree has, because they may be the reason."""
    checks = Checks(copy.context, copy.context.settings.checks).run(0)
    if checks is None or copy.context.interrupt.level:
        raise KeyboardInterrupt
    if red := [check for check in checks if not check.passed]:
        missing = missing_files(tree, copy.worktree.git)
        why = f"; only the run's worktree has {listed(missing, 5)}" if missing else ""
        more = f"\nThe worktree has files that are in no commit: {listed(missing, 20)}" if missing else ""
        printed = "".join(f"\n{tail(check.tail.strip(), OUTPUT_SHOWN, '…')}" for check in red[:1] if check.tail.strip())
        failed = f"{len(red)} of {plural(len(checks), 'check')} failed: {listed([check.name for check in red], 3)}"
        tell_agent(run, f"In a clean copy of the merged commit, {failed}{printed}{more}")
        raise NotAccepted(
            f"{failed}{why}",
            f"let the agent fix it: ralph resume {nickname(run.id)}; nothing was changed",
        )
    return checks


def compare_tests_of_run(
    run: Listed, request: RunRequest, copy: PreparedCopy, *, base: str, commit: str, checks: tuple[Check, ...]
) -> ComparedTests | None:
    """Return what the tests as they are on the user's branch say about the merged commit; None if it changes no test.

    Raise NotAccepted only if a test that is red there passes just because it was changed. Everything else was decided
    when the run ended.
    """
    rule, home = request.settings.tests_rule, copy.worktree.repository
    tests = find_changed_tests(home, base, commit, files_of_checks(copy.context, home)) if rule else None
    if not tests:
        return None
    result = compare_in_copy(copy, tests, Cells(head=checks))
    if copy.context.interrupt.level:
        raise KeyboardInterrupt
    if result.finding is None:
        return None
    if result.finding.kind == "S" and rule == "as-they-were":
        raise NotAccepted(
            result.finding.text,
            f"to accept them: ralph resume {nickname(run.id)} --tests may-change; nothing was changed",
        )
    return ComparedTests(result.finding, mixed=result.mixed, named=tests.plan.reported)


def missing_files(tree: Worktree, copy: Git) -> list[str]:
    """Return the files and the dependencies in the run's worktree that a copy doesn't have."""
    if not os.path.isdir(tree.path):
        return []
    files = worktree_setup.new_untracked_files(tree) - untracked_files(copy)
    folders = dependency_folders(tree.git) - dependency_folders(copy)
    return [*map(display_path, sorted(files)), *(f"{display_path(folder)}/" for folder in sorted(folders))]


def examine(run: Listed, home: Git, context: Context, commit: str) -> None:
    """Run the exams of the run on a commit."""
    results = Exams(context, home, run.id).run(commit, "accept", fail_fast=True)
    if context.interrupt.level:
        raise KeyboardInterrupt
    if failed := [exam.name for exam, _ in results if not exam.passed]:
        hint = f"`ralph show {nickname(run.id)}` shows what it printed; nothing was changed"
        raise NotAccepted(f"the exam fails on the merged tree: {failed[0]}", hint)


def tell_agent(run: Listed, text: str) -> None:
    """Leave a note for the next prompt, with which a run that is done can be resumed. Don't repeat it."""
    mailbox = Mailbox(run.place)
    if text not in {note.text for note in mailbox.read().notes}:
        mailbox.tell(text)
