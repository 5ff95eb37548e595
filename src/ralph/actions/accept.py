"""`ralph accept`, `discard` and `rewind`: what happens to a run's work after the run.

Accepting runs the checks in a clean copy of the commit that the merge produces, and then merges it. A discarded branch
can be recovered until `ralph clean` removes the run.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from ralph.actions.control import AT_WORK, reload
from ralph.core import events
from ralph.core.model import Check
from ralph.core.prompts import own_words
from ralph.core.text import clean, head, listed, nickname, one_line, plural, tail
from ralph.errors import UserError
from ralph.git import merging, worktree_setup, worktrees
from ralph.git.checkpoints import Checkpoints, Rewound
from ralph.git.client import Git, find_git, git_error, look_folder, user_environment
from ralph.git.index import PrivateIndex, display_path
from ralph.git.locks import update_refs
from ralph.git.scm import TASK_TIMEOUT, operation_in_progress
from ralph.git.untracked import dependency_folders, untracked_files
from ralph.git.worktrees import Worktree
from ralph.history.feed import repository_of
from ralph.process.descendants import MARK
from ralph.process.keeper import Keeper
from ralph.process.program import Command
from ralph.process.signals import Deadline, Interrupt
from ralph.run import request as requests
from ralph.run.followups import COMMIT_GRACE
from ralph.run.request import RunRequest
from ralph.settings import settings_files
from ralph.settings.trust import SettingsWatch
from ralph.store.folder import prepare, remove_orders, workspace_lock
from ralph.store.journal import load_run
from ralph.store.mailbox import Mailbox
from ralph.store.register import Listed, kill_orphans, why_not_begun
from ralph.verdict.checks import Checks
from ralph.verdict.context import Context
from ralph.verdict.copies import PreparedCopy, open_copy
from ralph.verdict.exams import Exams

DISCARDED = "discarded"
TRAILER = "Ralph-Run"
LONGEST_TITLE = 72
LONGEST_GOAL = 2000
MAX_STAT = 20  # files in the message
_OUTPUT = 1500  # characters of a check or a hook that are shown
_IN_THE_WAY = "commit or stash what is in the way, then accept it again; nothing was changed"
_CUT_OFF = "`git status` shows how far it came; if no git is running, remove the lock that git names, then accept again"


class NotAccepted(UserError):
    """The work cannot be accepted as it is. Nothing was changed."""


class AcceptedRun(Struct, frozen=True, kw_only=True):
    """The result of an accept."""

    branch: str
    commit: str
    """The new tip of the user's branch."""
    files: int = 0
    """How many files changed."""
    checks: int = 0
    """How many checks passed."""
    is_new: bool = True
    """False if the user's branch had everything already."""
    worktree: str
    left: tuple[str, ...]
    """The files that only the worktree has; if there are some, it was not removed."""


class Verified(Struct, frozen=True):
    """A commit to merge, which passed everything."""

    commit: str
    checks: int
    """How many checks passed."""
    made_by_checks: frozenset[bytes]
    """The untracked files in the copy after setup, checks and hook."""


def why_no_branch(run: Listed) -> str:
    """Return why a run has no branch to accept or discard, as the end of a sentence; "" if it has one."""
    if run.is_alive:
        return "is running"
    if run.facts.work:
        return f"is for a task of work {run.facts.work}: its gate merges it"
    if not run.facts.branch:
        return "worked in your folder: its work is there"
    home = repository_of_run(run)
    exists = home and home.resolve(f"refs/heads/{run.facts.branch}")
    if exists:
        return ""
    is_discarded = home and home.resolve(f"refs/ralph/{run.id}/{DISCARDED}")
    return "was discarded" if is_discarded else "is already accepted, or its branch was deleted"


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
    tree = _worktree_of(run, deadline)
    home = tree.repository
    merging.refuse_old_git(home.root)
    refuse_without_branch(home)
    for orphan in kill_orphans():  # they could change the files during the checks
        tell(events.Notice(orphan.killed_words))
    with _lock_worktree(run, tree), _settings_watched(run, lambda text: tell(events.Notice(text))):
        base, candidate = home.resolve("HEAD"), _candidate(run, tree)
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
            tell=_without_logs(tell),
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
        commit, checks = candidate, _check(run, tree, copy)
        if text is not None:
            commit = _squash(run, request, copy, home=home, base=base, text=text)
        made_by_checks = untracked_files(copy.worktree.git)
    if home.tree_at(commit) != home.tree_at(candidate):  # the hook changed files
        with open_copy(context, home, commit) as copy:
            checks = _check(run, tree, copy)
    if request.settings.exams:
        _examine(run, home, context, commit)
    return Verified(commit, len(checks), made_by_checks)


