"""How are programs run and watched, one alone or several side by side, each from its start until nothing of it is left?
An agent for its lines, as they come; a check for its exit code and the ends of its output. With one `poll`: no threads,
and no waking up while they are silent."""

import fcntl
import os
import select
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from typing import ParamSpec, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from ralph.core.model import Exit
from ralph.core.secrets import redact as strike_keys
from ralph.errors import UserError
from ralph.processes.interrupt import Interrupt
from ralph.processes.keeper import Ended, Exited, Keeper, KeeperLost, NotStarted, Started
from ralph.processes.program import Command, explained, find_program, readable
from ralph.processes.reaper import NAME
from ralph.processes.reaper import PATIENCE as TO_END
from ralph.processes.streams import Ends, Lines, LogFile, Tail

_PIPE = 1 << 20
_CHUNK, _LARGE_CHUNK = 1 << 16, 1 << 18  # once in a flood, fewer and larger reads wake the writer less often
_FLOOD = 1 << 14  # bytes at once
_MOST_DRAINED = 2 * _PIPE // _CHUNK
_NAP = 0.05
_LAST_DEADLY = 15  # SIGTERM
_SETTLING, _LATEST = 1.0, 30.0  # until a program that was started shows what it is, and until it has said so
_LINGER = 0.1  # for what is still on its way through a process that reads for the one that ended, such as `tee`
_LAST_WORDS = 0.1  # for what is still said when somebody asks twice for an end: a flood would take longer than that
_SLOWNESS = 5.0  # of a machine with much else to do, before a keeper that says nothing is taken for lost

Sink = Callable[[bytes], None]
Result = TypeVar("Result")
Course = Generator["Watch", float | None, Result]
"""What goes on with processes. It gives the watch that it waits for, and is sent the milliseconds that it may sleep."""


@cache
def _keep_memory() -> None:
    """What is freed after a chunk is wanted for the next one. glibc gives it back to the system at once, until a larger
    block has been freed: so one is, once there is a flood. Without this, page faults are a tenth of a flood's time."""
    bytes(_PIPE)


class Limits(Struct, frozen=True, kw_only=True):
    """In seconds. `total` is what the run has left; `grace` is for finishing once interrupted; `stop` and `leftovers`
    are for going from TERM to KILL, with the process itself and with what it leaves behind."""

    turn: float | None = None
    idle: float | None = None
    total: float | None = None
    grace: float = 30.0
    stop: float = 5.0
    leftovers: float = 2.0


