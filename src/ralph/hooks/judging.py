"""What does the engine say about a stop? The run is read from its journal, the turn that the host's agent took is added
to it, and the loop goes on until it wants another turn, which is the host's to take. Nothing here decides."""

import os
import sys
import time
from contextlib import ExitStack, suppress
from json import dumps
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from ralph.core import events
from ralph.core.model import Iteration, Outcome, Run, Stop, Turn, Wait
from ralph.core.secrets import Redactor, secret_values
from ralph.errors import UserError
from ralph.files import add_to_file, locked
from ralph.hooks import loops
from ralph.hooks.loops import Loop
from ralph.hooks.transcript import HostTurn, turn_of
from ralph.loop import Parts, conclude, ending, run_loop
from ralph.processes.interrupt import Interrupt
from ralph.processes.keeper import Keeper
from ralph.processes.program import Asker, asked_by
from ralph.records.folder import RunFolder, prepare
from ralph.records.journal import Journal, Seal, forget, recall
from ralph.records.register import on_record
from ralph.records.writer import Writer
from ralph.run import order as orders
from ralph.run.context import Context
from ralph.run.policy import Policy, composer, own_rules, parts_of, policy, trees_of, workspace_of
from ralph.run.workspace import Trees
from ralph.settings import Settings
from ralph.settings.layers import settings_files
from ralph.settings.trust import Watched
from ralph.steering.mailbox import Mailbox, QuestionListener

SPARE = 60.0  # seconds that a host must leave for everything but the checks
_TOO_LATE = "the loop ended while its checks were running"
OVER = frozenset({"completed", "done", "finished", "failed", "error", "killed", "cancelled", "canceled", "stopped"})
STATUS = {
    Outcome.DONE: "PROMISE_ACCEPTED",
    Outcome.EXHAUSTED: "MAX_ITERATIONS_REACHED",
    Outcome.BUDGET: "BUDGET_EXHAUSTED",
    Outcome.TIMEOUT: "TIME_IS_OVER",
    Outcome.INTERRUPTED: "CANCELLED",
}


class NextTurn(Exception):
    """The loop wants one more turn: `prompt` is what the host's agent shall read, `run` what has happened so far."""

    def __init__(self, prompt: str, run: Run) -> None:
        self.prompt, self.run = prompt, run


class Parked(Exception):
    """The loop does not go on before a person has spoken. No hook sleeps for that long: a host would end it."""

    def __init__(self, reason: str, run: Run) -> None:
        self.reason, self.run = reason, run


class HostAgent:
    """The agent of a loop inside a session: its turns are taken by the host."""

    def take_turn(self, prompt: str, run: Run, purpose: str = "work") -> Turn:
        raise NextTurn(prompt, run)


class Engine(Struct, frozen=True, kw_only=True):
    """All that judges a loop inside a session. `refused` are the claims that it did not believe."""

    context: Context
    plan: Policy
    trees: Trees
    parts: Parts
    refused: list[events.ClaimRejected]


def judged(data: bytes, began: float) -> str:
    """The answer to a host whose agent wants to stop, asked at the moment `began`; empty: it may."""
    event = _heard(data)
    loop = _loop_of(event)
    if not isinstance(loop, Loop):
        return loop
    if tasks := _at_work(event):
        loop.log(f"allowed, not counted: {tasks}")
        return allowed(f"{tasks}: this stop is not counted, and the loop goes on when the agent comes back")
    try:
        with locked(folder_of(loop).path):  # two stops at once are one: the second waits for what the first is told
            return _judged(loops.read(loop.root, loop.session), event, began)
    except loops.Unreadable:
        return ""  # it ended just now
    except UserError as error:  # what a person must mend ends the loop, and never as a success
        with locked(Path(loop.root, loops.FOLDER)):
            return end(loop, Stop(Outcome.FATAL, error.advice)) if loop.goes_on() else ""


def reminded(data: bytes) -> str:
    """The context was compacted: what an agent in a loop is told anew."""
    event = _heard(data)
    loop = _loop_of(event)
    if not isinstance(loop, Loop):
        return loop
    settings = _settings_of(loop)
    compose = composer(settings, policy(settings), lambda: loop.task, diff=lambda: "")
    name = event.get("hook_event_name", "SessionStart")
    context = compose(Run(id=loop.run, goal=loop.task), ())
    return dumps({"hookSpecificOutput": {"hookEventName": name, "additionalContext": context}})


def _heard(data: bytes) -> "loops.Event":
    try:
        return loops.table(data)
    except ValueError as error:
        print(f"ralph: what the host says cannot be read: {error}", file=sys.stderr)
        return {}


