"""Start programs without a keeper.

`Process` is for programs that may outlive ralph or have the terminal: a run in the background, a notification, a pager,
a task of a backlog. `CapturedProcess` is for commands whose output ralph waits for, such as git. Agents and checks run
under a keeper instead: see `program_run.py`.
"""

import errno
import math
import os
import select
import signal
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from ralph.process.deadline import URGENT_TIME, Cancelled, Deadline, current_deadline
from ralph.process.descendants import MARK
from ralph.process.interrupt import Dismissal, signals_put_off, tie, untie, wake
from ralph.process.program import own_program

GRACE = 5.0  # seconds from SIGTERM to SIGKILL
CHUNK = 1 << 16
PIPE_CAPACITY = 1 << 16
INPUT_PIECE = 1 << 20
POLL_INTERVAL = 0.01
CHECK_INTERVAL = 0.25  # seconds after which a silent program is checked for its exit
MAX_ERRORS = 64 << 20  # bytes of stderr before its beginning is dropped
ERRORS_KEPT = 4 << 20
LINGER = 1.0  # seconds for output of others that still hold the pipe after the program's exit
# What Python ignores, or a shell in the background, must not be ignored by the program.
DEFAULT_SIGNALS = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
# If the program around us ignores SIGCHLD or collects all children, exit codes are lost: a shell reports them instead.
REPORTING_SHELL = ("/bin/sh", "-c", 'trap : TERM; "$@" 3>&-; echo $? >&3', "sh")
CHANGE_FOLDER = ("/bin/sh", "-c", 'cd "$0" && exec "$@"')  # posix_spawn has no working directory


def spawn(argv: Sequence[str], env: Mapping[str, str], fds: Sequence[int], *, new_session: bool = True) -> int:
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

    try:
        return start(argv[0], argv)
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise
        return start("/bin/sh", ["sh", *argv])  # a script without a #! line, as a shell runs it


def in_folder(cwd: str, argv: Sequence[str]) -> tuple[str, ...]:
    return (*CHANGE_FOLDER, cwd, *argv) if cwd else tuple(argv)