class Watch:
    """One process from its start until nothing of it is left. While nothing happens it sleeps, unless `tick`, which is
    called a second after something has, says that it wants to be called again. Silence is no idleness where `is_idle`
    denies it."""

    def __init__(
        self,
        keeper: Keeper,
        limits: Limits,
        *,
        interrupt: Interrupt | None = None,
        tick: Callable[[], bool] | None = None,
        keep_children: bool = False,
        is_idle: Callable[[], bool] = lambda: True,
    ) -> None:
        self._keeper = keeper
        self._is_idle = is_idle
        self._limits = limits
        self._interrupt = interrupt
        self._level = 0
        self._tick = tick
        self._keep_children = keep_children
        self._ready = select.poll()
        self._streams: dict[int, Sink] = {}
        self._chunk = _CHUNK
        self._alarms: dict[str, float] = {}
        self._code: int | None = None
        self._is_boxed = False
        self._ended_by = ""
        self._leftovers = 0
        self._exited_at = 0.0
        self._is_ending = False
        self._heard_until = float("inf")
        self._is_deaf = False
        self._is_over = True

    def course(
        self,
        command: Command,
        on_stdout: Sink,
        on_stderr: Sink | None = None,
        on_start: Callable[[int], None] | None = None,
        meanwhile: Iterable[Callable[[], None] | None] = (),
    ) -> Course[Exit]:
        """Gives all output to the sinks as it comes; without `on_stderr` both streams are one. `meanwhile` is done
        while the program starts, if it does: there it costs no time."""
        began = time.monotonic()
        try:
            try:
                program = self._ask_for(command, on_stdout, on_stderr, tells=on_start is not None)
            finally:
                for act in filter(None, meanwhile):
                    act()
            self._listen(began)
            if on_start is not None:
                while not isinstance(report := self._keeper.hear(), Started):
                    pass  # what is left of an earlier one
                on_start(report.pid)
            while not self._is_over:
                self._step((yield self))
        except NotStarted as refusal:
            self._is_over = True
            find_program(command.argv[0], command.env, command.cwd)  # which says more about one that is not there
            raise explained(refusal.error, program, command.cwd) from refusal.error
        except KeeperLost as lost:
            self._is_over = True
            raise without_keeper(self._keeper.replace()) from lost
        finally:
            for fd in self._streams:
                os.close(fd)
            if not self._is_over:
                self._abandon()
        return Exit(
            code=self._code,
            at=time.time(),
            duration=time.monotonic() - began,
            stderr="",
            ended_by=self._ended_by,
            leftovers=self._leftovers,
        )

    def _ask_for(self, command: Command, on_stdout: Sink, on_stderr: Sink | None, tells: bool) -> str:
        program = command.argv[0]
        if "/" not in program or command.boxed:
            program = find_program(program, command.env, command.cwd)
        else:  # the system says whether it is there
            program = os.path.join(command.cwd, program)
        given, out = readable(command.stdin), self._pipe(on_stdout)
        errors = out if on_stderr is None else self._pipe(on_stderr)
        fds = (given, out, errors, *command.fds)
        self._is_boxed = command.boxed
        try:
            self._keeper.spawn(program, command, fds, tells)
            self._is_over = False
        finally:
            for fd in set(fds):
                os.close(fd)
        return program

    def _pipe(self, sink: Sink) -> int:
        reader, writer = os.pipe()
        self._streams[reader] = sink
        return writer

    def _listen(self, began: float) -> None:
        for reader in self._streams:
            os.set_blocking(reader, False)
            self._ready.register(reader, select.POLLIN)
        self._ready.register(self._keeper, select.POLLIN)
        if self._interrupt is not None:
            self._ready.register(self._interrupt, select.POLLIN)
        limits = {"turn-timeout": self._limits.turn, "idle-timeout": self._limits.idle, "max-time": self._limits.total}
        self._alarms = {name: began + limit for name, limit in limits.items() if limit is not None}
        self._expect_tick(1)

    def _expect_output(self) -> None:
        self._alarms["idle-timeout"] = time.monotonic() + (self._limits.idle or 0.0)

    def _expect_tick(self, seconds: float) -> None:
        if self._tick is not None and ("tick" not in self._alarms or not seconds):
            self._alarms["tick"] = time.monotonic() + seconds

    def pause(self) -> float | None:
        """Milliseconds until something is due by itself."""
        if self._interrupt is not None and self._interrupt.level > self._level:
            return 0.0
        alarm = min(self._alarms.values(), default=None)
        return None if alarm is None else max(0.0, alarm - time.monotonic()) * 1000

    def descriptors(self) -> tuple[int, ...]:
        """One of them is readable when something has happened."""
        heard = () if self._interrupt is None else (self._interrupt.fileno(),)
        return (*(() if self._is_deaf else self._streams), self._keeper.fileno(), *heard)

    def _step(self, pause: float | None) -> None:
        if self._interrupt is not None and self._interrupt.level > self._level:
            self._obey(self._interrupt)
        alarm = min(self._alarms.values(), default=None)
        for fd, _ in self._ready.poll(pause):
            if fd in self._streams:
                self._read(fd)
                self._expect_tick(1)
            elif fd == self._keeper.fileno():
                self._hear()
            elif self._interrupt is not None:
                self._interrupt.acknowledge()
                self._expect_tick(0)
                if self._keeper.is_stopped:  # the system has woken us for this
                    raise KeeperLost
        if alarm is not None and time.monotonic() >= alarm:
            self._ring()
        if self._code is not None and not self._streams:
            self._clear_up()

    def _read(self, fd: int) -> bool:
        """Passes on one chunk; False when there is none."""
        try:
            chunk = os.read(fd, self._chunk)
        except BlockingIOError:
            return False
        if len(chunk) > _FLOOD and self._chunk == _CHUNK and self._level < 2:
            self._make_room()
        if not chunk:
            self._ready.unregister(fd)
            del self._streams[fd]
            os.close(fd)
            return False
        if "idle-timeout" in self._alarms:
            self._expect_output()
        self._streams[fd](chunk)
        return True

    def _make_room(self) -> None:
        """For a flood. Few programs make one, and a large pipe takes as long to make as a dozen small ones."""
        _keep_memory()
        self._chunk = _LARGE_CHUNK
        if hasattr(fcntl, "F_SETPIPE_SZ"):
            for reader in self._streams:
                with suppress(PermissionError):  # the user's share of memory is used up: a small pipe is only slower
                    fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, _PIPE)

    def _hear(self) -> None:
        report = self._keeper.hear(waits=False)
        if isinstance(report, Ended):
            self._leftovers = report.others
            self._is_over = True
        if not isinstance(report, Exited):
            return
        # A box says 128 + n of a program that signal n has ended; higher ones are codes of programs' own.
        by_signal = self._is_boxed and 128 < report.code <= 128 + _LAST_DEADLY
        self._code = 128 - report.code if by_signal else report.code
        for fd in list(self._streams):
            for _ in range(_MOST_DRAINED):
                if not self._read(fd):
                    break
        self._forget_alarms()
        self._alarms["linger"] = time.monotonic() + _LINGER
        self._exited_at = time.monotonic()
        # Once asked to end the rest, the keeper answers that too.
        self._is_over = report.alone and not self._is_ending

    def _obey(self, interrupt: Interrupt) -> None:
        self._level = interrupt.level
        if self._level > 2:
            self._end("interrupt", 0)
        elif self._level == 2:
            self._end("interrupt", min(self._limits.stop, interrupt.patience))
            if interrupt.is_repeated:
                self._heard_until, self._chunk = time.monotonic() + _LAST_WORDS, _CHUNK
        elif not self._is_ending and self._code is None:
            self._alarms["interrupt"] = time.monotonic() + self._limits.grace

    def _ring(self) -> None:
        now = time.monotonic()
        for _, name in sorted((at, name) for name, at in self._alarms.items() if at <= now):
            if name == "tick" and self._tick is not None:
                del self._alarms["tick"]
                if self._tick():
                    self._expect_tick(1)
            elif name == "linger":
                self._clear_up()
            elif name == "idle-timeout" and not self._is_idle():
                self._expect_output()
            elif name == "silence":
                raise KeeperLost
            else:
                self._end(name, self._limits.stop)

    @property
    def is_heard(self) -> bool:
        """Whether anybody still has time for what it says."""
        return time.monotonic() < self._heard_until

    def end(self, reason: str) -> None:
        """Whoever listens has heard enough."""
        if self._code is None and not self._is_ending:
            self._end(reason, self._limits.stop)

    def _end(self, reason: str, grace: float) -> None:
        """Ends the process and all that came of it; the keeper tells when that is done."""
        if self._code is None:
            self._ended_by = self._ended_by or reason
        self._is_ending = True
        self._forget_alarms()
        self._alarms["silence"] = time.monotonic() + grace + TO_END + _SLOWNESS
        self._keeper.end(grace)

    def _clear_up(self) -> None:
        """The process has ended by itself, but not alone."""
        if self._is_over or self._is_ending:
            return
        since = time.monotonic() - self._exited_at
        has_yet_to_say_who_it_is = since < _LATEST and self._keeper.is_unsettled(late=since > _SETTLING)
        if has_yet_to_say_who_it_is:
            self._alarms["linger"] = time.monotonic() + _NAP
            return
        self._is_deaf = True
        for fd in self._streams:
            self._ready.unregister(fd)
        if self._keep_children:
            self._keeper.release()
            self._is_over = True
        else:
            self._end("", self._limits.leftovers)

    def _forget_alarms(self) -> None:
        self._alarms = {name: at for name, at in self._alarms.items() if name == "tick"}

    def _abandon(self) -> None:
        """Somebody who was told of a line raised: end it all before the error goes on its way."""
        with suppress(KeeperLost):  # the next turn will find out
            self._keeper.end(self._limits.stop)
            while not self._is_over:
                with suppress(NotStarted):
                    self._is_over = isinstance(self._keeper.hear(), Ended)


