"""`ralph accept`: run the checks in a clean copy of the commit that the merge produces, then merge it."""

import os
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from ralph.actions.accept_checks import (
    OUTPUT_SHOWN,
    Verified,
    check_copy,
    compare_tests_of_run,
    examine,
    tell_agent,
    without_logs,
)
from ralph.actions.candidate import TRAILER, NotAccepted, candidate_commit
from ralph.actions.run_worktree import lock_worktree, settings_watched, worktree_of_run
from ralph.core import events
from ralph.core.findings import ComparedTests
from ralph.core.prompts import own_words
from ralph.core.text import clean, head, nickname, one_line
from ralph.git import merging, worktree_setup, worktrees
from ralph.git.client import Git, git_error, user_environment
from ralph.git.index import display_path
from ralph.git.locks import update_refs
from ralph.git.scm import TASK_TIMEOUT, operation_in_progress
from ralph.git.untracked import untracked_files
from ralph.git.worktrees import Worktree
from ralph.process.descendants import MARK
from ralph.process.keeper import Keeper
from ralph.process.program import Command
from ralph.process.signals import Deadline, Interrupt
from ralph.run import request as requests
from ralph.run.followups import COMMIT_GRACE
from ralph.run.request import RunRequest
from ralph.store.register import Listed, kill_orphans
from ralph.verdict.context import Context
from ralph.verdict.copies import PreparedCopy, open_copy

LONGEST_TITLE = 72
LONGEST_GOAL = 2000
MAX_STAT = 20  # files in the message
_IN_THE_WAY = "commit or stash what is in the way, then accept it again; nothing was changed"
_CUT_OFF = "`git status` shows how far it came; if no git is running, remove the lock that git names, then accept again"


class AcceptedRun(Struct, frozen=True, kw_only=True):
    """The result of an accept."""

    branch: str
    commit: str
    """The new tip of the user's branch."""
    files: int = 0
    """How many files changed."""
    checks: int = 0
    """How many checks passed."""
    compared: ComparedTests | None = None
    """What the tests as they were on the user's branch say; None if no test file changed."""
    is_new: bool = True
    """False if the user's branch had everything already."""
    worktree: str
    left: tuple[str, ...]
    """The files that only the worktree has; if there are some, it was not removed."""


def accept_run(
    run: Listed,
    keeper: Keeper,
    interrupt: Interrupt,
    tell: events.TellAll,
    *,
    squash: bool = True,
    message: str = "",
) -> AcceptedRun:
    """Merge the work of a run, as one commit unless `squash` is False; then remove its worktree and branch, unless the
    worktree has the only copy of a file. If anything fails, nothing changes.

    Checks, hook and exams run in clean copies of the merged commit. Until the merge the run's worktree stays as it is,
    so that accepting can be repeated after a kill.
    """
    deadline = Deadline(interrupt, grace=5.0)  # git gets some time to finish the merge
    tree = worktree_of_run(run, deadline)
    home = tree.repository
    merging.refuse_old_git(home.root)
    refuse_without_branch(home)
    for orphan in kill_orphans():  # they could change the files during the checks
        tell(events.Notice(orphan.killed_words))
    with lock_worktree(run, tree), settings_watched(run, lambda text: tell(events.Notice(text))):
        base, candidate = home.resolve("HEAD"), candidate_commit(run, tree)
        if candidate == base:
            left = _remove_merged(tree, made_by_checks=frozenset())
            return AcceptedRun(branch=tree.branch, commit=base, is_new=False, worktree=tree.path, left=left)
        request = requests.read(run.id)
        context = Context(
            root=Path(request.workspace),
            workspace=request.workspace,
            # After Ctrl-C nothing is merged, so there is no grace.
            settings=replace(request.settings, fail_fast=False, grace=0.0, keep_children=False),
            folder=run.folder,
            keeper=keeper,
            tell=without_logs(tell),
            deadline=deadline,
        )
        text = message if squash else None
        verified = _verify(run, request, tree, context, base=base, candidate=candidate, text=text)
        answer = home.try_run("merge", "--ff-only", "--no-overwrite-ignore", "--quiet", verified.commit)
        if answer.code:
            way_out = _CUT_OFF if answer.was_killed or answer.found_lock else _IN_THE_WAY
            raise NotAccepted(git_error(("merge",), answer, "cannot merge into your tree").message, way_out)
        left = _remove_merged(tree, verified.made_by_checks)
        return AcceptedRun(
            branch=tree.branch,
            commit=verified.commit,
            files=len(merging.changed_files(home, base, verified.commit)),
            checks=verified.checks,
            compared=verified.compared,
            worktree=tree.path,
            left=left,
        )


