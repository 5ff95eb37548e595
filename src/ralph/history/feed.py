"""What is new in the journal of a run? Two eyes for those who look on: one begins near the end and sees everything, so
that there is something to show at once; the other begins at the beginning and sees what counts. Neither looks for long.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from ralph.core import events as e
from ralph.core.text import short
from ralph.records.journal import Entry, Following, decoded, unreadable

RECENT = 1 << 19
"""In so many bytes before the end of a journal, all that the agent says and does is shown; before them, what counts."""
LONGEST_LOOK = 0.02  # seconds
_TALK = tuple(b'{"type":"%s"' % e.NAMES[kind].encode() for kind in e.TALK - {e.TodoUpdated})
_BEGINNING = b'{"type":"%s"' % e.NAMES[e.IterationStarted].encode()


class News(Struct, frozen=True):
    """An event, the line that told it, and how many bytes that took."""

    event: e.Event
    entry: Entry
    size: int


class Feed:
    """One journal, for as long as it grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._near, self._far = Following(path, RECENT), Following(path)
        self.left_out = self._near.position
        """How many bytes are not shown, because they are too far from the end."""
        self._looked, self._counted = self._near.lines(), self._far.lines()
        self._has_more = False
        self.is_behind = True

    @property
    def is_replaced(self) -> bool:
        """Whether another file is in its place: a run whose journal was removed writes it anew."""
        return self._stat().st_ino != self._near.about.st_ino

    @property
    def has_grown(self) -> bool:
        return self._has_more or self._near.about.st_size > self._near.position

    @property
    def progress(self) -> float:
        """How much of what counts has been read."""
        return min(self._far.position / max(self._far.about.st_size, 1), 1.0) if self.is_behind else 1.0

    def look(self, longest: float = LONGEST_LOOK) -> list[News]:
        """What is new at the end, or as much of it as can be read in `longest` seconds: the rest comes next time. Who
        has not looked for long sees the end first, again."""
        until, found = time.monotonic() + longest, []
        if self._near.about.st_size - self._near.position > 2 * RECENT:
            self._near.close()
            self._near = Following(self._path, RECENT)
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
            if not line.startswith(_TALK) and (news := _news(line)):
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

    def _stat(self) -> os.stat_result:
        try:
            return os.stat(self._path)
        except OSError as error:
            raise unreadable(self._path, error) from None


def _news(line: bytes) -> News | None:
    entry = decoded(line)
    event = entry.event() if entry else None
    return News(event, entry, len(line)) if entry and event is not None else None


def entries_of(path: Path, number: int) -> Iterator[News]:
    """All that happened in one iteration, and before the next."""
    following, is_inside = Following(path), False
    try:
        for line in following.lines():
            if line.startswith(_BEGINNING) and (news := _news(line)):
                is_inside = isinstance(news.event, e.IterationStarted) and news.event.iteration == number
            if is_inside and (news := _news(line)):
                yield news
    finally:
        following.close()


MOST_ITERATIONS = 400
MOST_CHECKS = 50


class Checked(Struct, frozen=True):
    """A check as it stands: `passed` None while it runs, or before its first time."""

    name: str
    passed: bool | None = None
    seconds: float = 0.0
    is_running: bool = False


class Bar(Struct, frozen=True):
    """One iteration in the graph. `is_red`: a failed turn, or a check that did not pass."""

    number: int
    passed: int
    checks: int
    cost: float
    is_red: bool = False


class Facts:
    """A listener: bounded, however long the run."""

    def __init__(self) -> None:
        self.worktree = ""
        self.todo: tuple[e.TodoItem, ...] = ()
        self.checks: dict[str, Checked] = {}
        self.bars: list[Bar] = []

    def hear(self, event: e.Event) -> None:
        match event:
            case e.RunStarted():
                self._start(event)
            case e.AgentStarted() if event.purpose == "work":
                self.todo = ()
            case e.TodoUpdated():
                self.todo = event.items
            case e.CheckStarted():
                self._note(Checked(short(event.name, 200), is_running=True))
            case e.CheckFinished():
                self._note(Checked(short(event.name, 200), event.passed, event.duration_s))
            case e.IterationFinished():
                self._plot(event)

    def _start(self, event: e.RunStarted) -> None:
        self.worktree = event.worktree
        known = self.checks
        names = [short(name, 200) for name in event.checks[:MOST_CHECKS]]
        self.checks = {name: known.get(name, Checked(name)) for name in names}

    def _note(self, check: Checked) -> None:
        if check.name in self.checks or len(self.checks) < MOST_CHECKS:
            self.checks[check.name] = check

    def _plot(self, event: e.IterationFinished) -> None:
        record = event.record
        passed = sum(check.passed for check in record.checks)
        is_red = record.turn.failure is not None or passed < len(record.checks)
        cost = record.usage.cost_usd or 0.0
        self.bars.append(Bar(event.iteration, passed, len(record.checks), cost, is_red))
        del self.bars[:-MOST_ITERATIONS]
