"""The worktree of a run that has ended: find and lock it, and watch the settings while its files change."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from ralph.errors import UserError
from ralph.git import worktrees
from ralph.git.client import Git, find_git
from ralph.git.worktrees import Worktree
from ralph.process.signals import Deadline
from ralph.settings import settings_files
from ralph.settings.trust import SettingsWatch
from ralph.store.folder import prepare, workspace_lock
from ralph.store.journal import load_run
from ralph.store.register import Listed

DISCARDED = "discarded"


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


def lock_worktree(run: Listed, tree: Worktree) -> AbstractContextManager[object]:
    """Lock the worktree of the run, if it still exists."""
    exists = os.path.isdir(tree.workspace)
    return workspace_lock(prepare(Path(tree.workspace)), run.id) if exists else nullcontext()


@contextmanager
def settings_watched(run: Listed, say: Callable[[str], None], env: Mapping[str, str] = os.environ) -> Iterator[None]:
    """Report settings files that change when the work is accepted or restored. The agent wrote them, so the next run
    asks about them."""
    workspace = Path(run.place).parents[2]
    watched = SettingsWatch(workspace, run.id, settings_files(workspace, env), env)
    watched.begin()
    yield
    if changed := watched.end():
        what = f"the work of the run has changed the settings: {', '.join(changed)}"
        say(f"{what}; the next run asks about it, and so does `ralph trust`")


def repository_of_run(run: Listed, deadline: Deadline | None = None) -> Git | None:
    """Return the user's repository in which a run was started; None if it is gone."""
    workspace = Path(run.place).parents[2]
    return find_git(workspace, deadline) if workspace.is_dir() else None


def worktree_of_run(run: Listed, deadline: Deadline | None = None) -> Worktree:
    """Return the worktree of the run, which may be gone."""
    started, home = load_run(run.folder.journal).started, repository_of_run(run, deadline)
    if started is None or home is None:
        raise UserError(f"the repository of run {run.id} is gone", "start a new run")
    inside = os.path.join(started.worktree, home.prefix).rstrip("/")
    tree = Worktree(started.worktree, started.branch, inside, home)
    if os.path.isdir(tree.path):
        worktrees.refuse_another(tree)
    return tree
