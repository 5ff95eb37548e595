"""Which run, and which of its iterations, does a person mean by `[RUN] [N]`, and where did it work?"""

from collections.abc import Sequence
from pathlib import Path

from ralph.core.events import RunStarted
from ralph.errors import UserError
from ralph.world.records.journal import recall
from ralph.world.records.register import Listed
from ralph.world.repository.git import Repository, repository
from ralph.world.steering.meant import meant, workspace_around

LONGEST_NUMBER = 5  # more digits are a date: the beginning of a run's id


def run_and_number(directory: str, words: Sequence[str]) -> tuple[Listed, int | None]:
    """The run (the last one where none is named) and the number of an iteration, if there is one."""
    named = [word for word in words if not is_number(word)]
    numbers = [int(word) for word in words if is_number(word)]
    if len(named) > 1 or len(numbers) > 1:
        raise UserError(f"too many words: {' '.join(words)}", "give a run, the number of an iteration, or both")
    place = Path(directory).resolve()
    here = workspace_around(place) if directory == "." else place
    return meant(named[0] if named else "", here, has_not_begun), numbers[0] if numbers else None


def is_number(word: str) -> bool:
    return word.isdecimal() and len(word) <= LONGEST_NUMBER


def has_not_begun(run: Listed) -> str:
    return "" if recall(run.folder.journal).started else "never began"


def repository_of(run: Listed) -> Repository:
    """Where the run worked: the repository around its workspace, or the worktree that stood in for it."""
    started = recall(run.folder.journal).started
    assert started is not None
    if not started.worktree:
        return repository(_workspace_of(run, started))
    if not Path(started.worktree).is_dir():
        raise UserError(
            f"the run's worktree is gone: {started.worktree}", f"its work is on the branch {started.branch}"
        )
    return repository(Path(started.worktree))


def _workspace_of(run: Listed, started: RunStarted) -> Path:
    """Where the record of the run is: it may have been moved with its workspace, and the name of a folder need not be
    text that a journal can hold. The record of a task lies elsewhere."""
    ralph = run.folder.path.parents[1]
    return ralph.parent if ralph.name == ".ralph" and not started.task else Path(started.workspace)
