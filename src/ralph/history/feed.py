"""What does the journal of a run tell: all that came of it, or what is new? Two eyes for those who look on: one begins
near the end and sees everything, so that there is something to show at once; the other begins at the beginning and sees
what counts. Neither looks for long."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct

from ralph.core import events as e
from ralph.errors import UserError
from ralph.history.run_history import UNCOUNTED, Fold, RunHistory
from ralph.records.folder import RunFolder, seen_red
from ralph.records.journal import Entry, Following, decoded, unreadable
from ralph.records.register import Listed

if TYPE_CHECKING:
    from ralph.repository.git import Repository

TreePair = tuple[str, str]
Known = TypeVar("Known")
RECENT = 1 << 19
"""In so many bytes before the end of a journal, all that the agent says and does is shown; before them, what counts."""
LONGEST_LOOK = 0.02  # seconds
# What no fold hears is most of a large journal, and is not even decoded.
_UNCOUNTED = tuple(b'{"type":"%s"' % e.NAMES[kind].encode() for kind in UNCOUNTED)
_REMARK, _FOR_DEBUGGING = b'{"type":"%s"' % e.NAMES[e.Notice].encode(), b'"level":"debug"}}'
_BEGINNING = b'{"type":"%s"' % e.NAMES[e.IterationStarted].encode()


class News(Struct, frozen=True):
    """An event, the line that told it, and how many bytes that took."""

    event: e.Event
    entry: Entry
    size: int


class Feed:
    """One journal, for as long as it grows."""

    def __init__(self, path: Path, near: Following, far: Following) -> None:
        self._path, self._near, self._far = path, near, far
        self.left_out = self._near.position
        """How many bytes are not shown, because they are too far from the end."""
        self._looked, self._counted = self._near.lines(), self._far.lines()
        self._has_more = False
        self.is_behind = True

    @classmethod
    def open(cls, path: Path) -> "Feed":
        return cls(path, Following.open(path, RECENT), Following.open(path))

    @property
    def is_replaced(self) -> bool:
        """Whether another file is in its place: a run whose journal was removed writes it anew."""
        try:
            return os.stat(self._path).st_ino != self._near.about.st_ino
        except OSError as error:
            raise unreadable(self._path, error) from None

    @property
    def has_grown(self) -> bool:
        return self._has_more or self._near.about.st_size > self._near.position

    @property
    def size(self) -> int:
        return self._near.about.st_size

    @property
    def progress(self) -> float:
        """How much of what counts has been read."""
        return min(self._far.position / max(self._far.about.st_size, 1), 1.0) if self.is_behind else 1.0

    def look(self, longest: float = LONGEST_LOOK) -> list[News]:
        """What is new at the end, or as much of it as can be read in `longest` seconds: the rest comes next time. Who
        has not looked for long sees the end first, again."""
        until, found = time.monotonic() + longest, []
        if self._near.about.st_size - self._near.position > 2 * RECENT:
            near = Following.open(self._path, RECENT)
            self._near.close()
            self._near = near
            self._looked, self.left_out = self._near.lines(), self._near.position
        for line in self._looked:
            if news := _news(line):
                found.append(news)
            if time.monotonic() > until:
                self._has_more = True
                return found
        self._looked, self._has_more = self._near.lines(), False
        return found

    def count(self, longest: float = LONGEST_LOOK) -> list[News]:
        """What counts, in order from the beginning; where that takes longer, the feed `is_behind`."""
        until, found = time.monotonic() + longest, []
        for number, line in enumerate(self._counted):
            if news := _counted(line):
                found.append(news)
            if not number & 63 and time.monotonic() > until:
                self.is_behind = True
                return found
        self._counted = self._far.lines()
        self.is_behind = False
        return found

    def close(self) -> None:
        self._near.close()
        self._far.close()


def _news(line: bytes) -> News | None:
    entry = decoded(line)
    event = entry.event() if entry else None
    return News(event, entry, len(line)) if entry and event is not None else None


def _counted(line: bytes) -> News | None:
    is_remark = line.startswith(_REMARK) and line.rstrip().endswith(_FOR_DEBUGGING)  # there is one in every turn
    return None if is_remark or line.startswith(_UNCOUNTED) else _news(line)


def entries_of(path: Path, number: int) -> Iterator[News]:
    """All that happened in one iteration, and before the next."""
    following, is_inside = Following.open(path), False
    try:
        for line in following.lines():
            if line.startswith(_BEGINNING) and (news := _news(line)):
                is_inside = isinstance(news.event, e.IterationStarted) and news.event.iteration == number
            if is_inside and (news := _news(line)):
                yield news
    finally:
        following.close()


def history_now(run: Listed) -> RunHistory:
    """What came of a run up to this moment."""
    return history_of(run.folder, run.state, time.time() if run.is_alive else 0.0)


def history_of(folder: RunFolder, state: str = "", now: float = 0.0, then: Sequence[e.Event] = ()) -> RunHistory:
    """What came of a run; `state` is what is known of one that has no outcome yet, `now` when it is still at work;
    `then` is what comes next, and is not written down yet."""
    fold, following, news = Fold(folder.id), Following.open(folder.journal), None
    for news in filter(None, map(_counted, following.lines())):
        fold.hear(news.event, news.entry.at)
    following.close()
    for event in then:
        fold.hear(event, time.time())
    if news is None:
        raise UserError(
            f"there is nothing to read in {folder.journal}", "it is empty, or was written by another version of ralph"
        )
    history = fold.as_of(now, state)
    known = seen_red(folder.path.parent.parent)
    history.red_before = [name for name in history.checks if name in known]
    return with_files(history)


def with_files(history: RunHistory) -> RunHistory:
    """The history with the files that each iteration and the whole run changed, as far as git remembers."""
    if trees := history.trees():
        from ralph.repository.checkpoints import changes_between

        found = remembered(history, trees, changes_between)
        for one in history.iterations:
            one.files = found.get(one.number)
        history.files = found.get(0)
    return history


def remembered(
    history: RunHistory,
    trees: dict[int, TreePair],
    between: "Callable[[Repository, list[TreePair]], dict[TreePair, Known]]",
) -> dict[int, Known]:
    """What git still knows about what lies between the trees; nothing where it cannot be asked any more."""
    from ralph.repository.git import find_repository

    try:
        repository = find_repository(Path(history.workspace))
        found = between(repository, list(trees.values())) if repository else {}
    except UserError:  # a repository that is broken by now: the rest of the history stands
        return {}
    return {number: found[pair] for number, pair in trees.items() if pair in found}
