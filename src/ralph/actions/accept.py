"""`ralph accept`, `discard` and `rewind`: what happens to a run's work after the run.

Accepting runs the checks on exactly the tree that the merge produces, and then merges it. A discarded branch can be
recovered until `ralph clean` removes the run.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from ralph.actions.control import AT_WORK, reload
from ralph.core import events
from ralph.core.model import Check
from ralph.core.prompts import own_words
from ralph.core.text import clean, head, listed, nickname, one_line, plural, tail
from ralph.errors import UserError
from ralph.git import merging, worktrees
from ralph.git.checkpoints import Checkpoints, Rewound
from ralph.git.client import Git, find_git, git_error, look_folder, user_environment
from ralph.git.index import PrivateIndex
from ralph.git.locks import update_refs
from ralph.git.scm import operation_in_progress
from ralph.git.worktrees import Worktree
from ralph.history.feed import repository_of
from ralph.process.keeper import Keeper
from ralph.process.program import Command
from ralph.process.signals import Deadline, Interrupt
from ralph.run import request as requests
from ralph.run.followups import make_runner
from ralph.run.request import RunRequest
from ralph.settings import settings_files
from ralph.settings.trust import SettingsWatch
from ralph.store.folder import prepare, remove_orders, workspace_lock
from ralph.store.journal import load_run
from ralph.store.mailbox import Mailbox
from ralph.store.register import Listed, kill_orphans, why_not_begun
from ralph.verdict.checks import Checks, Exams
from ralph.verdict.context import Context
from ralph.verdict.copies import open_check_sandbox

DISCARDED = "discarded"
TRAILER = "Ralph-Run"
LONGEST_TITLE = 72
LONGEST_GOAL = 2000
MAX_STAT = 20  # files in the message
_HOOK_OUTPUT = 2000  # characters that are shown
_IN_THE_WAY = "commit or stash what is in the way, then accept it again; nothing was changed"
_CUT_OFF = "`git status` shows how far it came; if no git is running, remove the lock that git names, then accept again"


class NotAccepted(UserError):
    """The work cannot be accepted as it is. Nothing was changed."""


class AcceptedRun(Struct, frozen=True):
    """The result of an accept. `commit` is the new tip of the user's branch, `files` the number of changed files, and
    `checks` the number of checks that passed. `is_new`: False if the user's branch had everything already.
    """

    branch: str
    commit: str
    files: int
    checks: int
    is_new: bool


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
    """Merge the work of a run, as one commit unless `squash` is False; then remove its worktree and branch. If anything
    fails, nothing changes.
    """
    deadline = Deadline(interrupt, grace=5.0)  # git gets some time to restore the worktree
    tree = _worktree_of(run, deadline)
    home = tree.home
    merging.refuse_old_git(home.root)
    refuse_without_branch(home)
    for orphan in kill_orphans():  # they could change the files during the checks
        tell(events.Notice(orphan.killed_words))
    with _lock_worktree(run, tree), _settings_watched(run, lambda said: tell(events.Notice(said))):
        base, candidate = home.resolve("HEAD"), _candidate(run, tree)
        if candidate == base:
            _remove_merged(tree)
            return AcceptedRun(tree.branch, base, 0, 0, False)
        request = requests.read(run.id)
        try:
            worktrees.check_out(tree, candidate)
            context = Context(
                root=Path(tree.workspace),
                workspace=request.workspace,
                # After Ctrl-C nothing is merged, so there is no grace.
                settings=replace(request.settings, fail_fast=False, grace=0.0, keep_children=False),
                folder=run.folder,
                keeper=keeper,
                tell=tell,
                deadline=deadline,
            )
            with open_check_sandbox(context) as inside:
                commit, checks = candidate, _check_again(run, tree, inside)
                if squash:
                    commit = _squash(run, request, tree, inside, candidate=candidate, base=base, text=message)
                    if home.tree_at(commit) != home.tree_at(candidate):  # the hook changed files
                        worktrees.check_out(tree, commit)
                        checks = _check_again(run, tree, inside)
                if request.settings.exams:
                    _examine(run, home, inside, commit)
            answer = home.try_run("merge", "--ff-only", "--no-overwrite-ignore", "--quiet", commit)
            if answer.code:
                way_out = _CUT_OFF if answer.was_killed or answer.found_lock else _IN_THE_WAY
                raise NotAccepted(git_error(("merge",), answer, "cannot merge into your tree").message, way_out)
        except BaseException:  # restore the worktree to the tip of its branch
            with suppress(UserError):  # report the first problem, not this one
                worktrees.check_out_branch(tree)
            raise
        worktrees.check_out(tree, commit)
        _remove_merged(tree)
        return AcceptedRun(tree.branch, commit, len(merging.changed_files(home, base, commit)), len(checks), True)


def _squash(
    run: Listed, request: RunRequest, tree: Worktree, context: Context, *, candidate: str, base: str, text: str
) -> str:
    """Return one commit on `base` with the candidate's files, as the user's pre-commit hook leaves them."""
    home = tree.home
    worktrees.pin_head(tree, base)  # for the hook, the work is staged on top of the user's branch
    words = ("git", "hook", "run", "--ignore-missing", "pre-commit")
    answer = make_runner(context)(Command(argv=words, env=user_environment(), cwd=tree.path))
    if answer.code:
        said = tail(answer.output.strip(), _HOOK_OUTPUT, "…") or f"exit code {answer.code}"
        Mailbox(run.place).tell(f"The pre-commit hook refused this work when it was about to be committed:\n{said}")
        raise NotAccepted(
            f"the pre-commit hook refused the commit:\n{said}",
            f"let the agent fix it: ralph resume {nickname(run.id)}; nothing was changed",
        )
    files = tree.git.run("write-tree").decode().strip()
    if not text:  # goal, changed files, checks
        told = head(clean(own_words(request.title)).strip(), LONGEST_GOAL, " …") or f"Work of run {run.id}"
        title = head(one_line(told.partition("\n")[0].lstrip("# ")), LONGEST_TITLE - 2, " …")
        args = ("--no-ext-diff", "--no-color", "--stat=72", f"--stat-count={MAX_STAT}")
        stat = home.run("diff", *args, base, files).decode("utf-8", "replace").rstrip()
        passed = "\n".join(f"- {one_line(context.redact.text(one.command))}" for one in request.settings.checks)
        parts = [title, "" if title == told else told, stat, f"Checks that pass:\n{passed}" if passed else ""]
        text = "\n\n".join(filter(None, parts))
    return home.commit_tree(files, (base,), f"{text.strip()}\n\n{TRAILER}: {run.id}\n", home.identity())


def _remove_merged(tree: Worktree) -> None:
    """Remove the worktree and the branch of a run whose work is on the user's branch."""
    tip = tree.home.resolve(tree.ref)
    worktrees.remove_folder(tree)
    if tip:
        update_refs(tree.home, f"delete {tree.ref} {tip}")