def without_keeper(ended: int) -> UserError:
    """The end of a run: nobody but the keeper can promise that nothing of it survives."""
    return UserError(
        f"the process that ends what agents start ({NAME}) was killed or stopped; ralph has ended all that it kept: "
        f"{ended} process{'' if ended == 1 else 'es'}",
        "see what the agent did in its log; with --sandbox it cannot reach processes outside",
    )


Words = ParamSpec("Words")
_STDERR_KEPT = 1 << 16
NO_LIMITS = Limits()


class Output(Struct, frozen=True):
    """What a command printed, stdout and stderr together. `cut`: `head` is not all of it."""

    exit: Exit
    head: str
    tail: str
    cut: bool


def run_process(
    keeper: Keeper,
    command: Command,
    *,
    on_lines: Callable[[list[bytes]], str | None],
    on_start: Callable[[int], None] | None = None,
    limits: Limits = NO_LIMITS,
    interrupt: Interrupt | None = None,
    stdout_log: LogFile | None = None,
    stderr_log: LogFile | None = None,
    redact: Callable[[bytes], bytes] = strike_keys,
    tick: Callable[[], bool] | None = None,
    keep_children: bool = False,
    is_idle: Callable[[], bool] = lambda: True,
) -> Exit:
    """Runs a program; `on_lines` gets the lines of its stdout as they come, and may say why it is to be ended. The
    program's own exit ends the turn. One that is silent for too long is ended if it `is_idle`.
    While it starts the logs are opened: there that costs no time."""
    lines = Lines()
    errors = Tail(_STDERR_KEPT)

    def take_output(chunk: bytes) -> None:
        try:
            if watch.is_heard and (whole := lines.feed(chunk)) and (reason := on_lines(whole)):
                watch.end(reason)
        finally:  # last, for nobody waits for it: a line is seen the sooner by a tenth
            if stdout_log is not None:
                stdout_log.write(chunk)

    def take_errors(chunk: bytes) -> None:
        if stderr_log is not None:
            stderr_log.write(chunk)
        errors.add(chunk)

    watch = Watch(keeper, limits, interrupt=interrupt, tick=tick, keep_children=keep_children, is_idle=is_idle)
    logs = [log.open for log in (stdout_log, stderr_log) if log]
    ended = alone(watch.course(command, take_output, take_errors, on_start, logs))
    if (last := lines.close()) and watch.is_heard:
        on_lines(last)
    return replace(ended, stderr=redact(bytes(errors)).decode(errors="replace")) if errors.seen else ended


