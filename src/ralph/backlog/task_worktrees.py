"""Worktrees and branches of tasks.

In a fleet, a task's branch is pushed after every iteration, so that another machine can continue from it. The push
fails if another machine has moved the branch since this one last pushed it.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ralph.backlog.backlog_order import BacklogOrder
from ralph.backlog.retries import CLAIM_BRANCH, LOCKED_BRANCHES, PUSH_INTERVAL, REMOTE_TIMEOUT
from ralph.core.backlog import Board, outcome
from ralph.errors import UserError
from ralph.git import merging, worktrees
from ralph.git.client import Git
from ralph.git.locks import remove_stale_locks, remove_stale_ref_locks
from ralph.git.remote import GitSettings, Remote, push_refusal, refuse_changed_push
from ralph.git.worktree_setup import is_prepared
from ralph.git.worktrees import Worktree, worktree_lock
from ralph.process.signals import Interrupt
from ralph.verdict.context import Context
from ralph.verdict.copies import prepare_worktree


def open_worktree(
    order: BacklogOrder, repository: Git, key: str, occupy: Callable[[Path], None], context: Context
) -> Worktree:
    """Return the worktree of a task: the existing one, or a new one from the current target."""
    worktree = order.worktree_of(repository, key)
    with worktree_lock(repository):
        is_new = not is_prepared(worktree)
        if is_new:
            _make(order, repository, worktree)
        worktrees.refuse_another(worktree)
        occupy(Path(worktree.workspace))
    if is_new:
        prepare_worktree(worktree, context)
    remove_stale_locks(worktree.git, worktree.ref)
    return worktree


def align(order: BacklogOrder, repository: Git, key: str, tip: str) -> None:
    """Move the task's local branch to the remote one, unless it contains that. Otherwise unpushed
    commits are dropped."""
    worktree = order.worktree_of(repository, key)
    here = repository.resolve(f"refs/heads/{worktree.branch}")
    if here == tip or (here and not repository.try_run("merge-base", "--is-ancestor", tip, here).code):
        return
    with worktree_lock(repository):
        _remove(worktree)
        repository.run("update-ref", "--no-deref", f"refs/heads/{worktree.branch}", tip)


def _make(order: BacklogOrder, repository: Git, worktree: Worktree) -> None:
    if os.path.lexists(worktree.path):
        _remove(worktree)
    remove_stale_ref_locks(repository, worktree.ref)  # a process may have been killed while it made this worktree
    words = ["worktree", "add", "-q", "--force", "--force"]  # --force twice: git may have a record of a removed one
    if repository.resolve(f"refs/heads/{worktree.branch}"):
        words += ["--", worktree.path, worktree.branch]
    else:
        words += ["--no-track", "-b", worktree.branch, "--", worktree.path, repository.resolve(order.target_ref)]
    repository.run(*words)
    os.makedirs(worktree.workspace, exist_ok=True)


def clear(order: BacklogOrder, repository: Git, merged: dict[str, str]) -> None:
    """Remove worktrees and branches of merged tasks, unless the user uses them for something else."""
    tips: dict[str, str] = {}
    for key, tip in merged.items():
        worktree = order.worktree_of(repository, key)
        if os.path.isdir(worktree.path) and not (worktrees.is_own(worktree) and worktrees.is_clean(worktree.git, tip)):
            continue
        _remove(worktree)
        tips[worktree.branch] = tip
    merging.delete_branches(repository, tips)


def _remove(worktree: Worktree) -> None:
    with suppress(UserError):
        worktrees.remove_folder(worktree)


def clear_leftovers(order: BacklogOrder, repository: Git, board: Board) -> None:
    """Remove what is left of merged tasks, and the gate's worktree once all tasks are merged."""
    merged = {key: job.tip for key, job in board.jobs.items() if job.state == "merged"}
    prefix = order.branch_of("")
    for _ in LOCKED_BRANCHES.tries():
        answer = repository.try_run("for-each-ref", "--format=%(refname:lstrip=2)", f"refs/heads/{prefix}")
        branches = {name.removeprefix(prefix) for name in answer.out.decode("utf-8", "replace").split()} & {*merged}
        if not branches and not answer.code:
            break
        clear(order, repository, {key: merged[key] for key in branches})
    if outcome(board)[1] == 0:
        _remove(order.gate_worktree(repository))


