"""What happened? The journal is the truth of a run: append-only lines, the same that `--json` prints.

A line is written whole with one call, so that a kill at any instant loses at most the event being written; a torn last
line is recognised and skipped when the journal is read.
"""

import os
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from ralph.core import events
from ralph.core.model import Outcome, Run
from ralph.core.secrets import Redactor
from ralph.world.folder import cannot_write

Sink = Callable[[bytes], None]
TEXT_LIMIT = 65536


class Scribe:
    """Numbers, dates and encodes each event once, and gives the line to every sink. What looks like a key, or is known
    to be one, reaches nobody."""

    def __init__(self, run_id: str, sinks: list[Sink], seq: int = 0, redact: Redactor | None = None) -> None:
        self._run = run_id
        self._sinks = sinks
        self._seq = seq
        self._redact = redact or Redactor()
        self._encode = msgspec.json.Encoder().encode

    def __call__(self, event: events.Event) -> events.Event:
        """The event as it was written down."""
        name = events.NAMES.get(type(event))
        if name is None:
            return event
        self._seq += 1
        stamp = datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        told = events.Told(name, stamp, self._run, self._seq, bounded(event))
        line = self._line(told)
        if line is None:
            told = msgspec.structs.replace(told, data=_changed(told.data, self._writable))
            line = self._encode(told)
        for sink in self._sinks:
            sink(line + b"\n")
        return told.data

    def _line(self, told: events.Told) -> bytes | None:
        """The event's line, unless a text in it must be changed first."""
        try:
            line = self._encode(told)
        except UnicodeEncodeError:
            return None
        return line if self._redact(line) == line else None

    def _writable(self, text: str) -> str:
        """Without keys, and in valid Unicode: half a character may stand in a file's name or an argument."""
        return self._redact.text(text).encode("utf-8", "replace").decode()


def _changed(event: events.Event, change: Callable[[str], str]) -> events.Event:
    """The event with every text in it changed; one by one, since a change that spans two would break the line."""

    def walk(value: Any) -> Any:
        if isinstance(value, str):
            return change(value)
        if isinstance(value, dict):
            return {key: walk(one) for key, one in value.items()}
        return [walk(one) for one in value] if isinstance(value, list | tuple) else value

    return msgspec.convert(walk(msgspec.to_builtins(event)), type(event))


def bounded(event: events.Event) -> events.Event:
    """No event may be larger than a person would read; all of it is in the turn's log."""
    if isinstance(event, events.AgentText) and len(event.text) > TEXT_LIMIT:
        half = TEXT_LIMIT // 2
        return events.AgentText(f"{event.text[:half]}\n… [cut] …\n{event.text[-half:]}")
    return event


