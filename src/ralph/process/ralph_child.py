"""Start another ralph: a run for the TUI or the web UI, a task or a merge of a backlog.

It is in a session of its own. When this program dies, however that happens, the kernel sends it SIGHUP, and it ends
with everything that it started, unless it was let go.
"""

import fcntl
import os
import select
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from enum import IntEnum

from ralph.errors import UserError, complaint_in
from ralph.process.program import DetachedProcess, unnamed_file
from ralph.process.signals import hang_up_on_close

LOG_TAIL = 20_000  # bytes of its stderr in which its last message is looked for
LIFELINE = 3  # the child's descriptor of a pipe whose other end only we have open


class StopLevel(IntEnum):
    AFTER_TURN = 1  # finish the current turn
    NOW = 2  # end the turn, clean up
    AT_ONCE = 3  # no grace period, like a second Ctrl-C


STOP_SIGNALS = {
    StopLevel.AFTER_TURN: (signal.SIGINT,),
    StopLevel.NOW: (signal.SIGHUP,),
    StopLevel.AT_ONCE: (signal.SIGTERM, signal.SIGINT),
}


class RalphChild:
    """A ralph that this program has started. `stop_level` is how urgently it was asked to stop."""

    def __init__(self) -> None:
        self.stop_level = 0
        self._process: DetachedProcess
        self._stderr: int

    def start(self, words: Sequence[str], env: Mapping[str, str], stdout: int = -1, stderr: int = -1) -> None:
        """Run `ralph` with these words. Its stderr, a file that we can read as well, is closed by `close`."""
        try:
            self._stderr = stderr if stderr >= 0 else unnamed_file()
            nothing = os.open(os.devnull, os.O_RDWR)
            # -P: Python must not import a folder called `ralph` in the current folder.
            argv = (sys.executable, "-P", "-m", "ralph", *words)
            fds = (nothing, stdout if stdout >= 0 else nothing, self._stderr)
            self._process = DetachedProcess.start(argv, env, fds, hangs_up=True)
            os.close(nothing)
        except OSError as error:
            hint = "free some memory or disk, and try again"
            raise UserError(f"cannot start another ralph: {error.strerror}", hint) from None

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Its exit code; None while it is running."""
        return self._process.wait(0)

    def complaint(self) -> tuple[str, str]:
        """Return its last message, such as its outcome or why it could not start, and the hint."""
        size = os.fstat(self._stderr).st_size
        return complaint_in(os.pread(self._stderr, LOG_TAIL, max(0, size - LOG_TAIL)).decode("utf-8", "replace"))

    def request_stop(self, level: int) -> None:
        """Signal it to stop. Repeated or weaker requests are ignored."""
        if level <= self.stop_level:
            return
        numbers = STOP_SIGNALS[StopLevel(level)]
        if self.stop_level:  # each signal raises the level in the child by one
            numbers = numbers[:1]
        self.stop_level = level
        self._process.send_signals(*numbers, signal.SIGCONT)

    def let_go(self) -> None:
        """Let it continue when this program exits."""
        self._process.let_go()
        self._process.code = 0  # anyone who inherits it waits for it

    def hand_over(self) -> None:
        """Let it continue when this program exits, while this program continues; a thread waits for its exit."""
        self._process.let_go()
        threading.Thread(target=self._process.wait, name="waits for a run", daemon=True).start()
        self._close_files()

    def close(self) -> None:
        """End it, unless it was let go or has exited."""
        self._process.send_signals(signal.SIGHUP)
        self._close_files()

    def _close_files(self) -> None:
        os.close(self._stderr)
        self._process.close()


def hang_up_with_parent() -> bool:
    """In a child: get SIGHUP if the ralph that started us dies, or died before it could ask the kernel for that. Return
    False if no ralph started us."""
    try:
        fcntl.fcntl(LIFELINE, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
        hang_up_on_close(LIFELINE, os.getpid())
    except OSError:
        return False
    poll = select.poll()
    poll.register(LIFELINE, 0)
    if any(event & select.POLLHUP for _, event in poll.poll(0)):
        signal.raise_signal(signal.SIGHUP)
    return True