def _loop_of(event: "loops.Event") -> Loop | str:
    """The loop of the session that asks, or the answer if there is none to speak of."""
    session = loops.session_of(event)
    root = loops.find(session, loops.places_of(event))
    if root is None:
        return ""
    try:
        return loops.read(root, session)
    except loops.Unreadable as error:
        if not loops.exists(root, session):
            return ""  # it ended just now
        aside = loops.set_aside(root, session)
        loops.write_log(root, f"session={session} allowed: unreadable state moved to {aside}: {error}")
        message = f"the state of this session's loop cannot be read; it was moved to {aside}, and the loop is over"
        print(f"ralph: warning: {message}", file=sys.stderr)
        return allowed(f"warning: {message}")


def _at_work(event: "loops.Event") -> str:
    """The background tasks that the host still waits for, in words: it comes back by itself when they are over."""
    told = event.get("background_tasks")
    tasks = told if isinstance(told, list) else []
    count = sum(not isinstance(task, dict) or task.get("status") not in OVER for task in tasks)
    return f"{count} background task{' is' if count == 1 else 's are'} at work" if count else ""


def _judged(loop: Loop, event: "loops.Event", began: float) -> str:
    """Checks may take long: the loops of the workspace are locked only while the answer is written."""
    folder, settings = folder_of(loop), _settings_of(loop)
    with suppress(OSError):
        add_to_file(folder.journal, b"", 0o600)  # an agent that cleans up may have removed it
    story = recall(folder.journal)
    is_known = began < loop.answered <= time.time()
    with ExitStack() as stack:
        engine = opened(stack, loop, settings, None if is_known else story.seq)
        engine.trees.begin(story.run.base_tree)
        run = _whole(story.run, loop)
        turn = turn_of(loop, event, engine.plan.claims[0].marker, is_priced=settings.max_cost is not None)
        try:
            if not is_known:
                # What was asked before has its answer: the person came back to the session. What is asked now is told.
                mailbox = Mailbox(engine.context.folder.path)
                mailbox.dismiss()
                waits = settings.on_question == "wait"
                QuestionListener(mailbox, engine.context.tell, waits, lambda: engine.context.root)()
                run = conclude(run, turn.turn, engine.parts)
            run, stop = run_loop(engine.parts, run)
        except NextTurn as wanted:
            place = f"continuation {len(wanted.run.iterations)} of {loop.max_iterations}"
            why = _refusals(engine) or "promise missing"
            return _saved(loop, turn, wanted.run, f"blocked: {why}", blocked(wanted.prompt, f"{place}: {why}"))
        except Parked as parked:
            answer = allowed(f"{parked.reason}; answer in this session, and the loop goes on")
            return _saved(loop, turn, parked.run, f"allowed: {parked.reason}", answer)
        if stop.outcome is Outcome.INTERRUPTED:
            return ""  # the host wants this to end: nothing is decided, and the loop goes on
        with locked(Path(loop.root, loops.FOLDER)):
            if not loop.goes_on():
                return allowed(_TOO_LATE)
            verified = stop.outcome is Outcome.DONE and settings.verifies
            engine.context.tell(*ending(run, stop, engine.context.elapsed(), loop.max_iterations, verified))
            return _closed(loop, stop, _refusals(engine))


def _refusals(engine: Engine) -> str:
    return "; ".join(f"promise rejected by {claim.gate}: {claim.reason}" for claim in engine.refused)


def _saved(loop: Loop, turn: HostTurn, run: Run, logged: str, answer: str) -> str:
    """The answer, once the loop's file knows of it."""
    with locked(Path(loop.root, loops.FOLDER)):
        if not loop.goes_on():
            return allowed(_TOO_LATE)
        loop.iteration, loop.answered = len(run.iterations), time.time()
        loop.offset, loop.transcript = turn.size, turn.path
        loop.save()
    loop.log(logged)
    return answer


def end(loop: Loop, stop: Stop) -> str:
    """Ends a loop that is not judged, whose folder must be locked. What people are told of it."""
    with ExitStack() as stack:
        folder = folder_of(loop)
        folder.make()
        journal = Journal(folder.journal).open()
        stack.callback(journal.close)
        story = recall(folder.journal)
        tell = Writer(loop.run, [journal], seq=story.seq)
        tell(*ending(_whole(story.run, loop), stop, max(0.0, time.time() - loop.started)))
    return _closed(loop, stop)