def _squash(run: Listed, request: RunRequest, copy: PreparedCopy, *, home: Git, base: str, text: str) -> str:
    """Return one commit on `base` with the files of a copy, as the user's pre-commit hook leaves them."""
    context, worktree = copy.context, copy.worktree
    worktrees.pin_head(worktree, base)  # for the hook, the work is staged on top of the user's branch
    words = ("git", "hook", "run", "--ignore-missing", "pre-commit")
    # The variables that lead to a copy, so that the hook finds its dependencies like the checks.
    leading = {name: value for name, value in context.env.items() if os.environ.get(name) != value}
    env = {**user_environment(), **leading, MARK: context.folder.id}
    command = Command(argv=words, env=env, cwd=worktree.path, term_delay=COMMIT_GRACE)
    process = context.process(context.sandboxed(command), timeout=TASK_TIMEOUT)
    output = process.capture(head=0, tail=_OUTPUT, redact=context.redact)
    if context.interrupt.level:
        raise KeyboardInterrupt
    if output.exit.code or output.exit.ended_by:
        reason = clean(output.tail).strip() or output.exit.ended_by or f"exit code {output.exit.code}"
        _tell_agent(run, f"The pre-commit hook refused this work when it was about to be committed:\n{reason}")
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
        passed = "\n".join(f"- {one_line(context.redact.text(one.command))}" for one in request.settings.checks)
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


def discard_run(run: Listed) -> str:
    """Remove the worktree and the branch of a run; return the ref that keeps them."""
    tree = _worktree_of(run)
    home = tree.repository
    with _lock_worktree(run, tree):
        if os.path.isdir(tree.path) and worktrees.first_unsaved(tree):
            worktrees.commit_all(tree, "what was not committed when it was discarded")
            if left := worktrees.first_unsaved(tree):
                raise UserError(f"git cannot save {left}, so nothing was removed", f"move it out of {tree.path} first")
        tip = home.resolve(tree.ref)
        kept_as = f"refs/ralph/{run.id}/{DISCARDED}"
        update_refs(home, f"update {kept_as} {tip}")
        worktrees.remove_folder(tree)
        update_refs(home, f"delete {tree.ref} {tip}")
        remove_orders(run.id)
        return kept_as


def _lock_worktree(run: Listed, tree: Worktree) -> AbstractContextManager[object]:
    """Lock the worktree of the run, if it still exists."""
    exists = os.path.isdir(tree.workspace)
    return workspace_lock(prepare(Path(tree.workspace)), run.id) if exists else nullcontext()


@contextmanager
def _settings_watched(run: Listed, say: Callable[[str], None], env: Mapping[str, str] = os.environ) -> Iterator[None]:
    """Report settings files that change when the work is accepted or restored. The agent wrote them, so the next run
    asks about them."""
    workspace = Path(run.place).parents[2]
    watched = SettingsWatch(workspace, run.id, settings_files(workspace, env), env)
    watched.begin()
    yield
    if changed := watched.end():
        what = f"the work of the run has changed the settings: {', '.join(changed)}"
        say(f"{what}; the next run asks about it, and so does `ralph trust`")


def rewind(run: Listed, number: int, say: Callable[[str], None], env: Mapping[str, str] = os.environ) -> Rewound:
    """Restore the files as they were after iteration `number`; save the current ones under a ref."""
    with _settings_watched(run, say, env), workspace_lock(Path(run.place).parents[1], run.id):
        run = reload(run, lambda run: AT_WORK if run.is_alive else why_not_begun(run))
        git = repository_of(run)
        index = PrivateIndex(git, look_folder(run.id))
        index.begin()
        return Checkpoints(git, run.id).rewind(number, index)


def repository_of_run(run: Listed, deadline: Deadline | None = None) -> Git | None:
    """Return the user's repository in which a run was started; None if it is gone."""
    workspace = Path(run.place).parents[2]
    return find_git(workspace, deadline) if workspace.is_dir() else None


def _worktree_of(run: Listed, deadline: Deadline | None = None) -> Worktree:
    """Return the worktree of the run, which may be gone."""
    started, home = load_run(run.folder.journal).started, repository_of_run(run, deadline)
    if started is None or home is None:
        raise UserError(f"the repository of run {run.id} is gone", "start a new run")
    inside = os.path.join(started.worktree, home.prefix).rstrip("/")
    tree = Worktree(started.worktree, started.branch, inside, home)
    if os.path.isdir(tree.path):
        worktrees.refuse_another(tree)
    return tree