TAKEN = "another worker has this task"


def clear_remote(work: BacklogOrder, repository: Git) -> None:
    """Remove remote branches of merged tasks that a killed gate has left behind."""
    if work.remote is None:
        return
    prefix = f"refs/remotes/{work.remote.name}/"
    work.remote.fetch(repository, work.branch_of(""))
    out = repository.run("for-each-ref", "--format=%(objectname) %(refname)", f"{prefix}{work.branch_of('')}")
    tips = {ref.removeprefix(prefix): tip for tip, ref in map(str.split, out.decode("utf-8", "replace").splitlines())}
    unmerged = merging.unmerged(repository, work.target_ref, {*tips.values()})
    work.remote.delete(repository, {branch: tip for branch, tip in tips.items() if tip not in unmerged})


class Taken(Exception):
    """Another machine has moved the task's branch: it works on the task now."""


class Publisher:
    """Pushes the branch of one task. `_left` is the commit at which this machine left it on the remote; git's tracking
    branch can't be used for that, because every fetch in this clone moves it.
    """

    def __init__(
        self,
        work: BacklogOrder,
        repository: Git,
        key: str,
        interrupt: Interrupt,
        *,
        push_settings: GitSettings | None = None,
    ) -> None:
        assert work.remote is not None
        self._work, self._repository, self._key = work, repository, key
        self._remote: Remote = work.remote
        self._interrupt, self._push_settings = interrupt, push_settings
        self._branch = work.branch_of(key)
        self._left = ""

    def prepare(self) -> None:
        """Fetch the target and the task's branch, and continue from the latter."""
        self._remote.fetch(self._repository, self._branch, REMOTE_TIMEOUT)
        self._left = self._repository.resolve(f"refs/remotes/{self._remote.name}/{self._branch}")
        if self._left:
            align(self._work, self._repository, self._key, self._left)

    def claim(self, worker: str) -> None:
        """Push the branch before the loop starts, so that pushes of another machine that had the task fail.

        If there may be such a machine, `worker` names this one, and the branch is moved by an empty commit.
        """
        if not worker:
            with suppress(Taken):
                if self.push():
                    return
        for _ in CLAIM_BRANCH.tries():
            tip = self._repository.resolve(f"refs/heads/{self._branch}")
            message = f"ralph: {worker or 'a worker'} continues {self._key}"
            fence = merging.commit_nothing(self._repository, tip, message)
            self._repository.run("update-ref", "--no-deref", f"refs/heads/{self._branch}", fence, tip)
            with suppress(Taken):
                if self.push():
                    return
            tips = self._remote.branch_tips(self._repository, [self._branch], REMOTE_TIMEOUT)
            self._left = tips[self._branch]
        raise UserError(f"{self._remote.name} rejects {self._branch}", "check its rules for branches, then start again")

    def push(self) -> bool:
        """Push what is committed; return False if the remote is away."""
        tip = self._repository.resolve(f"refs/heads/{self._branch}")
        if tip == self._left:
            return True
        refuse_changed_push(self._repository, self._push_settings)
        answer = self._remote.push_branch(self._repository, self._branch, tip, self._left)
        if answer.code:
            try:
                now = self._remote.branch_tips(self._repository, [self._branch])[self._branch]
            except UserError:
                return False  # the remote is away: later
            if now != tip and now != self._left:
                raise Taken
            if now != tip:
                reason = push_refusal(answer)
                raise UserError(
                    f"{self._remote.name} rejects {self._branch}: {reason}", "check that you may push this branch"
                )
        self._left = tip
        return True

    def push_all(self) -> bool:
        """Push the last commits; wait while the remote is away. Return False if the user asked to stop first."""
        while not self.push():
            if self._interrupt.wait(PUSH_INTERVAL):
                return False
        return True
