"""How does another program follow a run? Every line of the journal, on stdout, as it is written."""

import os
import select

from ralph.errors import UserError


class Ndjson:
    """A sink that goes silent when its reader has gone away: a closed pipe must not end the run."""

    def __init__(self, fd: int = 1) -> None:
        self._fd: int | None = fd

    def __call__(self, lines: bytes) -> None:
        while lines and self._fd is not None:
            try:
                lines = lines[os.write(self._fd, lines) :]
            except BrokenPipeError:
                self._fd = None
            except BlockingIOError:  # whoever shares the pipe asked for that; its reader will come
                select.select([], [self._fd], [])
            except OSError as error:
                self._fd = None
                raise UserError(f"cannot write events to stdout: {error.strerror}", "send them elsewhere") from None
