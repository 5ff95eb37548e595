"""What does the whole engine say about a stop? The run is read from its journal, the turn that the host took is added
to it with its checks and a look at the workspace, and the rules are asked: nothing here decides."""

import time
from contextlib import ExitStack

from ralph import charter as charters
from ralph import hook
from ralph.core import events
from ralph.core.model import Continue, Iteration, Outcome, Run, Stop, Turn, Verdict
from ralph.errors import UserError
from ralph.hosts import loops
from ralph.hosts.opening import Opened, folder_of, opened
from ralph.hosts.telling import finished
from ralph.hosts.turn import HostTurn
from ralph.hosts.usage import usage_since
from ralph.loop import iterate, judge
from ralph.world.records.journal import recall

STATUS = {Outcome.DONE: hook.PROMISE_ACCEPTED, Outcome.EXHAUSTED: hook.MAX_ITERATIONS_REACHED}
STATUS |= {Outcome.BUDGET: "BUDGET_EXHAUSTED", Outcome.TIMEOUT: "TIME_IS_OVER"}


def judged(loop: loops.Loop, turn: HostTurn) -> str:
    """The answer to the host. What a person must mend ends the loop, and never as a success."""
    try:
        return _judged(loop, turn)
    except UserError as error:
        with loops.locked(loop.root):
            if not loop.goes_on():
                return ""
            told = [finished(loop, Outcome.FATAL.value, error.advice, loop.facts["iteration"], Outcome.FATAL.exit_code)]
            return hook.finish(loop, told, "FATAL", f"FATAL: {error.advice}")


def _judged(loop: loops.Loop, turn: HostTurn) -> str:
    """Checks may take long: the loops of the workspace are locked only while the answer is written."""
    folder = folder_of(loop)
    settings = charters.read(folder.path / "run.json").settings
    story = recall(folder.journal)
    with ExitStack() as stack:
        engine = opened(stack, loop, settings, _taken(turn, loop), story.seq)
        engine.history.begin(story.run.base_tree)
        run = iterate(_whole(story.run, loop), (), engine.parts)
        verdict = _asked(engine, run)
        if engine.site.interrupt.level:
            return ""  # the host wants this to end: nothing is decided, and the loop goes on
        with loops.locked(loop.root):
            if not loop.goes_on():
                return hook.allowed("the loop ended while its checks were running")
            loop.facts["offset"], loop.facts["transcript"] = turn.size, turn.path
            return _answer(loop, turn, run, verdict, engine)


def _asked(engine: Opened, run: Run) -> Verdict:
    """The verdict, once everything that asks for time has had it."""
    parts, interrupt = engine.parts, engine.site.interrupt
    while True:
        seen = run.seeing(parts.workspace.look(run))
        verdict = judge(seen, parts.rules)
        if isinstance(verdict, Stop) or verdict.wait is None or interrupt.level:
            return verdict
        parts.wait(verdict.wait, seen)


def _answer(loop: loops.Loop, turn: HostTurn, run: Run, verdict: Verdict, engine: Opened) -> str:
    """The verdict as the loop's file, its log, its journal and the host get it."""
    for refusal in verdict.refusals:
        engine.parts.tell(events.ClaimRejected(refusal.claim, refusal.gate, refusal.reason))
    refused = "; ".join(f"promise rejected by {refusal.gate}: {refusal.reason}" for refusal in verdict.refusals)
    why = refused or ("" if turn.is_claim else "promise missing")
    if isinstance(verdict, Stop):
        return _ended(loop, run, verdict, engine, why)
    return _goes_on(loop, run, verdict, engine, why)


def _goes_on(loop: loops.Loop, run: Run, verdict: Continue, engine: Opened, why: str) -> str:
    facts = loop.facts
    facts["iteration"] = len(run.iterations)
    loop.save()
    loop.log(f"blocked: {why}")
    place = f"continuation {facts['iteration']} of {facts['max_iterations']}"
    return hook.blocked(engine.parts.compose(run, verdict.notes), f"{place}: {why}")


def _ended(loop: loops.Loop, run: Run, stop: Stop, engine: Opened, why: str) -> str:
    tell, last = engine.parts.tell, len(run.iterations)
    if stop.outcome is Outcome.DONE:
        tell(events.Converged(last, stop.claim))
    elif stop.outcome is Outcome.STALLED:
        tell(events.Stalled(last, stop.reason))
    elif stop.outcome is Outcome.EXHAUSTED:
        tell(events.Exhausted(last, engine.plan.cap))
    tell(
        events.RunFinished(
            stop.outcome.value,
            stop.reason,
            last,
            run.usage.cost_usd,
            engine.site.elapsed(),
            stop.outcome.exit_code,
            bool(engine.plan.gates),
        )
    )
    status = STATUS.get(stop.outcome, stop.outcome.name)
    text = f"{status}: {stop.reason}" + (f"; {why}" if why else "")
    loop.log(f"allowed: {text}")
    loop.end(status)
    return hook.allowed(text)


def _taken(turn: HostTurn, loop: loops.Loop) -> Turn:
    calls, usage = usage_since(turn.path, turn.since, turn.model)
    session, agent = loop.facts["session"], loop.facts["agent"]
    return Turn(turn.text, tool_calls=calls, usage=usage, session=session, ended_at=time.time(), agent=agent)


def _whole(run: Run, loop: loops.Loop) -> Run:
    """The run with every iteration that the loop's file knows of: a journal that lost some must not lift the cap."""
    while len(run.iterations) < loop.facts["iteration"]:
        run = run.plus(Iteration(run.number, Turn("")))
    return run
