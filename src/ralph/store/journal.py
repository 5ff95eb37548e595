"""The journal of a run: append-only lines, the same that `--json` prints; and the run that is read back from it.

The journal is the truth about the run. Each line is written with one call, so a kill loses at most the event being
written. A reader skips a torn line, and lines that ralph did not write.
"""

import math
import os
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
from msgspec import Struct

from ralph.core import backlog_events, events
from ralph.core.model import Fingerprint, Iteration, Outcome, Run, Turn, still_limited
from ralph.errors import UNREADABLE, UserError, shortage
from ralph.files import open_file
from ralph.store.folder import report_write_errors

LONGEST_LINE = 32 << 20  # bytes; ralph writes none that long, and a longer one is torn
_CHUNK = 1 << 18
_REOPEN_TRIES = 20


class Journal:
    """The file that events are appended to. `restore` recreates its folder if an agent has removed it."""

    def __init__(self, path: Path, restore: Callable[[], None] = lambda: None) -> None:
        self._path, self._restore = path, restore
        self._fd: int

    def open(self) -> "Journal":
        with report_write_errors(self._path):
            self._fd = self._open()
            size = os.fstat(self._fd).st_size
            if size and os.pread(self._fd, 1, size - 1) != b"\n":  # a kill has cut off the last line
                os.write(self._fd, b"\n")
        return self

    def __call__(self, line: bytes) -> None:
        """Append a line. Raise only once: a run without its journal must end, and must be able to report that."""
        if self._fd < 0:
            return
        try:
            with report_write_errors(self._path):
                if os.fstat(self._fd).st_nlink == 0:
                    self._recreate()
                self._write(line)
        except UserError:
            self.close()
            raise

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> int:
        return open_file(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT)

    def _write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._fd, data) :]

    def _recreate(self) -> None:
        """Write the journal again after an agent has removed it: the open file can still be read."""
        for tries_left in reversed(range(_REOPEN_TRIES)):
            try:
                self._restore()
                fd = self._open()
                break
            except (FileNotFoundError, UserError):  # the agent is still removing, and has removed what was just made
                if not tries_left:
                    raise
                time.sleep(0.05)
        removed, self._fd, at = self._fd, fd, 0
        while chunk := os.pread(removed, _CHUNK, at):
            self._write(chunk)
            at += len(chunk)
        os.close(removed)


class Entry(Struct, frozen=True):
    """One line of a journal. Its event is decoded only on request."""

    type: str
    timestamp: str
    run: str
    seq: int
    data: msgspec.Raw

    @property
    def at(self) -> float:
        """Epoch seconds; 0 if the line has no valid timestamp."""
        try:
            return datetime.fromisoformat(self.timestamp).timestamp()
        except ValueError:
            return 0.0

    def event(self) -> events.Event | None:
        """Return the event, or None if this version does not know its kind or cannot read it."""
        kind = _KINDS.get(self.type)
        try:
            return msgspec.json.decode(self.data, type=kind) if kind else None
        except UNREADABLE:
            return _read_older(self.data, kind)


def _read_older(data: bytes, kind: Any) -> events.Event | None:
    """Return an event of an older version, which wrote fingerprints as strings; None if that isn't why it cannot be
    read."""
    try:
        fields = msgspec.json.decode(data, type=dict[str, Any])
        for part in (fields, fields.get("record"), fields.get("hand_over")):
            for name in ("base_tree", "tree"):
                if isinstance(part, dict) and isinstance(text := part.get(name), str):
                    part[name] = msgspec.to_builtins(Fingerprint.parse(text))
        event: events.Event = msgspec.convert(fields, kind)
        return event
    except UNREADABLE:
        return None


_KINDS = {name: kind for kind, name in (events.NAMES | backlog_events.NAMES).items()}
_ENTRIES = msgspec.json.Decoder(Entry)


def decode_entry(line: bytes) -> Entry | None:
    """Return the entry of a line; None for a torn or foreign one."""
    try:
        return _ENTRIES.decode(line)
    except UNREADABLE:
        return None


