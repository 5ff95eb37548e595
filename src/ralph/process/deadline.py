"""How long ralph waits for the commands that it runs itself for a run, such as git."""

import math
import time
from collections.abc import Callable

from ralph.process.signals import Interrupt

URGENT_TIME = 0.3  # seconds for all commands together after a second Ctrl-C
CLOSING_TIME = 5.0  # seconds for what is still recorded when the run's time is over


class Cancelled(TimeoutError):
    """A command was not waited for, because the run is interrupted or its time is over."""


class Deadline:
    """The time limit that the commands of one run share. They get the run's mark, and end when it is interrupted.

    `grace` is how many seconds all commands together may take after a first Ctrl-C; `time_left` returns the seconds
    until the run's own time is over. No program inside the `untrusted` folders is used: a sandboxed agent can write
    there, and these commands run outside the sandbox.
    """

    untrusted: tuple[str, ...] = ()

    def __init__(
        self,
        interrupt: Interrupt,
        run_id: str = "",
        grace: float = 30.0,
        time_left: Callable[[], float] = lambda: math.inf,
    ) -> None:
        self.interrupt, self.run_id, self._grace, self.time_left = interrupt, run_id, grace, time_left
        self._level, self._ends_at = 0, math.inf

    def remaining(self) -> float:
        """Return the seconds that commands may still take."""
        level, now = self.interrupt.level, time.monotonic()
        if not level and self.time_left() <= 0:
            level = 1
            self._ends_at = min(self._ends_at, now + CLOSING_TIME)
        if level > self._level:
            self._level = level
            self._ends_at = min(self._ends_at, now + (self._grace if level == 1 else URGENT_TIME))
        return self._ends_at - now

    def is_over(self) -> bool:
        """Return whether the run's time is over, including the time for recording what it did."""
        return self.time_left() <= 0 and self.remaining() <= 0

    @property
    def is_urgent(self) -> bool:
        return self.interrupt.level > 1

    @property
    def reason(self) -> str:
        return f"received {self.interrupt.reason}" if self.interrupt.level else "the time of the run is over"
