"""What happened? The journal is the truth of a run: append-only lines, the same that `--json` prints.

A line is written whole with one call, so that a kill at any instant loses at most the event being written; a torn last
line is recognised and skipped when the journal is read.

Is it still what ralph left? Outside the workspace, where an agent has no business, it is noted how long the journal was
after each iteration, and what it and the other files that decide held.
"""

import errno
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import msgspec
from msgspec import Struct

from ralph.core import events
from ralph.core.model import Iteration, Outcome, Run, Turn, still_limited
from ralph.errors import UNREADABLE, UserError
from ralph.files import make_folder, new_hash, open_file, open_own, read_file, state_folder, write_file
from ralph.records.folder import cannot_write

if TYPE_CHECKING:
    from io import FileIO


class Journal:
    """The file sink. `restore` makes its folder anew where somebody has removed it; `seal` notes each line before it is
    written, and `confirm` that it was."""

    def __init__(
        self,
        path: Path,
        restore: Callable[[], None] = lambda: None,
        seal: Callable[[bytes], None] = lambda line: None,
        confirm: Callable[[], None] = lambda: None,
    ) -> None:
        self._path, self._restore, self._seal, self._confirm = path, restore, seal, confirm
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
            self._confirm()
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
        for left in reversed(range(20)):
            try:
                self._restore()
                fd = self._open()
                break
            except (FileNotFoundError, UserError):  # it is still at it, and has removed what was just made
                if not left:
                    raise
                time.sleep(0.05)
        removed, self._fd, at = self._fd, fd, 0
        while chunk := os.pread(removed, 1 << 20, at):
            self._write(chunk)
            at += len(chunk)
        os.close(removed)


class Entry(Struct, frozen=True):
    """One line of a journal whose event is decoded only when asked for."""

    type: str
    timestamp: str
    run: str
    seq: int
    data: msgspec.Raw

    @property
    def at(self) -> float:
        """Epoch seconds; 0 where the line bears no readable date."""
        from datetime import datetime  # half a megabyte, of which a run has no need while it goes on

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
        except UNREADABLE:
            return None


_KINDS = {name: kind for kind, name in events.NAMES.items()}
_ENTRIES = msgspec.json.Decoder(Entry)


def read(path: Path) -> Iterator[Entry]:
    """The entries of a journal, without torn or foreign lines."""
    with open(open_file(path), "rb") as file:
        yield from filter(None, map(decoded, lines_of(file)))


def lines_of(file: BinaryIO) -> Iterator[bytes]:
    """The lines of a journal. One that is longer than any of ours is passed over: it would take all the memory, and
    where it is a hole that costs nothing to make, for ever."""
    while line := file.readline(LONGEST_LINE):
        if len(line) < LONGEST_LINE:
            yield line
            continue
        while line and not line.endswith(b"\n"):
            _pass_hole(file, line)
            line = file.readline(_CHUNK)


def _pass_hole(file: "BinaryIO | FileIO", read: bytes) -> None:
    """Goes on to what was written, where nothing was in what was read last."""
    if read.strip(b"\0"):
        return
    try:
        file.seek(os.lseek(file.fileno(), file.tell(), os.SEEK_DATA))
    except OSError as error:
        if error.errno == errno.ENXIO:  # there is nothing more
            file.seek(0, os.SEEK_END)


def decoded(line: bytes) -> Entry | None:
    """The entry that a line holds; None for a torn or foreign one."""
    try:
        return _ENTRIES.decode(line)
    except UNREADABLE:
        return None


class Story(Struct, kw_only=True):
    """A run as its journal tells it: how it started, what came of it, and the number of its last line.

    `settled` are the SCM tasks that are done, by iteration; `is_open`: what follows from the last iteration may not
    have been done; `missing`: an iteration whose line cannot be read, though later ones can.
    """

    run: Run
    started: events.RunStarted | None = None
    finished: events.RunFinished | None = None
    waiting: events.Waiting | None = None
    settled: set[tuple[int, str]] = msgspec.field(default_factory=set)
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
    # Apart until the end: a run is copied whole with each iteration and each turn that it is given.
    iterations: list[Iteration] = []
    retries: list[Turn] = []
    for entry in read(path):
        story.seq = max(story.seq, entry.seq)
        event = entry.event()
        _add(story, event, iterations, retries)
        watch.hear(event, entry.at)
    story.run = msgspec.structs.replace(story.run, iterations=tuple(iterations), retries=tuple(retries))
    story.elapsed = watch.total()
    return story


