"""What happened? The journal is the truth of a run: append-only lines, the same that `--json` prints.

A line is written whole with one call, so that a kill at any instant loses at most the event being written; a torn last
line is recognised and skipped when the journal is read.
"""

import os
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import msgspec

from ralph.core import events
from ralph.core.model import Outcome, Run
from ralph.errors import UserError
from ralph.files import open_file
from ralph.records.folder import cannot_write

if TYPE_CHECKING:
    from io import FileIO


class Journal:
    """The file sink. `restore` makes its folder anew where somebody has removed it; `seal` notes each line before it is
    written."""

    def __init__(
        self,
        path: Path,
        restore: Callable[[], None] = lambda: None,
        seal: Callable[[bytes], None] = lambda line: None,
    ) -> None:
        self._path, self._restore, self._seal = path, restore, seal
        self._fd: int

    def open(self) -> "Journal":
        try:
            self._fd = self._open()
            size = os.fstat(self._fd).st_size
            if size and os.pread(self._fd, 1, size - 1) != b"\n":  # a kill has cut off the last line
                os.write(self._fd, b"\n")
        except OSError as error:
            raise cannot_write(self._path, error) from None
        return self

    def __call__(self, line: bytes) -> None:
        """Writes the line, or raises once: without its journal a run must end, and it must be able to say so."""
        if self._fd < 0:
            return
        try:
            if os.fstat(self._fd).st_nlink == 0:
                self._write_anew()
            self._seal(line)
            self._write(line)
        except OSError as error:
            self.close()
            raise cannot_write(self._path, error) from None
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

    def _write_anew(self) -> None:
        """An agent that cleans up has removed the journal; but what is held open can still be read."""
        self._restore()
        removed, at = self._fd, 0
        self._fd = self._open()
        while chunk := os.pread(removed, 1 << 20, at):
            self._write(chunk)
            at += len(chunk)
        os.close(removed)


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
        if kind is None and self.type.startswith(("work_", "item_", "gate_")):  # of a work off of a backlog
            from ralph.core.work_events import NAMES

            kind = next((one for one, name in NAMES.items() if name == self.type), None)
        try:
            return msgspec.json.decode(self.data, type=kind) if kind else None
        except ValueError:  # not JSON, not ours, or not even UTF-8
            return None


_KINDS = {name: kind for kind, name in events.NAMES.items()}
_ENTRIES = msgspec.json.Decoder(Entry)


def read(path: Path) -> Iterator[Entry]:
    """The entries of a journal, without torn or foreign lines."""
    with open(open_file(path), "rb") as file:
        yield from filter(None, map(decoded, lines_of(file)))


def lines_of(file: BinaryIO) -> Iterator[bytes]:
    """The lines of a journal. One that is longer than any of ours is passed over: it would take all the memory."""
    while line := file.readline(LONGEST_LINE):
        if len(line) < LONGEST_LINE:
            yield line
            continue
        while line and not line.endswith(b"\n"):
            line = file.readline(_CHUNK)


def decoded(line: bytes) -> Entry | None:
    """The entry that a line holds; None for a torn or foreign one."""
    try:
        return _ENTRIES.decode(line)
    except ValueError:  # not JSON, not ours, or not even UTF-8
        return None


class Story(msgspec.Struct, kw_only=True):
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
    story, watch = Story(run=Run(id=path.parent.name)), _Stopwatch()
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
        case events.Spent():
            story.run = run.spending(event.usage)
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
        self._open = 0  # checks that have begun; of several at once, what each took does not say what all did
        self._overlap = False

    def hear(self, event: events.Event | None, at: float) -> None:
        match event:
            case events.CheckFinished() if self._overlap:
                self._settle(at)
                self._open -= 1
                self._overlap = self._open > 0
                self._since = at if self._overlap else None
            case events.AgentFinished() | events.CheckFinished():
                self._known += event.duration_s
                self._since, self._open = None, 0
            case events.RunFinished():
                self._known, self._since = event.duration_s, None
            case events.RunStarted():
                self._settle(self._last)
                self._open, self._overlap = 0, False
            case events.AgentStarted() | events.CheckStarted():
                self._settle(at)
                self._since, self._most = at, float("inf")
                self._open = self._open + 1 if isinstance(event, events.CheckStarted) else 0
                self._overlap = self._open > 1
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


LONGEST_LINE = 32 << 20
_CHUNK = 1 << 18
_GLIMPSE = 1 << 16


class Following:
    """The lines of a growing file, from its beginning, or only the last ones in so many bytes. A last line without its
    end is kept until the rest of it is there."""

    def __init__(self, file: "FileIO") -> None:
        self._file = file
        self._parts: list[bytes] = []  # of a line that has no end yet
        self._is_too_long = False

    @classmethod
    def open(cls, path: Path, recent: int | None = None) -> "Following":
        try:
            file = open(open_file(path), "rb", buffering=0)  # noqa: SIM115 - as long as the reader is interested
            begin = os.fstat(file.fileno()).st_size - recent if recent is not None else 0
            if begin > 0:
                file.seek(begin - 1)
                while (chunk := file.read(_CHUNK)) and b"\n" not in chunk:
                    begin += len(chunk)
                file.seek(begin + chunk.find(b"\n"))
        except OSError as error:
            raise unreadable(path, error) from None
        return cls(file)

    @property
    def position(self) -> int:
        """How many bytes of the file have been read."""
        return self._file.tell()

    @property
    def about(self) -> os.stat_result:
        """The file that is read, which need not be the one in its place by now."""
        return os.fstat(self._file.fileno())

    def lines(self) -> Iterator[bytes]:
        """What is new since the last call, line by line, each with its newline; as `lines_of`."""
        while chunk := self._file.read(_CHUNK):
            *whole, rest = chunk.split(b"\n")
            if whole:
                whole[0] = b"".join((*self._parts, whole[0]))
                for line in whole[self._is_too_long :]:
                    yield line + b"\n"
                self._parts, self._is_too_long = [], False
            self._parts.append(rest)
            if len(self._parts) > LONGEST_LINE // _CHUNK:
                self._parts, self._is_too_long = [], True

    def close(self) -> None:
        self._file.close()


def glimpse(path: str | os.PathLike[str]) -> list[Entry]:
    """The first and the last entries of a journal, however long it is."""
    try:
        with open(open_file(path), "rb") as file:
            first = file.read(_GLIMPSE)
            file.seek(max(os.fstat(file.fileno()).st_size - _GLIMPSE, len(first)))
            last = file.read(_GLIMPSE)
    except OSError as error:
        raise unreadable(path, error) from None
    return [entry for line in (*first.split(b"\n"), *last.split(b"\n")) if (entry := decoded(line))]


def unreadable(path: str | os.PathLike[str], error: OSError) -> UserError:
    return UserError(f"cannot read {path}: {error.strerror or error}", "was the run's folder removed?")
