"""Run a program under a keeper, from its start until nothing that it started is left.

`stream_program` passes an agent's lines on as they come; `capture_program` keeps the beginning and end of a check's
output; `run_in_parallel` does that for several checks at a time. A turn takes one `poll` and no threads: nothing wakes
up while the program is silent, and memory doesn't grow with the output.
"""

import fcntl
import os
import select
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from ralph.core.model import Exit
from ralph.core.secrets import redact as redact_secrets
from ralph.process.interrupt import Interrupt
from ralph.process.keeper import Ended, Exited, Keeper, KeeperLost, NotStarted, Started, keeper_lost_error
from ralph.process.keeper_program import KILL_TIMEOUT
from ralph.process.process import open_input
from ralph.process.program import Command, find_program, start_error
from ralph.process.streams import Ends, Lines, LogFile, Tail

PIPE_SIZE = 1 << 20
CHUNK = 1 << 18
MAX_DRAIN_READS = 2 * PIPE_SIZE // CHUNK  # after the program's exit
MAX_STDERR = 1 << 16  # bytes of stderr that the result keeps
SETTLE_POLL = 0.05  # seconds between two looks at what the program left running
SETTLE_TIME, MAX_SETTLE_TIME = 1.0, 30.0  # seconds for a background process to become a spared one; see `Keeper.spared`
LINGER = 0.1  # seconds for output on its way through another process, such as `tee`
LAST_OUTPUT = 0.1  # seconds in which output is still passed on after a second Ctrl-C
SLOW_MACHINE = 5.0  # seconds of extra time before a silent keeper counts as lost
ASK_TIMEOUT = 15.0  # seconds for a program to answer `--version` and the like
MAX_ANSWER = 1 << 18

Sink = Callable[[bytes], None]
Result = TypeVar("Result")
Result_co = TypeVar("Result_co", covariant=True)


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


NO_LIMITS = Limits()


class Output(Struct, frozen=True):
    """What a command printed on stdout and stderr. `cut`: `head` is not all of it."""

    exit: Exit
    head: str
    tail: str
    cut: bool


