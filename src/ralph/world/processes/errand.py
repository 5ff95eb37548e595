"""How is a program run for its answer? Directly: to import `subprocess` takes longer than git takes to answer."""

import os
import select
import signal
import time
from collections.abc import Mapping
from contextlib import suppress

from ralph.world.processes.unnamed import readable, unnamed_file

GRACE = 5.0
CHUNK = 1 << 16
_NAP = 0.01


class Errand:
    """A program in a session of its own: a Ctrl-C meant for ralph must not cut it off half-way. `code` and `error` are
    known at the end. Whoever leaves before all of its output is read ends it."""

    def __init__(self, argv: tuple[str, ...], env: Mapping[str, str], stdin: bytes = b"") -> None:
        self.code = 0
        self.error = ""
        self._has_ended = False
        self._out, writer = os.pipe()
        self._err, given = unnamed_file(), readable(stdin)
        try:
            self._pid = os.posix_spawnp(
                argv[0],
                argv,
                env,
                file_actions=[(os.POSIX_SPAWN_DUP2, fd, to) for to, fd in enumerate((given, writer, self._err))],
                setsid=True,
                setsigdef=(signal.SIGPIPE, signal.SIGXFSZ),
            )
        except OSError:
            os.close(self._out)
            os.close(self._err)
            raise
        finally:
            os.close(writer)
            os.close(given)

    def __enter__(self) -> "Errand":
        return self

    def __exit__(self, *_: object) -> None:
        if not self._has_ended:
            self._end()
        os.close(self._out)
        os.close(self._err)

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

    def _await(self) -> None:
        self._note(os.waitpid(self._pid, 0)[1])

    def _note(self, status: int) -> None:
        self._has_ended = True
        self.code = os.waitstatus_to_exitcode(status)
        size = os.fstat(self._err).st_size
        self.error = os.pread(self._err, size, 0).decode("utf-8", "replace")

    def _end(self) -> None:
        """Ends it and its group; gently first, for a git that is killed leaves its locks behind."""
        deadline = time.monotonic() + GRACE
        with suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGTERM)
            while not self._has_ended and time.monotonic() < deadline:
                pid, status = os.waitpid(self._pid, os.WNOHANG)
                if pid:
                    self._note(status)
                else:
                    time.sleep(_NAP)
            os.killpg(self._pid, signal.SIGKILL)
        if not self._has_ended:
            self._await()
