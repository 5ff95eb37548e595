"""Budgets, usage limits and passing faults: how long the next turn waits, which agent takes it, when to give up."""

from typing import Literal
from zlib import crc32

from ralph.core.model import Opinions, Outcome, Run, Stop, Turn, Usage, Wait, configured
from ralph.core.text import one_line

OnLimit = Literal["wait", "stop", "switch"]
BudgetLimit = Literal["max-cost", "max-tokens", ""]

FIRST_LIMIT_WAIT, MAX_LIMIT_WAIT = 60.0, 3600.0  # seconds
FIRST_RETRY_WAIT, MAX_RETRY_WAIT = 2.0, 300.0
AFTER_RESET = 5.0  # seconds added to a stated reset, because a turn that starts too early is wasted
MAX_RETRIES = 10  # in a row; their pauses add up to minutes, and the update of an agent takes less
MAX_LIMITED_TURNS = 30  # in a row; that is about a day if the agent doesn't say when its limit ends
IDLE_TIMEOUT = 1800.0  # seconds of silence, for agents whose stream reports everything they do
CLOCK_SLACK = 5.0  # seconds; small corrections of the clock are normal


def reached_budget(usage: Usage, cost: float | None, tokens: int | None) -> BudgetLimit:
    """Return the name of the limit that this usage has reached; "" if there is none."""
    if cost is not None and (usage.cost_usd or 0.0) >= cost:
        return "max-cost"
    return "max-tokens" if tokens is not None and usage.tokens >= tokens else ""


@configured
def wait_for_limit(
    run: Run, on_limit: OnLimit = "wait", agents: tuple[str, ...] = (), seconds: float | None = None
) -> Opinions:
    """Wait until a usage limit ends. With `switch`, another agent continues at once."""
    turns = _failed_turns(run)
    failure = turns[-1].failure if turns else None
    if failure is None or failure.kind != "limit":
        return
    if on_limit == "stop":
        yield Stop(Outcome.FAILED, f"usage limit: {one_line(failure.reason)}")
        return
    if on_limit == "switch" and available(run, workers_left(run, agents)) is not None:
        return
    seconds_left = min(_time_left(run).values())
    if seconds is not None and seconds_left > 0 and run.seen.elapsed + seconds_left >= seconds:
        minutes = -int(-seconds_left // 60)
        roughly = f"{minutes} min" if minutes < 120 else f"{minutes / 60:.1f} h"
        advice = f"the usage limit outlasts the time that is left, come back in {roughly}"
        yield Stop(Outcome.TIMEOUT, f"{advice}: {one_line(failure.reason)}")
    elif (count := len(_failures_of_kind(run, "limit"))) >= MAX_LIMITED_TURNS:
        yield Stop(Outcome.FAILED, f"{count} turns in a row ran into a usage limit: {one_line(failure.reason)}")
    elif seconds_left > 0:
        yield Wait(seconds_left, f"usage limit: {one_line(failure.reason)}", limited=True)


def next_worker(run: Run, agents: tuple[str, ...]) -> str:
    """Return which of `agents` takes the next turn: the first without a usage limit among those that are left."""
    workers = workers_left(run, agents)
    return available(run, workers) or workers[0]


def workers_left(run: Run, agents: tuple[str, ...]) -> tuple[str, ...]:
    """Return the agent that took over last, and those after it in the list; all of them without a hand-over."""
    latest = run.hand_overs[-1].to if run.hand_overs else ""
    return agents[agents.index(latest) :] if latest in agents else agents


def available(run: Run, agents: tuple[str, ...]) -> str | None:
    """Return the first of `agents` without a usage limit; None if all have one."""
    time_left = _time_left(run)
    return next((agent for agent in agents if time_left.get(agent, 0.0) <= 0), None)


def _time_left(run: Run) -> dict[str, float]:
    """Return the seconds until the usage limit of each agent ends. The wall clock counts suspends as well."""
    time_left: dict[str, float] = {}
    counts: dict[str, int] = {}
    for turn in (*run.limited, *_failures_of_kind(run, "limit")):
        failure = turn.failure
        assert failure is not None
        count = counts[turn.agent] = counts.get(turn.agent, 0) + 1
        end = turn.ended_at + _doubling(FIRST_LIMIT_WAIT, MAX_LIMIT_WAIT, count)
        # Believe a reset that was during the turn only once: if the next turn is limited as well, it was wrong.
        since = turn.ended_at - (turn.duration if count == 1 else 0.0)
        if failure.resets_at and failure.resets_at > since:
            end = failure.resets_at + AFTER_RESET
        time_left[turn.agent] = _seconds_until(end, turn, run)
    return time_left


def _seconds_until(end: float, turn: Turn, run: Run) -> float:
    """Return the seconds until `end`; 0 if the clock was set back to before the turn, or the wait could be endless."""
    return 0.0 if run.seen.at < turn.ended_at - CLOCK_SLACK else end - run.seen.at


def retry_transient(run: Run) -> Opinions:
    """Retry after a transient failure, with a pause that doubles. Give up if it keeps happening."""
    failed = _failures_of_kind(run, "transient")
    if not failed or run.retries[-1] is not failed[-1]:
        return
    failure = failed[-1].failure
    assert failure is not None
    if len(failed) >= MAX_RETRIES:
        yield Stop(Outcome.FAILED, f"the agent failed {len(failed)} times in a row: {one_line(failure.reason)}")
    pause = _doubling(FIRST_RETRY_WAIT, MAX_RETRY_WAIT, len(failed)) * _jitter(run.id, len(failed))
    seconds = _seconds_until(failed[-1].ended_at + pause, failed[-1], run)
    if seconds > 0:
        yield Wait(seconds, f"retrying: {one_line(failure.reason)}")


def _failures_of_kind(run: Run, kind: str) -> list[Turn]:
    return [turn for turn in _failed_turns(run) if turn.failure and turn.failure.kind == kind]


def _failed_turns(run: Run) -> tuple[Turn, ...]:
    """Return the latest consecutive turns that failed with a usage limit or a transient error.

    If every turn counts as an iteration, include only limits with a stated end: for other failures the pause between
    turns is enough.
    """
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
    """Return a factor between 0.5 and 1, so that many runs don't retry at the same moment."""
    return 0.5 + crc32(f"{seed}/{count}".encode()) % 1000 / 2000
