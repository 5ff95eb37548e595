"""How does nothing survive? The life of the keeper's process: it starts what ralph asks for, adopts what is orphaned
below it, and ends all of it when ralph says so or is gone."""

from __future__ import annotations

import errno
import marshal
import os
import select
import sys
import time
from _socket import AF_UNIX, CMSG_SPACE, SCM_RIGHTS, SHUT_WR, SOCK_STREAM, SOL_SOCKET, socket, socketpair

from ralph.processes.descendants import (
    AskedBefore,
    RunningProcess,
    below,
    distinct,
    handle,
    in_group,
    is_held,
    is_in_reach,
    marked,
    press,
    record_line,
    start_of,
    without,
)
from ralph.processes.spawning import ASKED_BY, MARK, adopt_orphans, bear_name, leave_ralph, start, start_boxed

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Mapping, Sequence
    from typing import Any

    Message = tuple[Any, ...]
else:
    import _signal as signal  # see keeper.py


NAME = "loop-keeper"  # not ours: `pkill ralph` must pass it by
FAREWELL = 2.0  # from TERM to KILL when ralph is gone
_ASKED_FAREWELL = 0.5  # the same for a git, or another program that it asked: a moment to take away its locks
PATIENCE = 5.0  # from the first KILL until those who still live are given up
_PATIENCE_WITH_OTHERS = 0.3  # the same where all of them are somebody else's, and may only go by themselves
_MOMENT, _GLANCE = 10, 200  # milliseconds