class Journal:
    """The file sink."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._start_on_a_fresh_line()
        except OSError as error:
            raise cannot_write(path, error) from None

    def _start_on_a_fresh_line(self) -> None:
        size = os.fstat(self._fd).st_size
        if size and os.pread(self._fd, 1, size - 1) != b"\n":
            os.write(self._fd, b"\n")

    def __call__(self, line: bytes) -> None:
        """Writes the line, or raises once: without its journal a run must end, and it must be able to say so."""
        try:
            while line and self._fd >= 0:
                line = line[os.write(self._fd, line) :]
        except OSError as error:
            self.close()
            raise cannot_write(self._path, error) from None

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Entry(msgspec.Struct, frozen=True):
    """One line of a journal whose event is decoded only when asked for."""

    type: str
    timestamp: str
    run: str
    seq: int
    data: msgspec.Raw

    @property
    def at(self) -> float:
        """Epoch seconds; 0 where the line bears no readable date."""
        try:
            return datetime.fromisoformat(self.timestamp).timestamp()
        except ValueError:
            return 0.0

    def event(self) -> events.Event | None:
        """The event, or None for a kind that this version does not know."""
        kind = _KINDS.get(self.type)
        try:
            return msgspec.json.decode(self.data, type=kind) if kind else None
        except msgspec.MsgspecError:
            return None


_KINDS = {name: kind for kind, name in events.NAMES.items()}
_ENTRIES = msgspec.json.Decoder(Entry)


def read(path: Path) -> Iterator[Entry]:
    """The entries of a journal, without torn or foreign lines."""
    with open(path, "rb") as lines:
        for line in lines:
            try:
                yield _ENTRIES.decode(line)
            except msgspec.MsgspecError:
                continue


class Story(msgspec.Struct):
    """A run as its journal tells it: how it started, what came of it, and the number of its last line.

    `settled` are the SCM tasks that are done, by iteration; `is_open`: what follows from the last iteration may not
    have been done; `missing`: an iteration whose line cannot be read, though later ones can.
    """

    run: Run
    started: events.RunStarted | None = None
    finished: events.RunFinished | None = None
    waiting: events.Waiting | None = None
    settled: frozenset[tuple[int, str]] = frozenset()
    is_open: bool = False
    missing: int = 0
    seq: int = 0
    elapsed: float = 0.0

    @property
    def is_done(self) -> bool:
        return self.finished is not None and self.finished.outcome == Outcome.DONE.value

    def resumed(self) -> Run:
        """The run as it goes on: old failures are forgiven, but a usage limit still has to be waited out."""
        limits = tuple(turn for turn in self.run.retries if turn.is_limited)
        return msgspec.structs.replace(self.run, retries=limits, resumed=len(self.run.iterations))


def recall(path: Path) -> Story:
    """The run that a journal holds, ready to be judged, shown or resumed."""
    story, watch = Story(Run(path.parent.name)), _Stopwatch()
    for entry in read(path):
        story.seq = max(story.seq, entry.seq)
        event = entry.event()
        _add(story, event)
        watch.hear(event, entry.at)
    story.elapsed = watch.total()
    return story


def _add(story: Story, event: events.Event | None) -> None:
    run = story.run
    match event:
        case events.RunStarted():
            if story.started is None:
                run = msgspec.structs.replace(run, goal=event.goal, base_tree=event.base_tree)
            story.run, story.started, story.finished, story.waiting = run, event, None, None
        case events.IterationFinished() if event.iteration == run.number:
            story.run, story.waiting, story.is_open = run.plus(event.record), None, True
        case events.IterationFinished() if event.iteration > run.number:
            story.missing = story.missing or run.number
        case events.TurnNotCounted():
            story.run, story.waiting = run.retrying(event.turn), None
        case events.Waiting():
            story.waiting, story.is_open = event, False
        case events.IterationStarted() | events.ClaimRejected():
            story.is_open = False
        case events.ScmFinished() if event.ok:
            story.settled |= {(event.iteration, event.task)}
        case events.RunFinished():
            # Whoever interrupts a run interrupts the commit too.
            story.finished = event
            story.is_open = story.is_open and event.outcome == Outcome.INTERRUPTED.value


class _Stopwatch:
    """How long a run took by its own account: the clock on the wall may have been set, or the machine have slept."""

    def __init__(self) -> None:
        self._known = 0.0
        self._since: float | None = None  # something began then of which the journal does not yet say how long it took
        self._most = self._last = 0.0

    def hear(self, event: events.Event | None, at: float) -> None:
        match event:
            case events.AgentFinished() | events.CheckFinished():
                self._known += event.duration_s
                self._since = None
            case events.RunFinished():
                self._known, self._since = event.duration_s, None
            case events.RunStarted():
                self._settle(self._last)
            case events.AgentStarted() | events.CheckStarted():
                self._settle(at)
                self._since, self._most = at, float("inf")
            case events.Waiting():
                self._settle(at)
                self._since, self._most = at, event.seconds
        self._last = at

    def total(self) -> float:
        self._settle(self._last)
        return self._known

    def _settle(self, at: float) -> None:
        if self._since is not None:
            self._known += min(max(at - self._since, 0.0), self._most)
        self._since = None
