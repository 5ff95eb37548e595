"""How is a program run? An agent for its lines, as they come; a check for its exit code and the ends of its output."""

from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from ralph.core.model import Exit
from ralph.core.secrets import redact as strike_keys
from ralph.world.processes.interrupt import Interrupt
from ralph.world.processes.keeper import Keeper
from ralph.world.processes.lines import Lines
from ralph.world.processes.logfile import LogFile
from ralph.world.processes.program import Command
from ralph.world.processes.tail import Ends, Tail
from ralph.world.processes.watch import Limits, Watch

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
    on_lines: Callable[[list[bytes]], None],
    on_start: Callable[[int], None] | None = None,
    meanwhile: Callable[[], None] | None = None,
    limits: Limits = NO_LIMITS,
    interrupt: Interrupt | None = None,
    stdout_log: LogFile | None = None,
    stderr_log: LogFile | None = None,
    redact: Callable[[bytes], bytes] = strike_keys,
    tick: Callable[[], bool] | None = None,
    keep_children: bool = False,
) -> Exit:
    """Runs a program; `on_lines` gets the lines of its stdout as they come. The program's own exit ends the turn.
    While it starts the logs are opened and `meanwhile` is called: there that costs no time."""
    lines = Lines()
    errors = Tail(_STDERR_KEPT)

    def take_output(chunk: bytes) -> None:
        try:
            if whole := lines.feed(chunk):
                on_lines(whole)
        finally:  # last, for nobody waits for it: a line is seen the sooner by a tenth
            if stdout_log is not None:
                stdout_log.write(chunk)

    def take_errors(chunk: bytes) -> None:
        if stderr_log is not None:
            stderr_log.write(chunk)
        errors.add(chunk)

    watch = Watch(keeper, limits, interrupt, tick, keep_children)
    ended = watch.run(command, take_output, take_errors, on_start, _opened(meanwhile, stdout_log, stderr_log))
    if last := lines.close():
        on_lines(last)
    return replace(ended, stderr=redact(bytes(errors)).decode(errors="replace")) if errors.seen else ended


def run_command(
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
) -> Output:
    """Runs a program and keeps the first `head` and the last `tail` characters of what it prints. While it starts the
    log is opened and `meanwhile` is called."""
    ends = Ends(head, tail)

    def take(chunk: bytes) -> None:
        if log is not None:
            log.write(chunk)
        ends.add(chunk)

    watch = Watch(keeper, limits, interrupt, tick, keep_children)
    ended = watch.run(command, take, meanwhile=_opened(meanwhile, log))
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
