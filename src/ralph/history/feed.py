"""Read the journal of a run, live or as a whole.

A live view reads the end of the journal first, so that there is something to show at once, and the events that count
from the start in small steps.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

from ralph.core import events as e
from ralph.errors import UserError
from ralph.git.client import Git, find_git
from ralph.git.diffs import changes_between
from ralph.history.run_history import UNCOUNTED, FactsNow, Fold, RunHistory
from ralph.history.work_history import work_history
from ralph.store.folder import RunFolder, seen_red
from ralph.store.journal import Entry, JournalReader, decode_entry, unreadable
from ralph.store.mailbox import Mailbox
from ralph.store.register import Listed, runs_in

TreePair = tuple[str, str]
Known = TypeVar("Known")
RECENT = 1 << 19  # bytes before the end of a journal in which a live view shows everything
LONGEST_LOOK = 0.02  # seconds
# Most lines of a large journal change nothing in the history, and are not decoded.
_UNCOUNTED = tuple(b'{"type":"%s"' % e.NAMES[kind].encode() for kind in UNCOUNTED)
_REMARK, _FOR_DEBUGGING = b'{"type":"%s"' % e.NAMES[e.Notice].encode(), b'"level":"debug"}}'
_BEGINNING = b'{"type":"%s"' % e.NAMES[e.IterationStarted].encode()


class News(Struct, frozen=True):
    """An event, its entry, and the length of its line in bytes."""

    event: e.Event
    entry: Entry
    size: int


class Feed:
    """One growing journal. `left_out` are the bytes that are too far from the end to be shown."""

    def __init__(self, path: Path, near: JournalReader, far: JournalReader) -> None:
        self._path, self._near, self._far = path, near, far
        self.left_out = self._near.position
        self._looked, self._remark_news = self._near.lines(), self._far.lines()
        self._has_more = False
        self.is_behind = True

    @classmethod
    def open(cls, path: Path) -> "Feed":
        return cls(path, JournalReader.open(path, RECENT), JournalReader.open(path))

    @property
    def is_replaced(self) -> bool:
        """Whether the journal was removed and written again."""
        try:
            return os.stat(self._path).st_ino != self._near.stat.st_ino
        except OSError as error:
            raise unreadable(self._path, error) from None

    @property
    def has_grown(self) -> bool:
        return self._has_more or self._near.stat.st_size > self._near.position

    @property
    def size(self) -> int:
        return self._near.stat.st_size

    @property
    def progress(self) -> float:
        """Which share of the journal has been counted, from 0 to 1."""
        return min(self._far.position / max(self._far.stat.st_size, 1), 1.0) if self.is_behind else 1.0

    def look(self, longest: float = LONGEST_LOOK) -> list[News]:
        """Return what is new at the end, or as much as can be read in `longest` seconds: the rest comes next time. If
        much has been appended since the last call, only its end is returned."""
        until, found = time.monotonic() + longest, []
        if self._near.stat.st_size - self._near.position > 2 * RECENT:
            self.reopen_end()
        for line in self._looked:
            if news := _news(line):
                found.append(news)
            if time.monotonic() > until:
                self._has_more = True
                return found
        self._looked, self._has_more = self._near.lines(), False
        return found

    def reopen_end(self) -> None:
        """Begin to look at the end of the journal again, as when it was opened."""
        near = JournalReader.open(self._path, RECENT)
        self._near.close()
        self._near = near
        self._looked, self.left_out = self._near.lines(), self._near.position

    def count(self, longest: float = LONGEST_LOOK) -> list[News]:
        """Return what counts, in order from the start; if that takes longer, the feed `is_behind`."""
        until, found = time.monotonic() + longest, []
        for number, line in enumerate(self._remark_news):
            if news := _remark_news(line):
                found.append(news)
            if not number & 63 and time.monotonic() > until:
                self.is_behind = True
                return found
        self._remark_news = self._far.lines()
        self.is_behind = False
        return found

    def close(self) -> None:
        self._near.close()
        self._far.close()


def _news(line: bytes) -> News | None:
    entry = decode_entry(line)
    event = entry.event() if entry else None
    return News(event, entry, len(line)) if entry and event is not None else None


def _remark_news(line: bytes) -> News | None:
    is_remark = line.startswith(_REMARK) and line.rstrip().endswith(_FOR_DEBUGGING)  # one in every turn
    return None if is_remark or line.startswith(_UNCOUNTED) else _news(line)


def entries_of(path: Path, number: int) -> Iterator[News]:
    """Yield everything from the start of one iteration to the start of the next."""
    is_inside = False
    with JournalReader.open(path) as reader:
        for line in reader.lines():
            if line.startswith(_BEGINNING) and (news := _news(line)):
                is_inside = isinstance(news.event, e.IterationStarted) and news.event.iteration == number
            if is_inside and (news := _news(line)):
                yield news


def history_now(run: Listed) -> RunHistory:
    """Return the history of a run up to now, with what is true now."""
    history = history_of(run.folder, run.state, time.time() if run.is_alive else 0.0)
    history.now = facts_now(run, history)
    return history


def history_of(folder: RunFolder, state: str = "", now: float = 0.0, then: Sequence[e.Event] = ()) -> RunHistory:
    """Return the history of a run. `state` is the state of one without an outcome, `now` is the time if it is running,
    and `then` are events that are not written yet."""
    fold, news = Fold(folder.id), None
    with JournalReader.open(folder.journal) as reader:
        for news in filter(None, map(_remark_news, reader.lines())):
            fold.add(news.event, news.entry.at)
    for event in then:
        fold.add(event, time.time())
    if news is None:
        raise UserError(
            f"there is nothing to read in {folder.journal}", "it is empty, or was written by another version of ralph"
        )
    history = fold.as_of(now, state)
    known = seen_red(folder.path.parent.parent)
    history.red_before = [name for name in history.check_names if name in known]
    return with_files(history)


def facts_now(run: Listed, history: RunHistory) -> FactsNow:
    """Look up the branch, the questions and the task of a run."""
    questions = () if history.outcome == "done" else Mailbox(run.place).read().questions
    return FactsNow(
        has_branch=bool(history.branch) and (os.path.isdir(history.worktree) or _branch_exists(history)),
        open_questions=tuple(one.id for one in questions),
        is_parked=bool(history.backlog_task) and _is_parked(run, history),
    )


def _branch_exists(history: RunHistory) -> bool:
    try:
        repository = find_git(Path(history.workspace))
        return bool(repository and repository.resolve(f"refs/heads/{history.branch}"))
    except UserError:
        return False


def _is_parked(run: Listed, history: RunHistory) -> bool:
    """Return whether the run's task is parked in the latest backlog here, which is the one that can be retried."""
    works = [one for one in runs_in(run.folder.path.parents[1]) if one.facts.kind == "work"]
    latest = max(works, key=lambda one: one.id, default=None)
    if latest is None or latest.id != history.work:
        return False
    job = work_history(latest).board.jobs.get(history.backlog_task)
    return job is not None and job.state == "parked"


def with_files(history: RunHistory) -> RunHistory:
    """Add the files that each iteration and the whole run changed, as far as git still has them."""
    if trees := history.trees():
        found = compare_trees(history, trees, changes_between)
        for one in history.iterations:
            one.files = found.get(one.number)
        history.files = found.get(0)
    return history


def compare_trees(
    history: RunHistory,
    trees: dict[int, TreePair],
    between: "Callable[[Git, list[TreePair]], dict[TreePair, Known]]",
) -> dict[int, Known]:
    """Return what `between` finds for each pair of trees, as far as git still has them."""
    try:
        repository = find_git(Path(history.workspace))
        found = between(repository, list(trees.values())) if repository else {}
    except UserError:  # the repository is broken by now; the rest of the history is still valid
        return {}
    return {number: found[pair] for number, pair in trees.items() if pair in found}