class JournalReader:
    """Reads a journal from its start. Another call of `lines` or `entries` reads what was appended since."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._rest = b""  # a line that has no end yet

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> "JournalReader":
        try:
            return cls(open(open_file(path), "rb", buffering=_CHUNK))
        except OSError as error:
            raise unreadable(path, error) from None

    def __enter__(self) -> "JournalReader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def position(self) -> int:
        """How many bytes of the file have been read."""
        return self._file.tell()

    @property
    def stat(self) -> os.stat_result:
        """The file being read. Another one may have taken its place."""
        return os.fstat(self._file.fileno())

    def lines(self, final: bool = False) -> Iterator[bytes]:
        """Yield what is new since the last call, line by line; with `final` also a last line without its newline."""
        while piece := self._file.readline(LONGEST_LINE):
            self._rest += piece
            if piece.endswith(b"\n") or len(self._rest) >= LONGEST_LINE:
                yield self._rest
                self._rest = b""
        if final and self._rest:
            yield self._rest
            self._rest = b""

    def entries(self) -> Iterator[Entry]:
        """Yield the entries that are new since the last call, without torn or foreign lines."""
        return filter(None, map(decode_entry, self.lines(final=True)))

    def close(self) -> None:
        self._file.close()


def read_entries(path: str | os.PathLike[str]) -> Iterator[Entry]:
    """Yield the entries of a journal. Raise a UserError if it cannot be opened."""
    with JournalReader.open(path) as reader:
        yield from reader.entries()


def unreadable(path: str | os.PathLike[str], error: OSError) -> UserError:
    short = shortage(error)
    hint = short.hint if short else "was the run's folder removed?"
    return UserError(f"cannot read {path}: {error.strerror or error}", hint)


class StoredRun(Struct, kw_only=True):
    """A run that was read back, and how it started and ended."""

    run: Run
    started: events.RunStarted | None = None
    finished: events.RunFinished | None = None
    waiting: events.Waiting | None = None
    settled: set[tuple[int, str]] = msgspec.field(default_factory=set)
    """The finished SCM tasks, by iteration."""
    is_open: bool = False
    """The followups of the last iteration may not have run."""
    missing: int = 0
    """An iteration whose line cannot be read, although later lines can."""
    seq: int = 0
    """The number of the last line."""
    elapsed: float = 0.0

    @property
    def is_done(self) -> bool:
        return self.finished is not None and self.finished.outcome is Outcome.DONE

    def resumed(self) -> Run:
        """Return the run as it continues: old failures are forgotten, but it still waits for a usage limit."""
        limits = tuple(turn for turn in self.run.retries if turn.is_limited)
        return msgspec.structs.replace(self.run, retries=limits, resumed=len(self.run.iterations))


def load_run(path: Path) -> StoredRun:
    """Return the run that a journal holds. Raise a UserError if the journal cannot be opened."""
    stored, watch = StoredRun(run=Run(id=path.parent.name)), _Stopwatch()
    # Kept apart until the end: adding to a run copies it.
    iterations: list[Iteration] = []
    retries: list[Turn] = []
    for entry in read_entries(path):
        stored.seq = max(stored.seq, entry.seq)
        event = entry.event()
        _add(stored, event, iterations, retries)
        watch.hear(event, entry.at)
    stored.run = msgspec.structs.replace(stored.run, iterations=tuple(iterations), retries=tuple(retries))
    stored.elapsed = watch.total
    return stored


def _add(stored: StoredRun, event: events.Event | None, iterations: list[Iteration], retries: list[Turn]) -> None:
    run, number = stored.run, len(iterations) + 1
    match event:
        case events.RunStarted():
            if stored.started is None:
                run = msgspec.structs.replace(run, goal=event.goal, base_tree=event.base_tree)
            stored.run, stored.started, stored.finished, stored.waiting = run, event, None, None
        case events.Baseline():
            stored.run = msgspec.structs.replace(run, baseline=event.checks)
        case events.StartMeasured():
            stored.run = msgspec.structs.replace(run, start=event.start)
        case events.IterationFinished() if event.iteration == number:
            limited = still_limited((*run.limited, *retries), event.record)
            stored.run, stored.waiting, stored.is_open = msgspec.structs.replace(run, limited=limited), None, True
            iterations.append(event.record)
            retries.clear()
        case events.IterationFinished() if event.iteration > number:
            stored.missing = stored.missing or number
        case events.FilesAccepted() if 0 < event.iteration == len(iterations):
            stored.run, stored.is_open = run.spending(iterations[-1].review_usage), True
            iterations[-1] = event.record
        case events.TurnNotCounted():
            stored.run, stored.waiting = run.spending(event.turn.usage), None
            retries.append(event.turn)
        case events.Waiting():
            stored.waiting, stored.is_open = event, False
        case events.IterationStarted() | events.ClaimRejected():
            stored.is_open = False
        case events.HandedOver():
            stored.run = msgspec.structs.replace(run, hand_overs=(*run.hand_overs, event.hand_over))
        case events.Spent():
            stored.run = run.spending(event.usage)
        case events.ScmFinished() if event.ok:
            stored.settled.add((event.iteration, event.task))
        case events.ProofFinished() if event.tree and 0 < event.iteration == len(iterations):
            iterations[-1] = msgspec.structs.replace(iterations[-1], tree=event.tree)
        case events.RunFinished():
            # An interrupt, or something fatal like a full disk, prevents the commit as well.
            stored.finished = event
            if event.outcome is Outcome.STALLED:
                stored.run = msgspec.structs.replace(run, stalled=len(iterations))
            stored.is_open = stored.is_open and event.outcome in (Outcome.INTERRUPTED, Outcome.FATAL)


class _Stopwatch:
    """Adds up how long a run took. Measured durations take precedence over timestamps: the clock may have been changed,
    or the machine suspended."""

    def __init__(self) -> None:
        self.total = 0.0
        self._total_before_turn = 0.0
        self._last = 0.0
        self._most = 0.0  # seconds that count until the next event

    def hear(self, event: events.Event | None, at: float) -> None:
        passed = min(max(at - self._last, 0.0), self._most)
        self._last, self._most = at, math.inf
        match event:
            case events.RunStarted():
                passed = 0.0
            case events.Waiting():
                self._most = event.seconds
            case events.Paused():
                self._most = 0.0
            case events.AgentStarted():
                self._total_before_turn = self.total + passed
            case events.AgentFinished():
                self.total, passed = self._total_before_turn + event.duration_s, 0.0
            case events.CheckFinished():
                passed = event.duration_s
            case events.RunFinished():
                self.total, passed = event.duration_s, 0.0
        self.total += passed