def _verify(
    run: Listed, request: RunRequest, tree: Worktree, context: Context, *, base: str, candidate: str, text: str | None
) -> Verified:
    """Verify the candidate in clean copies, and make the commit to merge there: on `base`, with the message `text`
    (empty: one that ralph makes); or the candidate itself if `text` is None."""
    home = tree.repository
    with open_copy(context, home, candidate) as copy:
        commit, checks = candidate, check_copy(run, tree, copy)
        if text is not None:
            commit = _squash(run, request, copy, home=home, base=base, text=text)
        made_by_checks = untracked_files(copy.worktree.git)
        compared = compare_tests_of_run(run, request, copy, base=base, commit=candidate, checks=checks)
    if home.tree_at(commit) != home.tree_at(candidate):  # the hook changed files
        with open_copy(context, home, commit) as copy:
            checks = check_copy(run, tree, copy)
    if request.settings.exams:
        examine(run, home, context, commit)
    return Verified(commit, len(checks), compared, made_by_checks)


def _squash(run: Listed, request: RunRequest, copy: PreparedCopy, *, home: Git, base: str, text: str) -> str:
    """Return one commit on `base` with the files of a copy, as the user's pre-commit hook leaves them."""
    context, worktree = copy.context, copy.worktree
    worktrees.pin_head(worktree, base)  # for the hook, the work is staged on top of the user's branch
    words = ("git", "hook", "run", "--ignore-missing", "pre-commit")
    # The variables that lead to a copy, so that the hook finds its dependencies like the checks.
    changed = dict(context.env.items() - os.environ.items())
    env = {**user_environment(), **changed, **context.leading, MARK: context.folder.id}
    command = Command(argv=words, env=env, cwd=worktree.path, term_delay=COMMIT_GRACE)
    process = context.process(context.sandboxed(command), timeout=TASK_TIMEOUT)
    output = process.capture(head=0, tail=OUTPUT_SHOWN, redact=context.redact)
    if context.interrupt.level:
        raise KeyboardInterrupt
    if output.exit.code or output.exit.ended_by:
        reason = clean(output.tail).strip() or output.exit.ended_by or f"exit code {output.exit.code}"
        tell_agent(run, f"The pre-commit hook refused this work when it was about to be committed:\n{reason}")
        raise NotAccepted(
            f"the pre-commit hook refused the commit:\n{reason}",
            f"let the agent fix it: ralph resume {nickname(run.id)}; nothing was changed",
        )
    files = worktree.git.run("write-tree").decode().strip()
    if not text:  # goal, changed files, checks
        told = head(clean(own_words(request.title)).strip(), LONGEST_GOAL, " …") or f"Work of run {run.id}"
        title = head(one_line(told.partition("\n")[0].lstrip("# ")), LONGEST_TITLE - 2, " …")
        args = ("--no-ext-diff", "--no-color", "--stat=72", f"--stat-count={MAX_STAT}")
        stat = home.run("diff", *args, base, files).decode("utf-8", "replace").rstrip()
        passed = "\n".join(f"- {one_line(context.redact.text(check.command))}" for check in request.settings.checks)
        parts = [title, "" if title == told else told, stat, f"Checks that pass:\n{passed}" if passed else ""]
        text = "\n\n".join(filter(None, parts))
    return home.commit_tree(files, (base,), f"{text.strip()}\n\n{TRAILER}: {run.id}\n", home.identity())


def _remove_merged(tree: Worktree, made_by_checks: frozenset[bytes]) -> tuple[str, ...]:
    """Remove the worktree and the branch of a run whose work is on the user's branch. If the worktree has untracked
    files that neither its setup nor the checks make, return them, and remove nothing."""
    if os.path.isdir(tree.path) and (left := worktree_setup.new_untracked_files(tree) - made_by_checks):
        return tuple(map(display_path, sorted(left)))
    tip = tree.repository.resolve(tree.ref)
    worktrees.remove_folder(tree)
    if tip:
        update_refs(tree.repository, f"delete {tree.ref} {tip}")
    return ()


def refuse_without_branch(home: Git) -> None:
    """Raise if no branch is checked out, because the next switch would lose a commit, or if a merge is in progress."""
    if what := operation_in_progress(home):
        raise NotAccepted(f"a {what} is in progress in {home.root}", "finish or abort it first; nothing was changed")
    if home.try_run("symbolic-ref", "--quiet", "HEAD").code:
        raise NotAccepted(f"no branch is checked out in {home.root}", "git switch BRANCH, then accept it again")
