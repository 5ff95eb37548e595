"""How does a person read more than a screen holds? Through the pager of their choice; into a file or a pipe it goes as
it is."""

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO


@contextmanager
def paged() -> Iterator[IO[str]]:
    """Where to write for a person: through `$RALPH_PAGER`, `$PAGER` or `less`, where standard output is a terminal.
    `less` shows what fits on the screen at once, and leaves it there."""
    words = _pager() if sys.stdout.isatty() else []
    if not words:
        yield sys.stdout
        return
    import subprocess

    env = {"LESS": "FRX", "LV": "-c", **os.environ}
    try:
        pager = subprocess.Popen(words, stdin=subprocess.PIPE, env=env, encoding="utf-8", errors="backslashreplace")
    except OSError:
        yield sys.stdout
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the pager's, as in every program that has one
    try:
        assert pager.stdin is not None
        with suppress(BrokenPipeError):  # who has read enough closes it
            yield pager.stdin
            pager.stdin.flush()
    finally:
        with suppress(BrokenPipeError):
            if pager.stdin:
                pager.stdin.close()
        pager.wait()
        signal.signal(signal.SIGINT, before)


def _pager() -> list[str]:
    import shlex

    said = os.environ.get("RALPH_PAGER", os.environ.get("PAGER", "less"))
    words = shlex.split(said)
    return words if words and words[0] != "cat" and shutil.which(words[0]) else []


def columns() -> int:
    """The width of the terminal that the pager writes to."""
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns
    except (OSError, ValueError):
        return 80