class Process:
    """A program that ralph does not kill when it ends. `code` is its exit code, once `wait` has returned it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.code: int | None = None

    @classmethod
    def start(
        cls,
        argv: Sequence[str],
        env: Mapping[str, str],
        fds: Sequence[int],
        *,
        cwd: str = "",
        new_session: bool = True,
    ) -> "Process":
        """Start a program with `fds` as its stdin, stdout, stderr and so on."""
        return cls(spawn(in_folder(cwd, argv), env, fds, new_session=new_session))

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

    def send(self, number: int) -> None:
        """Send a signal, unless it has exited."""
        if self.wait(0) is None:
            os.kill(self.pid, number)


_captured: set["CapturedProcess"] = set()


@contextmanager
def background_deadline() -> Iterator[Deadline]:
    """Yield a deadline for threads whose commands are killed when this block is left."""
    with Dismissal() as dismissal:
        try:
            yield Deadline(dismissal)
        finally:
            dismissal.raise_to(2, "a wish to leave")
            until = time.monotonic() + 3 * URGENT_TIME
            while _captured and time.monotonic() < until:
                with suppress(KeyboardInterrupt):
                    time.sleep(POLL_INTERVAL)


class CapturedProcess:
    """A program whose output ralph waits for, as long as the current deadline allows.

    It runs in a new session, so that Ctrl-C doesn't cut it off halfway. It is killed if the `with` block is left early,
    and gets SIGHUP if ralph dies. After the end, `code` is its exit code and `error` what it wrote to stderr.

        with CapturedProcess(("git", "status"), env) as git:
            output = git.output(timeout=60)
    """

    def __init__(self, argv: tuple[str, ...], env: Mapping[str, str], stdin: bytes = b"", cwd: str = "") -> None:
        self.code = 0
        self.error = ""
        self._argv, self._env, self._stdin, self._cwd = argv, env, stdin, cwd
        self._pid = 0
        self._has_exited = False
        self._own_rest = PIPE_CAPACITY  # bytes in the pipe that may be the program's own after its exit
        self._checked_at, self._closes_at, self._timeout_at = time.monotonic(), math.inf, math.inf
        self._deadline = current_deadline()

    def __enter__(self) -> "CapturedProcess":
        try:
            with signals_put_off():  # a Ctrl-C while it starts would leave it running
                self._start()
        except BaseException:
            if self._pid:
                self.__exit__()
            raise
        return self

    def _start(self) -> None:
        if self._deadline and self._deadline.remaining() <= 0:
            raise Cancelled(self._deadline.reason)
        env = dict(self._env)
        if self._deadline and self._deadline.run_id:
            env[MARK] = self._deadline.run_id
        self._stdout, stdout = os.pipe()
        self._stderr, stdin = unnamed_file(), open_input(self._stdin)
        loses_codes = signal.getsignal(signal.SIGCHLD) not in (signal.SIG_DFL, wake)
        self._reported_code = unnamed_file() if loses_codes else None
        self._lifeline = os.pipe()  # only we hold the writing end: when we die, the kernel sends SIGHUP
        fds = [fd for fd in (stdin, stdout, self._stderr, self._reported_code, self._lifeline[0]) if fd is not None]
        try:
            program = own_program(self._argv[0])
            if not program:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._argv[0])
            argv = in_folder(self._cwd, (program, *self._argv[1:]))
            self._pid = spawn((*REPORTING_SHELL, *argv) if loses_codes else argv, env, fds)
            _captured.add(self)
            with suppress(ProcessLookupError):  # it has exited, and the program around us has collected it
                tie(self._lifeline[0], -self._pid)
        except OSError:
            if not self._pid:
                self._close()
            raise
        finally:
            os.close(stdout)
            os.close(stdin)

    def __exit__(self, kind: object = None, *_: object) -> None:
        if not self._has_exited:
            self._kill(is_urgent=kind is KeyboardInterrupt)
        self._close()

    def read(self) -> bytes:
        """Return the next piece of output; empty once the program has exited and its output is read.

        Background processes that still hold the pipe are not waited for.
        """
        chunk = os.read(self._stdout, CHUNK) if self._wait_for_output() else b""
        self._own_rest -= len(chunk) if self._has_exited else 0
        nap = POLL_INTERVAL / 256  # it has closed its output, so it is about to exit
        while not chunk and not self._has_exited:
            self._collect(os.WNOHANG)
            if not self._has_exited:
                time.sleep(min(nap, self._remaining()))
                nap = min(2 * nap, POLL_INTERVAL)
        return chunk

    def output(self, timeout: float, latest: float = math.inf) -> bytes:
        """Return all output, or about the last `latest` bytes; raise TimeoutError after `timeout` seconds."""
        self._timeout_at = time.monotonic() + timeout
        pieces, size = deque[bytes](), 0
        for piece in iter(self.read, b""):
            pieces.append(piece)
            size += len(piece)
            while size - len(pieces[0]) >= latest:
                size -= len(pieces.popleft())
        return b"".join(pieces)

    def _wait_for_output(self) -> bool:
        """Wait until output is readable; return False if there won't be any more."""
        poll = select.poll()
        poll.register(self._stdout, select.POLLIN)
        if self._deadline:
            poll.register(self._deadline.interrupt, select.POLLIN)
        while True:
            ready = [fd for fd, _ in poll.poll(max(min(self._remaining(), CHECK_INTERVAL), 0) * 1000)]
            if time.monotonic() - self._checked_at >= CHECK_INTERVAL:
                self._check()
            is_over = time.monotonic() >= self._closes_at
            if self._stdout in ready and (not is_over or self._own_rest > 0):
                return True
            if is_over:
                return False
            if ready and self._deadline:
                self._deadline.interrupt.acknowledge()
                if self._deadline.is_urgent:
                    poll.unregister(self._deadline.interrupt)

    def _check(self) -> None:
        """Notice an exit while others hold the output, and drop the beginning of endless errors."""
        self._checked_at = time.monotonic()
        if not self._has_exited:
            self._collect(os.WNOHANG)
            self._closes_at = self._checked_at + LINGER if self._has_exited else math.inf
        if os.fstat(self._stderr).st_blocks * 512 > MAX_ERRORS:
            os.ftruncate(self._stderr, 0)

    def _remaining(self) -> float:
        """Return the seconds to wait for it; raise TimeoutError if there are none."""
        remaining = self._timeout_at - time.monotonic()
        if remaining <= 0:
            raise TimeoutError
        if self._deadline:
            time_left = max(self._deadline.time_left(), POLL_INTERVAL)
            remaining = min(remaining, self._deadline.remaining(), time_left)
            if remaining <= 0:
                raise Cancelled(self._deadline.reason)
        return remaining

    def _close(self) -> None:
        _captured.discard(self)
        untie(self._lifeline[0])  # background processes that it left stay
        for fd in (self._stdout, self._stderr, *self._lifeline, self._reported_code):
            if fd is not None:
                os.close(fd)

    def _collect(self, options: int = 0) -> None:
        """Read the exit code; with WNOHANG only if the program has exited."""
        try:
            pid, status = os.waitpid(self._pid, options)
        except ChildProcessError:
            if self._reported_code is None:
                raise
            pid, status = self._pid, 0
        if not pid:
            return
        if self._reported_code is None:
            self.code = os.waitstatus_to_exitcode(status)
        else:  # the shell adds 128 to a signal; git itself uses exit codes up to 129
            code = int(os.pread(self._reported_code, 8, 0) or 128 + signal.SIGKILL)
            self.code = 128 - code if code > 129 else code
        self._has_exited = True
        self.error = read_back(self._stderr).decode("utf-8", "replace")

    def _kill(self, is_urgent: bool) -> None:
        """Kill the program and its group. SIGTERM comes first, because a killed git leaves its lock files."""
        try:
            is_urgent = is_urgent or (self._deadline is not None and self._deadline.is_urgent)
            kill_at = time.monotonic() + (URGENT_TIME if is_urgent else GRACE)
            with suppress(ProcessLookupError):
                os.killpg(self._pid, signal.SIGTERM)
                os.killpg(self._pid, signal.SIGCONT)
            while not self._has_exited and time.monotonic() < kill_at:
                self._collect(os.WNOHANG)
                if not self._has_exited:
                    time.sleep(POLL_INTERVAL)
                if self._deadline and self._deadline.is_urgent:
                    kill_at = min(kill_at, time.monotonic() + URGENT_TIME)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(self._pid, signal.SIGKILL)
        if not self._has_exited:
            self._collect()


def unnamed_file() -> int:
    """Return the descriptor of a temporary file without a name."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("ralph")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def read_back(fd: int) -> bytes:
    """Return the end of what was written to an unnamed file."""
    return os.pread(fd, ERRORS_KEPT, max(0, os.fstat(fd).st_size - ERRORS_KEPT)).lstrip(b"\0")


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
