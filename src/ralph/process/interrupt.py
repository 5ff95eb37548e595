"""Requests to stop: signals become a level. 1: finish the current turn, 2: end it now, 3: kill it.

Also lifelines: a child gets SIGHUP when its parent dies, because the kernel then closes the other end of a pipe. That
works on Linux only.
"""

import fcntl
import math
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Event
from types import FrameType

ANNOUNCEMENT = "Received signal, shutting down..."
NUDGE = signal.SIGURG
_NAMES: dict[int, str] = {signal.SIGINT: "SIGINT", signal.SIGTERM: "SIGTERM", signal.SIGHUP: "SIGHUP"}
_LONGEST_NAP = 30.0
_AT_ONCE = 0.4


def _announce() -> None:
    os.write(2, ANNOUNCEMENT.encode() + b"\n")


def wake(*_: object) -> None:
    """Do nothing: the signal only interrupts a sleeping system call."""


class Interrupt:
    """While entered, SIGINT and SIGTERM raise the level by one, and SIGHUP raises it to 2.

    SIGURG only wakes a sleeping run: there is something to look at. `announce` is called on the first signal, inside
    the handler, so it may only write to a descriptor. Outside the main thread no signal arrives, and the level stays 0.
    """

    def __init__(self, announce: Callable[[], None] = _announce) -> None:
        self.reason = ""
        # What each request adds to the level, and its minimum. Only ever appended to: the next signal may arrive while
        # this one is being handled.
        self._asked: list[tuple[int, int]] = []
        self._announce = announce
        self._breaks = False
        self._pid = os.getpid()
        self._before: dict[int, object] = {}
        self._wakeup_before = -1
        self._reader = self._writer = -1

    def __enter__(self) -> "Interrupt":
        self._open()
        try:
            self._wakeup_before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        except ValueError:
            return self
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # Respect `nohup ralph …`.
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._receive)
        self._before[NUDGE] = signal.signal(NUDGE, wake)
        return self

    def _open(self) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)

    def __exit__(self, *_: object) -> None:
        if self._before:
            for number in self._before:
                self._restore(number)
            signal.set_wakeup_fd(self._wakeup_before)
            self.acknowledge()
            self._before.clear()
        os.close(self._reader)
        os.close(self._writer)

    @property
    def level(self) -> int:
        level = 0
        for more, least in self._asked:
            level = max(level + more, least)
        return min(3, level)

    @property
    def is_repeated(self) -> bool:
        """Whether a signal came after an earlier request."""
        return any(more for more, _ in self._asked[1:])

    @property
    def is_deaf(self) -> bool:
        """Whether signals are left to the program around the run."""
        return not self._before

    def _restore(self, number: int) -> None:
        before = self._before[number]
        signal.signal(number, before if before is not None else signal.SIG_DFL)  # type: ignore[arg-type]

    def settle(self, code: int) -> None:
        """Fix the exit code: from now on a signal ends the process with it."""
        for number in self._before.keys() & _NAMES.keys():
            self._before[number] = lambda *_: os._exit(code)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid and number != signal.SIGINT:
            # A copy made by `multiprocessing`: SIGTERM is meant for it alone, Ctrl-C for all.
            self._restore(number)
            signal.raise_signal(number)
            return
        asked = (1, 2 if number == signal.SIGHUP else 1)
        self._asked.append(asked)
        self.reason = _NAMES[number]
        if self._asked[0] is asked:
            self._announce()
        elif self._breaks:
            raise KeyboardInterrupt

    @contextmanager
    def breaking(self) -> Iterator[None]:
        """While entered, a second signal raises KeyboardInterrupt in what this process itself is doing."""
        self._breaks = True
        try:
            yield
        finally:
            self._breaks = False

    @property
    def patience(self) -> float:
        """Seconds from SIGTERM to SIGKILL at level 2: few after a second Ctrl-C, unlimited after a closed terminal."""
        return _AT_ONCE if self.is_repeated else math.inf

    def wants_end(self) -> bool:
        """Return whether everything has to end now."""
        return self.level > 1

    def raise_to(self, level: int, reason: str) -> None:
        """Raise the level without a signal."""
        if level > self.level:
            self._asked.append((0, level))
            self.reason = reason
            os.write(self._writer, b"\0")

    def fileno(self) -> int:
        """Readable when the level may have changed since `acknowledge`."""
        return self._reader

    def acknowledge(self) -> None:
        try:
            while arrived := os.read(self._reader, 512):
                self._pass_on(bytes(number for number in arrived if number and number not in self._before))
        except BlockingIOError:
            pass

    def _pass_on(self, numbers: bytes) -> None:
        """Pass signals that aren't ours to the wakeup descriptor that was set before, such as asyncio's."""
        if numbers and self._wakeup_before >= 0:
            with suppress(OSError):  # it is full, or gone
                os.write(self._wakeup_before, numbers)

    def wait(self, seconds: float, tick: Callable[[float], bool] | None = None) -> bool:
        """Sleep for some seconds, including the time that the machine is suspended; return True when interrupted.

        `tick` gets the remaining seconds, and returns whether it wants to be called again in a second.
        """
        wall, steady = time.time() + seconds, time.monotonic() + seconds
        ready = select.poll()
        ready.register(self._reader, select.POLLIN)
        while not self.level:
            # Setting the clock back must not make the wait longer.
            remaining = min(wall - time.time(), steady - time.monotonic())
            if remaining <= 0:
                return False
            nap = 1.0 if tick is not None and tick(remaining) else _LONGEST_NAP
            ready.poll(min(remaining, nap) * 1000)
            self.acknowledge()
        return True


