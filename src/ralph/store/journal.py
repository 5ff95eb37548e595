"""The journal of a run: append-only lines, the same that `--json` prints. It is the truth about the run.

Each line is written with one call, so a kill loses at most the event being written. A reader skips a torn line, and
lines that ralph did not write.
"""

import os
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from io import FileIO
from pathlib import Path

import msgspec
from msgspec import Struct

from ralph.core import events, work_events
from ralph.errors import UNREADABLE, UserError, shortage
from ralph.files import open_file
from ralph.store.folder import cannot_write

LONGEST_LINE = 32 << 20  # bytes; ralph writes none that long
_CHUNK = 1 << 18
_REOPEN_TRIES = 20


class Journal:
    """The file that events are appended to. `restore` recreates its folder if an agent has removed it."""

    def __init__(self, path: Path, restore: Callable[[], None] = lambda: None) -> None:
        self._path, self._restore = path, restore
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
        """Append a line. Raise only once: a run without its journal must end, and must be able to report that."""
        if self._fd < 0:
            return
        try:
            if os.fstat(self._fd).st_nlink == 0:
                self._recreate()
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

    def _recreate(self) -> None:
        """Write the journal again after an agent has removed it: the open file can still be read."""
        for left in reversed(range(_REOPEN_TRIES)):
            try:
                self._restore()
                fd = self._open()
                break
            except (FileNotFoundError, UserError):  # the agent is still removing, and has removed what was just made
                if not left:
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
            return None


_KINDS = {name: kind for kind, name in (events.NAMES | work_events.NAMES).items()}
_ENTRIES = msgspec.json.Decoder(Entry)


def decode_entry(line: bytes) -> Entry | None:
    """Return the entry of a line; None for a torn or foreign one."""
    try:
        return _ENTRIES.decode(line)
    except UNREADABLE:
        return None


class JournalReader:
    """Reads a journal from its start. Another call of `lines` or `entries` reads what was appended since."""

    def __init__(self, file: FileIO) -> None:
        self._file = file
        self._parts: list[bytes] = []  # of a line that has no end yet
        self._is_too_long = False

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> "JournalReader":
        try:
            return cls(open(open_file(path), "rb", buffering=0))
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
        """Yield what is new since the last call, line by line; with `final` also a last line without its newline. Lines
        longer than `LONGEST_LINE` are skipped, because they would take all the memory."""
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
        if final and not self._is_too_long and (rest := b"".join(self._parts)):
            self._parts = []
            yield rest

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