class ProgramRun:
    """A program that a keeper runs.

    `on_stdout` and `on_stderr` get the output as it comes; without `on_stderr` both streams are one. `tick` is called
    a second after something happened, and again each second while it returns True. A silent program counts as idle only
    if `is_idle()` agrees.
    """

    def __init__(
        self,
        keeper: Keeper,
        command: Command,
        *,
        on_stdout: Sink,
        on_stderr: Sink | None = None,
        on_start: Callable[[int], None] | None = None,
        limits: Limits = NO_LIMITS,
        interrupt: Interrupt | None = None,
        tick: Callable[[], bool] | None = None,
        keep_children: bool = False,
        is_idle: Callable[[], bool] = lambda: True,
    ) -> None:
        self.is_over = False
        self._keeper, self._command, self.limits = keeper, command, limits
        self._on_stdout, self._on_stderr, self._on_start = on_stdout, on_stderr, on_start
        self._interrupt, self._tick, self._is_idle = interrupt, tick, is_idle
        self._keep_children = keep_children
        self._program = ""
        self._poll = select.poll()
        self._streams: dict[int, Sink] = {}
        self._deadlines: dict[str, float] = {}
        self._level = 0  # of the interrupt, as far as we have reacted
        self._has_started = False
        self._started_at = self._exited_at = 0.0
        self._exit_code: int | None = None
        self._ended_by = ""
        self._leftovers = 0
        self._is_ending = False
        self._output_until = float("inf")

    def start(self) -> None:
        """Ask the keeper to start the program."""
        command = self._command
        self._started_at = time.monotonic()
        name = command.argv[0]
        if "/" not in name or command.boxed:
            self._program = find_program(name, command.env, command.cwd)
        else:  # the kernel says whether it exists
            self._program = os.path.join(command.cwd, name)
        stdin, stdout = open_input(command.stdin), self._open_pipe(self._on_stdout)
        stderr = self._open_pipe(self._on_stderr) if self._on_stderr else stdout
        fds = (stdin, stdout, stderr, *command.fds)
        try:
            self._keeper.spawn(self._program, command, fds)
        except KeeperLost as lost:
            self._close_streams()
            raise keeper_lost_error(self._keeper.replace()) from lost
        finally:
            for fd in set(fds):
                os.close(fd)
        for fd in self.poll_fds():
            self._poll.register(fd, select.POLLIN)
        limits = {"turn-timeout": self.limits.turn, "idle-timeout": self.limits.idle, "max-time": self.limits.total}
        self._deadlines = {name: self._started_at + limit for name, limit in limits.items() if limit is not None}
        self._schedule_tick(1)

    def wait(self) -> Exit:
        """Block until the program and everything that it started has ended."""
        try:
            while not self.is_over:
                self.step(self.timeout())
        finally:
            self.close()
        return self.exit()

    def poll_fds(self) -> list[int]:
        """Descriptors of which one becomes readable when something has happened.

        Output is read once the keeper has reported the start, so that `on_start` always comes first.
        """
        interrupt = [self._interrupt.fileno()] if self._interrupt else []
        return [*(self._streams if self._has_started else ()), self._keeper.fileno(), *interrupt]

    def timeout(self) -> float | None:
        """Return the milliseconds until `step` has something to do by itself."""
        if self._interrupt is not None and self._interrupt.level > self._level:
            return 0.0
        deadline = min(self._deadlines.values(), default=None)
        return None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000

    def step(self, timeout: float | None) -> None:
        """Wait up to `timeout` milliseconds for something to happen, and handle it."""
        try:
            self._step(timeout)
        except NotStarted as failure:
            self.is_over = True
            find_program(self._command.argv[0], self._command.env, self._command.cwd)  # its error says more
            raise start_error(failure.error, self._program, self._command.cwd) from failure.error
        except KeeperLost as lost:
            self.is_over = True
            raise keeper_lost_error(self._keeper.replace()) from lost

    def stop(self, reason: str) -> None:
        """End the program before its time."""
        if self._exit_code is None and not self._is_ending:
            self._end(reason, self.limits.stop)

    def close(self) -> None:
        """Kill what is still running, and close the streams."""
        self._close_streams()
        if self.is_over:
            return
        with suppress(KeeperLost):  # the next turn notices
            self._keeper.kill_all(self.limits.stop)
            while not self.is_over:
                with suppress(NotStarted):
                    self.is_over = isinstance(self._keeper.receive(), Ended)

    def exit(self) -> Exit:
        return Exit(
            code=self._exit_code,
            at=time.time(),
            duration=time.monotonic() - self._started_at,
            stderr="",
            ended_by=self._ended_by,
            leftovers=self._leftovers,
        )

    @property
    def takes_output(self) -> bool:
        """Whether there is still time to look at the output."""
        return time.monotonic() < self._output_until

    def _open_pipe(self, sink: Sink) -> int:
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        self._streams[reader] = sink
        if hasattr(fcntl, "F_SETPIPE_SZ"):
            with suppress(PermissionError):  # over the pipe-user-pages limit the kernel gives small pipes
                fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, PIPE_SIZE)
        return writer

    def _close_streams(self) -> None:
        for fd in self._streams:
            os.close(fd)
        self._streams.clear()

    def _step(self, timeout: float | None) -> None:
        if self._interrupt is not None and self._interrupt.level > self._level:
            self._on_interrupt(self._interrupt)
        deadline = min(self._deadlines.values(), default=None)
        for fd, _ in self._poll.poll(timeout):
            if fd in self._streams:
                self._read(fd)
                self._schedule_tick(1)
            elif fd == self._keeper.fileno():
                self._on_report()
            elif self._interrupt is not None and fd == self._interrupt.fileno():
                self._interrupt.acknowledge()
                self._schedule_tick(0)
        if deadline is not None and time.monotonic() >= deadline:
            self._on_deadline()
        if self._exit_code is not None and not self._streams:
            self._end_leftovers()

    def _schedule_tick(self, seconds: float) -> None:
        if self._tick is not None and ("tick" not in self._deadlines or not seconds):
            self._deadlines["tick"] = time.monotonic() + seconds

    def _read(self, fd: int) -> bool:
        """Pass one chunk on; return False if there is none."""
        try:
            chunk = os.read(fd, CHUNK)
        except BlockingIOError:
            return False
        if not chunk:
            self._poll.unregister(fd)
            del self._streams[fd]
            os.close(fd)
            return False
        if "idle-timeout" in self._deadlines:
            self._restart_idle_timeout()
        self._streams[fd](chunk)
        return True

    def _restart_idle_timeout(self) -> None:
        self._deadlines["idle-timeout"] = time.monotonic() + (self.limits.idle or 0.0)

    def _on_report(self) -> None:
        report = self._keeper.receive(wait=False)
        if isinstance(report, Started):
            self._has_started = True
            for fd in self._streams:
                self._poll.register(fd, select.POLLIN)
            if self._on_start:
                self._on_start(report.pid)
        elif isinstance(report, Exited):
            self._on_exit(report)
        elif isinstance(report, Ended):
            self._leftovers, self.is_over = report.others, True

    def _on_exit(self, report: Exited) -> None:
        self._exit_code = exit_code(report.code, self._command.boxed)
        for fd in list(self._streams):
            for _ in range(MAX_DRAIN_READS):
                if not self._read(fd):
                    break
        self._cancel_deadlines()
        self._exited_at = time.monotonic()
        self._deadlines["linger"] = self._exited_at + LINGER
        self.is_over = report.alone and not self._is_ending  # else the keeper reports the end of the rest

    def _on_interrupt(self, interrupt: Interrupt) -> None:
        self._level = interrupt.level
        if self._level > 2:
            self._end("interrupt", 0)
        elif self._level == 2:
            self._end("interrupt", min(self.limits.stop, interrupt.patience))
            if interrupt.is_repeated:
                self._output_until = time.monotonic() + LAST_OUTPUT
        elif not self._is_ending and self._exit_code is None:
            self._deadlines["interrupt"] = time.monotonic() + self.limits.grace

    def _on_deadline(self) -> None:
        now = time.monotonic()
        for _, name in sorted((at, name) for name, at in self._deadlines.items() if at <= now):
            if name == "tick" and self._tick is not None:
                del self._deadlines["tick"]
                if self._tick():
                    self._schedule_tick(1)
            elif name == "linger":
                self._end_leftovers()
            elif name == "idle-timeout" and not self._is_idle():
                self._restart_idle_timeout()
            elif name == "keeper":
                raise KeeperLost
            else:
                self._end(name, self.limits.stop)

    def _end(self, reason: str, grace: float) -> None:
        """Have the keeper kill the program and everything that it started; it reports when that is done."""
        if self._exit_code is None:
            self._ended_by = self._ended_by or reason
        self._is_ending = True
        self._cancel_deadlines()
        self._deadlines["keeper"] = time.monotonic() + grace + KILL_TIMEOUT + SLOW_MACHINE
        self._keeper.kill_all(grace)

    def _end_leftovers(self) -> None:
        """Kill what the program left running, or let it go with `keep_children`."""
        if self.is_over or self._is_ending:
            return
        since_exit = time.monotonic() - self._exited_at
        if since_exit < MAX_SETTLE_TIME and self._keeper.is_unsettled(late=since_exit > SETTLE_TIME):
            self._deadlines["linger"] = time.monotonic() + SETTLE_POLL
            return
        for fd in self._streams:
            self._poll.unregister(fd)
        self._close_streams()
        if self._keep_children:
            self._keeper.release()
            self.is_over = True
        else:
            self._end("", self.limits.leftovers)

    def _cancel_deadlines(self) -> None:
        self._deadlines = {name: at for name, at in self._deadlines.items() if name == "tick"}


