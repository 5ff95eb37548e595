"""What is new in the journal of a run? A look that never takes long, however much was written since the last one."""

import os
import time
from pathlib import Path

from msgspec import Struct

from ralph.core import events
from ralph.core import events as e
from ralph.core.text import short
from ralph.records.journal import Following, decoded, unreadable

RECENT = 1 << 19
"""In so many bytes before the end of a journal, all that the agent says and does is read; before them, what counts."""
LONGEST_LOOK = 0.02  # seconds
_TYPE = b'{"type":"'
_TALK = frozenset(events.NAMES[kind].encode() for kind in events.TALK - {events.TodoUpdated})


class News(Struct, frozen=True):
    """An event, and how many bytes it took. `skipped` events before it were left out."""

    event: events.Event
    size: int
    skipped: int = 0


class Feed:
    """One journal, from its beginning and for as long as it grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._following = Following(path)
        self._lines = self._following.lines()
        self._inode = self._stat().st_ino
        self._read = self._skipped = 0
        self.is_behind = False

    @property
    def is_replaced(self) -> bool:
        """Whether another file is in its place: a run whose journal was removed writes it anew."""
        return self._stat().st_ino != self._inode

    def look(self, longest: float = LONGEST_LOOK) -> list[News]:
        """What is new, or as much of it as can be read in `longest` seconds: then the feed `is_behind`."""
        until = time.monotonic() + longest
        old = self._stat().st_size - RECENT
        found = []
        for line in self._lines:
            self._read += len(line)
            if self._read < old and _kind(line) in _TALK:
                self._skipped += 1
            elif news := self._news(line):
                found.append(news)
            if time.monotonic() > until:
                self.is_behind = True
                return found
        self._lines = self._following.lines()
        self.is_behind = False
        return found

    def close(self) -> None:
        self._following.close()

    def _stat(self) -> os.stat_result:
        try:
            return os.stat(self._path)
        except OSError as error:
            raise unreadable(self._path, error) from None

    def _news(self, line: bytes) -> News | None:
        entry = decoded(line)
        event = entry.event() if entry else None
        if event is None:
            return None
        skipped, self._skipped = self._skipped, 0
        return News(event, len(line), skipped)


def _kind(line: bytes) -> bytes:
    return line[len(_TYPE) : line.find(b'"', len(_TYPE))] if line.startswith(_TYPE) else b""


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
