"""Has somebody asked ralph to stop? Signals become a level: 1 finish what you do, 2 end it now, 3 kill it.
And how does a process end when the one that started it is gone, however that came about? It is held by a leash: a pipe
whose other end only that one holds; when it is closed, the kernel sends the signal that means "the terminal is gone".
Elsewhere than on Linux nothing can be promised for a process that was killed."""

import math
import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import signal
    from threading import Event
else:
    import _signal as signal  # see keeper.py


ANNOUNCEMENT = "Received signal, shutting down..."
NUDGE = signal.SIGURG
_NAMES: dict[int, str] = {signal.SIGINT: "SIGINT", signal.SIGTERM: "SIGTERM", signal.SIGHUP: "SIGHUP"}
_LONGEST_NAP = 30.0
_AT_ONCE = 0.4


def _announce() -> None:
    os.write(2, ANNOUNCEMENT.encode() + b"\n")


def wake(*_: object) -> None:
    """Does nothing: whoever sleeps wakes up, and looks what is the matter."""


class Interrupt:
    """While entered, SIGINT and SIGTERM raise the level by one and SIGHUP raises it to 2. SIGURG, which means nothing
    to others, only wakes whoever sleeps: there is something to look at.

    `announce` is called on the first signal, from inside the handler: it must do no more than write to a descriptor.
    Outside the main thread, where no signal arrives, the level stays 0.
    """

    def __init__(self, announce: Callable[[], None] = _announce) -> None:
        self.reason = ""
        # How much each request adds to the level, and to what it raises it at least. Only ever added to: the next
        # signal may come, and be heard, at any instant of the hearing of this one.
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
            # `nohup ralph …` means what it says.
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._receive)
        self._before[NUDGE] = signal.signal(NUDGE, wake)
        if signal.getsignal(signal.SIGCHLD) is signal.SIG_DFL:  # somebody may stop the keeper
            self._before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, wake)
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
        """Whether a signal came that was not the first thing to be asked."""
        return any(more for more, _ in self._asked[1:])

    @property
    def is_deaf(self) -> bool:
        """Whether no signal is heard: they are left to the program around the run."""
        return not self._before

    def _restore(self, number: int) -> None:
        before = self._before[number]
        signal.signal(number, before if before is not None else signal.SIG_DFL)  # type: ignore[arg-type]

    def settle(self, code: int) -> None:
        """The outcome stands: whatever signal comes when this is left ends us with its exit code, and no other."""
        for number in self._before.keys() & _NAMES.keys():
            self._before[number] = lambda *_: os._exit(code)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid and number != signal.SIGINT:
            # This is a copy that `multiprocessing` made: whoever ends it means it alone. ^C is meant for us all.
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
        """While entered, a second signal breaks off what this process itself is doing: no other can be ended for it."""
        self._breaks = True
        try:
            yield
        finally:
            self._breaks = False

    @property
    def patience(self) -> float:
        """Seconds from TERM to KILL at level 2. Who asks twice wants to see an end; a terminal that is closed, or a
        word from elsewhere, leaves what was running some time to put its things in order."""
        return _AT_ONCE if self.is_repeated else math.inf

    def wants_end(self) -> bool:
        """Whether all that goes on is to end now."""
        return self.level > 1

    def raise_to(self, level: int, reason: str) -> None:
        """Asks for the same without a signal."""
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
        """Tells whoever was woken by signals before, such as asyncio, of those that are none of ours."""
        if numbers and self._wakeup_before >= 0:
            with suppress(OSError):  # it is full, or gone
                os.write(self._wakeup_before, numbers)

    def wait(self, seconds: float, tick: Callable[[float], bool] | None = None) -> bool:
        """Sleeps until so much time has passed, the machine's own sleep included; True at once when interrupted.

        `tick` is told the seconds that remain, and says whether it wants to be told again in a second.
        """
        wall, steady = time.time() + seconds, time.monotonic() + seconds
        ready = select.poll()
        ready.register(self._reader, select.POLLIN)
        while not self.level:
            # A clock set back must not make the wait longer.
            remaining = min(wall - time.time(), steady - time.monotonic())
            if remaining <= 0:
                return False
            nap = 1.0 if tick is not None and tick(remaining) else _LONGEST_NAP
            ready.poll(min(remaining, nap) * 1000)
            self.acknowledge()
        return True


class Cancellation(Interrupt):
    """An interruption that is an event of the caller's, and no signal."""

    def __init__(self, cancel: "Event | None" = None) -> None:
        super().__init__()
        self._cancel = cancel

    def __enter__(self) -> "Cancellation":
        self._open()
        return self

    def ask(self) -> None:
        """Takes note of the event, at everything that happens."""
        if self._cancel and self._cancel.is_set():
            self.raise_to(2, "a request to cancel")

    def tick(self) -> bool:
        """Asks once a second while nothing happens."""
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
    """An interruption that many threads hear, and that nobody takes back."""

    def acknowledge(self) -> None:
        """It goes on being told: there may be others who have not heard it."""


def tie(held: int, pid: int) -> None:
    """Has the kernel send `pid`, or the group of -`pid`, a signal when the other end of the pipe is closed. Who shares
    `held` with it may say so: what is set here holds for both, and holds on when one of them is killed."""
    if sys.platform == "linux":
        import fcntl

        fcntl.fcntl(held, fcntl.F_SETSIG, signal.SIGHUP)
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
        signal.raise_signal(signal.SIGHUP)


@contextmanager
def leaving_ctrl_c() -> Iterator[None]:
    """While entered it is for the program that has the terminal, such as a pager."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def signals_put_off() -> Iterator[None]:
    """Whatever would end this program, or raise KeyboardInterrupt, does so afterwards."""
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