def _add(story: Story, event: events.Event | None, iterations: list[Iteration], retries: list[Turn]) -> None:
    run, number = story.run, len(iterations) + 1
    match event:
        case events.RunStarted():
            if story.started is None:
                run = msgspec.structs.replace(run, goal=event.goal, base_tree=event.base_tree)
            story.run, story.started, story.finished, story.waiting = run, event, None, None
        case events.IterationFinished() if event.iteration == number:
            limited = still_limited((*run.limited, *retries), event.record)
            story.run, story.waiting, story.is_open = msgspec.structs.replace(run, limited=limited), None, True
            iterations.append(event.record)
            retries.clear()
        case events.IterationFinished() if event.iteration > number:
            story.missing = story.missing or number
        case events.TurnNotCounted():
            story.run, story.waiting = run.spending(event.turn.usage), None
            retries.append(event.turn)
        case events.Waiting():
            story.waiting, story.is_open = event, False
        case events.IterationStarted() | events.ClaimRejected():
            story.is_open = False
        case events.Spent():
            story.run = run.spending(event.usage)
        case events.ScmFinished() if event.ok:
            story.settled.add((event.iteration, event.task))
        case events.RunFinished():
            # Whoever interrupts a run interrupts the commit too, and so does what is fatal: a full disk, say.
            story.finished = event
            story.is_open = story.is_open and event.outcome in (Outcome.INTERRUPTED.value, Outcome.FATAL.value)


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
                    _pass_hole(file, chunk)
                file.seek(file.tell() - len(chunk) + chunk.find(b"\n") + 1)
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
                _pass_hole(self._file, rest)

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


DECIDING = ("run.json", "tasks.json", "protected/protected.json", "work.json")
_BEGUN, _ENDED = (b'{"type":"run_started"', b'{"type":"work_started"'), b'{"type":"run_finished"'
_PLACE, _MOST_NOTED = "seals", 1 << 20
_COUNTING = {
    "run_started": "a start",
    "iteration_finished": "an iteration",
    "run_finished": "an end",
    **dict.fromkeys(("work_", "item_", "gate_"), "an event"),
}
"""That events whose names begin like this are written is noted: behind what was noted there can be none. And what a
person calls them."""
_NOTED = tuple(b'{"type":"%b' % kind.encode() for kind in _COUNTING)


class Length(Struct, frozen=True):
    """The journal up to some line."""

    size: int
    digest: str


class Sealed(Struct, frozen=True):
    """What ralph has noted. The line that is written `next` belongs to the journal, too: ralph may be killed before it
    is there, or just after, until it is noted that it is. `outcome` is that of a run that has ended, empty before that;
    an earlier ralph did not note it."""

    journal: Length
    next: Length
    files: dict[str, str]
    outcome: str | None = None


