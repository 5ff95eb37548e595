"""Wait for output, other descriptors and timers with one `poll`.

There are no threads: ralph sleeps while a program is silent, and memory doesn't grow with the output.
"""

import fcntl
import math
import os
import select
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

from ralph.process.program import Command, open_input

PIPE_SIZE = 1 << 20
CHUNK = 1 << 18
MAX_DRAIN_READS = 2 * PIPE_SIZE // CHUNK  # of each pipe after the program's exit; a background process may still write
LINGER = 0.1  # seconds after the exit in which output of other processes, such as `tee`, may still arrive
POLL_INTERVAL = 0.01  # seconds between polls without pidfd

Sink = Callable[[bytes], None]


class Pump:
    """The streams of one program, and the timers of who waits for it. `step` calls what is due."""

    def __init__(self, pipe_size: int = 0) -> None:
        self._pipe_size = pipe_size
        self._poll = select.poll()
        self._handlers: dict[int, Callable[[], object]] = {}
        self._sinks: dict[int, Sink] = {}
        self._timers: dict[str, tuple[float, Callable[[], object]]] = {}

    @contextmanager
    def open_streams(
        self, command: Command, on_stdout: Sink, on_stderr: Sink | None = None
    ) -> Iterator[tuple[int, ...]]:
        """Yield the descriptors that the program starts with. Without `on_stderr`, both streams are one."""
        stdin, stdout = open_input(command.stdin), self._open_pipe(on_stdout)
        stderr = self._open_pipe(on_stderr) if on_stderr else stdout
        fds = (stdin, stdout, stderr, *command.fds)
        try:
            yield fds
        except BaseException:
            self.close()
            raise
        finally:
            for fd in set(fds):
                os.close(fd)

    def _open_pipe(self, sink: Sink) -> int:
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        self._sinks[reader] = sink
        self.watch(reader, partial(self._read, reader))
        if hasattr(fcntl, "F_SETPIPE_SZ") and self._pipe_size:
            with suppress(PermissionError):  # over the pipe-user-pages limit the kernel gives small pipes
                fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, self._pipe_size)
        return writer

    @property
    def has_streams(self) -> bool:
        return bool(self._sinks)

    def watch(self, fd: int, handler: Callable[[], object]) -> None:
        """Call `handler` in the steps in which `fd` is readable; never if it is -1."""
        if fd >= 0:
            self._handlers[fd] = handler
            self._poll.register(fd, select.POLLIN)

    def unwatch(self, fd: int) -> None:
        if fd >= 0:
            del self._handlers[fd]
            self._poll.unregister(fd)

    def set_timer(self, name: str, seconds: float, action: Callable[[], object]) -> None:
        """Call `action` once, after some seconds; replaces the timer with this name."""
        self._timers[name] = time.monotonic() + seconds, action

    def has_timer(self, name: str) -> bool:
        return name in self._timers

    def cancel_timers(self, but: str = "") -> None:
        self._timers = {name: timer for name, timer in self._timers.items() if name == but}

    def step(self, longest: float = math.inf) -> None:
        """Wait until something happens, a timer is due, or `longest` seconds have passed; handle it."""
        seconds = min((at - time.monotonic() for at, _ in self._timers.values()), default=math.inf)
        seconds = min(seconds, longest)
        for fd, _ in self._poll.poll(None if seconds == math.inf else max(0.0, seconds) * 1000):
            if fd in self._handlers:  # an earlier handler may have closed it
                self._handlers[fd]()
        now = time.monotonic()
        while due := [(at, name) for name, (at, _) in self._timers.items() if at <= now]:
            _, action = self._timers.pop(min(due)[1])
            action()

    def drain(self) -> None:
        """Pass on what the program wrote before its exit."""
        for fd in list(self._sinks):
            for _ in range(MAX_DRAIN_READS):
                if not self._read(fd):
                    break

    def ignore_output(self) -> None:
        """Read on, because a program that is ending can still write, but pass nothing on."""
        self._sinks = dict.fromkeys(self._sinks, lambda _: None)

    def close_streams(self) -> None:
        for fd in list(self._sinks):
            self._close_stream(fd)

    def close(self) -> None:
        """Close the streams, and forget everything else."""
        self.close_streams()
        self._handlers.clear()
        self._timers.clear()

    def _read(self, fd: int) -> bool:
        """Pass one chunk on; return False if there is none."""
        try:
            chunk = os.read(fd, CHUNK)
        except BlockingIOError:
            return False
        if not chunk:
            self._close_stream(fd)
            return False
        self._sinks[fd](chunk)
        return True

    def _close_stream(self, fd: int) -> None:
        del self._sinks[fd]
        self.unwatch(fd)
        os.close(fd)
