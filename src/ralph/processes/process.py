"""How are programs run, one alone or several side by side? An agent for its lines, as they come; a check for its exit
code and the ends of its output."""

import select
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import ParamSpec

from msgspec import Struct
from msgspec.structs import replace

from ralph.core.model import Exit
from ralph.core.secrets import redact as strike_keys
from ralph.processes.interrupt import Interrupt
from ralph.processes.keeper import Keeper
from ralph.processes.program import Command
from ralph.processes.streams import Ends, Lines, LogFile, Tail
from ralph.processes.watch import Course, Limits, Result, Watch

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
    meanwhile: Callable[[], None] | None = None,
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
    While it starts the logs are opened and `meanwhile` is called: there that costs no time."""
    lines = Lines()
    errors = Tail(_STDERR_KEPT)

    def take_output(chunk: bytes) -> None:
        try:
            if (whole := lines.feed(chunk)) and (reason := on_lines(whole)):
                watch.end(reason)
        finally:  # last, for nobody waits for it: a line is seen the sooner by a tenth
            if stdout_log is not None:
                stdout_log.write(chunk)

    def take_errors(chunk: bytes) -> None:
        if stderr_log is not None:
            stderr_log.write(chunk)
        errors.add(chunk)

    watch = Watch(keeper, limits, interrupt=interrupt, tick=tick, keep_children=keep_children, is_idle=is_idle)
    opened = _opened(meanwhile, stdout_log, stderr_log)
    ended = alone(watch.course(command, take_output, take_errors, on_start, opened))
    if last := lines.close():
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
    ended = yield from watch.course(command, take, meanwhile=_opened(meanwhile, log))
    return Output(ended, *ends.texts(redact))


def _opened(meanwhile: Callable[[], None] | None, *logs: LogFile | None) -> Callable[[], None]:
    """What is done while a program starts."""

    def start() -> None:
        for log in logs:
            if log is not None:
                log.open()
        if meanwhile is not None:
            meanwhile()

    return start


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
