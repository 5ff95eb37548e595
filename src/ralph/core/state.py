"""How does each event change where a run stands? Kept up to date as it happens, or read back from the run."""

from typing import Any

from msgspec.structs import replace

from ralph.core import events as e
from ralph.core.model import Iteration, Run, RunFacts, Usage
from ralph.core.text import one_line, short

GOAL_SHOWN = 500
REASON_SHOWN = 500
SHARES_SHOWN = 24


def recalled(run: Run) -> RunFacts:
    """The facts of a run that is read back."""
    usage, last = run.usage, run.last
    return RunFacts(
        id=run.id,
        goal=one_line(run.goal, GOAL_SHOWN),
        iterations=len(run.iterations),
        checks=len(last.checks) if last else 0,
        passed=sum(check.passed for check in last.checks) if last else 0,
        shares=tuple(map(_share, run.iterations[-SHARES_SHOWN:])),
        cost_usd=usage.cost_usd,
        tokens=usage.tokens,
    )


_WITHOUT_EFFECT = frozenset({
    *(e.AgentText, e.ToolStarted, e.ToolFinished, e.AgentUnknown, e.Unheard, e.AgentFinished),
    *(e.IterationStarted, e.CheckStarted, e.CheckFinished, e.Notice),
})  # fmt: skip


def after(facts: RunFacts, event: e.Event, at: float) -> RunFacts:
    """The facts once `event` has happened; the same object where it changes nothing that a list shows."""
    if type(event) in _WITHOUT_EFFECT:  # most of them
        return facts
    match event:
        case e.RunStarted():
            return _started(facts, event, at)
        case e.IterationFinished():
            checks = event.record.checks
            return replace(
                _spent(facts, event.record.usage),
                iterations=event.iteration,
                checks=len(checks),
                passed=sum(check.passed for check in checks),
                shares=(*facts.shares, _share(event.record))[-SHARES_SHOWN:],
                waits="",
                given=0,
                changed=at,
            )
        case e.TurnNotCounted():
            return replace(_spent(facts, event.turn.usage), waits="", given=0, changed=at)
        case e.Spent():
            return replace(_spent(facts, event.usage), changed=at)
        case e.PersonTold():
            return replace(facts, given=len(event.notes), changed=at)
        case e.Waiting():
            return replace(facts, waits=one_line(event.reason, REASON_SHOWN), until=event.until, changed=at)
        case e.Paused():
            why = one_line(event.reason, REASON_SHOWN)
            return replace(facts, waits="", paused=why, asks=event.asks, changed=at)
        case e.AgentStarted() | e.Continued() if facts.waits or facts.paused:
            return replace(facts, waits="", paused="", changed=at)
        case e.RunFinished():
            return replace(
                facts,
                outcome=event.outcome,
                reason=one_line(event.reason, REASON_SHOWN),
                interrupted_by=event.interrupted_by,
                verified=event.verified,
                iterations=event.iterations,
                cost_usd=event.cost_usd,
                duration_s=event.duration_s,
                exit_code=event.exit_code,
                waits="",
                paused="",
                changed=at,
            )
    return facts


def _share(iteration: Iteration) -> int:
    """How many percent of its checks passed; of a failed turn none."""
    if iteration.turn.failure is not None:
        return 0
    checks = iteration.checks
    return 100 * sum(check.passed for check in checks) // len(checks) if checks else 100


def _started(facts: RunFacts, event: e.RunStarted, at: float) -> RunFacts:
    return replace(
        facts,
        pid=event.pid,
        workspace=event.workspace,
        goal=one_line(event.goal, GOAL_SHOWN),
        agent=event.agent,
        preset=event.preset,
        branch=event.branch,
        task=event.task,
        work=event.work,
        item=event.item,
        version=event.version,
        began=facts.began or at,
        changed=at,
        cap=event.max_iterations,
        waits="",
        paused="",
        outcome="",
        reason="",
        interrupted_by="",
        exit_code=None,
    )


def _spent(facts: RunFacts, usage: Usage) -> RunFacts:
    if usage == Usage():  # as of an agent that reports nothing
        return facts
    total = Usage(cost_usd=facts.cost_usd).plus(usage)
    return replace(facts, cost_usd=total.cost_usd, tokens=facts.tokens + usage.tokens)


MOST_TOOLS = 100
_THINKING, _NOTHING = object(), object()

_SAYS = {
    *(e.ToolStarted, e.AgentStarted, e.AgentProgress, e.IterationStarted),
    *(e.CheckStarted, e.ReviewStarted, e.Waiting, e.Paused),
}
_THINKS = {e.AgentText, e.ToolFinished}
_ENDS = {e.AgentFinished, e.CheckFinished, e.ReviewFinished, e.Continued}


class Activity:
    """Listens to events, some thousand a second. `since` is the moment (epoch seconds) at which it began."""

    def __init__(self) -> None:
        self.since = 0.0
        self._root = ""
        self._doing: Any = _NOTHING
        self._tools: dict[str, e.ToolStarted] = {}

    def __call__(self, event: e.Event, now: float) -> None:
        kind = type(event)
        if kind in _THINKS:
            if kind is e.ToolFinished:
                self._tools.pop(event.id, None)  # type: ignore[union-attr]
            doing = next(reversed(self._tools.values())) if self._tools else _THINKING
        elif kind in _SAYS:
            if kind is e.ToolStarted and len(self._tools) < MOST_TOOLS:
                self._tools[event.id] = event  # type: ignore[union-attr,assignment]
            elif kind is e.AgentStarted:
                self._tools.clear()
            doing = event
        elif kind is e.Unheard:
            for call in event.ended:  # type: ignore[union-attr]
                self._tools.pop(call, None)
            doing = next(reversed(self._tools.values())) if self._tools else _THINKING
        elif kind in _ENDS:
            self._tools.clear()
            doing = _NOTHING
        elif kind is e.RunStarted:
            self._root = f"{event.worktree or event.workspace}/"  # type: ignore[union-attr]
            return
        else:
            return
        if doing is not self._doing:
            self._doing, self.since = doing, now

    @property
    def text(self) -> str:
        match self._doing:
            case e.ToolStarted() as tool:
                given = short(tool.input.replace(self._root, "") if self._root else tool.input, 200)
                return short(tool.name, 80) + (f"({given})" if given else "")
            case e.AgentStarted() as turn:
                return short(turn.agent, 40) + (": commit message" if turn.purpose == "message" else "")
            case e.IterationStarted():
                return "preparing"
            case e.AgentProgress() as progress:
                return short(progress.text, 200)
            case e.CheckStarted() as check:
                return f"check {short(check.name, 200)}"
            case e.ReviewStarted() as review:
                return f"review {short(review.name, 200)}"
            case e.Waiting() as wait:
                return f"waiting: {short(wait.reason, 200)}"
            case e.Paused() as pause:
                return f"paused: {short(pause.reason, 200)}"
        return "thinking" if self._doing is _THINKING else ""
