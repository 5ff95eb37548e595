"""Output of programs: split into lines, kept in part, or written to a log, in memory that doesn't grow with it."""

import os
import re
from collections.abc import Callable, Iterator

from ralph.core.secrets import after_half_a_key, before_half_a_key, redactable_length
from ralph.core.secrets import redact as strike_keys
from ralph.core.text import clean
from ralph.files import make_folder, open_fresh

MAX_LINE = 1 << 20
CUT_NOTE = 64  # bytes at most
CUT_WINDOW = 1 << 12  # bytes in which a place for a cut is looked for
# After 12 bytes without a backslash (the longest escape is a surrogate pair: \ud83d\ude00), or before an escape.
SAFE_CUT = re.compile(rb"(?<=[^\\]{12})(?![\x80-\xbf])|(?<=[^\\])(?=\\(?!u[dD][c-fC-F]))")

MAX_LOG = 32 << 20
LOG_TAIL = 4 << 20
LEFT_OUT_NOTE = 128  # bytes at most
PIECE = 1 << 16
UNOPENED, GIVEN_UP = -2, -1


class Lines:
    """Split chunks at newlines.

    Of a line over `limit` bytes both ends are kept, around a note that says how much was cut. If the cut is inside a
    JSON string, the line is still valid JSON.
    """

    def __init__(self, limit: int = MAX_LINE) -> None:
        self._limit = limit
        self._pending: list[bytes] = []
        self._size = 0
        self._long: _LongLine | None = None

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the lines that `chunk` completes, without their newlines. The chunk must not be over the limit."""
        *lines, rest = chunk.split(b"\n")
        if lines and self._size:
            self._add(lines[0])
            lines[0] = self._take()
        if rest:
            self._add(rest)
        return lines

    def close(self) -> list[bytes]:
        """Return the last line if no newline ended it."""
        return [self._take()] if self._size else []

    def _add(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._long is not None:
            self._long.add(piece)
            return
        self._pending.append(piece)
        if self._size > self._limit:
            self._long = _LongLine(b"".join(self._pending), self._limit)
            self._pending.clear()

    def _take(self) -> bytes:
        line = self._long.shorten() if self._long is not None else b"".join(self._pending)
        self._pending.clear()
        self._long = None
        self._size = 0
        return line


class _LongLine:
    """Keeps both ends of a line."""

    def __init__(self, start: bytes, limit: int) -> None:
        half = (limit - CUT_NOTE) // 2
        end = before_half_a_key(start[:half])
        end = max(_safe_cuts(start, max(0, end - CUT_WINDOW), end), default=end)
        self._head = start[:end]
        self._tail = Tail(half)
        self._tail.add(start[end:])

    def add(self, piece: bytes) -> None:
        self._tail.add(piece)

    def shorten(self) -> bytes:
        tail = bytes(self._tail)
        start = after_half_a_key(tail)
        start = next(_safe_cuts(tail, start, len(tail)), len(tail))
        return b"%s [cut %d bytes] %s" % (self._head, self._tail.lost + start, tail[start:])


def _safe_cuts(data: bytes, start: int, end: int) -> Iterator[int]:
    """Yield where a JSON string can be cut: not inside an escape, a surrogate pair or a UTF-8 character."""
    cuts = (match.start() for match in SAFE_CUT.finditer(data, start, end + len(rb"\ude00")))
    return (cut for cut in cuts if cut <= end)


class Tail:
    """The last `limit` bytes of everything that was added; `seen` counts all of it."""

    def __init__(self, limit: int) -> None:
        self.seen = 0
        self._limit = limit
        self._data = bytearray()  # up to twice the limit, so that it is not moved each time

    def add(self, data: bytes) -> None:
        self.seen += len(data)
        self._data += data
        if len(self._data) > 2 * self._limit:
            del self._data[: len(self._data) - self._limit]

    @property
    def lost(self) -> int:
        """The number of bytes before those that are kept."""
        return max(0, self.seen - self._limit)

    def __bytes__(self) -> bytes:
        return bytes(self._data[max(0, len(self._data) - self._limit) :])


class Ends:
    """The first `head` and the last `tail` visible characters of UTF-8 output, not counting control characters."""

    def __init__(self, head: int, tail: int) -> None:
        self._head, self._tail = head, tail
        self._first = bytearray()
        self._last = Tail(4 * tail + 3)  # a character takes four bytes at most

    def add(self, data: bytes) -> None:
        if len(self._first) <= 4 * self._head:
            self._first += data
        self._last.add(data)

    def texts(self, redact: Callable[[bytes], bytes]) -> tuple[str, str, bool]:
        """Return the head, the tail, and whether the head is only a part."""
        first = clean(redact(bytes(self._first)).decode(errors="replace"))
        is_all = self._last.seen == len(self._first) and not self._last.lost
        last = first if is_all else clean(redact(bytes(self._last)).decode(errors="replace"))
        is_cut = self._last.seen > len(self._first) or len(first) > self._head
        return first[: self._head], last[max(0, len(last) - self._tail) :], is_cut


class LogFile:
    """A log of at most `limit` bytes: the beginning and the end of a stream.

    It is created by `write` or `close`. A full disk doesn't end the turn; `trouble` says what went wrong.
    """

    def __init__(self, path: str, limit: int = MAX_LOG, redact: Callable[[bytes], bytes] = strike_keys) -> None:
        self.path = path
        self.trouble = ""
        self._redact = redact
        self._unsettled = b""
        tail = min(LOG_TAIL, limit // 2)
        self._room = max(0, limit - tail - LEFT_OUT_NOTE)
        self._tail = Tail(tail)
        self._fd = UNOPENED

    def __enter__(self) -> "LogFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, chunk: bytes) -> None:
        if self._room:
            self._put(self._settle(chunk))
        elif self._fd != GIVEN_UP:
            self._tail.add(chunk)

    def close(self) -> None:
        """Write an unfinished line, and the end of a stream that was too long."""
        rest, self._unsettled = self._unsettled, b""
        self._put(self._redact(rest))
        data, start = bytes(self._tail), 0
        if self._tail.lost:
            # The text before the first line or string may be the rest of a key.
            start = data.find(b"\n", 0, PIECE) + 1 or data.find(b'"', 0, PIECE) + 1 or after_half_a_key(data[:PIECE])
            self._write(b"\n[... %d bytes left out ...]\n" % (self._tail.lost + start))
        self._write(self._redact(data[start:]))
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = GIVEN_UP

    def _settle(self, chunk: bytes) -> bytes:
        """Redact the data; return it up to where a key may begin that continues in the next chunk."""
        data = self._unsettled + chunk if self._unsettled else chunk
        end = redactable_length(data, self._redact)
        self._unsettled = data[end:]
        return self._redact(data[:end])

    def _put(self, data: bytes) -> None:
        """Write to the beginning of the log; data that doesn't fit goes to the tail."""
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

    def _write(self, data: bytes) -> None:
        try:
            if self._fd == UNOPENED:
                self._open()
            while data and self._fd >= 0:
                data = data[os.write(self._fd, data) :]
        except OSError as error:
            self.trouble = f"cannot write {self.path}: {error.strerror}"
            self._room = 0
            if self._fd >= 0:
                os.close(self._fd)
            self._fd = GIVEN_UP

    def _open(self) -> None:
        try:
            self._fd = open_fresh(self.path)
        except FileNotFoundError:  # the agent is running, and may remove what git ignores
            make_folder(os.path.dirname(self.path))
            self._fd = open_fresh(self.path)


def open_standard_streams() -> None:
    """Open /dev/null as stdin, stdout or stderr if the caller closed it: no file of ours may get its number."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: `descriptor`