def _candidate(run: Listed, tree: Worktree) -> str:
    """Return the commit that the user's branch would move to: the tip of the run's branch, or its merge with newer
    commits of the user."""
    if os.path.isdir(tree.path):
        worktrees.refuse_unreadable(tree)
        _restore_half_accepted(tree)
    if os.path.isdir(tree.path) and (unsaved := worktrees.first_unsaved(tree)):
        way_out = f"continue with `ralph resume {nickname(run.id)}`, or commit it in {tree.path}"
        if os.path.isabs(unsaved):  # a submodule: ralph doesn't look into it
            way_out = "empty that folder, if you have its content elsewhere"
        raise NotAccepted(f"the worktree has work that is not committed: {unsaved}", way_out)
    home = tree.repository
    base, tip = home.resolve("HEAD"), home.resolve(tree.ref)
    if home.contains(base, tip):
        return base
    accepted = home.run("log", f"--format=%(trailers:key={TRAILER},valueonly)", f"{tip}..HEAD")
    if run.id in accepted.decode("utf-8", "replace").split():  # accepted earlier, as one commit
        return base
    if home.contains(tip, base):
        return tip
    merge = merging.merge_commits(home, base, tip)
    if merge.conflict:
        raise NotAccepted(
            f"{tree.branch} no longer merges: conflicts in {listed(merge.conflict.files, 5)}",
            f"resolve them yourself: git merge {tree.branch}; nothing was changed",
        )
    return home.commit_tree(merge.tree, (base, tip), f"Merge branch '{tree.branch}'", home.identity())


def _restore_half_accepted(tree: Worktree) -> None:
    """Check out the branch of a worktree in which an earlier version of ralph was killed while it made the commit of an
    accept: no branch is checked out, and everything is staged as the merge with the branch."""
    git, tip = tree.git, tree.repository.resolve(tree.ref)
    if not git.try_run("symbolic-ref", "--quiet", "HEAD").code or worktrees.has_unstaged(tree):
        return
    merge = merging.merge_commits(tree.repository, git.resolve("HEAD"), tip)
    if not merge.conflict and git.run("write-tree").decode().strip() == merge.tree:
        worktrees.check_out_branch(tree)


def _without_logs(tell: events.TellAll) -> events.TellAll:
    """Return a `tell` that names no log of a check: it is in the copy, which is removed."""

    def tell_without_logs(*happened: events.Event) -> None:
        tell(*(replace(event, log="") if isinstance(event, events.CheckFinished) else event for event in happened))

    return tell_without_logs


def _check(run: Listed, tree: Worktree, copy: PreparedCopy) -> tuple[Check, ...]:
    """Run the checks of the run once more, in a copy. If one fails, raise NotAccepted with the files that only the
    run's worktree has, because they may be the reason."""
    checks = Checks(copy.context, copy.context.settings.checks).run(0)
    if checks is None or copy.context.interrupt.level:
        raise KeyboardInterrupt
    if red := [check for check in checks if not check.passed]:
        missing = _missing_files(tree, copy.worktree.git)
        why = f"; only the run's worktree has {listed(missing, 5)}" if missing else ""
        more = f"\nThe worktree has files that are in no commit: {listed(missing, 20)}" if missing else ""
        printed = "".join(f"\n{tail(check.tail.strip(), _OUTPUT, '…')}" for check in red[:1] if check.tail.strip())
        failed = f"{len(red)} of {plural(len(checks), 'check')} failed: {listed([check.name for check in red], 3)}"
        _tell_agent(run, f"In a clean copy of the merged commit, {failed}{printed}{more}")
        raise NotAccepted(
            f"{failed}{why}",
            f"let the agent fix it: ralph resume {nickname(run.id)}; nothing was changed",
        )
    return checks


def _missing_files(tree: Worktree, copy: Git) -> list[str]:
    """Return the files and the dependencies in the run's worktree that a copy doesn't have."""
    if not os.path.isdir(tree.path):
        return []
    files = worktree_setup.new_untracked_files(tree) - untracked_files(copy)
    folders = dependency_folders(tree.git) - dependency_folders(copy)
    return [*map(display_path, sorted(files)), *(f"{display_path(folder)}/" for folder in sorted(folders))]


def _tell_agent(run: Listed, text: str) -> None:
    """Leave a note for the next prompt, with which a run that is done can be resumed. Don't repeat it."""
    mailbox = Mailbox(run.place)
    if text not in {note.text for note in mailbox.read().notes}:
        mailbox.tell(text)


def _examine(run: Listed, home: Git, context: Context, commit: str) -> None:
    """Run the exams of the run on a commit."""
    results = Exams(context, home, run.id).run(commit, "accept", fail_fast=True)
    if context.interrupt.level:
        raise KeyboardInterrupt
    if failed := [exam.name for exam, _ in results if not exam.passed]:
        hint = f"`ralph show {nickname(run.id)}` shows what it printed; nothing was changed"
        raise NotAccepted(f"the exam fails on the merged tree: {failed[0]}", hint)
