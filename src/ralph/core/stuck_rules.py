"""Rules about a run that gets no further: failed turns, denied tools, repeated answers, no progress."""

from ralph.core.limits import workers_left
from ralph.core.model import HandOver, Iteration, Note, Opinions, Outcome, Run, Stop, configured, tree_files
from ralph.core.progress import best_iteration, describe_standstill, is_measurable, list_attempts, stuck_for
from ralph.core.text import listed, one_line, plural


def last_failure(run: Run) -> Opinions:
    if run.last and run.last.turn.failure:
        yield Note(f"The previous turn failed: {_reason(run.last)}", about="failure")


@configured
def repeated_failures(run: Run, times: int, agents: tuple[str, ...] = ()) -> Opinions:
    """After this many failed turns in a row, hand the work over to the next of `agents`, or end the run.

    Do neither if one of these turns changed files and made every check pass: perhaps only the claim is missing.
    """
    recent = [i for i in run.recent[-times:] if i.number > _last_hand_over(run)]
    if times > 0 and len(recent) == times and all(i.turn.failure for i in recent):
        if times > 1 and any(i.checks and i.is_green and i.tree != run.tree_before(i.number) for i in recent):
            return
        often = f"failed {times} times in a row" if times > 1 else "failed"
        why = f"the agent {often}: {_reason(recent[-1])}"
        yield _next_agent(run, agents, why) or Stop(Outcome.FAILED, why)


WAYS_OUT = "--yolo, best in a worktree (--worktree) or a sandbox (--sandbox), or its own list of what it may do"
"""Ways to let an agent use the tools that it was denied."""

MAX_DENIED_TURNS = 2  # turns in a row in which the agent was denied its tools and did nothing else


@configured
def not_allowed(run: Run, works_elsewhere: bool = False) -> Opinions:
    """End the run if the agent is denied its tools and does nothing else.

    An agent that `works_elsewhere` may have worked even if the workspace is unchanged.
    """
    recent = run.recent[-MAX_DENIED_TURNS:]
    if len(recent) == MAX_DENIED_TURNS and all(
        _was_only_denied(iteration, run, works_elsewhere) for iteration in recent
    ):
        tools = listed(tuple(dict.fromkeys(tool for iteration in recent for tool in iteration.turn.denials)))
        yield Stop(
            Outcome.FAILED, f"the agent may not use {tools}, and did nothing else for two turns; to let it: {WAYS_OUT}"
        )


def _was_only_denied(iteration: Iteration, run: Run, works_elsewhere: bool) -> bool:
    turn, before = iteration.turn, run.tree_before(iteration.number)
    if not turn.denials or iteration.tree != before:
        return False
    return len(turn.denials) >= (turn.tool_calls or 0) or (before is not None and not works_elsewhere)


def taken_over(run: Run) -> Opinions:
    """Tell the agent that takes over what was tried."""
    if handed := run.hand_over:
        place = f"as they were after iteration {handed.start}, the best so far" if handed.start else "as it left them"
        yield Note(
            f"You take over from another agent ({handed.agent}): {handed.reason}. The files are {place}. "
            "Don't repeat what did not help. What was tried, one iteration a line:",
            about="handover",
            output=list_attempts(run),
        )


@configured
def stalled(run: Run, repeats: int = 1, commits: bool = False) -> Opinions:
    """End the run after `repeats` iterations with the same answer and files as the one before.

    If ralph `commits` after each iteration, HEAD always changes, so only the files are compared.
    """
    recent = run.recent[-(repeats + 1) :]
    if repeats < 1 or len(recent) <= repeats:
        return
    if all(_is_repeat(recent[0], other, commits) for other in recent[1:]):
        how = "and the workspace did not change" if recent[-1].tree else "(no git: answers alone were compared)"
        yield Stop(Outcome.STALLED, f"iteration {recent[-1].number} gave the same answer as the one before {how}")


@configured
def stuck(run: Run, times: int, agents: tuple[str, ...] = ()) -> Opinions:
    """After `times` iterations without progress hand the work over to the next of `agents`, or end the run.

    When a run that ended as stalled is resumed, the count starts again, unless another agent can take over.
    """
    if not times or run.retries or not is_measurable(run):
        return
    since = _last_hand_over(run)
    iterations = stuck_for(run, times, since)
    if iterations < times:
        return
    if hand_over := _next_agent(run, agents, f"no progress for {plural(iterations, 'iteration')}"):
        yield hand_over
    elif stuck_for(run, times, max(run.stalled, since)) >= times:
        yield Stop(Outcome.STALLED, describe_standstill(run, iterations))


def _last_hand_over(run: Run) -> int:
    """Return the iteration after which another agent took over; 0 if none did."""
    return run.hand_overs[-1].after if run.hand_overs else 0


def _next_agent(run: Run, agents: tuple[str, ...], reason: str) -> HandOver | None:
    """Return the hand-over to the next agent, with the files of the best iteration.

    If no check was red at the start, every state may be right, so the files stay as they are.
    """
    agent, *others = workers_left(run, agents) or ("",)
    if not others:
        return None
    was_red = run.baseline is None or any(not check.passed for check in run.baseline)
    best = best_iteration(run) if was_red else 0
    start = best if best and run.iterations[best - 1].tree else None
    return HandOver(after=len(run.iterations), agent=agent, to=others[0], reason=reason, start=start)


def _is_repeat(this: Iteration, other: Iteration, commits: bool) -> bool:
    return (
        this.turn.text == other.turn.text
        and (this.tree == other.tree or (commits and tree_files(this.tree) == tree_files(other.tree)))
        and not this.turn.failure
        and not other.turn.failure
        and [c.passed for c in this.checks] == [c.passed for c in other.checks]
    )


def _reason(iteration: Iteration) -> str:
    return one_line(iteration.turn.failure.reason, 500) if iteration.turn.failure else ""
