"""Signals that ask ralph to stop, the time left for its commands after one, and SIGHUP for children when ralph dies."""

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
from typing import Any

ANNOUNCEMENT = "Received signal, shutting down..."
NUDGE = signal.SIGURG  # wakes a sleeping run: there is something to look at
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
MAX_NAP = 30.0  # seconds; a suspended machine is noticed this late
URGENT_GRACE = 0.4  # seconds from SIGTERM to SIGKILL after a second Ctrl-C
URGENT_TIME = 0.3  # seconds for all commands together after a second Ctrl-C
CLOSING_TIME = 5.0  # seconds for what is still recorded when the run's time is over


def _announce() -> None:
    os.write(2, ANNOUNCEMENT.encode() + b"\n")


def wake(*_: object) -> None:
    """Do nothing: the signal only interrupts a sleeping system call."""


class Interrupt:
    """A request to stop. Level 1: finish the current turn; 2: end it now; 3: kill it.

    While entered, SIGINT and SIGTERM raise the level by one, and SIGHUP raises it to 2. `announce` is called on the
    first signal, inside the handler, so it may only write to a descriptor. Outside the main thread no signal arrives,
    and the level stays 0.
    """

    def __init__(self, announce: Callable[[], None] = _announce) -> None:
        self.reason = ""
        # For each request, what it adds to the level and the lowest level after it. A list that only grows is safe if
        # the next signal arrives while this one is being handled.
        self._requests: list[tuple[int, int]] = []
        self._announce = announce
        self._raises = False
        self._pid = os.getpid()
        self._before: dict[int, object] = {}
        self._wakeup_before = -1
        self._reader = self._writer = -1
        self._chld_before: Any = None

    def __enter__(self) -> "Interrupt":
        self._open()
        try:
            # Python runs a handler only after the system call: without this, 4 of 20,000 signals ended no wait.
            self._wakeup_before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        except ValueError:
            return self
        for number in STOP_SIGNALS:
            # Respect `nohup ralph …`.
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._receive)
        self._before[NUDGE] = signal.signal(NUDGE, wake)
        return self

    def _open(self) -> None:
        with suppress(ValueError):  # a program around us that ignores SIGCHLD would lose the exit codes of ours
            self._chld_before = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
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
        if self._chld_before is not None:
            signal.signal(signal.SIGCHLD, self._chld_before)
        os.close(self._reader)
        os.close(self._writer)
        self._reader = self._writer = -1  # the numbers will belong to other files

    @property
    def level(self) -> int:
        level = 0
        for more, least in self._requests:
            level = max(level + more, least)
        return min(3, level)

    @property
    def is_repeated(self) -> bool:
        """Whether a signal came after an earlier request."""
        return any(more for more, _ in self._requests[1:])

    @property
    def ignores_signals(self) -> bool:
        """Whether the program that called ralph handles signals itself."""
        return not self._before

    def _restore(self, number: int) -> None:
        before = self._before[number]
        signal.signal(number, before if before is not None else signal.SIG_DFL)  # type: ignore[arg-type]

    def fix_exit_code(self, code: int) -> None:
        """From now on a signal ends the process with this exit code."""
        for number in self._before.keys() & set(STOP_SIGNALS):
            self._before[number] = lambda *_: os._exit(code)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid and number != signal.SIGINT:
            # This is a forked copy (`multiprocessing`): SIGTERM ends only the copy, while Ctrl-C goes to every process.
            self._restore(number)
            signal.raise_signal(number)
            return
        request = (1, 2 if number == signal.SIGHUP else 1)
        self._requests.append(request)
        self.reason = signal.Signals(number).name
        if self._requests[0] is request:
            self._announce()
        elif self._raises:
            raise KeyboardInterrupt

    @contextmanager
    def raise_on_repeat(self) -> Iterator[None]:
        """While entered, a second signal raises KeyboardInterrupt in what this process itself is doing."""
        self._raises = True
        try:
            yield
        finally:
            self._raises = False

    @property
    def kill_grace(self) -> float:
        """Seconds from SIGTERM to SIGKILL at level 2: few after a second Ctrl-C, unlimited after a closed terminal."""
        return URGENT_GRACE if self.is_repeated else math.inf

    def must_end(self) -> bool:
        """Return whether everything has to end now."""
        return self.level > 1

    def raise_to(self, level: int, reason: str) -> None:
        """Raise the interrupt level to `level`, without a signal."""
        if level > self.level:
            self._requests.append((0, level))
            self.reason = reason
            if self._writer >= 0:
                os.write(self._writer, b"\0")

    def fileno(self) -> int:
        """Readable when the level may have changed since `acknowledge`."""
        return self._reader

    def acknowledge(self) -> None:
        try:
            while arrived := os.read(self._reader, 512):
                # Signals that aren't ours go to the wakeup descriptor that was set before, such as asyncio's.
                others = bytes(number for number in arrived if number and number not in self._before)
                if others and self._wakeup_before >= 0:
                    with suppress(OSError):  # it is full, or gone
                        os.write(self._wakeup_before, others)
        except BlockingIOError:
            pass

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
            nap = 1.0 if tick is not None and tick(remaining) else MAX_NAP
            ready.poll(min(remaining, nap) * 1000)
            self.acknowledge()
        return True