class Cancellation(Interrupt):
    """An interruption by an event of the caller instead of a signal."""

    def __init__(self, cancel: "Event | None" = None) -> None:
        super().__init__()
        self._cancel = cancel

    def __enter__(self) -> "Cancellation":
        self._open()
        return self

    def ask(self) -> None:
        """Check the event; called whenever something happens."""
        if self._cancel and self._cancel.is_set():
            self.raise_to(2, "a request to cancel")

    def tick(self) -> bool:
        """Check the event once a second while nothing happens."""
        self.ask()
        return True

    def wait(self, seconds: float, tick: Callable[[float], bool] | None = None) -> bool:
        if self._cancel is None:
            return super().wait(seconds, tick)
        deadline = time.monotonic() + seconds
        self.ask()
        while not self.level and (remaining := deadline - time.monotonic()) > 0:
            nap = 1.0 if tick is not None and tick(remaining) else remaining
            self._cancel.wait(min(remaining, nap))
            self.ask()
        return self.level > 0


class Dismissal(Cancellation):
    """An interruption of many threads."""

    def acknowledge(self) -> None:
        """Leave it readable: other threads may not have seen it yet."""


def tie(held: int, pid: int) -> None:
    """Have the kernel send SIGHUP to `pid`, or to the group -`pid`, when the other end of the pipe is closed.

    The setting belongs to the open pipe, which both processes share, so it outlives either of them.
    """
    if sys.platform == "linux":
        fcntl.fcntl(held, fcntl.F_SETSIG, signal.SIGHUP)
        fcntl.fcntl(held, fcntl.F_SETOWN, pid)
        fcntl.fcntl(held, fcntl.F_SETFL, os.O_ASYNC)


def untie(held: int) -> None:
    if sys.platform == "linux":
        fcntl.fcntl(held, fcntl.F_SETFL, 0)


def tie_to_stdin() -> None:
    """Get SIGHUP when the other end of standard input is closed, which may already be the case."""
    tie(0, os.getpid())
    line = select.poll()
    line.register(0, 0)
    if any(what & select.POLLHUP for _, what in line.poll(0)):
        signal.raise_signal(signal.SIGHUP)


@contextmanager
def leaving_ctrl_c() -> Iterator[None]:
    """While entered, Ctrl-C is for the program that has the terminal, such as a pager."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def signals_put_off() -> Iterator[None]:
    """Delay SIGINT, SIGTERM and SIGHUP until the block is left."""
    came: list[int] = []
    deadly = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    heard = [one for one in deadly if signal.getsignal(one) not in (signal.SIG_IGN, None)]  # not what stays ignored
    before: dict[signal.Signals, object] = {}
    try:
        with suppress(ValueError):  # in a thread that is not the main one nothing is heard
            for one in heard:
                before[one] = signal.signal(one, lambda number, _: came.append(number))
        yield
    finally:
        for one in reversed(before):
            signal.signal(one, before[one])  # type: ignore[arg-type]
        for number in came:
            signal.raise_signal(number)
