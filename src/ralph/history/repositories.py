"""Find the repository that a run worked in."""

import os
from pathlib import Path

from ralph.core.events import RunStarted
from ralph.errors import UserError
from ralph.git.client import Git, require_git
from ralph.store.register import Listed
from ralph.store.stored_run import load_run


def repository_of(run: Listed) -> Git:
    """Return the repository around the run's workspace, or the worktree that it worked in."""
    started = _read_start(run)
    if not started.worktree:
        return require_git(_workspace_of(run, started))
    if not os.path.isdir(started.worktree):
        raise UserError(
            f"the run's worktree is gone: {started.worktree}", f"its work is on the branch {started.branch}"
        )
    return require_git(Path(started.worktree))


def repository_with_checkpoints(run: Listed) -> Git:
    """Return the repository that holds the run's checkpoints, even if its worktree was removed."""
    started = _read_start(run)
    is_gone = started.worktree and not os.path.isdir(started.worktree)
    return require_git(_workspace_of(run, started)) if is_gone else repository_of(run)


def home_repository(run: Listed) -> Git:
    """Return the user's own repository, also for a run that worked in a worktree of it."""
    return require_git(_workspace_of(run, _read_start(run)))


def _read_start(run: Listed) -> RunStarted:
    started = load_run(run.folder.journal).started
    if started is None:
        raise UserError(f"the journal of {run.id} does not say where it worked", "name a run; `ralph ps -a` lists them")
    return started


def _workspace_of(run: Listed, started: RunStarted) -> Path:
    """Return the folder that holds the run's record: the workspace may have been moved, and its name need not be valid
    text. Only the record of a task is kept elsewhere."""
    ralph = run.folder.path.parents[1]
    return ralph.parent if ralph.name == ".ralph" and not started.task else Path(started.workspace)