def exit_code(code: int, sandboxed: bool) -> int:
    """Return the exit code as subprocess does: -9 for SIGKILL. bubblewrap reports 128 + n; higher codes are real."""
    return 128 - code if sandboxed and 128 < code <= 143 else code


def stream_program(
    keeper: Keeper,
    command: Command,
    *,
    on_lines: Callable[[list[bytes]], str | None],
    on_start: Callable[[int], None] | None = None,
    limits: Limits = NO_LIMITS,
    interrupt: Interrupt | None = None,
    stdout_log: LogFile | None = None,
    stderr_log: LogFile | None = None,
    redact: Callable[[bytes], bytes] = redact_secrets,
    tick: Callable[[], bool] | None = None,
    keep_children: bool = False,
    is_idle: Callable[[], bool] = lambda: True,
) -> Exit:
    """Run a program and pass the lines of its stdout to `on_lines`, which may return a reason to end it.

    The program's own exit ends the turn, even if background processes hold its stdout.
    """
    lines = Lines()
    errors = Tail(MAX_STDERR)

    def take_output(chunk: bytes) -> None:
        try:
            if run.takes_output and (whole := lines.feed(chunk)) and (reason := on_lines(whole)):
                run.stop(reason)
        finally:
            if stdout_log is not None:
                stdout_log.write(chunk)

    def take_errors(chunk: bytes) -> None:
        if stderr_log is not None:
            stderr_log.write(chunk)
        errors.add(chunk)

    run = ProgramRun(
        keeper,
        command,
        on_stdout=take_output,
        on_stderr=take_errors,
        on_start=on_start,
        limits=limits,
        interrupt=interrupt,
        tick=tick,
        keep_children=keep_children,
        is_idle=is_idle,
    )
    run.start()
    for log in (stdout_log, stderr_log):
        if log is not None:
            log.open()
    ended = run.wait()
    if (last := lines.close()) and run.takes_output:
        on_lines(last)
    return replace(ended, stderr=redact(bytes(errors)).decode(errors="replace")) if errors.seen else ended


