"""Run the checks of a run in a throwaway copy."""

import math

from msgspec.structs import replace

from ralph.core import events
from ralph.core.judgement import Cell
from ralph.errors import UserError
from ralph.verdict.checks import Checks
from ralph.verdict.context import Clock
from ralph.verdict.copies import PreparedCopy

MIN_LIMIT, LIMIT_FACTOR = 10.0, 3.0  # seconds; how much longer the checks may take than the first time


class TimeOverError(UserError):
    """The checks did not end within their time limit, so their results say nothing."""


class InterruptedChecks(UserError):
    """A person or a signal ended the checks before the last one."""


def time_limit(seconds: float) -> float:
    """Return how long checks may take that took this many seconds the first time."""
    return LIMIT_FACTOR * seconds + MIN_LIMIT


def check_copy(copy: PreparedCopy, limit: float = math.inf, *, fail_fast: bool = False) -> Cell:
    """Return the results of all checks on the copy as it is. Raise TimeOverError if they take longer than `limit`
    seconds, or than the run has left."""
    context = copy.context

    def tell_notices(*happened: events.Event) -> None:
        """Leave out the events of checks, because these checks belong to no iteration."""
        if notices := [event for event in happened if isinstance(event, events.Notice)]:
            context.tell(*notices)

    clock = Clock(min(limit, context.clock.time_left()))
    settings = replace(context.settings, fail_fast=fail_fast)
    cell = Checks(replace(context, clock=clock, tell=tell_notices, settings=settings), settings.checks).run(0)
    if cell is None:
        raise InterruptedChecks("interrupted", "start it again")
    if clock.time_left() <= 0 and not all(check.passed for check in cell):
        raise TimeOverError(f"the checks took longer than {clock.max_time:.0f}s")
    return cell
