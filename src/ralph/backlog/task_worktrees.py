"""Worktrees of tasks, prepared like the gate's with what git does not carry.

In a fleet, other machines get the work from the task's branch on the remote, which is pushed after every iteration and
only if it is still where this machine left it.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ralph.backlog.retries import CLAIM_BRANCH, REMOTE_TIMEOUT
from ralph.backlog.work_order import WorkOrder
from ralph.errors import UserError
from ralph.git import merging, worktrees
from ralph.git.client import Git
from ralph.git.configuration import GitSettings, refuse_changed_push
from ralph.git.locks import remove_stale_locks, remove_stale_packed_refs_lock, remove_stale_ref_locks
from ralph.git.remote import Remote, push_refusal
from ralph.git.worktree_setup import is_prepared
from ralph.git.worktrees import Worktree, worktree_lock
from ralph.process.signals import Interrupt
from ralph.run.context import Context
from ralph.run.copies import prepare_worktree


def open_worktree(
    order: WorkOrder, repository: Git, key: str, occupy: Callable[[Path], None], context: Context
) -> Worktree:
    """Return the worktree of a task on its branch: as it was left, or new from the current target."""
    made = order.worktree_of(repository, key)
    with worktree_lock(repository):
        is_new = not is_prepared(made)
        if is_new:
            _make(order, repository, made)
        worktrees.refuse_another(made)
        occupy(Path(made.workspace))
    if is_new:
        prepare_worktree(made, context)
    remove_stale_locks(made.git, made.ref)
    return made


def align(order: WorkOrder, repository: Git, key: str, tip: str) -> None:
    """Set the task's local branch to the remote one, unless it is only ahead of it. Commits of other machines win;
    unpushed commits that diverge are dropped.
    """
    made = order.worktree_of(repository, key)
    here = repository.resolve(f"refs/heads/{made.branch}")
    if here == tip or (here and not repository.try_run("merge-base", "--is-ancestor", tip, here).code):
        return
    with worktree_lock(repository):
        _remove(made)
        repository.run("update-ref", "--no-deref", f"refs/heads/{made.branch}", tip)


def _make(order: WorkOrder, repository: Git, made: Worktree) -> None:
    if os.path.lexists(made.path):
        _remove(made)
    remove_stale_ref_locks(repository, made.ref)  # of one that was killed while it made this
    words = ["worktree", "add", "-q", "--force", "--force"]  # --force twice: git may remember a removed one
    if repository.resolve(f"refs/heads/{made.branch}"):
        words += ["--", made.path, made.branch]
    else:
        words += ["--no-track", "-b", made.branch, "--", made.path, repository.resolve(order.target_ref)]
    repository.run(*words)
    os.makedirs(made.workspace, exist_ok=True)


def clear(order: WorkOrder, repository: Git, merged: dict[str, str]) -> None:
    """Remove worktrees and branches of merged tasks, unless the user uses them for something else."""
    gone: dict[str, str] = {}
    for key, tip in merged.items():
        made = order.worktree_of(repository, key)
        if os.path.isdir(made.path) and not (worktrees.is_own(made) and worktrees.is_clean(made.git, tip)):
            continue
        _remove(made)
        gone[made.branch] = tip
    merging.delete_branches(repository, gone)


def _remove(made: Worktree) -> None:
    with suppress(OSError):
        worktrees.delete_folder(made)


def clear_leftovers(order: WorkOrder, repository: Git, merged: dict[str, str], is_done: bool) -> None:
    """Remove what is left of merged tasks, and the gate's worktree once all tasks are merged."""
    prefix = order.branch_of("")
    for _ in range(3):  # a git may be killed, and leave its lock
        answer = repository.try_run("for-each-ref", "--format=%(refname:lstrip=2)", f"refs/heads/{prefix}")
        left = {name.removeprefix(prefix) for name in answer.out.decode("utf-8", "replace").split()} & {*merged}
        if not left and not answer.code:
            break
        remove_stale_packed_refs_lock(repository)
        clear(order, repository, {key: merged[key] for key in left})
    if is_done:
        _remove(order.gate_worktree(repository))


