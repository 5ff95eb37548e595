"""What does the whole engine say about a stop? The run is read from its journal, the turn that the host took is added
to it with its checks and a look at the workspace, and the rules are asked: nothing here decides."""

import os
import time
from contextlib import ExitStack
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from ralph.core import events
from ralph.core.model import Continue, Iteration, Outcome, Run, Stop, Turn, Verdict
from ralph.core.secrets import Redactor, secret_values
from ralph.errors import UserError
from ralph.hooks import loops
from ralph.hooks import stop as hook
from ralph.hooks.hosts import LIMIT
from ralph.hooks.loops import Loop
from ralph.hooks.telling import finished
from ralph.hooks.transcript import HostTurn
from ralph.hooks.usage import usage_since
from ralph.loop import Parts, iterate, judge
from ralph.processes.interrupt import Interrupt
from ralph.processes.keeper import Keeper
from ralph.records.folder import RunFolder, prepare
from ralph.records.journal import Journal, recall
from ralph.records.writer import Writer
from ralph.repository.checkpoints import History
from ralph.run import order as orders
from ralph.run.context import Context
from ralph.run.parts import parts_of, workspace_of
from ralph.run.policy import Policy, policy
from ralph.settings import Settings

SPARE = 60.0  # seconds that a host must leave for everything but the checks


class Taken:
    """The agent of a loop inside a session: its turn has been taken already, by the host."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn

    def take_turn(self, prompt: str, run: Run, purpose: str = "work") -> Turn:
        return self._turn


class Opened(Struct, frozen=True):
    context: Context
    plan: Policy
    history: History
    parts: Parts


def folder_of(loop: Loop) -> RunFolder:
    return RunFolder(Path(loop.journal).parents[2], loop.facts["run"])


def opened(stack: ExitStack, loop: Loop, settings: Settings, turn: Turn, seq: int = 0) -> Opened:
    """Everything that judges a turn. What the settings ask for and a host's session cannot do is left out."""
    settings = replace(
        settings, check_timeout=_check_timeout(settings), scm=None, reviews=None, worktree=False, notify=()
    )
    context = _context(stack, loop, settings, seq)
    plan = policy(settings, (loop.facts["agent"],))
    history = History(context, walks=settings.min_tool_calls > 0)
    workspace = workspace_of(settings, plan, context, history)
    workspace.begin()
    parts = parts_of(
        settings,
        plan,
        context,
        agent=Taken(turn),
        workspace=workspace,
        history=history,
        goal=lambda: str(loop.facts["task"]),
    )
    return Opened(context, plan, history, parts)


def _check_timeout(settings: Settings) -> float:
    """Every check ends, and says so, before the host loses its patience and ends all of them without a word."""
    longest = (LIMIT - SPARE) / max(1, len(settings.guardrails))
    return min(settings.check_timeout or longest, longest)


def _context(stack: ExitStack, loop: Loop, settings: Settings, seq: int) -> Context:
    interrupt, keeper = stack.enter_context(Interrupt()), stack.enter_context(Keeper.start())
    prepare(Path(loop.root))
    folder = folder_of(loop)
    folder.make()
    journal = Journal(folder.journal)
    stack.callback(journal.close)
    return Context(
        Path(loop.root),
        folder,
        keeper,
        interrupt,
        _teller(Writer(folder.id, [journal], seq)),
        os.environ,
        Redactor(secret_values(os.environ)),
        max_time=settings.max_time,
        max_log=settings.max_log,
        grace=settings.grace,
        keep_children=settings.keep_children,
        began=time.monotonic(),
        before=max(0.0, time.time() - float(loop.facts["started"])),
    )


def _teller(writer: Writer) -> events.TellAll:
    def tell(*happened: events.Event) -> None:
        writer(*happened)

    return tell


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
    settings = orders.read(folder.path / "run.json").settings
    story = recall(folder.journal)
    with ExitStack() as stack:
        engine = opened(stack, loop, settings, _taken(turn, loop), story.seq)
        engine.history.begin(story.run.base_tree)
        run = iterate(_whole(story.run, loop), (), engine.parts)
        verdict = _asked(engine, run)
        if engine.context.interrupt.level:
            return ""  # the host wants this to end: nothing is decided, and the loop goes on
        with loops.locked(loop.root):
            if not loop.goes_on():
                return hook.allowed("the loop ended while its checks were running")
            loop.facts["offset"], loop.facts["transcript"] = turn.size, turn.path
            return _answer(loop, turn, run, verdict, engine)


def _asked(engine: Opened, run: Run) -> Verdict:
    """The verdict, once everything that asks for time has had it."""
    parts, interrupt = engine.parts, engine.context.interrupt
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
            engine.context.elapsed(),
            stop.outcome.exit_code,
            engine.plan.verifies,
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