class Cancellation(Interrupt):
    """An interruption by an event of the caller instead of a signal."""

    def __init__(self, cancel: Event) -> None:
        super().__init__()
        self._cancel = cancel

    def __enter__(self) -> "Cancellation":
        self._open()
        return self

    def check(self) -> None:
        """Check the event; called whenever something happens."""
        if self._cancel.is_set():
            self.raise_to(2, "a request to cancel")

    def tick(self) -> bool:
        """Check the event once a second while nothing happens."""
        self.check()
        return True


class Cancelled(TimeoutError):
    """A command was not waited for, because the run is interrupted or its time is over."""


class Deadline:
    """The time limit that the commands of one run share. They get the run's mark, and end when it is interrupted.

    `grace` is how many seconds all commands together may take after a first Ctrl-C; `time_left` returns the seconds
    until the run's own time is over. No program inside the `untrusted` folders is used: a sandboxed agent can write
    there, and these commands run outside the sandbox.
    """

    untrusted: tuple[str, ...] = ()

    def __init__(
        self,
        interrupt: Interrupt,
        run_id: str = "",
        grace: float = 30.0,
        time_left: Callable[[], float] = lambda: math.inf,
    ) -> None:
        self.interrupt, self.run_id, self._grace, self.time_left = interrupt, run_id, grace, time_left
        self._level, self._ends_at = 0, math.inf

    def remaining(self) -> float:
        """Return the seconds that commands may still take."""
        level, now = self.interrupt.level, time.monotonic()
        if not level and self.time_left() <= 0:
            level = 1
            self._ends_at = min(self._ends_at, now + CLOSING_TIME)
        if level > self._level:
            self._level = level
            self._ends_at = min(self._ends_at, now + (self._grace if level == 1 else URGENT_TIME))
        return self._ends_at - now

    def is_over(self) -> bool:
        """Return whether the run's time is over, including the time for recording what it did."""
        return self.time_left() <= 0 and self.remaining() <= 0

    @property
    def reason(self) -> str:
        return f"received {self.interrupt.reason}" if self.interrupt.level else "the time of the run is over"


def hang_up_on_close(reader: int, pid: int) -> None:
    """Have the kernel send SIGHUP to `pid`, or to the group -`pid`, when the other end of the pipe is closed.

    Linux only. The setting belongs to the open pipe, which both processes share, so it outlives either of them.
    """
    if sys.platform == "linux":
        fcntl.fcntl(reader, fcntl.F_SETSIG, signal.SIGHUP)
        fcntl.fcntl(reader, fcntl.F_SETOWN, pid)
        fcntl.fcntl(reader, fcntl.F_SETFL, os.O_ASYNC)


def keep_on_close(reader: int) -> None:
    """Undo `hang_up_on_close`."""
    if sys.platform == "linux":
        fcntl.fcntl(reader, fcntl.F_SETFL, 0)


@contextmanager
def ignore_ctrl_c() -> Iterator[None]:
    """While entered, Ctrl-C is for the program that has the terminal, such as an editor."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def defer_signals() -> Iterator[None]:
    """Delay SIGINT, SIGTERM and SIGHUP until the block is left."""
    arrived: list[int] = []
    before: dict[int, object] = {}
    try:
        with suppress(ValueError):  # no signal arrives in a thread that is not the main one
            for signum in STOP_SIGNALS:
                if signal.getsignal(signum) not in (signal.SIG_IGN, None):
                    before[signum] = signal.signal(signum, lambda number, _: arrived.append(number))
        yield
    finally:
        for number in reversed(before):
            signal.signal(number, before[number])  # type: ignore[arg-type]
        for number in arrived:
            signal.raise_signal(number)


def interrupt_on_signals() -> None:
    """Raise KeyboardInterrupt on SIGINT, SIGTERM and SIGHUP, unless they are ignored."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    for number in STOP_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, interrupt)


def restore_signals() -> None:
    """Undo what was set for start-up: Ctrl-C raises KeyboardInterrupt, SIGTERM and SIGHUP end the process."""
    for number in STOP_SIGNALS:
        if signal.getsignal(number) not in (signal.SIG_IGN, signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
