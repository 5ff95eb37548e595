"""How do ralph and its keeper talk? In tuples of plain values over a socket, with descriptors beside them."""

from __future__ import annotations

import marshal
import os
import sys

# The `socket` module costs two milliseconds, which only its prettier names are worth.
from _socket import AF_UNIX, CMSG_SPACE, SCM_RIGHTS, SHUT_WR, SOCK_STREAM, SOL_SOCKET, socket, socketpair

_WORD = 4
_MOST_FDS = 3
_CLOSE_ON_EXEC = 0x40000000 if sys.platform == "linux" else 0  # MSG_CMSG_CLOEXEC

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    Message = tuple[Any, ...]


class Channel:
    """One end of the line. Both ends are the same program, so `marshal` is safe and quick."""

    def __init__(self, end: socket) -> None:
        self._end = end

    @classmethod
    def pair(cls) -> tuple[Channel, Channel]:
        one, other = socketpair(AF_UNIX, SOCK_STREAM)
        return cls(one), cls(other)

    def fileno(self) -> int:
        return self._end.fileno()

    def send(self, message: Message, fds: Sequence[int] = ()) -> None:
        body = marshal.dumps(message)
        data = len(body).to_bytes(_WORD, sys.byteorder) + body
        rights = b"".join(fd.to_bytes(_WORD, sys.byteorder) for fd in fds)
        sent = self._end.sendmsg([data], [(SOL_SOCKET, SCM_RIGHTS, rights)] if fds else [])
        if sent < len(data):
            self._end.sendall(data[sent:])

    def receive(self) -> tuple[Message, list[int]] | None:
        """The next message and its descriptors; None when the other end is gone."""
        try:
            length, ancillary, _, _ = self._end.recvmsg(_WORD, CMSG_SPACE(_MOST_FDS * _WORD), _CLOSE_ON_EXEC)
        except ConnectionResetError:  # gone without having read what we said last
            return None
        fds = [
            int.from_bytes(rights[at : at + _WORD], sys.byteorder)
            for _, _, rights in ancillary
            for at in range(0, len(rights), _WORD)
        ]
        for fd in fds if not _CLOSE_ON_EXEC else ():
            os.set_inheritable(fd, False)
        body = self._exactly(int.from_bytes(length, sys.byteorder))
        return (marshal.loads(body), fds) if body else None

    def finish(self) -> None:
        """Says that no message will follow, and waits until the other end is gone."""
        self._end.shutdown(SHUT_WR)
        while self._end.recv(4096):
            pass

    def close(self) -> None:
        self._end.close()

    def _exactly(self, size: int) -> bytes:
        pieces = []
        while size and (piece := self._end.recv(size)):
            pieces.append(piece)
            size -= len(piece)
        return b"" if size else b"".join(pieces)
