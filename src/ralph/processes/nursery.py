"""Where do processes come from that all have to know the same? From one that has learned it once, and has nothing open:
each is a copy of it, made in a millisecond, and becomes the child of whoever asked, as if that had started it.

Where the kernel gives no orphans away, or the one that makes the copies is killed again and again, a process is started
as any other is: it does the same, and takes a tenth of a second to learn what it needs."""

import os
import select
import signal
import stat
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from ralph.errors import UserError
from ralph.processes.descendants import collect_killed, is_held
from ralph.processes.keeper import GLANCE
from ralph.processes.reaper import Channel
from ralph.processes.spawning import adopt_orphans, bear_name, start

TRIES = 2
PATIENCE = 20.0  # seconds for a copy


class Nursery:
    """Starts `ralph` with some words, in a session of its own. `place` stands in its own command line: copies write
    theirs over that, and need the room."""

    def __init__(self, place: str, env: Mapping[str, str]) -> None:
        self._place, self._env = place, env
        self._line: Channel | None = None
        self._pid = 0

    def open(self) -> None:
        """It learns while others do something else: the earlier, the better."""
        if self._line is None and sys.platform == "linux":
            self._line, theirs = Channel.pair()
            nothing = os.open(os.devnull, os.O_RDWR)
            try:
                self._pid = self._spawn(("nursery", self._place), (theirs.fileno(), nothing, nothing))
            finally:
                os.close(nothing)
                theirs.close()

    def close(self) -> None:
        """Its copies go on."""
        if self._line is not None:
            self._line.close()
            self._line = None
            os.kill(self._pid, signal.SIGKILL)  # it may be stopped, and holds nothing
            collect_killed(self._pid)

    def start(self, words: Sequence[str], streams: Sequence[int]) -> tuple[int, int]:
        """The pid of a new child of ours, and its leash: the other end of a pipe that comes before its `streams`. It
        does nothing before it has read a byte from there, and ends when the leash is closed."""
        makers = iter((self._copy,) * TRIES)
        while True:
            # A leash for each try: a copy whose maker was killed before it told the pid must not read another's byte.
            held, leash = os.pipe()
            try:
                if pid := next(makers, self._spawn)(words, (held, *streams)):
                    return pid, leash
            finally:
                os.close(held)
            os.close(leash)

    def _copy(self, words: Sequence[str], streams: Sequence[int]) -> int:
        """The pid of a copy; 0 where none was made, or none that we know of."""
        self.open()
        if self._line and (pid := self._copied(self._line, words, streams)):
            return pid
        self.close()
        return 0

    def _copied(self, line: Channel, words: Sequence[str], streams: Sequence[int]) -> int:
        if not adopt_orphans():
            return 0
        ready = select.poll()
        ready.register(line, select.POLLIN)
        try:
            line.send(tuple(words), streams)
            deadline = time.monotonic() + PATIENCE
            while not ready.poll(GLANCE):
                if is_held(self._pid) or time.monotonic() > deadline:
                    return 0
            answer = line.receive()
            return int(answer[0][0]) if answer else 0
        except OSError:
            return 0
        finally:
            adopt_orphans(False)

    def _spawn(self, words: Sequence[str], streams: Sequence[int]) -> int:
        return start(sys.executable, (sys.executable, "-P", "-m", "ralph", *words), self._env, streams)


def next_copy() -> list[str]:
    """Makes copies of this process for whoever holds the other end of its standard input, until that is closed.
    Returns in each copy, with the words that it was asked for; in this process itself none, at its end."""
    if not stat.S_ISSOCK(os.fstat(0).st_mode):
        raise UserError("a nursery is nothing to start by hand", "`ralph work` starts its own")
    line = Channel.over(os.dup(0))
    # What reaches a copy before its first step ends it: python would forget it there, and nobody says it twice.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    while asked := line.receive():
        words, streams = [str(word) for word in asked[0]], asked[1]
        try:
            pid = _orphan()
        except OSError:  # the system is short of something: who asked does without us
            return []
        if pid is None:
            line.close()
            os.setsid()
            for to, fd in enumerate(streams):
                os.dup2(fd, to)
                os.close(fd)
            bear_name("\0".join(("ralph", *words)))
            return words
        for fd in streams:
            os.close(fd)
        with suppress(OSError):  # who asked is gone: the next look says so
            line.send((pid,))
    return []


def _orphan() -> int | None:
    """Forks a process that is not ours to wait for: its pid, or 0 where the one between was killed before it told that;
    None in the process itself."""
    reader, writer = os.pipe()
    between = os.fork()
    if between == 0:
        if pid := os.fork():
            os.write(writer, str(pid).encode())
            os._exit(0)
        os.close(reader)
        os.close(writer)
        return None
    os.close(writer)
    pid = int(os.read(reader, 32) or 0)
    os.close(reader)
    os.waitpid(between, 0)  # from now on it is the child of whoever takes our orphans
    return pid