def refuse_without_branch(home: Git) -> None:
    """Raise if no branch is checked out, because the next switch would lose a commit, or if a merge is in progress."""
    if what := operation_in_progress(home):
        raise NotAccepted(f"a {what} is in progress in {home.root}", "finish or abort it first; nothing was changed")
    if home.try_run("symbolic-ref", "--quiet", "HEAD").code:
        raise NotAccepted(f"no branch is checked out in {home.root}", "git switch BRANCH, then accept it again")


def discard_run(run: Listed) -> str:
    """Remove the worktree and the branch of a run; return the ref that keeps them."""
    tree = _worktree_of(run)
    home = tree.home
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
    if os.path.isdir(tree.path) and (unsaved := worktrees.first_unsaved(tree)):
        way_out = f"continue with `ralph resume {nickname(run.id)}`, or commit it in {tree.path}"
        if os.path.isabs(unsaved):  # a submodule: ralph doesn't look into it
            way_out = "empty that folder, if you have its content elsewhere"
        raise NotAccepted(f"the worktree has work that is not committed: {unsaved}", way_out)
    home = tree.home
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


def _check_again(run: Listed, tree: Worktree, context: Context) -> tuple[Check, ...]:
    """Run the checks of the run once more, in its worktree."""
    done = Checks(context, context.settings.checks).run(0)
    if done is None or context.interrupt.level:
        raise KeyboardInterrupt
    if red := [check for check in done if not check.passed]:
        raise NotAccepted(
            f"{len(red)} of {plural(len(done), 'check')} failed: {listed([check.name for check in red], 3)}",
            f"continue with `ralph resume {nickname(run.id)}`, or look around in {tree.path}; nothing was changed",
        )
    return done


def _examine(run: Listed, home: Git, context: Context, commit: str) -> None:
    """Run the exams of the run on a commit."""
    results = Exams(context, home, run.id).run(commit, "accept", fail_fast=True)
    if context.interrupt.level:
        raise KeyboardInterrupt
    if failed := [exam.name for exam, _ in results if not exam.passed]:
        hint = f"`ralph show {nickname(run.id)}` shows what it printed; nothing was changed"
        raise NotAccepted(f"the exam fails on the merged tree: {failed[0]}", hint)