def output_of(
    keeper: Keeper,
    command: Command,
    *,
    head: int,
    tail: int,
    meanwhile: Callable[[], None] | None = None,
    limits: Limits = NO_LIMITS,
    interrupt: Interrupt | None = None,
    log: LogFile | None = None,
    redact: Callable[[bytes], bytes] = strike_keys,
    tick: Callable[[], bool] | None = None,
    keep_children: bool = False,
) -> Course[Output]:
    """Runs a program and keeps the first `head` and the last `tail` characters of what it prints. While it starts the
    log is opened and `meanwhile` is called."""
    ends = Ends(head, tail)

    def take(chunk: bytes) -> None:
        if log is not None:
            log.write(chunk)
        ends.add(chunk)

    watch = Watch(keeper, limits, interrupt=interrupt, tick=tick, keep_children=keep_children)
    ended = yield from watch.course(command, take, meanwhile=(log.open if log else None, meanwhile))
    return Output(ended, *ends.texts(redact))


PATIENCE = 15.0  # seconds that a program may take to say it
_LONGEST = 1 << 18


def heard(keeper: Keeper, command: Command, interrupt: Interrupt | None = None) -> tuple[str, Exit]:
    """What the program prints, and how it ended. Nothing that it starts outlives the question."""
    lines: list[str] = []
    size = 0

    def listen(some: list[bytes]) -> None:
        nonlocal size
        for line in some:
            size += len(line)
            if size <= _LONGEST:
                lines.append(line.decode(errors="replace"))

    limits = Limits(turn=PATIENCE, grace=0.0, stop=0.5, leftovers=0.5)
    ended = run_process(keeper, command, on_lines=listen, limits=limits, interrupt=interrupt)
    return "\n".join(lines), ended


def alone(course: Course[Result]) -> Result:
    """What comes of it."""
    try:
        awaited = next(course)
        while True:
            awaited = course.send(awaited.pause())
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def driven(begin: Callable[Words, Course[Result]]) -> Callable[Words, Result]:
    """The same as a function that returns when it is over."""
    return lambda *args, **named: alone(begin(*args, **named))


run_command = driven(output_of)


def side_by_side(
    begins: Sequence[Callable[[Keeper], Course[Result]]],
    keepers: Sequence[Keeper],
    is_enough: Callable[[Result], bool] = lambda result: False,
) -> Iterator[Result]:
    """What comes of each, in their order, as soon as it is known; as many at a time as there are keepers. After a
    result that is enough no other is begun. Whoever leaves early ends those under way."""
    idle, waiting = list(keepers), deque(enumerate(begins))
    under_way: dict[int, tuple[Keeper, Course[Result], Watch]] = {}
    results: dict[int, Result] = {}
    told = 0

    def advance(number: int, keeper: Keeper, course: Course[Result], pause: float | None) -> None:
        try:
            under_way[number] = keeper, course, course.send(pause)
        except StopIteration as end:
            under_way.pop(number, None)
            results[number] = end.value
            idle.append(keeper)
            if is_enough(end.value):
                waiting.clear()

    try:
        while waiting or under_way:
            while waiting and idle:
                number, begin = waiting.popleft()
                keeper = idle.pop(0)
                advance(number, keeper, begin(keeper), None)
            is_alone = len(under_way) == 1  # then it sleeps by itself
            if len(under_way) > 1:
                _sleep([awaited for _, _, awaited in under_way.values()])
            for number, (keeper, course, awaited) in list(under_way.items()):
                advance(number, keeper, course, awaited.pause() if is_alone else 0.0)
            while told in results:
                yield results[told]
                told += 1
    finally:
        for _, course, _ in under_way.values():
            course.close()


def _sleep(awaited: Iterable[Watch]) -> None:
    """Until something has happened to one of them, or is due."""
    ready, pauses = select.poll(), []
    for one in awaited:
        for fd in one.descriptors():
            ready.register(fd, select.POLLIN)
        pauses.append(one.pause())
    ready.poll(min((pause for pause in pauses if pause is not None), default=None))
