"""What follows from how a loop or a landing has ended? Events, decided by what its process said and nothing else."""

from ralph.backlog.work_order import Looped
from ralph.core import work_events
from ralph.core.backlog import Board, Verdict, after_verdict, shown
from ralph.core.model import Outcome
from ralph.core.text import one_line
from ralph.core.work_events import WorkEvent

DEATHS = 3  # so often a process may die without a word before a person has to look


def after_loop(key: str, seen: Looped, was_asked: bool) -> WorkEvent:
    """What becomes of an item. `was_asked`: its loop was told to end. One that cannot work at all is nobody's fault:
    whoever hears of it stops everything."""
    if seen.outcome == Outcome.DONE.value and seen.files:
        return work_events.ItemReady(key=key, tip=seen.tip, files=seen.files, run=seen.run, cost_usd=seen.cost_usd)
    if seen.outcome == Outcome.FATAL.value:
        return work_events.ItemQueued(key, seen.reason)
    if seen.outcome == Outcome.INTERRUPTED.value and was_asked:
        return work_events.ItemQueued(key, "its loop was stopped, and can go on")
    return work_events.ItemParked(key, _why_parked(seen), seen.run, seen.cost_usd)


def _why_parked(seen: Looped) -> str:
    if seen.outcome == Outcome.DONE.value:
        return "it is done, and has changed nothing"
    if seen.outcome == Outcome.INTERRUPTED.value:
        return "stopped by a person"
    return one_line(f"{seen.outcome}: {seen.reason}" if seen.reason else seen.outcome, 500)


def after_death(key: str, times: int, said: str) -> WorkEvent:
    """A loop that ended without a word is started again, but not for ever."""
    if times < DEATHS:
        return work_events.ItemQueued(key, "its process died")
    return work_events.ItemParked(key, f"its process died {DEATHS} times: {said}")


def after_landing(board: Board, seen: Verdict, took: float) -> list[WorkEvent]:
    """What becomes of those that were at the gate."""
    told: list[WorkEvent] = [work_events.GateFinished(seen, took)]
    for step in after_verdict(board, seen):
        if step.to == "landed":
            told.append(work_events.ItemLanded(step.key, board.jobs[step.key].tip, seen.commit))
        elif step.to == "returned":
            told.append(work_events.ItemReturned(step.key, step.reason, step.note, step.files))
        else:
            told.append(work_events.ItemParked(step.key, step.reason))
    return told


def summary(board: Board, *, outcome: str, reason: str, exit_code: int, duration: float) -> work_events.WorkFinished:
    """The last word about a work."""
    states = [*shown(board).values()]
    return work_events.WorkFinished(
        outcome=outcome,
        reason=one_line(reason, 500),
        landed=states.count("landed"),
        parked=states.count("parked"),
        blocked=states.count("blocked"),
        items=len(states) - states.count("withdrawn"),
        cost_usd=board.spent if board.costs else None,
        duration_s=duration,
        exit_code=exit_code,
    )
