"""How are programs waited for, one alone or several side by side? Each is a course that says what it waits for."""

import select
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import ParamSpec, Protocol, TypeVar

from ralph.processes.keeper import Keeper


class Awaited(Protocol):
    """What a course waits for."""

    def pause(self) -> float | None:
        """Milliseconds until something is due by itself."""
        ...

    def descriptors(self) -> tuple[int, ...]:
        """One of them is readable when something has happened."""
        ...


Words = ParamSpec("Words")
Result = TypeVar("Result")
Course = Generator[Awaited, float | None, Result]
"""It gives what it waits for, and is sent the milliseconds that it may sleep."""


def alone(course: Course[Result]) -> Result:
    """What comes of it."""
    try:
        awaited = next(course)
        while True:
            awaited = course.send(awaited.pause())
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def driven(begin: Callable[Words, Course[Result]]) -> Callable[Words, Result]:
    """The same as a function that returns when it is over."""
    return lambda *args, **named: alone(begin(*args, **named))


def side_by_side(
    begins: Sequence[Callable[[Keeper], Course[Result]]],
    keepers: Sequence[Keeper],
    is_enough: Callable[[Result], bool] = lambda result: False,
) -> Iterator[Result]:
    """What comes of each, in their order, as soon as it is known; as many at a time as there are keepers. After a
    result that is enough no other is begun. Whoever leaves early ends those under way."""
    idle, waiting = list(keepers), deque(enumerate(begins))
    under_way: dict[int, tuple[Keeper, Course[Result], Awaited]] = {}
    results: dict[int, Result] = {}
    told = 0

    def advance(number: int, keeper: Keeper, course: Course[Result], pause: float | None) -> None:
        try:
            under_way[number] = keeper, course, course.send(pause)
        except StopIteration as end:
            under_way.pop(number, None)
            results[number] = end.value
            idle.append(keeper)
            if is_enough(end.value):
                waiting.clear()

    try:
        while waiting or under_way:
            while waiting and idle:
                number, begin = waiting.popleft()
                keeper = idle.pop(0)
                advance(number, keeper, begin(keeper), None)
            if under_way:
                _sleep([awaited for _, _, awaited in under_way.values()])
            for number, (keeper, course, _) in list(under_way.items()):
                advance(number, keeper, course, 0.0)
            while told in results:
                yield results[told]
                told += 1
    finally:
        for _, course, _ in under_way.values():
            course.close()


def _sleep(awaited: Iterable[Awaited]) -> None:
    """Until something has happened to one of them, or is due."""
    ready, pauses = select.poll(), []
    for one in awaited:
        for fd in one.descriptors():
            ready.register(fd, select.POLLIN)
        pauses.append(one.pause())
    ready.poll(min((pause for pause in pauses if pause is not None), default=None))
