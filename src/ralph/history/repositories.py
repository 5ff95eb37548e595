"""Find the repository that a run worked in."""

import os
from pathlib import Path

from ralph.core.text import nickname
from ralph.errors import UserError
from ralph.git.client import Git, require_git
from ralph.store.register import Listed


def repository_of(run: Listed) -> Git:
    """Return the repository around the run's workspace, or the worktree that it worked in."""
    worktree = run.facts.worktree
    if not worktree:
        return home_repository(run)
    if not os.path.isdir(worktree):
        raise UserError(f"the run's worktree is gone: {worktree}", f"to see its changes: ralph diff {nickname(run.id)}")
    return require_git(Path(worktree))


def repository_with_checkpoints(run: Listed) -> Git:
    """Return a repository with the run's checkpoints, even if its worktree was removed."""
    return repository_of(run) if os.path.isdir(run.facts.worktree) else home_repository(run)


def home_repository(run: Listed) -> Git:
    """Return the user's own repository, also for a run that worked in a worktree of it.

    It is found by the place of the run's record, because the workspace may have been moved. Only a supervised task has
    its record elsewhere.
    """
    if not run.facts.workspace:
        raise UserError(
            f"the journal of {run.id} does not say where the run worked", "name a run; `ralph ps -a` lists them"
        )
    ralph = run.folder.path.parents[1]
    is_in_workspace = ralph.name == ".ralph" and not run.facts.task
    return require_git(ralph.parent if is_in_workspace else Path(run.facts.workspace))