class Seal:
    """Hears every line just before it is written. The note is written over in its place, in one call that no kill can
    cut in two: a fresh file after each iteration would take longer than all else that ralph does there."""

    def __init__(self, run_id: str, folder: Path, env: Mapping[str, str]) -> None:
        self._id, self._folder = run_id, folder
        self._path, self._outcome = path_of(run_id, env), ""
        self._contents: dict[str, bytes] = {}
        self._files: dict[str, str] = {}
        self._size, self._hash = 0, new_hash()
        self._note, self._longest = -1, 0
        self._awaited: Length | None = None  # how long the journal is as soon as it holds what was heard last

    def refuse_what_was_changed(self, of_journal: bool = True) -> None:
        """Raises where the run is not as ralph left it; a loop inside a session keeps no account of its journal."""
        try:
            sealed = _sealed(self._path)
        except FileNotFoundError:
            raise UserError(
                f"run {self._id} was not begun by you on this machine, or what ralph noted of it is gone: {self._path}",
                f"see what it was told to do; `ralph trust {self._id}` accepts it as it is",
            ) from None
        except (OSError, *UNREADABLE):
            raise UserError(
                f"what ralph noted of run {self._id} outside of its workspace cannot be read: {self._path}",
                f"see what happened to it; `ralph trust {self._id}` accepts the run as it is",
            ) from None
        if sealed is None:
            return
        found = [name for name, digest in sealed.files.items() if _digest(self._folder / name) != digest]
        found += _changes_of(self._folder / "journal.ndjson", sealed) if of_journal else []
        if found:
            raise UserError(
                f"run {self._id} is not as ralph left it: {', '.join(found)} changed",
                f"see what happened to it; `ralph trust {self._id}` accepts it as it is",
            )

    def begin(self) -> None:
        """What the journal already holds is part of it."""
        with suppress(OSError), open(open_file(self._folder / "journal.ndjson"), "rb", buffering=0) as file:
            while piece := file.read(_CHUNK):
                self._add(piece)

    def __call__(self, lines: bytes) -> None:
        noted = [line for line in lines.splitlines() if line.startswith(_NOTED)]
        if not noted:
            self._add(lines)
            return
        before = self._length()
        self._add(lines)
        if any(line.startswith(_BEGUN) for line in noted):  # before the first turn: no agent can have had a hand in it
            self._look()
        ends = [entry.event() for line in noted if line.startswith(_ENDED) and (entry := decoded(line))]
        self._outcome = next((end.outcome for end in reversed(ends) if isinstance(end, events.RunFinished)), "")
        self._awaited = self._length()
        self._write(before, self._awaited)

    def note(self) -> None:
        """Notes what decides, for who keeps no account of the journal."""
        self._look()
        self._write(self._length(), self._length())
        self.close()

    def confirm(self) -> None:
        """The lines that were heard last are in the journal by now: whoever cuts them off has changed it."""
        if self._awaited:
            self._write(self._awaited, self._awaited)
            self._awaited = None

    def restore(self) -> None:
        """Puts back what an agent that cleans up has removed."""
        for name, data in self._contents.items():
            path = self._folder / name
            if not path.exists():
                make_folder(str(path.parent))
                write_file(path, data)

    def close(self) -> None:
        if self._note >= 0:
            os.close(self._note)
            self._note = -1

    def _look(self) -> None:
        self._contents = {name: data for name in DECIDING if (data := _contents(self._folder / name)) is not None}
        self._files = {name: _digest(self._folder / name) for name in DECIDING}

    def _write(self, written: Length, following: Length) -> None:
        note = msgspec.json.encode(Sealed(written, following, self._files, self._outcome)).ljust(self._longest)
        with suppress(OSError):  # as with the list of runs, which says so: then nothing can be compared
            if self._note >= 0 and not os.fstat(self._note).st_nlink:  # somebody has removed it
                self.close()
            if self._note < 0:
                make_folder(os.path.dirname(self._path))
                self._note = open_own(self._path)
                note = note.ljust(os.fstat(self._note).st_size)
            self._longest = len(note)
            os.pwrite(self._note, note, 0)

    def _add(self, data: bytes) -> None:
        self._size += len(data)
        self._hash.update(data)

    def _length(self) -> Length:
        return Length(self._size, self._hash.hexdigest())


def path_of(run_id: str, env: Mapping[str, str]) -> str:
    return os.path.join(state_folder(env, _PLACE), run_id)


def noted_outcome(run_id: str, env: Mapping[str, str]) -> str | None:
    """How the run has ended, whatever stands in its folder; None where nothing is noted."""
    try:
        sealed = _sealed(path_of(run_id, env))
    except OSError:
        return None
    except UNREADABLE:
        return ""
    return sealed.outcome if sealed else None


def _sealed(path: str) -> Sealed | None:
    """What was noted; None where a person has accepted the run as it is, or it was killed before the first turn."""
    note = read_file(path, _MOST_NOTED)
    return msgspec.json.decode(note, type=Sealed) if note.strip() else None


def accept(run_id: str, env: Mapping[str, str]) -> None:
    """Takes a run as it is: until it goes on there is nothing to compare it with."""
    path = path_of(run_id, env)
    try:
        make_folder(os.path.dirname(path))
        write_file(path, b"", 0o600)
    except OSError as error:
        raise cannot_write(path, error) from None


def forget(run_id: str, env: Mapping[str, str]) -> None:
    with suppress(OSError):
        os.unlink(path_of(run_id, env))


def _contents(path: Path) -> bytes | None:
    try:
        return read_file(path)
    except OSError:
        return None


def _digest(path: Path) -> str:
    try:
        return new_hash(read_file(path)).hexdigest()
    except FileNotFoundError:
        return ""
    except OSError as error:
        return error.strerror or "unreadable"


def _changes_of(journal: Path, sealed: Sealed) -> list[str]:
    """What is wrong with the journal. After a kill it holds more than was noted, but nothing that counts."""
    try:
        with open(open_file(journal), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            known = sealed.next if size >= sealed.next.size else sealed.journal
            if _hashed(file, known.size) != known:
                return ["its journal"]
            for entry in filter(None, map(decoded, lines_of(file))):  # a torn line counts for nothing
                if added := next((word for kind, word in _COUNTING.items() if entry.type.startswith(kind)), ""):
                    return [f"its journal ({added} was added)"]
    except OSError as error:
        return [f"its journal ({error.strerror})"]
    return []


def _hashed(file: BinaryIO, size: int) -> Length:
    digest, left = new_hash(), size
    while left and (piece := file.read(min(left, _CHUNK))):
        digest.update(piece)
        left -= len(piece)
    return Length(size - left, digest.hexdigest())
