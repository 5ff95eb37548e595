"""What is kept of a stream on disk? All of it up to a size, then its beginning and its end, without secrets."""

import os
from collections.abc import Callable

from ralph.core.secrets import redact as strike_keys
from ralph.core.secrets import settled
from ralph.world.processes.tail import Tail

LARGEST = 32 << 20
_TAIL = 4 << 20
_NOTE_ROOM = 128
_PIECE = 1 << 16


_UNOPENED, _GIVEN_UP = -2, -1


class LogFile:
    """A file of at most `limit` bytes. It is made when it is opened, written to or closed. A disk that is full or gone
    does not end the turn: `trouble` says so, once."""

    def __init__(self, path: str, limit: int = LARGEST, redact: Callable[[bytes], bytes] = strike_keys) -> None:
        self.path = path
        self.trouble = ""
        self._redact = redact
        self._unsettled = b""
        tail = min(_TAIL, limit // 2)
        self._room = max(0, limit - tail - _NOTE_ROOM)
        self._tail = Tail(tail)
        self._fd = _UNOPENED

    def __enter__(self) -> "LogFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> None:
        """Makes the file, if that has not been done."""
        if self._fd == _UNOPENED:
            try:
                self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
            except OSError as error:
                self._give_up(error)

    def write(self, chunk: bytes) -> None:
        if self._room:
            self._put(self._settle(chunk))
        elif self._fd != _GIVEN_UP:
            self._tail.add(chunk)

    def close(self) -> None:
        """Writes what was held back: an unfinished line, and the end of a stream that was too long."""
        self.open()
        if self._unsettled:
            self._put(self._rest())
        if self._tail.seen:
            self._put_tail()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = _GIVEN_UP

    def _settle(self, chunk: bytes) -> bytes:
        """What can be redacted now: a key may be split over two chunks."""
        data = self._unsettled + chunk if self._unsettled else chunk
        end = settled(data)
        self._unsettled = data[end:]
        return self._redact(data[:end])

    def _rest(self) -> bytes:
        rest, self._unsettled = self._unsettled, b""
        return self._redact(rest)

    def _put(self, data: bytes) -> None:
        """Writes the beginning of the stream; what has no room there goes to its end."""
        if len(data) < self._room:
            self._room -= len(data)
            self._write(data)
            return
        self._write(data[: self._room])
        self._tail.add(data[self._room :])
        self._room -= min(self._room, len(data))
        if not self._room:
            self._tail.add(self._unsettled)
            self._unsettled = b""

    def _put_tail(self) -> None:
        pieces = self._tail.pieces(_PIECE)
        if self._tail.lost:
            first = next(pieces, b"")
            # What stands before the first line or string may be the rest of a key.
            start = first.find(b"\n") + 1 or first.find(b'"') + 1
            self._write(b"\n[... %d bytes left out ...]\n" % (self._tail.lost + start))
            self._write(self._settle(first[start:]))
        for piece in pieces:
            self._write(self._settle(piece))
        self._write(self._rest())

    def _write(self, data: bytes) -> None:
        self.open()
        try:
            while data and self._fd >= 0:
                data = data[os.write(self._fd, data) :]
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        self.trouble = f"cannot write {self.path}: {error.strerror}"
        self._room = 0
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = _GIVEN_UP