RETRY_DELAY = 0.2  # seconds between two attempts to push to a remote that is away
TAKEN = "another worker has this task"


def clear_remote(work: WorkOrder, home: Git) -> None:
    """Remove remote branches of merged tasks that a killed gate has left behind."""
    if work.remote is None:
        return
    prefix = f"refs/remotes/{work.remote.name}/"
    work.remote.fetch(home, work.branch_of(""))
    out = home.run("for-each-ref", "--format=%(objectname) %(refname)", f"{prefix}{work.branch_of('')}")
    tips = {ref.removeprefix(prefix): tip for tip, ref in map(str.split, out.decode("utf-8", "replace").splitlines())}
    left = merging.unmerged(home, work.target_ref, {*tips.values()})
    work.remote.delete(home, {branch: tip for branch, tip in tips.items() if tip not in left})


class Taken(Exception):
    """The branch is no longer where this machine left it: another one has the task now."""


class Publisher:
    """Pushes the branch of one task. `_left` is where this machine left it on the remote. A lease on git's own tracking
    branch would prove nothing, because every fetch in this clone moves it.
    """

    def __init__(
        self,
        work: WorkOrder,
        home: Git,
        key: str,
        interrupt: Interrupt,
        *,
        push_settings: GitSettings | None = None,
    ) -> None:
        assert work.remote is not None
        self._work, self._home, self._key = work, home, key
        self._remote: Remote = work.remote
        self._interrupt, self._push_settings = interrupt, push_settings
        self._branch = work.branch_of(key)
        self._left = ""

    def prepare(self) -> None:
        """Fetch the target and the task's branch; unpushed work counts only if it grew from that branch."""
        self._remote.fetch(self._home, self._branch, REMOTE_TIMEOUT)
        self._left = self._home.resolve(f"refs/remotes/{self._remote.name}/{self._branch}")
        if self._left:
            align(self._work, self._home, self._key, self._left)

    def claim(self, worker: str) -> None:
        """Put the branch on the remote before anything is done on it, so that pushes of an earlier holder fail.

        `worker` is set if there may be one: then the branch has to move.
        """
        if not worker:
            with suppress(Taken):
                if self.push():
                    return
        for _ in CLAIM_BRANCH.tries():
            tip = self._home.resolve(f"refs/heads/{self._branch}")
            fence = merging.commit_nothing(self._home, tip, f"ralph: {worker or 'a worker'} continues {self._key}")
            self._home.run("update-ref", "--no-deref", f"refs/heads/{self._branch}", fence, tip)
            with suppress(Taken):
                if self.push():
                    return
            tips = self._remote.branch_tips(self._home, [self._branch], REMOTE_TIMEOUT)
            self._left = tips[self._branch]
        raise UserError(f"{self._remote.name} rejects {self._branch}", "check its rules for branches, then start again")

    def push(self) -> bool:
        """Push what is committed; return False if the remote is away."""
        tip = self._home.resolve(f"refs/heads/{self._branch}")
        if tip == self._left:
            return True
        refuse_changed_push(self._home, self._push_settings)
        answer = self._remote.push_branch(self._home, self._branch, tip, self._left)
        if answer.code:
            try:
                now = self._remote.branch_tips(self._home, [self._branch])[self._branch]
            except UserError:
                return False  # the remote is away: later
            if now != tip and now != self._left:
                raise Taken
            if now != tip:
                said = push_refusal(answer)
                raise UserError(
                    f"{self._remote.name} rejects {self._branch}: {said}", "check that you may push this branch"
                )
        self._left = tip
        return True

    def settle(self) -> bool:
        """Push the last commits, however long that takes; return False if the user asked to stop first."""
        while not self.push():
            if self._interrupt.wait(RETRY_DELAY):
                return False
        return True
