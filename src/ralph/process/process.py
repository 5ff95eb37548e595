"""Run a program and wait for it.

The arguments of `Process` say which program, for how long, and who cleans up after it. There are three ways to use it:

    Process(command, keeper=keeper, limits=limits, interrupt=interrupt).stream(on_lines)
        For an agent. Each line of its stdout is passed on as soon as it is complete.

    Process(command, keeper=keeper, limits=limits, interrupt=interrupt).capture(head=5000, tail=2000)
        For a check. The beginning and the end of its output are kept.

    with Process(command, deadline=deadline) as git:
        output = git.output(timeout=60)
        For a command of ralph itself. `git.code` is its exit code, `git.error` its stderr.

With a keeper, the call returns when every process that the program started has ended (see `keeper_program.py`).
Without one, ralph kills the program and its process group if it takes too long or the block is left early, and the
kernel sends it SIGHUP if ralph dies; background processes that it leaves keep running. A program that ralph
doesn't wait for is a `DetachedProcess`.
"""

import math
import time
from collections import deque
from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from ralph.core.model import Exit
from ralph.core.secrets import redact as redact_secrets
from ralph.process.keeper import Keeper
from ralph.process.lifecycle import Limits, ProcessLifecycle
from ralph.process.program import ERRORS_KEPT, Command
from ralph.process.signals import Cancelled, defer_signals
from ralph.process.streams import Ends, Lines, LogFile, Tail

MAX_STDERR = 1 << 16  # bytes of stderr that an `Exit` keeps
ASK_TIMEOUT = 15.0  # seconds for a program to answer `--version` and the like
MAX_ANSWER_LINES = 100


class Output(Struct, frozen=True):
    """What a command printed on stdout and stderr. `cut`: `head` is not all of it."""

    exit: Exit
    head: str
    tail: str
    cut: bool


class Process(ProcessLifecycle):
    """A program that ralph waits for; see the docstrings of the module and of `ProcessLifecycle`."""

    _chunks: deque[bytes]  # what `read` returns next
    _errors: Tail

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
                    self._end(reason, self.limits.stop)
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
        ended = self.exit()
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
        return Output(self.exit(), *ends.texts(redact))

    def __enter__(self) -> "Process":
        """Start the program without a keeper; see `read` and `output`."""
        if self._deadline and self._deadline.remaining() <= 0:
            raise Cancelled(self._deadline.reason)
        try:
            with defer_signals():  # a Ctrl-C while it starts would leave it running
                self._chunks, self._errors = deque[bytes](), Tail(ERRORS_KEPT)
                self._start(self._chunks.append, self._errors.add)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: object = None, *_: object) -> None:
        self.close(is_urgent=kind is KeyboardInterrupt)

    def read(self) -> bytes:
        """Return the next piece of stdout; empty once the program has exited and its output is read."""
        while not self._chunks and not self.is_over:
            self.step()
        if self._ended_by == "deadline" and self._deadline:
            raise Cancelled(self._deadline.reason)
        if self._ended_by:
            raise TimeoutError
        return self._chunks.popleft() if self._chunks else b""

    def output(self, timeout: float, latest: float = math.inf) -> bytes:
        """Return all output, or about the last `latest` bytes; raise TimeoutError after `timeout` seconds."""
        self._deadlines["turn-timeout"] = time.monotonic() + timeout
        pieces, size = deque[bytes](), 0
        for piece in iter(self.read, b""):
            pieces.append(piece)
            size += len(piece)
            while size - len(pieces[0]) >= latest:
                size -= len(pieces.popleft())
        return b"".join(pieces)

    @property
    def code(self) -> int:
        """The exit code of a program that is over; -9 after SIGKILL."""
        return self._exit_code or 0

    @property
    def error(self) -> str:
        """What the program wrote to stderr, if it was started by `with`."""
        return bytes(self._errors).decode("utf-8", "replace")

    def exit(self) -> Exit:
        return Exit(
            code=self._exit_code,
            at=time.time(),
            duration=time.monotonic() - self._started_at,
            stderr="",
            ended_by=self._ended_by,
            leftovers=self._leftovers,
        )


def ask_program(keeper: Keeper, command: Command) -> tuple[str, Exit]:
    """Run a program such as `agent --version`; return the last lines that it printed, and its exit."""
    lines = deque[bytes](maxlen=MAX_ANSWER_LINES)
    limits = Limits(turn=ASK_TIMEOUT, grace=0.0, stop=0.5, leftovers=0.5)
    ended = Process(command, keeper=keeper, limits=limits).stream(lines.extend)
    return b"\n".join(lines).decode(errors="replace"), ended
