"""Run an agent or a check under the keeper, and wait until every process that it started has ended.

KeptProcess(command, keeper=keeper, limits=limits, interrupt=interrupt).stream(on_lines)
    For an agent. Each line of its stdout is passed on as soon as it is complete.

KeptProcess(command, keeper=keeper, limits=limits, interrupt=interrupt).capture(head=5000, tail=2000)
    For a check. The beginning and the end of its output are kept.
"""

import math
import os
import time
from collections import deque
from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from ralph.core.model import Exit
from ralph.core.secrets import redact as redact_secrets
from ralph.process.keeper import Ended, Exited, Keeper, KeeperLost
from ralph.process.keeper_program import KILL_TIMEOUT
from ralph.process.program import Command, find_program, start_error
from ralph.process.pump import LINGER, PIPE_SIZE, Pump, Sink
from ralph.process.signals import Interrupt
from ralph.process.streams import Ends, Lines, LogFile, Tail

SETTLE_POLL = 0.05  # seconds between two looks for background processes
SETTLE_TIME, MAX_SETTLE_TIME = 1.0, 30.0  # seconds for a background process to become a spared one; see `Keeper.spared`
LAST_OUTPUT = 0.1  # seconds in which output is still passed on after a second Ctrl-C
SLOW_MACHINE = 5.0  # seconds of extra time before a silent keeper counts as lost
MAX_STDERR = 1 << 16  # bytes of stderr that an `Exit` keeps
ASK_TIMEOUT = 15.0  # seconds for a program to answer `--version` and the like
MAX_ANSWER_LINES = 100


class Limits(Struct, frozen=True, kw_only=True):
    """Time limits in seconds."""

    turn: float | None = None
    idle: float | None = None
    """The longest silence."""
    total: float | None = None
    """What the run has left."""
    grace: float = 30.0
    """To finish after an interrupt."""
    stop: float = 5.0
    """From SIGTERM to SIGKILL, for the program itself."""
    leftovers: float = 2.0
    """From SIGTERM to SIGKILL, for what the program left running."""


class Output(Struct, frozen=True):
    """What a command printed on stdout and stderr. `cut`: `head` is not all of it."""

    exit: Exit
    head: str
    tail: str
    cut: bool


