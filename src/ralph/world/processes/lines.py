"""Where does a line end? Chunks in, whole lines out, in memory that does not grow with the length of a line."""

from io import BytesIO

from ralph.world.processes.tail import Tail

LONGEST = 1 << 20
_MARK_ROOM = 64
_ESCAPE = 12  # bytes of the longest JSON escape, a surrogate pair: \ud83d\ude00
_BACKSLASH = 0x5C


class Lines:
    """Splits on newlines only. Of a line over `limit` bytes both ends are kept, round a mark that says how much was
    cut: where that is the middle of a JSON string, what is left is still JSON."""

    def __init__(self, limit: int = LONGEST) -> None:
        self._limit = limit
        self._pending: list[bytes] = []
        self._size = 0
        self._long: _LongLine | None = None

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that `chunk` completes, without their newlines."""
        lines, rest = _split(chunk)
        if lines and len(chunk) > self._limit:
            lines = [line if len(line) <= self._limit else shortened(line, self._limit) for line in lines]
        if lines and self._size:
            self._add(lines[0])
            lines[0] = self._take()
        if rest:
            self._add(rest)
        return lines

    def close(self) -> list[bytes]:
        """The last line, where no newline ended it."""
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
        line = self._long.shortened() if self._long is not None else b"".join(self._pending)
        self._pending.clear()
        self._long = None
        self._size = 0
        return line


def _split(chunk: bytes) -> tuple[list[bytes], bytes]:
    """The whole lines in `chunk`, and what follows them. `readlines` asks memchr for the end of a line: where lines are
    long, it is five times as fast as `bytes.split`."""
    end = chunk.rfind(b"\n") + 1
    if not end:
        return [], chunk
    lines = [line[:-1] for line in BytesIO(chunk).readlines()]
    if end < len(chunk):
        lines.pop()
    return lines, chunk[end:]


class _LongLine:
    def __init__(self, start: bytes, limit: int) -> None:
        half = (limit - _MARK_ROOM) // 2
        end = _head_end(start, half)
        self._head = start[:end]
        self._tail = Tail(half)
        self._tail.add(start[end:])

    def add(self, piece: bytes) -> None:
        self._tail.add(piece)

    def shortened(self) -> bytes:
        tail = bytes(self._tail)
        start = _tail_start(tail)
        return b"%s [cut %s] %s" % (self._head, _amount(self._tail.lost + start), tail[start:])


def shortened(line: bytes, limit: int) -> bytes:
    """Both ends of a line that is longer than `limit`."""
    return _LongLine(line, limit).shortened()


# A backslash that follows anything else begins an escape, so just before it is always a place to cut. Where none is
# near, any place between two characters will do.


def _head_end(data: bytes, limit: int) -> int:
    """The last place to cut within the first `limit` bytes."""
    end = limit
    if _BACKSLASH in data[max(0, end - _ESCAPE) : end]:
        end = _escape_before(data, end)
        while _is_surrogate(data[max(0, end - 6) : end], b"89aAbB"):
            end = _escape_before(data, end)
        return end
    while end and _is_continuation(data[end]):
        end -= 1
    return end


def _tail_start(data: bytes) -> int:
    """The first place to cut, where what came before `data` is not known."""
    for at in range(1, len(data)):
        if data[at] == _BACKSLASH and data[at - 1] != _BACKSLASH:
            return at + 6 if _is_surrogate(data[at : at + 6], b"cCdDeEfF") else at
        if at >= _ESCAPE and _BACKSLASH not in data[at - _ESCAPE : at] and not _is_continuation(data[at]):
            return at
    return len(data)


def _escape_before(data: bytes, end: int) -> int:
    """Where the last run of backslashes before `end` begins."""
    last = data.rfind(b"\\", 0, end)
    return len(data[:last].rstrip(b"\\"))


def _is_surrogate(escape: bytes, third: bytes) -> bool:
    return len(escape) == 6 and escape[:3].lower() == b"\\ud" and escape[3] in third


def _is_continuation(byte: int) -> bool:
    return byte & 0xC0 == 0x80


def _amount(size: int) -> bytes:
    for unit, name in ((1 << 20, b"MB"), (1 << 10, b"KB")):
        if size >= unit:
            return b"%d %s" % (size // unit, name)
    return b"%d bytes" % size
