"""What happens from the start of a program to its end: output, time limits, interrupts, and what it leaves running.

There is one `poll` and no threads: ralph sleeps while the program is silent, and memory doesn't grow with the output.
"""

import errno
import fcntl
import math
import os
import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress

from msgspec import Struct

from ralph.errors import UserError
from ralph.process.descendants import MARK
from ralph.process.keeper import Ended, Exited, Keeper, KeeperLost
from ralph.process.keeper_program import KILL_TIMEOUT
from ralph.process.program import Command, DetachedProcess, find_program, open_input, own_program, start_error
from ralph.process.signals import URGENT_TIME, Deadline, Interrupt

PIPE_SIZE = 1 << 20
CHUNK = 1 << 18
MAX_DRAIN_READS = 2 * PIPE_SIZE // CHUNK  # of each pipe after the program's exit; a background process may still write
SETTLE_POLL = 0.05  # seconds between two looks for background processes
SETTLE_TIME, MAX_SETTLE_TIME = 1.0, 30.0  # seconds for a background process to become a spared one; see `Keeper.spared`
LINGER = 0.1  # seconds after the exit in which output of other processes, such as `tee`, may still arrive
LAST_OUTPUT = 0.1  # seconds in which output is still passed on after a second Ctrl-C
SLOW_MACHINE = 5.0  # seconds of extra time before a silent keeper counts as lost
POLL_INTERVAL = 0.01  # seconds between polls without pidfd

Sink = Callable[[bytes], None]


class Limits(Struct, frozen=True, kw_only=True):
    """Time limits in seconds.

    `total` is what the run has left. `grace` is for finishing after an interrupt. `stop` and `leftovers` are the times
    from SIGTERM to SIGKILL, for the program itself and for what it left running.
    """

    turn: float | None = None
    idle: float | None = None
    total: float | None = None
    grace: float = 30.0
    stop: float = 5.0
    leftovers: float = 2.0


