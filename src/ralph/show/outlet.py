"""How does text reach a reader who may be slow or gone? It is written at once or skipped, never kept."""

import os
import select
from errno import EAGAIN, EDQUOT, ENOSPC
from typing import TextIO

PATIENCE = 0.1
"""How long (seconds) a reader who has just fallen behind may take to catch up."""

_CHUNK = 4096  # a pipe that is ready takes this much without making the writer wait
_PASSING = (EAGAIN, ENOSPC, EDQUOT)


class Outlet:
    """Writes text to a stream. One that `waits` for its reader skips nothing: where that cannot be, it raises.

    A terminal is opened a second time, because "do not wait" is a property of the open file, and the one we were given
    belongs to the shell and to others as well.
    """

    def __init__(self, stream: TextIO | None, waits: bool = False) -> None:
        self.gone = stream is None
        self._waits = waits
        self._stream = stream
        self._encoding = getattr(stream, "encoding", None) or "utf-8"
        self._own: int | None = None
        self._torn = self._behind = False
        try:
            self._fd = stream.fileno() if stream else None
        except (OSError, ValueError, AttributeError):
            self._fd = None
        if self._fd is None:
            return
        self._asks_first = True
        if os.isatty(self._fd):
            self._fd = self._own = _opened_anew(self._fd)
            self._asks_first = os.get_blocking(self._own)
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLOUT)

    def write(self, text: str, patience: float = PATIENCE) -> bool:
        """Whether the text went out whole. Once the reader is gone, everything counts as written."""
        if self.gone:
            return True
        data = text.encode(self._encoding, "backslashreplace")
        if self._fd is None:
            return self._write_to_stream(data)
        if self._torn:
            data = b"\n" + data
        if self._behind and patience <= PATIENCE:
            patience = 0
        view = memoryview(data)
        while view:
            try:
                sent = self._send(view[:_CHUNK], None if self._waits else patience * 1000)
            except OSError as error:
                if self._waits and error.errno == EAGAIN:
                    continue
                if self._waits and error.errno in _PASSING:
                    raise
                sent = 0
                self.gone = error.errno not in _PASSING
            if not sent:
                self._torn = self._torn or len(view) < len(data)
                self._behind = True
                return self.gone
            view = view[sent:]
        self._torn = self._behind = False
        return True

    def _send(self, piece: memoryview, pause: float | None) -> int:
        """Writes what there is room for, once there is any."""
        assert self._fd is not None
        if not self._asks_first:
            try:
                return os.write(self._fd, piece)
            except BlockingIOError:
                pass
        return os.write(self._fd, piece) if self._poll.poll(pause) else 0

    def _write_to_stream(self, data: bytes) -> bool:
        assert self._stream is not None
        try:
            self._stream.write(data.decode(self._encoding))
            self._stream.flush()
        except (OSError, ValueError):
            self.gone = True
        return True

    def close(self) -> None:
        self.gone = True
        if self._own is not None:
            os.close(self._own)
            self._own = None


def _opened_anew(fd: int) -> int:
    try:
        return os.open(os.ttyname(fd), os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK)
    except OSError:  # for example after `su`: the terminal is another user's
        return os.dup(fd)
