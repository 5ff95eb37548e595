"""How does a process end when the one that started it is gone, however that came about? It is held by a leash: a pipe
whose other end only that one holds. When it is closed, the kernel sends the signal that means "the terminal is gone".

Elsewhere than on Linux nothing can be promised for a process that was killed.
"""

import os
import select
import sys
from signal import SIGHUP, raise_signal


def tie(held: int, pid: int) -> None:
    """Has the kernel send `pid`, or the group of -`pid`, a signal when the other end of the pipe is closed. Who shares
    `held` with it may say so: what is set here holds for both, and holds on when one of them is killed."""
    if sys.platform == "linux":
        import fcntl

        fcntl.fcntl(held, fcntl.F_SETSIG, SIGHUP)
        fcntl.fcntl(held, fcntl.F_SETOWN, pid)
        fcntl.fcntl(held, fcntl.F_SETFL, os.O_ASYNC)


def untie(held: int) -> None:
    if sys.platform == "linux":
        import fcntl

        fcntl.fcntl(held, fcntl.F_SETFL, 0)


def tie_to_stdin() -> None:
    """Ties this process to whoever holds the other end of its standard input, which may be gone already."""
    tie(0, os.getpid())
    line = select.poll()
    line.register(0, 0)
    if any(what & select.POLLHUP for _, what in line.poll(0)):
        raise_signal(SIGHUP)
