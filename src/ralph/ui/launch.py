"""How is a run started from the full screen, and what becomes of it when the screen is gone?

It is a process of its own, in a session of its own, held by a leash: a pipe whose other end only we hold. When we are
gone, however that came about, the kernel tells the run with the signal that means "the terminal is gone", and the run
ends with all that it started. A run that is let go stays.
"""

import os
import sys
import time
from collections.abc import Mapping, Sequence
from signal import SIGHUP
from typing import IO

from ralph.core.text import clean, one_line, tail

MOST_WORDS = 4000


class Launched:
    """A run that was started here. `run` is its id, once that is known."""

    def __init__(self, words: Sequence[str], env: Mapping[str, str]) -> None:
        import subprocess
        import tempfile

        self.run = ""
        self.began = time.time()
        self._said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the run may write to it
        self._held, self._leash = os.pipe()
        # -P: a folder called `ralph` where we happen to stand must not be taken for the program.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "ralph", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._said,
            env=dict(env),
            start_new_session=True,
            pass_fds=(self._held,),
        )
        _tie(self._held, self._process.pid)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it lives."""
        return self._process.poll()

    def last_words(self) -> str:
        """What it said at its end: the outcome, or why it could not start and what helps."""
        self._said.seek(0)
        lines = [line.strip() for line in clean(self._said.read().decode("utf-8", "replace")).split("\n")]
        said = [line.removeprefix("ralph: ") for line in lines if line]
        message, *hints = said[-2:] if said and said[-1].startswith("hint: ") else said[-1:] or [""]
        return one_line(tail(" · ".join([message, *(hint.removeprefix("hint: ") for hint in hints)]), MOST_WORDS), 400)

    def end(self) -> None:
        """Ends it now, with everything that it started."""
        if self.exit_code is None:
            self._process.send_signal(SIGHUP)

    def let_go(self) -> None:
        """It goes on without us."""
        _untie(self._held)
        self._process.returncode = 0  # whoever inherits it waits for it

    def close(self) -> None:
        """Drops the leash: what is still on it ends."""
        self.end()
        if self.exit_code is None:
            self._process.returncode = 0
        self._said.close()
        os.close(self._held)
        os.close(self._leash)


def _tie(held: int, pid: int) -> None:
    """Has the kernel send `pid` a signal when the other end of the pipe is closed. We share `held` with it: what is
    set here holds for both, and holds on when we are killed. Elsewhere than Linux nothing can be promised for that."""
    if sys.platform == "linux":
        import fcntl

        fcntl.fcntl(held, fcntl.F_SETSIG, SIGHUP)
        fcntl.fcntl(held, fcntl.F_SETOWN, pid)
        fcntl.fcntl(held, fcntl.F_SETFL, os.O_ASYNC)


def _untie(held: int) -> None:
    if sys.platform == "linux":
        import fcntl

        fcntl.fcntl(held, fcntl.F_SETFL, 0)