class ProcessLifecycle:
    """The part of `Process` that starts the program, waits and ends it.

    `interrupt` ends it by its level, `deadline` when the run that it works for has no time left. `on_start` gets its
    pid. `tick` is called a second after something happened, and again each second while it returns True. A silent
    program counts as idle only if `is_idle()` agrees. With `keep_children`, processes that it leaves outlive the run.
    """

    def __init__(
        self,
        command: Command,
        *,
        keeper: Keeper | None = None,
        limits: Limits = Limits(),
        interrupt: Interrupt | None = None,
        deadline: Deadline | None = None,
        on_start: Callable[[int], None] | None = None,
        tick: Callable[[], bool] | None = None,
        is_idle: Callable[[], bool] = lambda: True,
        keep_children: bool = False,
    ) -> None:
        self.limits = limits
        self.is_over = False
        self._command, self._keep_children = command, keep_children
        self._keeper = keeper
        self._own: DetachedProcess | None = None  # without a keeper
        self._deadline = deadline
        self._interrupt = deadline.interrupt if deadline else interrupt
        self._on_start, self._tick, self._is_idle = on_start, tick, is_idle
        self._pid = 0
        self._poll = select.poll()
        self._streams: dict[int, Sink] = {}
        self._deadlines: dict[str, float] = {}
        self._level = 0  # the level of the interrupt that was last handled
        self._started_at = self._exited_at = 0.0
        self._exit_code: int | None = None
        self._ended_by = ""
        self._leftovers = 0
        self._is_ending = False
        self._output_until = math.inf

    def send_signals(self, *numbers: int) -> None:
        """Signal a program that has no keeper, and its group, from another thread."""
        if self._own and self._exit_code is None:
            self._own.send_signals(*numbers)

    def step(self) -> None:
        """Wait for something to happen, and handle it."""
        try:
            self._step()
        except KeeperLost as lost:
            self.is_over = True
            assert self._keeper is not None
            raise self._keeper.replace() from lost

    def _timeout(self) -> float | None:
        """Return the milliseconds until there is something to do even if nothing happens."""
        now = time.monotonic()
        waits = [at - now for at in self._deadlines.values()]
        if self._deadline and self._may_be_ended:
            waits += [self._deadline.remaining(), max(self._deadline.time_left(), POLL_INTERVAL)]
        if self._own and self._own.fileno() < 0:
            waits.append(POLL_INTERVAL)
        soonest = min(waits, default=math.inf)
        return None if soonest == math.inf else max(0.0, soonest) * 1000

    def close(self, is_urgent: bool = False) -> None:
        """Kill what is still running, and close the streams."""
        self._tick = None
        self._streams = dict.fromkeys(self._streams, lambda _: None)  # while it ends, it can still write
        try:
            is_running = self._own.code is None if self._own else bool(self._pid)
            if is_running and not (self.is_over or self._is_ending):
                self._end("", URGENT_TIME if is_urgent else self.limits.stop)
            while self._is_ending and not self.is_over:
                self.step()
        finally:
            self._close_streams()
            _unkept.discard(self)
            if own := self._own:
                if own.code is None:
                    own.send_signals(signal.SIGKILL)
                    own.wait()
                own.let_go()  # background processes that it left stay
                own.close()

    def _wait(self) -> None:
        """Block until the program and everything that it started has ended."""
        try:
            if self._on_start:
                self._on_start(self._pid)
            while not self.is_over:
                self.step()
        finally:
            self.close()

    def _step(self) -> None:
        if self._interrupt is not None and self._interrupt.level > self._level:
            self._on_interrupt(self._interrupt)
        deadline = min(self._deadlines.values(), default=math.inf)
        for fd, _ in self._poll.poll(self._timeout()):
            if fd in self._streams:
                self._read(fd)
                self._schedule_tick(1)
            elif self._keeper and fd == self._keeper.fileno():
                self._on_report(self._keeper)
            elif self._interrupt is not None and fd == self._interrupt.fileno():
                self._interrupt.acknowledge()
                self._schedule_tick(0)
        if self._own and self._exit_code is None and (code := self._own.wait(0)) is not None:
            self._on_own_exit(self._own, code)
        if time.monotonic() >= deadline:
            self._on_deadlines()
        if self._deadline and self._may_be_ended and self._deadline.remaining() <= 0:
            self._end("deadline", self.limits.stop)
        if self._exit_code is not None and not self._streams:
            self._end_leftovers()

    # Start and end

    def _start(self, on_stdout: Sink, on_stderr: Sink | None = None) -> None:
        """Start the program. Without `on_stderr` both streams are one."""
        command = self._command
        self._started_at = time.monotonic()
        if not self._keeper:
            _unkept.add(self)
        program = self._find_program()
        stdin, stdout = open_input(command.stdin), self._open_pipe(on_stdout)
        stderr = self._open_pipe(on_stderr) if on_stderr else stdout
        fds = (stdin, stdout, stderr, *command.fds)
        try:
            if self._keeper:
                self._pid = self._keeper.spawn(program, command, fds)
            else:
                mark = {MARK: self._deadline.run_id} if self._deadline and self._deadline.run_id else {}
                argv, env = (program, *command.argv[1:]), {**command.env, **mark}
                self._own = DetachedProcess.start(argv, env, fds, cwd=command.cwd, hangs_up=True)
                self._pid = self._own.pid
        except KeeperLost as lost:
            assert self._keeper is not None
            raise self._keeper.replace() from lost
        except OSError as error:
            if not self._keeper:
                raise
            find_program(command.argv[0], command.env, command.cwd)  # its error says more
            raise start_error(error, program, command.cwd) from error
        finally:
            for fd in set(fds):
                os.close(fd)
            if not self._pid:
                self._close_streams()
        sources = [source.fileno() for source in (self._keeper or self._own, self._interrupt) if source]
        for fd in (*self._streams, *sources):
            if fd >= 0:  # else the system can't tell when the program exits
                self._poll.register(fd, select.POLLIN)
        limits = {"turn-timeout": self.limits.turn, "idle-timeout": self.limits.idle, "max-time": self.limits.total}
        self._deadlines |= {name: self._started_at + limit for name, limit in limits.items() if limit is not None}
        self._schedule_tick(1)

    def _find_program(self) -> str:
        name, command = self._command.argv[0], self._command
        if not self._keeper:
            if program := own_program(name, self._deadline.untrusted if self._deadline else ()):
                return program
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        if "/" in name and not command.sandboxed:  # the kernel says whether it exists
            return os.path.join(command.cwd, name)
        return find_program(name, command.env, command.cwd)

    def _open_pipe(self, sink: Sink) -> int:
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        self._streams[reader] = sink
        if hasattr(fcntl, "F_SETPIPE_SZ") and self._keeper:
            with suppress(PermissionError):  # over the pipe-user-pages limit the kernel gives small pipes
                fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, PIPE_SIZE)
        return writer

    def _close_streams(self) -> None:
        for fd in list(self._streams):
            self._close_stream(fd)

    def _close_stream(self, fd: int) -> None:
        del self._streams[fd]
        with suppress(KeyError):  # the program was not started
            self._poll.unregister(fd)
        os.close(fd)

    @property
    def _may_be_ended(self) -> bool:
        """Whether the program is running and was not told to end."""
        return self._exit_code is None and not self._is_ending

    def _end(self, reason: str, grace: float) -> None:
        """Kill the program and everything that it started, with SIGKILL after `grace` seconds. A keeper reports the
        end.

        A program without a keeper gets SIGTERM as well, because a killed git leaves its lock files.
        """
        if self._exit_code is None:
            self._ended_by = self._ended_by or reason
        self._is_ending = True
        self._cancel_deadlines()
        if self._keeper:
            self._deadlines["keeper"] = time.monotonic() + grace + KILL_TIMEOUT + SLOW_MACHINE
            self._keeper.kill_all(grace)
        elif self._own:
            grace = URGENT_TIME if self._deadline and self._deadline.interrupt.level > 1 else grace
            self._deadlines["kill"] = time.monotonic() + grace
            self._own.send_signals(signal.SIGTERM, signal.SIGCONT)

    def _end_leftovers(self) -> None:
        """Kill what the program left running, or let it go with `keep_children`."""
        if self.is_over or self._is_ending:
            return
        since_exit = time.monotonic() - self._exited_at
        if self._keeper and since_exit < MAX_SETTLE_TIME and self._keeper.is_unsettled(late=since_exit > SETTLE_TIME):
            self._deadlines["linger"] = time.monotonic() + SETTLE_POLL
            return
        self._close_streams()
        if self._keeper and not self._keep_children:
            self._end("", self.limits.leftovers)
            return
        if self._keeper:
            self._keeper.release()
        self.is_over = True

    # Events

    def _read(self, fd: int) -> bool:
        """Pass one chunk on; return False if there is none."""
        try:
            chunk = os.read(fd, CHUNK)
        except BlockingIOError:
            return False
        if not chunk:
            self._close_stream(fd)
            return False
        if "idle-timeout" in self._deadlines:
            self._restart_idle_timeout()
        self._streams[fd](chunk)
        return True

    def _on_report(self, keeper: Keeper) -> None:
        report = keeper.receive()
        if isinstance(report, Exited):
            # bubblewrap reports 128 + n for a signal; higher codes are real.
            is_signal = self._command.sandboxed and 128 < report.code <= 143
            self._on_exit(128 - report.code if is_signal else report.code)
            self.is_over = report.alone and not self._is_ending  # else the keeper reports the end of the rest
        elif isinstance(report, Ended):
            self._leftovers, self.is_over = report.others, True

    def _on_own_exit(self, own: DetachedProcess, code: int) -> None:
        if own.was_reaped:
            hint = "run ralph in the main thread, or leave SIGCHLD alone"
            raise UserError("this program reaps ralph's child processes", hint)
        self._on_exit(code)
        if self._is_ending:
            with suppress(ProcessLookupError):
                os.killpg(own.pid, signal.SIGKILL)  # what is left of its group
            self.is_over = True

    def _on_exit(self, code: int) -> None:
        self._exit_code = code
        if self._own and self._own.fileno() >= 0:
            self._poll.unregister(self._own)  # it stays readable
        for fd in list(self._streams):
            for _ in range(MAX_DRAIN_READS):
                if not self._read(fd):
                    break
        self._cancel_deadlines()
        self._exited_at = time.monotonic()
        self._deadlines["linger"] = self._exited_at + LINGER

    def _on_interrupt(self, interrupt: Interrupt) -> None:
        self._level = interrupt.level
        if self._deadline:  # which says how much time is left
            if self._is_ending:
                self._end("", self.limits.stop)
        elif self._level > 2:
            self._end("interrupt", 0)
        elif self._level == 2:
            self._end("interrupt", min(self.limits.stop, interrupt.kill_grace))
            if interrupt.is_repeated:
                self._output_until = time.monotonic() + LAST_OUTPUT
        elif self._may_be_ended:
            self._deadlines["interrupt"] = time.monotonic() + self.limits.grace

    def _on_deadlines(self) -> None:
        now = time.monotonic()
        for _, name in sorted((at, name) for name, at in self._deadlines.items() if at <= now):
            if name == "tick":
                del self._deadlines["tick"]
                if self._tick and self._tick():
                    self._schedule_tick(1)
            elif name == "linger":
                self._end_leftovers()
            elif name == "idle-timeout" and not self._is_idle():
                self._restart_idle_timeout()
            elif name == "keeper":
                raise KeeperLost
            elif name == "kill":
                del self._deadlines["kill"]
                self.send_signals(signal.SIGKILL)
            else:
                self._end(name, self.limits.stop)

    def _schedule_tick(self, seconds: float) -> None:
        if self._tick is not None and ("tick" not in self._deadlines or not seconds):
            self._deadlines["tick"] = time.monotonic() + seconds

    def _restart_idle_timeout(self) -> None:
        self._deadlines["idle-timeout"] = time.monotonic() + (self.limits.idle or 0.0)

    def _cancel_deadlines(self) -> None:
        self._deadlines = {name: at for name, at in self._deadlines.items() if name == "tick"}


_unkept: set[ProcessLifecycle] = set()  # running without a keeper


def kill_running_commands() -> None:
    """Kill the programs without a keeper that other threads wait for. git has a moment to remove its lock files."""
    kill_at = time.monotonic() + URGENT_TIME
    while _unkept and time.monotonic() < kill_at + 2 * URGENT_TIME:
        for process in list(_unkept):
            process.send_signals(signal.SIGTERM if time.monotonic() < kill_at else signal.SIGKILL)
        with suppress(KeyboardInterrupt):
            time.sleep(POLL_INTERVAL)