class CaptureRun:
    """A program of whose output the first `head` and the last `tail` characters are kept."""

    def __init__(
        self,
        keeper: Keeper,
        command: Command,
        *,
        head: int,
        tail: int,
        limits: Limits = NO_LIMITS,
        interrupt: Interrupt | None = None,
        log: LogFile | None = None,
        redact: Callable[[bytes], bytes] = redact_secrets,
        tick: Callable[[], bool] | None = None,
        keep_children: bool = False,
    ) -> None:
        self._ends, self._log, self._redact = Ends(head, tail), log, redact
        self.program = ProgramRun(
            keeper,
            command,
            on_stdout=self._take,
            limits=limits,
            interrupt=interrupt,
            tick=tick,
            keep_children=keep_children,
        )

    def start(self) -> None:
        self.program.start()
        if self._log is not None:
            self._log.open()

    def result(self) -> Output:
        return Output(self.program.exit(), *self._ends.texts(self._redact))

    def _take(self, chunk: bytes) -> None:
        if self._log is not None:
            self._log.write(chunk)
        self._ends.add(chunk)


def capture_program(keeper: Keeper, command: Command, **options: Any) -> Output:
    """Run a program; return its exit and both ends of its output. For the options see `CaptureRun`."""
    run = CaptureRun(keeper, command, **options)
    run.start()
    run.program.wait()
    return run.result()


def ask_program(keeper: Keeper, command: Command, interrupt: Interrupt | None = None) -> tuple[str, Exit]:
    """Run a program such as `agent --version`; return what it printed, and its exit."""
    lines: list[str] = []
    size = 0

    def keep(some: list[bytes]) -> None:
        nonlocal size
        for line in some:
            size += len(line)
            if size <= MAX_ANSWER:
                lines.append(line.decode(errors="replace"))

    limits = Limits(turn=ASK_TIMEOUT, grace=0.0, stop=0.5, leftovers=0.5)
    ended = stream_program(keeper, command, on_lines=keep, limits=limits, interrupt=interrupt)
    return "\n".join(lines), ended


class ParallelRun(Protocol[Result_co]):
    """A program that `run_in_parallel` waits for, and what becomes of it."""

    program: ProgramRun

    def result(self) -> Result_co: ...


def run_in_parallel(
    starts: Sequence[Callable[[Keeper], ParallelRun[Result] | None]],
    keepers: Sequence[Keeper],
    is_enough: Callable[[Result], bool] = lambda result: False,
) -> Iterator[Result]:
    """Start each with a keeper of its own, as many at a time as there are keepers; yield the results in order.

    After a result that is enough, or if one returns None instead of starting, no other program is started. Leaving the
    iterator early kills those that are running.
    """
    idle, waiting = list(keepers), deque(enumerate(starts))
    running: dict[int, tuple[Keeper, ParallelRun[Result]]] = {}
    results: dict[int, Result] = {}
    yielded = 0
    try:
        while waiting or running:
            while waiting and idle:
                number, start = waiting.popleft()
                if (started := start(idle[0])) is None:
                    waiting.clear()
                else:
                    running[number] = idle.pop(0), started
            if running:
                _wait_for_any([run.program for _, run in running.values()])
            for number, (keeper, run) in list(running.items()):
                run.program.step(0)
                if run.program.is_over:
                    del running[number]
                    run.program.close()
                    results[number] = run.result()
                    idle.append(keeper)
                    if is_enough(results[number]):
                        waiting.clear()
            while yielded in results:
                yield results[yielded]
                yielded += 1
    finally:
        for _, run in running.values():
            run.program.close()


def _wait_for_any(programs: Sequence[ProgramRun]) -> None:
    """Block until something has happened to one of the programs, or is due."""
    poll = select.poll()
    timeouts = []
    for program in programs:
        for fd in program.poll_fds():
            poll.register(fd, select.POLLIN)
        timeouts.append(program.timeout())
    poll.poll(min((timeout for timeout in timeouts if timeout is not None), default=None))
