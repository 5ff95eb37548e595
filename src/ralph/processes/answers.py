"""How is a program run for its answer? Directly: to import `subprocess` takes longer than git takes to answer."""

import errno
import os
import select
import signal
import time
from collections.abc import Mapping
from contextlib import suppress

GRACE = 5.0
CHUNK = 1 << 16
_NAP = 0.01
# Who ignores the deaths of its children, or takes note of each, leaves us none to ask about: a shell has to tell. Asked
# to end, it waits for the program all the same.
_TELLING = ("sh", "-c", 'trap : TERM; "$@" 3>&-; echo $? >&3', "sh")


class Errand:
    """A program in a session of its own: a Ctrl-C meant for ralph must not cut it off half-way. `code` and `error` are
    known at the end. Whoever leaves before all of its output is read ends it."""

    def __init__(self, argv: tuple[str, ...], env: Mapping[str, str], stdin: bytes = b"") -> None:
        self.code = 0
        self.error = ""
        self._has_ended = False
        self._out, writer = os.pipe()
        self._err, given = unnamed_file(), readable(stdin)
        self._told = unnamed_file() if signal.getsignal(signal.SIGCHLD) is not signal.SIG_DFL else None
        passed = (given, writer, self._err) if self._told is None else (given, writer, self._err, self._told)
        try:
            words = argv if self._told is None else _telling(argv)
            self._pid = os.posix_spawnp(
                words[0],
                words,
                env,
                file_actions=[(os.POSIX_SPAWN_DUP2, fd, to) for to, fd in enumerate(passed)],
                setsid=True,
                setsigdef=(signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD),
            )
        except OSError:
            self._close()
            raise
        finally:
            os.close(writer)
            os.close(given)

    def __enter__(self) -> "Errand":
        return self

    def __exit__(self, *_: object) -> None:
        if not self._has_ended:
            self._end()
        self._close()

    def read(self) -> bytes:
        """The next piece of its output; empty when there is no more, and the program has ended."""
        chunk = os.read(self._out, CHUNK)
        if not chunk and not self._has_ended:
            self._await()
        return chunk

    def output(self, patience: float) -> bytes:
        """All of its output; TimeoutError if that takes longer."""
        deadline = time.monotonic() + patience
        ready = select.poll()
        ready.register(self._out, select.POLLIN)
        pieces: list[bytes] = []
        while ready.poll(max(0.0, deadline - time.monotonic()) * 1000):
            piece = self.read()
            if not piece:
                return b"".join(pieces)
            pieces.append(piece)
        raise TimeoutError

    def _close(self) -> None:
        os.close(self._out)
        os.close(self._err)
        if self._told is not None:
            os.close(self._told)

    def _await(self, options: int = 0) -> None:
        """Takes note of its end; with WNOHANG only if that has come."""
        try:
            pid, status = os.waitpid(self._pid, options)
        except ChildProcessError:
            if self._told is None:
                raise
            pid, status = self._pid, 0
        if pid:
            self._note(os.waitstatus_to_exitcode(status) if self._told is None else _code_in(self._told))

    def _note(self, code: int) -> None:
        self._has_ended = True
        self.code = code
        size = os.fstat(self._err).st_size
        self.error = os.pread(self._err, size, 0).decode("utf-8", "replace")

    def _end(self) -> None:
        """Ends it and its group; gently first, for a git that is killed leaves its locks behind."""
        deadline = time.monotonic() + GRACE
        with suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGTERM)
            while not self._has_ended and time.monotonic() < deadline:
                self._await(os.WNOHANG)
                if not self._has_ended:
                    time.sleep(_NAP)
            os.killpg(self._pid, signal.SIGKILL)
        if not self._has_ended:
            self._await()


def _telling(argv: tuple[str, ...]) -> tuple[str, ...]:
    """The same program below a shell; one that is missing is an error here, too."""
    from shutil import which

    if which(argv[0]) is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), argv[0])
    return (*_TELLING, *argv)


def _code_in(told: int) -> int:
    """What the shell told: that it was a signal, or a code of the program's own. Git itself has some up to 129."""
    code = int(os.pread(told, 8, 0) or 128 + signal.SIGKILL)
    return 128 - code if code > 129 else code


_PIPE_HOLDS = 1 << 16
_PIECE = 1 << 20


def unnamed_file() -> int:
    """A file to write to and to read from."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("ralph")
    import tempfile

    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def readable(data: bytes) -> int:
    """A descriptor from which exactly `data` can be read."""
    if not data:
        return os.open(os.devnull, os.O_RDONLY)
    if len(data) <= _PIPE_HOLDS:
        fd, writer = os.pipe()
        # Whose pipes take up too much memory gets small ones: to wait for room would be to wait for ever.
        os.set_blocking(writer, False)
        written = os.write(writer, data)
        os.close(writer)
        if written == len(data):
            return fd
        os.close(fd)
    fd = unnamed_file()
    for at in range(0, len(data), _PIECE):
        os.write(fd, data[at : at + _PIECE])
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def occupy_standard_streams() -> None:
    """Puts nothing in the place of those that whoever called has closed: what is opened next must not be taken for one,
    be it by a keeper, or by somebody who writes to stderr what would end up in a journal."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            nothing = os.open(os.devnull, os.O_RDWR)
            if nothing > 2:  # another thread was quicker
                os.close(nothing)
