"""What is worth keeping of a stream of any length? Its ends, in memory of fixed size."""

from collections.abc import Callable, Iterator

from ralph.core.text import clean


class Tail:
    """The last `limit` bytes of all that was added; `seen` counts everything."""

    def __init__(self, limit: int) -> None:
        self.seen = 0
        self._limit = limit
        self._ring = bytearray()
        self._at = 0

    def add(self, data: bytes) -> None:
        self.seen += len(data)
        limit, ring = self._limit, self._ring
        if len(data) >= limit:
            ring[:] = data[len(data) - limit :]
            self._at = 0
            return
        room = limit - len(ring)
        if room:
            ring += data[:room]
            data = data[room:]
        end = self._at + len(data)
        if end <= limit:
            ring[self._at : end] = data
        else:
            split = limit - self._at
            ring[self._at :] = data[:split]
            ring[: end - limit] = data[split:]
        self._at = end % limit

    @property
    def lost(self) -> int:
        """How many bytes came before those that are kept."""
        return max(0, self.seen - self._limit)

    def pieces(self, size: int) -> Iterator[bytes]:
        ring, length = memoryview(self._ring), len(self._ring)
        for at in range(self._at, self._at + length, size):
            end = min(at + size, self._at + length)
            yield bytes(ring[at:end]) + bytes(ring[max(0, at - length) : max(0, end - length)])

    def __bytes__(self) -> bytes:
        return b"".join(self.pieces(self._limit or 1))


class Ends:
    """The first `head` and the last `tail` characters that a person would see of what passes for UTF-8: colours and
    other control characters take no room from the text."""

    def __init__(self, head: int, tail: int) -> None:
        self._head, self._tail = head, tail
        self._first = bytearray()
        self._last = Tail(4 * tail + 3)  # a character takes four bytes at most

    def add(self, data: bytes) -> None:
        if len(self._first) <= 4 * self._head:
            self._first += data
        self._last.add(data)

    def texts(self, redact: Callable[[bytes], bytes]) -> tuple[str, str, bool]:
        """The head, the tail, and whether the head is not all there was."""
        first = clean(redact(bytes(self._first)).decode(errors="replace"))
        is_all = self._last.seen == len(self._first) and not self._last.lost
        last = first if is_all else clean(redact(bytes(self._last)).decode(errors="replace"))
        is_cut = self._last.seen > len(self._first) or len(first) > self._head
        return first[: self._head], last[max(0, len(last) - self._tail) :], is_cut
