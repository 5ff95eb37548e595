"""What happened? The journal is the truth of a run: append-only lines, the same that `--json` prints.

A line is written whole with one call, so that a kill at any instant loses at most the event being written; a torn last
line is recognised and skipped when the journal is read.
"""

import os
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from ralph.core import events
from ralph.core.model import Outcome, Run
from ralph.core.secrets import redact
from ralph.world.folder import cannot_write

Sink = Callable[[bytes], None]
TEXT_LIMIT = 65536


class Scribe:
    """Numbers, dates and encodes each event once, and gives the line to every sink."""

    def __init__(self, run_id: str, sinks: list[Sink], seq: int = 0) -> None:
        self._run = run_id
        self._sinks = sinks
        self._seq = seq
        self._encode = msgspec.json.Encoder().encode

    def __call__(self, event: events.Event) -> None:
        name = events.NAMES.get(type(event))
        if name is None:
            return
        self._seq += 1
        stamp = datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line = self._encode(events.Told(name, stamp, self._run, self._seq, bounded(event))) + b"\n"
        line = redact(line)
        for sink in self._sinks:
            sink(line)


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
    """A run as its journal tells it: how it started, what came of it, and the number of its last line."""

    run: Run
    started: events.RunStarted | None = None
    finished: events.RunFinished | None = None
    waiting: events.Waiting | None = None
    committed: frozenset[int] = frozenset()
    seq: int = 0
    elapsed: float = 0.0

    @property
    def is_done(self) -> bool:
        return self.finished is not None and self.finished.outcome == Outcome.DONE.value

    def resumed(self) -> Run:
        """The run as it goes on: old failures are forgiven, but a usage limit still has to be waited out."""
        limits = tuple(turn for turn in self.run.retries if turn.failure and turn.failure.kind == "limit")
        return msgspec.structs.replace(self.run, retries=limits, resumed=len(self.run.iterations))


def recall(path: Path) -> Story:
    """The run that a journal holds, ready to be judged, shown or resumed."""
    story = Story(Run(path.parent.name))
    before = began = 0.0
    for entry in read(path):
        story.seq = max(story.seq, entry.seq)
        event = entry.event()
        if isinstance(event, events.RunStarted):
            before, began = story.elapsed, entry.at
        _add(story, event)
        story.elapsed = max(story.elapsed, before + entry.at - began)
    return story


def _add(story: Story, event: events.Event | None) -> None:
    run = story.run
    match event:
        case events.RunStarted():
            if story.started is None:
                run = msgspec.structs.replace(run, goal=event.goal, base_tree=event.base_tree)
            story.run, story.started, story.finished, story.waiting = run, event, None, None
        case events.IterationFinished() if event.iteration == run.number:
            story.run, story.waiting = run.plus(event.record), None
        case events.TurnNotCounted():
            story.run, story.waiting = run.retrying(event.turn), None
        case events.Waiting():
            story.waiting = event
        case events.ScmFinished() if event.ok:
            story.committed |= {event.iteration}
        case events.RunFinished():
            story.finished = event
