"""Run a program of ralph itself, such as git, without a keeper.

    with OwnProcess(command, deadline=deadline) as git:
        output = git.output(timeout=60)
        # then `git.code` is its exit code, and `git.error` its stderr

ralph kills the program and its process group if it takes too long or the block is left early, and the kernel sends it
SIGHUP if ralph dies. Background processes that it leaves keep running. A program that ralph doesn't wait for is a
`DetachedProcess`.
"""

import errno
import math
import os
import signal
import time
from collections import deque
from contextlib import suppress

from ralph.errors import UserError
from ralph.process.descendants import MARK
from ralph.process.program import Command, DetachedProcess, own_program
from ralph.process.pump import LINGER, POLL_INTERVAL, Pump
from ralph.process.signals import URGENT_TIME, Cancelled, Deadline, defer_signals
from ralph.process.streams import Tail

ERRORS_KEPT = 4 << 20  # bytes
STOP_GRACE = 5.0  # seconds from SIGTERM to SIGKILL


class OwnProcess:
    """A program that ends with the `deadline` of the run that it works for, and has the run's mark.

    Once the block is left, `code` is its exit code, or -9 after SIGKILL.
    """

    def __init__(self, command: Command, deadline: Deadline | None = None) -> None:
        self.code = 0
        self._command, self._deadline = command, deadline
        self._process: DetachedProcess | None = None
        self._pump = Pump()
        self._chunks = deque[bytes]()  # what `read` returns next
        self._errors = Tail(ERRORS_KEPT)
        self._level = 0  # the level of the interrupt that was last handled
        self._cut: TimeoutError | None = None  # why it is ended
        self._is_ending = self._has_exited = self._is_over = False

    def __enter__(self) -> "OwnProcess":
        """Start the program; raise an OSError if that fails."""
        if self._deadline and self._deadline.remaining() <= 0:
            raise Cancelled(self._deadline.reason)
        try:
            with defer_signals():  # a Ctrl-C while it starts would leave it running
                self._start()
        except BaseException:
            self._close(STOP_GRACE)
            raise
        return self

    def __exit__(self, kind: object = None, *_: object) -> None:
        self._close(URGENT_TIME if kind is KeyboardInterrupt else STOP_GRACE)

    def read(self) -> bytes:
        """Return the next piece of stdout; empty once the program has exited and its output is read."""
        while not self._chunks and not self._is_over:
            self._step()
        if self._cut:
            raise self._cut
        return self._chunks.popleft() if self._chunks else b""

    def first_line(self, timeout: float) -> bytes:
        """Return the first line that it prints, or what it printed before it ended; raise TimeoutError after `timeout`
        seconds."""
        self._pump.set_timer("timeout", timeout, lambda: self._end(STOP_GRACE, TimeoutError()))
        line = b""
        while b"\n" not in line and (piece := self.read()):
            line += piece
        return line.partition(b"\n")[0]

    def output(self, timeout: float, latest: float = math.inf) -> bytes:
        """Return all output, or about the last `latest` bytes; raise TimeoutError after `timeout` seconds."""
        self._pump.set_timer("timeout", timeout, lambda: self._end(STOP_GRACE, TimeoutError()))
        pieces, size = deque[bytes](), 0
        for piece in iter(self.read, b""):
            pieces.append(piece)
            size += len(piece)
            while size - len(pieces[0]) >= latest:
                size -= len(pieces.popleft())
        return b"".join(pieces)

    @property
    def error(self) -> str:
        """What the program wrote to stderr."""
        return bytes(self._errors).decode("utf-8", "replace")

    def send_signals(self, *numbers: int) -> None:
        """Signal the program and its group, from another thread."""
        if self._process:
            self._process.send_signals(*numbers)

    def _start(self) -> None:
        _running.add(self)
        command, deadline = self._command, self._deadline
        program = own_program(command.argv[0], deadline.untrusted if deadline else ())
        if not program:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), command.argv[0])
        mark = {MARK: deadline.run_id} if deadline and deadline.run_id else {}
        argv, env = (program, *command.argv[1:]), {**command.env, **mark}
        with self._pump.open_streams(command, self._chunks.append, self._errors.add) as fds:
            self._process = DetachedProcess.start(argv, env, fds, cwd=command.cwd, hangs_up=True)
        self._pump.watch(self._process.fileno(), lambda: None)
        if deadline:
            self._pump.watch(deadline.interrupt.fileno(), deadline.interrupt.acknowledge)

    def _step(self) -> None:
        """Wait for something to happen, and handle it."""
        process, deadline = self._process, self._deadline
        assert process is not None
        if deadline and deadline.interrupt.level > self._level:
            self._level = deadline.interrupt.level
            if self._is_ending:
                self._end(STOP_GRACE)
        self._pump.step(self._longest_wait(process))
        if not self._has_exited and process.wait(0) is not None:
            self._on_exit(process)
        if deadline and self._may_be_ended and deadline.remaining() <= 0:
            self._end(STOP_GRACE, Cancelled(deadline.reason))
        if self._has_exited and not self._pump.has_streams:
            self._is_over = True

    def _longest_wait(self, process: DetachedProcess) -> float:
        """Return after how many seconds there is something to do even if nothing happens."""
        seconds = math.inf if process.fileno() >= 0 else POLL_INTERVAL
        if self._deadline and self._may_be_ended:
            seconds = min(seconds, self._deadline.remaining(), max(self._deadline.time_left(), POLL_INTERVAL))
        return seconds

    @property
    def _may_be_ended(self) -> bool:
        return not (self._has_exited or self._is_ending)

    def _on_exit(self, process: DetachedProcess) -> None:
        if process.was_reaped:
            hint = "run ralph in the main thread, or leave SIGCHLD alone"
            raise UserError("this program reaps ralph's child processes", hint)
        self._has_exited, self.code = True, process.code or 0
        self._pump.unwatch(process.fileno())  # it stays readable
        self._pump.drain()
        self._pump.cancel_timers()
        if self._is_ending:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # what is left of its group
            self._is_over = True
        self._pump.set_timer("linger", LINGER, self._pump.close_streams)

    def _end(self, grace: float, cut: TimeoutError | None = None) -> None:
        """End the program and its group with SIGTERM, because a killed git leaves its lock files, and with SIGKILL
        after `grace` seconds."""
        if self._has_exited:
            return
        self._cut, self._is_ending = self._cut or cut, True
        self._pump.cancel_timers()
        grace = URGENT_TIME if self._deadline and self._deadline.interrupt.level > 1 else grace
        self._pump.set_timer("kill", grace, lambda: self.send_signals(signal.SIGKILL))
        self.send_signals(signal.SIGTERM, signal.SIGCONT)

    def _close(self, grace: float) -> None:
        """Kill the program if it is still running, and close the streams."""
        process = self._process
        self._pump.ignore_output()
        try:
            if process and process.code is None and not (self._is_over or self._is_ending):
                self._end(grace)
            while self._is_ending and not self._is_over:
                self._step()
        finally:
            self._pump.close()
            _running.discard(self)
            if process:
                if process.code is None:
                    process.send_signals(signal.SIGKILL)
                    process.wait()
                process.let_go()  # background processes that it left stay
                process.close()


_running: set[OwnProcess] = set()


def kill_running_commands() -> None:
    """Kill the programs without a keeper that other threads wait for. git has a moment to remove its lock files."""
    kill_at = time.monotonic() + URGENT_TIME
    while _running and time.monotonic() < kill_at + 2 * URGENT_TIME:
        for process in list(_running):
            process.send_signals(signal.SIGTERM if time.monotonic() < kill_at else signal.SIGKILL)
        with suppress(KeyboardInterrupt):
            time.sleep(POLL_INTERVAL)
