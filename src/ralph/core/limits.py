"""How long must the next turn wait after a usage limit or a passing fault, and when is waiting hopeless?"""

from typing import Literal

from ralph.core.model import Opinions, Outcome, Run, Stop, Turn, Wait, configured
from ralph.core.text import one_line

OnLimit = Literal["wait", "stop", "switch"]

FIRST_LIMIT_WAIT, LONGEST_LIMIT_WAIT = 60.0, 3600.0
FIRST_RETRY_WAIT, LONGEST_RETRY_WAIT = 2.0, 300.0
AFTER_RESET = 5.0  # agents state the reset to the minute; a turn that comes a moment early is wasted
MOST_RETRIES = 10
MOST_IDENTICAL = 6
MOST_LIMITS = 30  # where no agent states when its limit ends, these take a day
IDLE = 1800.0  # seconds of silence that are too many where an agent's stream tells of all that it does
CLOCK_SLACK = 5.0  # by so much a clock is corrected all the time


@configured
def limited(
    run: Run, on_limit: OnLimit = "wait", agents: tuple[str, ...] = (), seconds: float | None = None
) -> Opinions:
    """A usage limit is waited out until the moment the agent states; with `switch` another agent goes on meanwhile."""
    turns = _troubled(run)
    failure = turns[-1].failure if turns else None
    if failure is None or failure.kind != "limit":
        return
    if on_limit == "stop":
        yield Stop(Outcome.FAILED, f"usage limit: {one_line(failure.reason)}")
        return
    if on_limit == "switch" and available(run, agents) is not None:
        return
    left = min(_time_left(run).values())
    if seconds is not None and left > 0 and run.seen.elapsed + left >= seconds:
        minutes = -int(-left // 60)
        roughly = f"{minutes} min" if minutes < 120 else f"{minutes / 60:.1f} h"
        said = f"the usage limit outlasts the time that is left, come back in {roughly}"
        yield Stop(Outcome.TIMEOUT, f"{said}: {one_line(failure.reason)}")
    elif (count := len(_failed(run, "limit"))) >= MOST_LIMITS:
        yield Stop(Outcome.FAILED, f"{count} turns in a row ran into a usage limit: {one_line(failure.reason)}")
    elif left > 0:
        yield Wait(left, f"usage limit: {one_line(failure.reason)}", limited=True)


def available(run: Run, agents: tuple[str, ...]) -> str | None:
    """The first of `agents` that is not known to be limited right now."""
    left = _time_left(run)
    return next((agent for agent in agents if left.get(agent, 0.0) <= 0), None)


def _time_left(run: Run) -> dict[str, float]:
    """The seconds until each agent that ran into a limit may go on, by the wall clock: the machine may have slept."""
    left: dict[str, float] = {}
    counts: dict[str, int] = {}
    for turn in (*run.limited, *_failed(run, "limit")):
        failure = turn.failure
        assert failure is not None
        count = counts[turn.agent] = counts.get(turn.agent, 0) + 1
        end = turn.ended_at + _doubling(FIRST_LIMIT_WAIT, LONGEST_LIMIT_WAIT, count)
        # One that came while the turn went on is believed once: whoever says so again states nothing.
        since = turn.ended_at - (turn.duration if count == 1 else 0.0)
        if failure.resets_at and failure.resets_at > since:
            end = failure.resets_at + AFTER_RESET
        left[turn.agent] = _left(end, turn, run)
    return left


def _left(end: float, turn: Turn, run: Run) -> float:
    """The seconds until `end`; none where the clock was set back behind the turn: nobody knows then how long it is, and
    another turn costs less than to wait for ever."""
    return 0.0 if run.seen.at < turn.ended_at - CLOCK_SLACK else end - run.seen.at


def faltering(run: Run) -> Opinions:
    """A passing fault is retried after a pause that doubles; the same fault again and again is not passing."""
    failed = _failed(run, "transient")
    if not failed or run.retries[-1] is not failed[-1]:
        return
    failure = failed[-1].failure
    assert failure is not None
    others = (at for at, turn in enumerate(reversed(failed)) if turn.failure and turn.failure.reason != failure.reason)
    same = next(others, len(failed))
    if len(failed) >= MOST_RETRIES or same >= MOST_IDENTICAL:
        yield Stop(Outcome.FAILED, f"the agent failed {len(failed)} times in a row: {one_line(failure.reason)}")
    pause = _doubling(FIRST_RETRY_WAIT, LONGEST_RETRY_WAIT, len(failed)) * _jitter(run.id, len(failed))
    left = _left(failed[-1].ended_at + pause, failed[-1], run)
    if left > 0:
        yield Wait(left, f"retrying: {one_line(failure.reason)}")


def _failed(run: Run, kind: str) -> list[Turn]:
    return [turn for turn in _troubled(run) if turn.failure and turn.failure.kind == kind]


def _troubled(run: Run) -> tuple[Turn, ...]:
    """The turns at the end of the run that a limit or a passing fault ended. Where every turn counts as an iteration,
    only a limit whose end was stated is one of them: the others are left to the pause between turns."""
    counted: list[Turn] = []
    for iteration in reversed(run.iterations):
        failure = iteration.turn.failure
        if failure is None or failure.kind != "limit" or (failure.resets_at or 0.0) <= iteration.turn.ended_at:
            break
        counted.append(iteration.turn)
    return (*reversed(counted), *run.retries)


def _doubling(first: float, longest: float, count: int) -> float:
    return float(min(longest, first * 2 ** min(count - 1, 20)))


def _jitter(seed: str, count: int) -> float:
    """Between 0.5 and 1: many runs that met the same fault do not all come back at the same moment."""
    mixed = 0
    for char in f"{seed}/{count}":
        mixed = (mixed * 131 + ord(char)) & 0xFFFFFFFF
    return 0.5 + (mixed % 1000) / 2000
