"""How often, and for how long, a git command is retried when a lock or another process is in its way."""

import math
import time
from collections.abc import Callable, Iterator

from msgspec import Struct


class RetryPolicy(Struct, frozen=True):
    """Retry until `attempts` are used up or `timeout` seconds have passed; the delay grows by `factor`."""

    timeout: float = math.inf
    attempts: int | None = None
    delay: float = 0.0
    factor: float = 1.0
    max_delay: float = 5.0

    def tries(self, time_left: Callable[[], float] = lambda: math.inf) -> Iterator[bool]:
        """Yield once per attempt whether it is the last one, and sleep between attempts."""
        began, number, delay = time.monotonic(), 0, self.delay
        while True:
            number += 1
            is_late = time.monotonic() - began >= self.timeout or time_left() <= 0
            is_last = is_late or number == self.attempts
            yield is_last
            if is_last:
                return
            time.sleep(max(0.0, min(delay, self.max_delay, time_left())))
            delay *= self.factor


# A command that changes nothing, or only adds objects, runs again if it was killed.
KILLED_READ = RetryPolicy(attempts=2)
# A ref is locked for milliseconds. A git that seems to hold one for longer was killed: see `remove_stale_locks`.
LOCKED_REF = RetryPolicy(timeout=10.0, delay=0.01)
# Two gits that update the same refs, or a worktree that is being made, get in the way of a fetch.
FETCH_RACE = RetryPolicy(timeout=15.0, delay=0.1, factor=2.0)
# A remote may be unreachable for a while; callers set the timeout.
REMOTE_AWAY = RetryPolicy(delay=0.1, factor=2.0)
# Our own worktree: a killed git leaves a lock, which is removed before the second attempt.
OWN_LOCKS = RetryPolicy(attempts=2)
