"""Run several programs at a time, each with its own keeper."""

import select
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from ralph.process.keeper import Keeper
from ralph.process.process import Process

Result = TypeVar("Result")

Running = tuple[Process, Callable[[], Result]]
"""A program that was started, and what to call once it is over."""


def run_in_parallel(
    starts: Sequence[Callable[[Keeper], Running[Result] | None]],
    keepers: Sequence[Keeper],
    is_enough: Callable[[Result], bool] = lambda result: False,
) -> Iterator[Result]:
    """Start each program with its own keeper, as many at a time as there are keepers; yield the results in order.

    No further program is started after a result for which `is_enough` is true, or if a start returns None. Leaving the
    iterator early kills the programs that are running.
    """
    idle, waiting = list(keepers), deque(enumerate(starts))
    running: dict[int, tuple[Keeper, Running[Result]]] = {}
    results: dict[int, Result] = {}
    yielded = 0
    try:
        while waiting or running:
            while waiting and idle:
                number, start = waiting.popleft()
                if (started := start(idle[0])) is None:
                    waiting.clear()
                else:
                    running[number] = idle.pop(0), started
            if running:
                _wait_for_any([process for _, (process, _) in running.values()])
            for number, (keeper, (process, result)) in list(running.items()):
                process.step(0)
                if process.is_over:
                    del running[number]
                    process.close()
                    results[number] = result()
                    idle.append(keeper)
                    if is_enough(results[number]):
                        waiting.clear()
            while yielded in results:
                yield results[yielded]
                yielded += 1
    finally:
        for _, (process, _) in running.values():
            process.close()


def _wait_for_any(processes: Sequence[Process]) -> None:
    """Block until something has happened to one of the programs, or is due."""
    poll = select.poll()
    timeouts = []
    for process in processes:
        for fd in process.poll_fds():
            poll.register(fd, select.POLLIN)
        timeouts.append(process.timeout())
    poll.poll(min((timeout for timeout in timeouts if timeout is not None), default=None))
