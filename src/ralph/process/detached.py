"""Start programs without a keeper.

`DetachedProcess` is for programs that may outlive ralph or that have the terminal: a run in the background, a
notification, a pager, a task of a backlog. `ProcessGroup` is what `Process` uses for programs that have to end with
ralph, such as git.
"""

import errno
import math
import os
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from ralph.errors import UserError
from ralph.process.descendants import open_pidfd
from ralph.process.program import Command
from ralph.process.signals import hang_up_on_close, keep_on_close

PIPE_CAPACITY = 1 << 16
INPUT_PIECE = 1 << 20
ERRORS_KEPT = 4 << 20  # bytes
# What Python ignores, or a shell in the background, must not be ignored by the program.
DEFAULT_SIGNALS = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
CHANGE_FOLDER = ("/bin/sh", "-c", 'cd "$0" && exec "$@"')  # posix_spawn cannot set a working directory


def spawn(
    argv: Sequence[str], env: Mapping[str, str], fds: Sequence[int], *, cwd: str = "", new_session: bool = True
) -> int:
    """Start a program with `fds` as its descriptors from 0 on; return its pid. Signals have their default handling."""

    def start(path: str, words: Sequence[str]) -> int:
        return os.posix_spawn(
            path,
            tuple(words),
            env,
            file_actions=[(os.POSIX_SPAWN_DUP2, fd, target) for target, fd in enumerate(fds)],
            setsid=new_session,
            setsigmask=(),
            setsigdef=DEFAULT_SIGNALS,
        )

    argv = (*CHANGE_FOLDER, cwd, *argv) if cwd else argv
    try:
        return start(argv[0], argv)
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise
        return start("/bin/sh", ["sh", *argv])  # a script without a #! line, as a shell runs it


class DetachedProcess:
    """A program that ralph does not kill when it ends. `code` is its exit code, once `wait` has returned it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.code: int | None = None

    @classmethod
    def start(
        cls, argv: Sequence[str], env: Mapping[str, str], fds: Sequence[int], *, cwd: str = "", new_session: bool = True
    ) -> "DetachedProcess":
        """Start a program with `fds` as its stdin, stdout, stderr and so on."""
        return cls(spawn(argv, env, fds, cwd=cwd, new_session=new_session))

    def wait(self, seconds: float = math.inf) -> int | None:
        """Wait for its exit code; return None if it is still running after `seconds`."""
        until, nap = time.monotonic() + seconds, 0.0005
        while self.code is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG if seconds < math.inf else 0)
            except ChildProcessError:  # the program around us ignores SIGCHLD
                pid, status = self.pid, 0
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
            elif time.monotonic() >= until:
                break
            else:
                time.sleep(nap)
                nap = min(2 * nap, 0.02)
        return self.code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has exited."""
        if self.wait(0) is None:
            os.kill(self.pid, number)


class ProcessGroup:
    """A program in a new session, so that Ctrl-C doesn't cut it off halfway; it gets SIGHUP when ralph dies."""

    def __init__(self) -> None:
        self._pid = 0
        self._pidfd = -1
        self._lifeline = (-1, -1)
        self._code: int | None = None

    def spawn(self, program: str, command: Command, fds: Sequence[int]) -> int:
        """Start the program with `fds` as its stdin, stdout, stderr; return its pid."""
        self._lifeline = os.pipe()  # only we hold the writing end: when we die, the kernel sends SIGHUP
        argv = (program, *command.argv[1:])
        self._pid = spawn(argv, command.env, (*fds, self._lifeline[0]), cwd=command.cwd)
        self._pidfd = open_pidfd(self._pid)
        with suppress(ProcessLookupError):  # it has exited, and the program around us has collected it
            hang_up_on_close(self._lifeline[0], -self._pid)
        return self._pid

    def fileno(self) -> int:
        """Readable when the program has exited; -1 if the system can't tell."""
        return self._pidfd

    def exit_code(self, options: int = os.WNOHANG) -> int | None:
        """Return the exit code; None if the program is running."""
        try:
            pid, status = os.waitpid(self._pid, options)
        except ChildProcessError:
            hint = "run ralph in the main thread, or leave SIGCHLD alone"
            raise UserError("this program reaps ralph's child processes", hint) from None
        self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code

    def send_signals(self, *numbers: int) -> None:
        """Signal the program and everything in its group."""
        with suppress(ProcessLookupError):
            for number in numbers:
                os.killpg(self._pid, number)

    def close(self) -> None:
        """Kill the program if it is still running; background processes that it left stay."""
        if self._pid:
            if self._code is None:
                self.send_signals(signal.SIGKILL)
                self.exit_code(0)
            keep_on_close(self._lifeline[0])
        for fd in (*self._lifeline, self._pidfd):
            if fd >= 0:
                os.close(fd)


def unnamed_file() -> int:
    """Return the descriptor of a temporary file without a name."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("ralph")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def read_back(fd: int) -> bytes:
    """Return the end of what was written to an unnamed file."""
    return os.pread(fd, ERRORS_KEPT, max(0, os.fstat(fd).st_size - ERRORS_KEPT))


def open_input(data: bytes) -> int:
    """Return a descriptor from which exactly `data` can be read."""
    if not data:
        return os.open(os.devnull, os.O_RDONLY)
    if len(data) <= PIPE_CAPACITY:
        fd, writer = os.pipe()
        # Over the pipe-user-pages limit the kernel gives small pipes; never block on one.
        os.set_blocking(writer, False)
        written = os.write(writer, data)
        os.close(writer)
        if written == len(data):
            return fd
        os.close(fd)
    fd = unnamed_file()
    for at in range(0, len(data), INPUT_PIECE):
        os.write(fd, data[at : at + INPUT_PIECE])
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