def _closed(loop: Loop, stop: Stop, why: str = "") -> str:
    status = STATUS.get(stop.outcome, stop.outcome.name)
    text = f"{status}: {stop.reason}" + (f"; {why}" if why else "")
    settings = watched(loop)
    settings.begin()
    if changed := settings.end():
        text += f"; the settings have changed meanwhile: {', '.join(changed)}; the next run asks about it"
    loop.log(f"allowed: {text}")
    loop.end(status)
    forget(loop.run, os.environ)
    return allowed(text)


def blocked(reason: str, message: str) -> str:
    """The agent must go on; `reason` is what it is told, `message` what people see."""
    return dumps({"decision": "block", "reason": reason, "systemMessage": f"ralph: {message}"})


def allowed(message: str) -> str:
    return dumps({"systemMessage": f"ralph: {message}"})


def watched(loop: Loop) -> Watched:
    """The settings files as they were when the loop began, whichever process looks at them."""
    workspace = Path(loop.root)
    return Watched(workspace, loop.run, settings_files(workspace, os.environ), os.environ, pid=0)


def folder_of(loop: Loop) -> RunFolder:
    return RunFolder(Path(loop.root, loops.FOLDER), loop.run)


def _settings_of(loop: Loop) -> Settings:
    """Those of the start, whatever the agent has written since."""
    folder = folder_of(loop).path
    try:
        Seal(loop.run, folder, os.environ).refuse_what_was_changed(of_journal=False)
    except UserError as error:
        raise UserError(error.message, "look at what was changed, and start the loop anew") from None
    return orders.read(folder / "run.json").settings


def opened(stack: ExitStack, loop: Loop, settings: Settings, seq: int | None = 0) -> Engine:
    """Everything that judges a turn. What the settings ask for and a host's session cannot do is left out. `seq` is the
    last line of the journal; None: it knows already what happens now."""
    # Every check ends, and says so, before the host loses its patience and ends all of them without a word.
    longest = (loops.LIMIT - SPARE) / max(1, len(settings.guardrails))
    patience = min(settings.check_timeout or longest, longest)
    settings = replace(settings, check_timeout=patience, scm=None, reviews=None, worktree=False, notify=())
    refused: list[events.ClaimRejected] = []
    context = _context(stack, loop, settings, seq, refused)
    plan = policy(settings, (loop.agent,), own=own_rules(settings.rules, (), Path(loop.root)))
    trees = trees_of(settings, context)
    workspace = workspace_of(settings, plan, context, trees)
    workspace.begin()
    parts = parts_of(
        settings, plan, context, agent=HostAgent(), workspace=workspace, trees=trees, goal=lambda: loop.task
    )
    sleep, parts.followups = parts.wait, ()

    def wait(asked: Wait, run: Run) -> None:
        if asked.until:
            parts.tell(events.Paused(asked.reason, asks=asked.until == "answer"))
            raise Parked(asked.reason, run)
        sleep(asked, run)

    parts.wait = wait
    return Engine(context=context, plan=plan, trees=trees, parts=parts, refused=refused)


def _context(
    stack: ExitStack, loop: Loop, settings: Settings, seq: int | None, refused: list[events.ClaimRejected]
) -> Context:
    folder, redact = folder_of(loop), Redactor(secret_values(os.environ))
    folder.make()
    journal = Journal(folder.journal).open()
    stack.callback(journal.close)
    writer = Writer(loop.run, [journal] if seq is not None else [], seq=seq or 0, redact=redact)

    def tell(*happened: events.Event) -> None:
        writer(*happened)
        refused.extend(event for event in happened if isinstance(event, events.ClaimRejected))

    prepare(Path(loop.root))
    interrupt, keeper = stack.enter_context(Interrupt()), stack.enter_context(Keeper.start())
    stack.enter_context(asked_by(Asker(interrupt, loop.run, settings.grace)))
    if not settings.keep_children:
        stack.enter_context(on_record(loop.run, keeper, loop.root, os.environ))
    return Context(
        root=Path(loop.root),
        folder=folder,
        keeper=keeper,
        interrupt=interrupt,
        tell=tell,
        env=os.environ,
        redact=redact,
        max_time=settings.max_time,
        max_log=settings.max_log,
        grace=settings.grace,
        keep_children=settings.keep_children,
        before=max(0.0, time.time() - loop.started),
    )


def _whole(run: Run, loop: Loop) -> Run:
    """The run with every iteration that the loop's file knows of: a journal that lost some must not lift the cap."""
    while len(run.iterations) < loop.iteration:
        run = run.plus(Iteration(number=run.number, turn=Turn(text="")))
    return run