class Reaper:
    """Every process below this one comes of the one that was asked for last, whatever it did to get away."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._is_bereft = self._is_dismissed = False
        self._parent, self._parent_start = os.getppid(), start_of(os.getppid())
        self._spawning = self._ending = 0  # the numbers of the requests that are being met
        self._first = 0  # the process that was asked for: its number is also that of its group
        self._boxes = ""  # the folder of boxes that somebody has to tidy up
        self._is_boxed = False  # that one is a box: to ask it to end would kill all inside without asking them
        self._is_awaited = False
        self._is_alone = True
        self._run_id = ""
        self._kept: set[int] = set()
        self._spared: tuple[int, ...] = ()
        self._asked: AskedBefore = set()
        self._patience = 0.0
        self._asks_at = 0.0
        self._deadline: float | None = None
        self._reached_at = 0.0  # when there was one whom we may end
        self._record = -1  # the file that says which process was started last
        self._leash = -1  # by which ralph is held
        self._is_untied = False

    def begin(self) -> None:
        """Becomes a process of its own, beside ralph's, which hears of its orphans."""
        bear_name(f"{NAME} of {self._parent}: ends what that one leaves")
        leave_ralph(self._channel.fileno())
        self._adopts = adopt_orphans()
        self._ready = select.poll()
        self._ready.register(self._channel, select.POLLIN)
        # A copy of ralph's process that somebody forks holds the other end of the channel open, and may outlive it.
        self._ralph = handle(self._parent)
        if self._ralph >= 0:
            self._ready.register(self._ralph, select.POLLIN)
        self._deaths, self._bell = os.pipe()
        os.set_blocking(self._bell, False)
        self._ready.register(self._deaths, select.POLLIN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._wake_on_death()

    def serve(self) -> None:
        """Until ralph is gone and nothing is left."""
        try:
            while not self._is_bereft or self._deadline is not None:
                self._step()
            if not self._is_dismissed:
                self._end_asked_programs()
            if self._boxes:
                from ralph.processes.box import tidy_up

                tidy_up(self._boxes)
        except BaseException:
            press(self._living(), set(), kill=True)
            raise

    def _step(self) -> None:
        for fd, _ in self._ready.poll(self._pause()):
            if fd == self._deaths:
                os.read(fd, 4096)
            elif fd == self._ralph:
                self._ready.unregister(fd)
                self._ralph = -1
                self._mourn()
            elif fd == self._leash:
                self._ready.unregister(fd)
                self._is_untied = True
            else:
                self._obey()
        self._reap()
        if self._is_untied and self._ralph >= 0 and is_held(self._parent):  # the kernel's word does not reach it
            signal.pidfd_send_signal(self._ralph, signal.SIGKILL)
        if self._deadline is not None:
            self._press(self._deadline)

    def _obey(self) -> None:
        received = self._channel.receive()
        if received is None:
            self._ready.unregister(self._channel)
            self._mourn()
            return
        (number, kind, *values), fds = received
        if kind == "spawn":
            program, argv, cwd, env, self._patience, tells, self._is_boxed = values
            self._spawning = number
            self._spawn(program, argv, cwd, env=env, fds=fds, tells=tells)
        elif kind == "end":
            self._ending = number
            self._end(*values)
        elif kind == "farewell":
            self._is_dismissed = True
        elif kind == "tidy":
            (self._boxes,) = values
        elif kind == "record":
            (self._record,) = fds
        elif kind == "watch":
            (self._leash,) = fds
            self._ready.register(self._leash, 0)
        else:
            self._release(number)

    def _end_asked_programs(self) -> None:
        """What ralph itself was waiting for is not below us; without ralph nobody waits for it, and it may hang."""
        began, asked = time.monotonic(), set[tuple[int, bytes]]()
        while start_of(self._parent) == self._parent_start:  # it has only closed the line, or is about to be gone
            if time.monotonic() > began + 1:
                return
            time.sleep(0.01)
        deadline = time.monotonic() + _ASKED_FAREWELL
        while (living := marked(str(self._parent), ASKED_BY)) and time.monotonic() < deadline + FAREWELL:
            press(living, asked, kill=time.monotonic() > deadline)
            time.sleep(0.01)

    def _mourn(self) -> None:
        self._is_bereft = True
        self._end(FAREWELL)

    def _spawn(
        self, program: str, argv: list[str], cwd: str, *, env: Mapping[str, str], fds: list[int], tells: bool
    ) -> None:
        failed: tuple[object, ...] = ()
        try:
            os.chdir(cwd)  # posix_spawn has no cwd of its own
            self._first = (start_boxed if self._is_boxed else start)(program, argv, env, fds)
        except OSError as error:
            failed = error.errno, error.filename
        except ValueError:  # a NUL in an argument
            failed = errno.EINVAL, program
        else:
            self._is_awaited = True
            self._run_id = env.get(MARK, "")
            if tells:
                self._tell(self._spawning, "started", self._first)
            if self._record >= 0:  # once ralph, too, has something to do
                # If this process is killed together with ralph, somebody else must be able to find the one it started.
                try:
                    os.pwrite(self._record, record_line(self._first, start_of(self._first) or ""), 0)
                except OSError:  # a full disk: the mark has to do
                    pass
        finally:
            os.chdir("/")
            for fd in fds:
                os.close(fd)
        if failed:
            self._tell(self._spawning, "failed", *failed)

    def _end(self, grace: float, spared: tuple[int, ...] = ()) -> None:
        self._spared = spared
        now = time.monotonic()
        if self._deadline is None:
            self._asks_at, self._deadline = now + self._patience, now + grace
            self._reached_at = now
        self._deadline = min(self._deadline, now + grace)

    def _release(self, number: int) -> None:
        """What a keeper leaves behind when it goes belongs to it no more: so it goes, and its copy takes its place."""
        if os.fork():
            os._exit(0)
        self._wake_on_death()
        self._kept |= set() if self._adopts else {process.pid for process in self._living()}
        self._adopts = adopt_orphans()
        self._first, self._run_id = 0, ""
        self._tell(number, "released", os.getpid())

    def _wake_on_death(self) -> None:
        """To be asked for anew in every copy: asyncio, where somebody has imported it, takes it from them."""
        signal.set_wakeup_fd(self._bell, warn_on_full_buffer=False)

    def _reap(self) -> None:
        """Takes note of the dead. "No child" from the kernel is the one proof that nothing is left."""
        status = None
        while True:
            try:
                pid, its_status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._is_alone = self._adopts or not self._living()
                break
            if pid == 0:
                self._is_alone = False
                break
            if pid == self._first and self._is_awaited:
                status = its_status
        if status is None:
            return
        if self._is_boxed and not self._is_alone:
            self._await_box()
        self._is_awaited = False
        self._tell(self._spawning, "exited", os.waitstatus_to_exitcode(status), self._is_alone)

    def _await_box(self) -> None:
        """The first process in a box dies with the one that made it, and all others with that; it takes a moment."""
        deaths = select.poll()
        deaths.register(self._deaths, select.POLLIN)
        deadline = time.monotonic() + PATIENCE
        try:
            while time.monotonic() < deadline:
                if os.waitpid(-1, os.WNOHANG)[0]:
                    continue
                if deaths.poll(_MOMENT):
                    os.read(self._deaths, 4096)
                else:
                    press(self._living(), set(), kill=True)
        except ChildProcessError:
            self._is_alone = True

    def _press(self, deadline: float) -> None:
        """Ends what lives, a step further each time somebody dies: killing a parent gives us its children."""
        # Who waits for one that is spared is spared too, unless it is the process that has to end.
        living = [] if self._is_alone else without(self._living(), self._spared, upward=not self._is_awaited)
        now = time.monotonic()
        overdue = now - deadline
        if not living or any(map(is_in_reach, living)):  # one may only not have been seen
            self._reached_at = now
        is_beyond_us = overdue > PATIENCE or now > self._reached_at + _PATIENCE_WITH_OTHERS
        if self._is_alone or (self._spared and not living) or is_beyond_us:
            survivors = tuple(process.pid for process in living)
            others = {pid for pid, _ in self._asked} - {self._first, *survivors}
            self._tell(self._ending, "ended", len(others), survivors)
            self._asked.clear()
            self._deadline = None
            return
        if overdue >= 0:
            press(living, self._asked, kill=True)
        elif now >= self._asks_at:
            press(
                [process for process in living if process.pid != self._first or not self._is_boxed],
                self._asked,
                kill=False,
            )

    def _living(self) -> list[RunningProcess]:
        living = below(os.getpid())
        if self._adopts or not self._first:
            return living
        strays = in_group(self._first) + (marked(self._run_id) if self._run_id else [])
        return distinct(living + [stray for stray in strays if stray.pid not in self._kept])

    def _pause(self) -> float | None:
        """Milliseconds until something is due. Deaths wake us; the naps are for those that /proc did not show."""
        if self._deadline is None:
            return _GLANCE if self._is_untied else None
        remaining = self._deadline - time.monotonic()
        return 1000 * (min(remaining, 0.05) if remaining > 0 else 0.02)

    def _tell(self, number: int, *answer: object) -> None:
        """Answers the request of this number."""
        try:
            self._channel.send((number, *answer))
        except OSError:  # ralph is gone, as `_obey` will find
            pass


# The `socket` module costs two milliseconds, which only its prettier names are worth.

_WORD = 4
_MOST_FDS = 5
_CLOSE_ON_EXEC = 0x40000000 if sys.platform == "linux" else 0  # MSG_CMSG_CLOEXEC


class Channel:
    """One end of the line. Both ends are the same program, so `marshal` is safe and quick."""

    def __init__(self, end: socket) -> None:
        self._end = end

    @classmethod
    def pair(cls) -> tuple[Channel, Channel]:
        one, other = socketpair(AF_UNIX, SOCK_STREAM)
        return cls(one), cls(other)

    @classmethod
    def over(cls, descriptor: int) -> Channel:
        return cls(socket(fileno=descriptor))

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
        size, pieces = int.from_bytes(length, sys.byteorder), []
        while size and (piece := self._end.recv(size)):
            pieces.append(piece)
            size -= len(piece)
        return (marshal.loads(b"".join(pieces)), fds) if pieces and not size else None

    def finish(self) -> None:
        """Says that no message will follow."""
        self._end.shutdown(SHUT_WR)

    def close(self) -> None:
        self._end.close()
