"""Messages between ralph and its keeper: one JSON object per line over a socket, with file descriptors attached.

The keeper imports this module, so it uses the standard library only.
"""

import array
import json
import os
import socket
import sys
from collections.abc import Sequence
from typing import Any

Packet = dict[str, Any]

CHUNK = 1 << 16
MAX_DESCRIPTORS = 8
CLOSE_ON_EXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0x40000000 if sys.platform == "linux" else 0)


class Channel:
    """One end of the connection."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end

    @classmethod
    def pair(cls) -> "tuple[Channel, Channel]":
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        return cls(ours), cls(theirs)

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Packet, fds: Sequence[int] = ()) -> None:
        data = json.dumps(message).encode() + b"\n"
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        sent = self._socket.sendmsg([data], rights)
        if sent < len(data):  # even an empty send fails once the other end has read the message and closed
            self._socket.sendall(data[sent:])

    def receive(self) -> tuple[Packet, list[int]] | None:
        """Block until the next message; return it with its descriptors, or None if the other end is closed."""
        line, fds = b"", array.array("i")
        while not line.endswith(b"\n"):
            try:
                # Peek first, so that bytes of the next message stay in the socket and keep it readable.
                peeked = self._socket.recv(CHUNK, socket.MSG_PEEK)
                size = peeked.find(b"\n") + 1 or len(peeked)
                room = socket.CMSG_SPACE(MAX_DESCRIPTORS * fds.itemsize)
                piece, ancillary, _, _ = self._socket.recvmsg(size or 1, room, CLOSE_ON_EXEC)
            except ConnectionResetError:  # closed without having read our last message
                return None
            if not piece:
                return None
            for _, _, rights in ancillary:
                fds.frombytes(rights[: len(rights) - len(rights) % fds.itemsize])
            line += piece
        for fd in fds if not CLOSE_ON_EXEC else ():
            os.set_inheritable(fd, False)
        return json.loads(line), list(fds)

    def finish(self) -> None:
        """Tell the other end that no message will follow."""
        self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._socket.close()
