"""What is worth keeping of a stream of any length? Its ends, in memory of fixed size."""

from collections import deque
from collections.abc import Callable, Iterator

from ralph.core.text import clean

_LARGE = 1 << 14


class Tail:
    """The last `limit` bytes of all that was added; `seen` counts everything. What is large is kept as it came, without
    being copied; what is small is gathered first."""

    def __init__(self, limit: int) -> None:
        self.seen = 0
        self._limit = limit
        self._large: deque[bytes] = deque()
        self._small = bytearray()
        self._size = 0

    def add(self, data: bytes) -> None:
        self.seen += len(data)
        if len(data) > self._limit:
            data = data[len(data) - self._limit :]
        self._size += len(data)
        if len(data) < _LARGE:
            self._small += data
        if self._small and (len(data) >= _LARGE or len(self._small) >= _LARGE):
            self._large.append(bytes(self._small))
            self._small.clear()
        if len(data) >= _LARGE:
            self._large.append(data)
        while self._large and self._size - len(self._large[0]) >= self._limit:
            self._size -= len(self._large.popleft())

    @property
    def lost(self) -> int:
        """How many bytes came before those that are kept."""
        return max(0, self.seen - self._limit)

    def pieces(self) -> Iterator[bytes]:
        """What is kept, in several parts."""
        excess = max(0, self._size - self._limit)
        for piece in (*self._large, bytes(self._small)):
            yield piece[excess:] if excess else piece
            excess = max(0, excess - len(piece))

    def __bytes__(self) -> bytes:
        return b"".join(self.pieces())


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