class KeptProcess:
    """A program of a run. `interrupt` ends it by its level.

    `on_start` gets its pid. `tick` is called a second after something happened, and again each second while it returns
    True. A silent program counts as idle only if `is_idle()` agrees. With `keep_children`, processes that it leaves
    outlive the run.
    """

    def __init__(
        self,
        command: Command,
        *,
        keeper: Keeper,
        limits: Limits = Limits(),
        interrupt: Interrupt | None = None,
        on_start: Callable[[int], None] = lambda _: None,
        tick: Callable[[], bool] | None = None,
        is_idle: Callable[[], bool] = lambda: True,
        keep_children: bool = False,
    ) -> None:
        self._command, self._keeper, self._limits = command, keeper, limits
        self._interrupt, self._keep_children = interrupt, keep_children
        self._on_start, self._tick, self._is_idle = on_start, tick, is_idle
        self._pump = Pump(PIPE_SIZE)
        self._pid = 0
        self._level = 0  # the level of the interrupt that was last handled
        self._started_at = self._exited_at = 0.0
        self._exit_code: int | None = None
        self._ended_by = ""
        self._leftovers = 0
        self._is_ending = self._is_over = False
        self._output_until = math.inf

    def stream(
        self,
        on_lines: Callable[[list[bytes]], str | None],
        *,
        stdout_log: LogFile | None = None,
        stderr_log: LogFile | None = None,
        redact: Callable[[bytes], bytes] = redact_secrets,
    ) -> Exit:
        """Run the program and pass the lines of its stdout to `on_lines`, which may return a reason to end it."""
        lines, errors = Lines(), Tail(MAX_STDERR)

        def take_output(chunk: bytes) -> None:
            try:
                whole = lines.feed(chunk) if time.monotonic() < self._output_until else []
                if whole and (reason := on_lines(whole)) and self._may_be_ended:
                    self._end(reason, self._limits.stop)
            finally:
                if stdout_log is not None:
                    stdout_log.write(chunk)

        def take_errors(chunk: bytes) -> None:
            if stderr_log is not None:
                stderr_log.write(chunk)
            errors.add(chunk)

        self._start(take_output, take_errors)
        for log in (stdout_log, stderr_log):
            if log is not None:
                log.write(b"")  # create it, for a person who looks before the first output
        self._wait()
        ended = self._exit()
        if (last := lines.close()) and time.monotonic() < self._output_until:
            on_lines(last)
        return replace(ended, stderr=redact(bytes(errors)).decode(errors="replace")) if errors.seen else ended

    def capture(
        self, *, head: int, tail: int, log: LogFile | None = None, redact: Callable[[bytes], bytes] = redact_secrets
    ) -> Output:
        """Run the program; return the first `head` and the last `tail` characters that it printed."""
        ends = Ends(head, tail)

        def take(chunk: bytes) -> None:
            if log is not None:
                log.write(chunk)
            ends.add(chunk)

        self._start(take)
        self._wait()
        return Output(self._exit(), *ends.texts(redact))

    def _exit(self) -> Exit:
        return Exit(
            code=self._exit_code,
            at=time.time(),
            duration=time.monotonic() - self._started_at,
            stderr="",
            ended_by=self._ended_by,
            leftovers=self._leftovers,
        )

    # Start and end

    def _start(self, on_stdout: Sink, on_stderr: Sink | None = None) -> None:
        command, pump = self._command, self._pump
        self._started_at = time.monotonic()
        program = self._find_program()
        try:
            sinks = (self._with_activity(sink) for sink in (on_stdout, on_stderr) if sink)
            with pump.open_streams(command, *sinks) as fds:
                self._pid = self._keeper.spawn(program, command, fds)
        except KeeperLost as loss:
            raise self._keeper.replace() from loss
        except OSError as error:
            find_program(command.argv[0], command.env, command.cwd)  # its error says more
            raise start_error(error, program, command.cwd) from error
        pump.watch(self._keeper.fileno(), self._on_report)
        if self._interrupt:
            pump.watch(self._interrupt.fileno(), self._on_wakeup)
        self._set_limit("turn-timeout", self._limits.turn)
        self._set_limit("max-time", self._limits.total)
        self._restart_idle_timeout()
        self._schedule_tick(1)

    def _find_program(self) -> str:
        name, command = self._command.argv[0], self._command
        if "/" in name and not command.sandboxed:  # the kernel says whether it exists
            return os.path.join(command.cwd, name)
        return find_program(name, command.env, command.cwd)

    def _with_activity(self, sink: Sink) -> Sink:
        """Return a sink that also restarts the idle timeout."""

        def take(chunk: bytes) -> None:
            if self._pump.has_timer("idle-timeout"):
                self._restart_idle_timeout()
            self._schedule_tick(1)
            sink(chunk)

        return take

    def _wait(self) -> None:
        """Block until the program and everything that it started has ended."""
        try:
            self._on_start(self._pid)
            while not self._is_over:
                self._step()
        finally:
            self._close()

    def _close(self) -> None:
        """Kill what is still running, and close the streams."""
        self._tick = None
        self._pump.ignore_output()
        try:
            if not (self._is_over or self._is_ending):
                self._end("", self._limits.stop)
            while not self._is_over:
                self._step()
        finally:
            self._pump.close()

    def _step(self) -> None:
        """Wait for something to happen, and handle it."""
        try:
            if self._interrupt and self._interrupt.level > self._level:
                self._on_interrupt(self._interrupt)
            self._pump.step()
            if self._exit_code is not None and not self._pump.has_streams:
                self._end_leftovers()
        except KeeperLost as error:
            self._is_over = True
            raise self._keeper.replace() from error

    @property
    def _may_be_ended(self) -> bool:
        """Whether the program is running and was not told to end."""
        return self._exit_code is None and not self._is_ending

    def _end(self, reason: str, grace: float) -> None:
        """Kill the program and everything that it started, with SIGKILL after `grace` seconds. The keeper reports the
        end."""
        if self._exit_code is None:
            self._ended_by = self._ended_by or reason
        self._is_ending = True
        self._pump.cancel_timers(but="tick")
        self._pump.set_timer("keeper", grace + KILL_TIMEOUT + SLOW_MACHINE, self._on_silent_keeper)
        self._keeper.kill_all(grace)

    def _end_leftovers(self) -> None:
        """Kill what the program left running, or let it go with `keep_children`."""
        if self._is_over or self._is_ending:
            return
        since_exit = time.monotonic() - self._exited_at
        if since_exit < MAX_SETTLE_TIME and self._keeper.is_unsettled(late=since_exit > SETTLE_TIME):
            self._pump.set_timer("linger", SETTLE_POLL, self._end_leftovers)
            return
        self._pump.close_streams()
        if not self._keep_children:
            self._end("", self._limits.leftovers)
            return
        self._keeper.release()
        self._is_over = True

    # Events

    def _on_report(self) -> None:
        report = self._keeper.receive()
        if isinstance(report, Exited):
            # bubblewrap reports 128 + n for a signal; higher codes are real.
            is_signal = self._command.sandboxed and 128 < report.code <= 143
            self._on_exit(128 - report.code if is_signal else report.code)
            self._is_over = report.alone and not self._is_ending  # else the keeper reports the end of the rest
        elif isinstance(report, Ended):
            self._leftovers, self._is_over = report.others, True

    def _on_exit(self, code: int) -> None:
        self._exit_code = code
        self._pump.drain()
        self._pump.cancel_timers(but="tick")
        self._exited_at = time.monotonic()
        self._pump.set_timer("linger", LINGER, self._end_leftovers)

    def _on_wakeup(self) -> None:
        if self._interrupt:
            self._interrupt.acknowledge()
        self._schedule_tick(0)

    def _on_interrupt(self, interrupt: Interrupt) -> None:
        self._level = interrupt.level
        if self._level > 2:
            self._end("interrupt", 0)
        elif self._level == 2:
            self._end("interrupt", min(self._limits.stop, interrupt.kill_grace))
            if interrupt.is_repeated:
                self._output_until = time.monotonic() + LAST_OUTPUT
        elif self._may_be_ended:
            self._set_limit("interrupt", self._limits.grace)

    def _on_silent_keeper(self) -> None:
        raise KeeperLost

    # Timers

    def _set_limit(self, name: str, seconds: float | None) -> None:
        """End the program, for this reason, if it is still running after some seconds."""
        if seconds is not None:
            self._pump.set_timer(name, seconds, lambda: self._end(name, self._limits.stop))

    def _restart_idle_timeout(self) -> None:
        if self._limits.idle is not None:
            self._pump.set_timer("idle-timeout", self._limits.idle, self._on_silence)

    def _on_silence(self) -> None:
        if self._is_idle():
            self._end("idle-timeout", self._limits.stop)
        else:
            self._restart_idle_timeout()

    def _schedule_tick(self, seconds: float) -> None:
        if self._tick and not (seconds and self._pump.has_timer("tick")):
            self._pump.set_timer("tick", seconds, self._on_tick)

    def _on_tick(self) -> None:
        if self._tick and self._tick():
            self._schedule_tick(1)


def ask_program(keeper: Keeper, command: Command) -> tuple[str, Exit]:
    """Run a program such as `agent --version`; return the last lines that it printed, and its exit."""
    lines = deque[bytes](maxlen=MAX_ANSWER_LINES)
    limits = Limits(turn=ASK_TIMEOUT, grace=0.0, stop=0.5, leftovers=0.5)
    ended = KeptProcess(command, keeper=keeper, limits=limits).stream(lines.extend)
    return b"\n".join(lines).decode(errors="replace"), ended
