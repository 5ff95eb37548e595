"""How does the coordinator run its loops and landings? As processes of their own, each held by a leash and with a pipe
for the one line that it says at its end; nothing is waited for but by one `poll`."""

import os
import select
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TypeVar

import msgspec

from ralph.core.text import one_line, tail
from ralph.errors import UNREADABLE, complaint_in
from ralph.files import open_file, open_fresh
from ralph.processes.descendants import below, handle, is_held, press, start_of
from ralph.processes.nursery import Nursery
from ralph.processes.reaper import NAME

LONGEST = 8 << 20
AT_ONCE = 3
Kind = TypeVar("Kind")
GLANCE = 0.05  # seconds, where the system cannot tell of the end of a process, or of its being held


class Child:
    """A process at work for an item; for the gate if `key` is empty. `said` is all that it printed."""

    def __init__(self, key: str, log: str) -> None:
        self.key, self.log, self.began = key, log, time.monotonic()
        self.said = b""
        self.code: int | None = None
        self.asked = 0  # how urgently it was asked to end

    def start(self, words: Sequence[str], nursery: Nursery) -> None:
        self.out, writer = os.pipe()
        errors = open_fresh(self.log)
        try:
            self.pid, self._leash = nursery.start(words, (writer, errors))
            with suppress(BrokenPipeError):  # killed already
                os.write(self._leash, b"\n")
        finally:
            for fd in (writer, errors):
                os.close(fd)
        os.set_blocking(self.out, False)
        self.handle = handle(self.pid)

    def ask_to_end(self, level: int) -> None:
        """1: after what it does; 2: now; `AT_ONCE`: without any patience, as two Ctrl-C would. Each is asked once."""
        if level <= self.asked:
            return
        numbers = {1: (signal.SIGINT,), 2: (signal.SIGHUP,)}.get(level, (signal.SIGTERM, signal.SIGINT))
        before, self.asked = self.asked, level
        with suppress(ProcessLookupError):
            for number in (*numbers[: 1 if before else None], signal.SIGCONT):
                os.kill(self.pid, number)

    @property
    def has_to_end_now(self) -> bool:
        return self.asked > 1

    def end_if_held(self) -> None:
        """One that a debugger holds, or that somebody stops again and again, hears nothing: it is killed with all that
        it has started. Its keeper finds nobody left then, and goes too."""
        if self.has_to_end_now and is_held(self.pid):
            press([one for one in below(self.pid) if one.name != NAME.encode()], set(), kill=True)
            os.kill(self.pid, signal.SIGKILL)

    def listen(self) -> None:
        with suppress(BlockingIOError):
            while piece := os.read(self.out, 1 << 16):
                self.said = (self.said + piece)[-LONGEST:]

    def collect(self) -> bool:
        """Takes note of its end, and of all that it had said; False while it is at work."""
        is_dead = self.has_to_end_now and start_of(self.pid) is None  # though a debugger may hold on to it
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if not pid and not is_dead:
            return False
        self.code = os.waitstatus_to_exitcode(status) if pid else -signal.SIGKILL
        self.listen()
        os.close(self.out)
        os.close(self._leash)
        if self.handle >= 0:
            os.close(self.handle)
        return True

    def answer(self, kind: type[Kind]) -> Kind | None:
        """The last line that it printed, if it came to that."""
        line = self.said.strip().rsplit(b"\n", 1)[-1]
        try:
            return msgspec.json.decode(line, type=kind) if line else None
        except UNREADABLE:
            return None

    @property
    def has_answered(self) -> bool:
        return self.said.endswith(b"\n")

    def last_words(self) -> str:
        """What it said to people, in one line."""
        try:
            with open(open_file(self.log), "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - 20_000))
                message, hint = complaint_in(file.read(20_000).decode("utf-8", "replace"))
        except OSError:
            return ""
        return one_line(tail(f"{message} · hint: {hint}" if hint else message, 2000), 500)


class Children:
    """All that are at work."""

    def __init__(self) -> None:
        self.all: list[Child] = []

    def __iter__(self) -> Iterator[Child]:
        return iter(self.all)

    def of(self, key: str) -> Child | None:
        return next((child for child in self.all if child.key == key), None)

    def wait(self, seconds: float, *others: int) -> None:
        """Until one of them says something or ends, one of the other descriptors has news, or so much time passed."""
        ready = select.poll()
        for other in others:
            if other >= 0:
                ready.register(other, select.POLLIN)
        for child in self.all:
            ready.register(child.out, select.POLLIN)
            if child.handle >= 0:
                ready.register(child.handle, select.POLLIN)
            if child.handle < 0 or child.has_to_end_now:
                seconds = min(seconds, GLANCE)
        ready.poll(seconds * 1000)

    def take_ended(self) -> list[Child]:
        """Those that have ended since the last look, which are at work no more."""
        for child in self.all:
            child.listen()
            child.end_if_held()
        gone = [child for child in self.all if child.collect()]
        self.all = [child for child in self.all if child not in gone]
        return gone

    def ask_to_end(self, level: int) -> None:
        for child in self.all:
            child.ask_to_end(level)
