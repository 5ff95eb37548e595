"""Read the journal of a run, live or as a whole, and find the repository that it worked in."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

from ralph.core import events as e
from ralph.core.text import nickname
from ralph.errors import UserError
from ralph.git.checkpoints import changes_between
from ralph.git.client import Git, find_git, require_git
from ralph.history.backlog_history import backlog_history
from ralph.history.fold import UNCOUNTED, Fold
from ralph.history.run_history import FactsNow, RunHistory
from ralph.store.folder import RunFolder, seen_red
from ralph.store.journal import Entry, JournalReader, decode_entry, read_entries, unreadable
from ralph.store.mailbox import Mailbox
from ralph.store.register import Listed, backlogs_in

TreePair = tuple[str, str]
Known = TypeVar("Known")
RECENT = 1 << 19  # bytes before the end of a journal in which a live view shows every event


class News(Struct, frozen=True):
    """An event and its entry. `is_recent`: a live view shows it."""

    event: e.Event
    entry: Entry
    is_recent: bool = True


class Feed:
    """A growing journal. Far from its end, only the events that change a run's history are read.

    `left_out`: the last `read` skipped other events.
    """

    def __init__(self, path: Path, reader: JournalReader) -> None:
        self._path, self._reader = path, reader
        self.left_out = False

    @classmethod
    def open(cls, path: Path) -> "Feed":
        return cls(path, JournalReader.open(path))

    @property
    def is_replaced(self) -> bool:
        """Whether the journal was removed and written again."""
        try:
            return os.stat(self._path).st_ino != self._reader.stat.st_ino
        except OSError as error:
            raise unreadable(self._path, error) from None

    def read(self) -> list[News]:
        """Return what was appended since the last call."""
        recent_from = self._reader.stat.st_size - RECENT
        self.left_out, news = False, []
        for line in self._reader.lines():
            is_recent = self._reader.position > recent_from
            self.left_out |= not is_recent
            entry = decode_entry(line)
            event = entry.event() if entry else None
            if entry and event is not None and (is_recent or type(event) not in UNCOUNTED):
                news.append(News(event, entry, is_recent))
        return news

    def close(self) -> None:
        self._reader.close()


def entries_of(path: Path, number: int) -> Iterator[News]:
    """Yield everything from the start of one iteration to the start of the next."""
    is_inside = False
    for entry in read_entries(path):
        event = entry.event()
        if isinstance(event, e.IterationStarted):
            is_inside = event.iteration == number
        if is_inside and event is not None:
            yield News(event, entry)


def history_now(run: Listed) -> RunHistory:
    """Return the history of a run up to now, with its current facts."""
    history = history_of(run.folder, run.state, time.time() if run.is_alive else 0.0)
    history.now = facts_now(run, history)
    return history


def history_of(folder: RunFolder, state: str = "", now: float = 0.0, then: Sequence[e.Event] = ()) -> RunHistory:
    """Return the history of a run.

    `state` is the state of a run without an outcome, `now` is the time if it is running, and `then` are events that are
    not in the journal yet.
    """
    fold, is_empty = Fold(folder.id), True
    for entry in read_entries(folder.journal):
        if (event := entry.event()) is not None:
            fold.add(event, entry.at)
            is_empty = False
    for event in then:
        fold.add(event, time.time())
    if is_empty:
        raise UserError(
            f"there is nothing to read in {folder.journal}", "it is empty, or was written by another version of ralph"
        )
    history = fold.as_of(now, state)
    red_names = seen_red(folder.path.parent.parent)
    history.red_before = [name for name in history.check_names if name in red_names]
    return with_files(history)


def facts_now(run: Listed, history: RunHistory) -> FactsNow:
    """Look up the branch, the questions and the task of a run."""
    questions = () if history.outcome == "done" else Mailbox(run.place).read().questions
    return FactsNow(
        has_branch=bool(history.branch) and (os.path.isdir(history.worktree) or _branch_exists(history)),
        open_questions=tuple(question.id for question in questions),
        is_parked=bool(history.backlog_task) and _is_parked(run, history),
    )


def _branch_exists(history: RunHistory) -> bool:
    try:
        repository = find_git(Path(history.workspace))
        return bool(repository and repository.resolve(f"refs/heads/{history.branch}"))
    except UserError:
        return False


def _is_parked(run: Listed, history: RunHistory) -> bool:
    """Return whether the run's task is parked in the workspace's latest backlog, the only one that can be retried."""
    latest = max(backlogs_in(run.folder.path.parents[1]), key=lambda backlog: backlog.id, default=None)
    if latest is None or latest.id != history.work:
        return False
    job = backlog_history(latest).board.jobs.get(history.backlog_task)
    return job is not None and job.state == "parked"


def with_files(history: RunHistory) -> RunHistory:
    """Add the files that each iteration and the whole run changed, as far as git still has them."""
    changes = compare_trees(history, history.trees(), changes_between)
    for iteration in history.iterations:
        iteration.files = changes.get(iteration.number)
    history.files = changes.get(0)
    return history


def compare_trees(
    history: RunHistory, trees: dict[int, TreePair], between: "Callable[[Git, list[TreePair]], dict[TreePair, Known]]"
) -> dict[int, Known]:
    """Return the result of `between` for each pair of trees, as far as git still has them."""
    try:
        repository = find_git(Path(history.workspace)) if trees else None
        changes = between(repository, list(trees.values())) if repository else {}
    except UserError:  # the repository is broken by now; the rest of the history is still valid
        return {}
    return {number: changes[pair] for number, pair in trees.items() if pair in changes}


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
