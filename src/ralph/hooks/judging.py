"""Decide whether an agent may stop inside its session.

The run is read from its journal, the turn that the host's agent has just taken is added, and the ordinary loop
continues until it ends or needs another turn, which the host takes.
"""

import os
import sys
import time
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from json import dumps
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from ralph.core import events
from ralph.core.judgement import Cell, results_so_far
from ralph.core.model import Iteration, Outcome, Run, Stop, Turn, Wait
from ralph.core.secrets import Redactor, secret_values
from ralph.errors import UserError
from ralph.files import add_to_file, locked
from ralph.hooks import loops
from ralph.hooks.loops import Loop
from ralph.hooks.transcript import Transcript, host_turn
from ralph.loop import Parts, conclude, run_loop
from ralph.process.keeper import Keeper
from ralph.process.signals import Deadline, Interrupt
from ralph.run import request as requests
from ralph.run.parts import make_parts
from ralph.run.policy import Policy, is_verified, load_rules, make_composer, make_policy
from ralph.settings import Settings, settings_files
from ralph.settings.trust import SettingsWatch
from ralph.store.folder import RunFolder, prepare, remove_orders
from ralph.store.journal import Journal, load_run
from ralph.store.mailbox import Mailbox, QuestionListener
from ralph.store.writer import Writer
from ralph.verdict.context import Clock, Context
from ralph.verdict.trees import Trees, make_trees

RESERVED_TIME = 60.0  # seconds of the hook's time limit that are kept free for everything but checks
_TOO_LATE = "the loop ended while its checks were running"
ENDED = frozenset({"completed", "done", "finished", "failed", "error", "killed", "cancelled", "canceled", "stopped"})
STATUS = {
    Outcome.DONE: "PROMISE_ACCEPTED",
    Outcome.EXHAUSTED: "MAX_ITERATIONS_REACHED",
    Outcome.BUDGET: "BUDGET_EXHAUSTED",
    Outcome.TIMEOUT: "TIME_IS_OVER",
    Outcome.INTERRUPTED: "CANCELLED",
}


class NextTurn(Exception):
    """The loop needs one more turn of the host's agent, with this prompt."""

    def __init__(self, prompt: str, run: Run) -> None:
        self.prompt, self.run = prompt, run


class Parked(Exception):
    """The loop waits for a person. The hook can't sleep that long: the host would kill it."""

    def __init__(self, reason: str, run: Run) -> None:
        self.reason, self.run = reason, run


class HostAgent:
    """Takes the place of the agent in the loop: instead of taking a turn it ends the loop, because the host takes the
    turn."""

    def take_turn(self, prompt: str, run: Run, purpose: str = "work") -> Turn:
        raise NextTurn(prompt, run)


class Engine(Struct, frozen=True, kw_only=True):
    """The parts of a loop inside a session. `refused` collects the claims that a gate refused."""

    context: Context
    policy: Policy
    trees: Trees
    parts: Parts
    refused: list[events.ClaimRejected]

    def refusals(self) -> str:
        return "; ".join(f"promise rejected by {claim.gate}: {claim.reason}" for claim in self.refused)


def judge_stop(root: str, session: str, event: loops.HookEvent, began: float) -> str:
    """Return the answer to a host whose agent wants to stop; empty if it may. `began`: when the hook was called."""
    loop = _read_loop(root, session)
    if not isinstance(loop, Loop):
        return loop
    if tasks := _background_tasks(event):
        loop.log(f"allowed, not counted: {tasks}")
        return allow(f"{tasks}: this stop is not counted, and the loop continues when the agent comes back")
    try:
        with locked(folder_of(loop).path):  # if the host asks twice at once, the second call repeats the first answer
            return _judge(loops.read(root, session), event, began)
    except loops.Unreadable:
        return ""  # the loop has ended in the meantime
    except UserError as error:  # something that the user must fix ends the loop, but not as a success
        with locked(Path(root, loops.FOLDER)):
            return end(loop, Stop(Outcome.FATAL, error.advice)) if loop.is_active() else ""


def remind(root: str, session: str, event: loops.HookEvent) -> str:
    """Return the answer that repeats the task, for an agent whose context was compacted."""
    loop = _read_loop(root, session)
    if not isinstance(loop, Loop):
        return loop
    settings, task = requests.read(loop.run).settings, loop.task
    compose = make_composer(settings, make_policy(settings), lambda: task, diff=lambda: "")
    name = event.get("hook_event_name", "SessionStart")
    context = compose(Run(id=loop.run, goal=task), ())
    return dumps({"hookSpecificOutput": {"hookEventName": name, "additionalContext": context}})


def _read_loop(root: str, session: str) -> Loop | str:
    """Return the loop of the session, or the answer to the host if it can't be read."""
    try:
        return loops.read(root, session)
    except loops.Unreadable as error:
        if not loops.exists(root, session):
            return ""  # the loop has ended in the meantime
        aside = loops.set_aside(root, session, error)
        message = f"warning: the state of this session's loop cannot be read; it was moved to {aside}, the loop is over"
        print(f"ralph: {message}", file=sys.stderr)
        return allow(message)


def _background_tasks(event: loops.HookEvent) -> str:
    """Return how many background tasks are running, in words; empty if none. The host continues when they end."""
    tasks = event.get("background_tasks")
    tasks = tasks if isinstance(tasks, list) else []
    count = sum(not isinstance(task, dict) or task.get("status") not in ENDED for task in tasks)
    return f"{count} background task{' is' if count == 1 else 's are'} running" if count else ""


def _judge(loop: Loop, event: loops.HookEvent, began: float) -> str:
    """Add the host's turn to the run and continue the loop until it needs another turn, waits for a person, or ends."""
    folder, settings = folder_of(loop), requests.read(loop.run).settings
    with suppress(OSError):
        add_to_file(folder.journal, b"", 0o600)  # the agent may have removed it
    story = load_run(folder.journal)
    is_known = began < loop.answered <= time.time()
    with ExitStack() as stack:
        earlier = results_so_far(story.run)
        engine = open_engine(stack, loop, settings, None if is_known else story.seq, earlier)
        engine.trees.begin(story.run.base_tree)
        run = _with_lost_iterations(story.run, loop)
        turn, transcript = host_turn(loop, event, engine.policy.claims[0].marker)
        try:
            if not is_known:
                _handle_questions(engine)
                run = conclude(run, turn, engine.parts)
            run, stop = run_loop(engine.parts, run)
        except NextTurn as wanted:
            place = f"continuation {len(wanted.run.iterations)} of {loop.max_iterations}"
            why = engine.refusals() or "promise missing"
            return _save(loop, transcript, wanted.run, f"blocked: {why}", block(wanted.prompt, f"{place}: {why}"))
        except Parked as parked:
            answer = allow(f"{parked.reason}; answer in this session, and the loop continues")
            return _save(loop, transcript, parked.run, f"allowed: {parked.reason}", answer)
        if stop.outcome is Outcome.INTERRUPTED:
            return ""  # the host is shutting down: the loop stays active
        with locked(Path(loop.root, loops.FOLDER)):  # only now: the checks may have taken long
            if not loop.is_active():
                return allow(_TOO_LATE)
            verified = stop.outcome is Outcome.DONE and is_verified(run, settings)
            engine.context.tell(
                *events.closing_events(run, stop, engine.context.clock.elapsed(), loop.max_iterations, verified)
            )
            return _close(loop, stop, engine.refusals())


def _handle_questions(engine: Engine) -> None:
    """Dismiss earlier questions, because the person has been in the session since, and report new ones."""
    mailbox = Mailbox(engine.context.folder.path)
    mailbox.dismiss()
    QuestionListener(mailbox, engine.context.tell, lambda: engine.context.root)()


def _save(loop: Loop, transcript: Transcript, run: Run, logged: str, answer: str) -> str:
    """Save the progress of the loop and log the decision; return the answer."""
    with locked(Path(loop.root, loops.FOLDER)):
        if not loop.is_active():
            return allow(_TOO_LATE)
        loop.iteration, loop.answered = len(run.iterations), time.time()
        loop.offset, loop.transcript = transcript.size, transcript.path
        loop.save()
    loop.log(logged)
    return answer


def end(loop: Loop, stop: Stop) -> str:
    """End a loop without judging it, and return the answer to the host. The folder of loops must be locked."""
    folder = folder_of(loop)
    with ExitStack() as stack:
        journal = _open_journal(stack, folder)
        story = load_run(folder.journal)
        tell = Writer(loop.run, [journal], seq=story.seq)
        tell(*events.closing_events(_with_lost_iterations(story.run, loop), stop, max(0.0, time.time() - loop.started)))
    return _close(loop, stop)


def _close(loop: Loop, stop: Stop, why: str = "") -> str:
    status = STATUS.get(stop.outcome, stop.outcome.name)
    text = f"{status}: {stop.reason}" + (f"; {why}" if why else "")
    settings = watch_settings(loop)
    settings.begin()
    if changed := settings.end():
        text += f"; settings were changed during the loop: {', '.join(changed)}; the next run asks about them"
    loop.log(f"allowed: {text}")
    loop.end(status)
    remove_orders(loop.run)
    return allow(text)


def block(reason: str, message: str) -> str:
    """Return the answer that makes the agent continue: it reads `reason`, the user sees `message`."""
    return dumps({"decision": "block", "reason": reason, "systemMessage": f"ralph: {message}"})


def allow(message: str) -> str:
    return dumps({"systemMessage": f"ralph: {message}"})


def watch_settings(loop: Loop) -> SettingsWatch:
    """Return the watch on the settings files, which began with the loop."""
    workspace = Path(loop.root)
    return SettingsWatch(workspace, loop.run, settings_files(workspace, os.environ), os.environ, pid=0)


def folder_of(loop: Loop) -> RunFolder:
    return RunFolder(Path(loop.root, loops.FOLDER), loop.run)


def open_engine(
    stack: ExitStack, loop: Loop, settings: Settings, seq: int | None = 0, earlier: Iterable[Cell] = ()
) -> Engine:
    """Open the parts of the loop, without the settings that make no sense inside a session. `seq`: the number of the
    journal's last line; None to record nothing, because the journal already contains this stop. `earlier` are the
    results of the checks so far."""
    # Every check and exam must time out before the host kills the hook.
    longest = (loops.HOOK_TIMEOUT - RESERVED_TIME) / max(1, len(settings.checks) + len(settings.exams))
    timeout = min(settings.check_timeout or longest, longest)
    exams = tuple(replace(exam, timeout=min(exam.timeout or timeout, longest)) for exam in settings.exams)
    settings = replace(settings, check_timeout=timeout, exams=exams, scm=None, reviews=None, worktree=False, notify=())
    refused: list[events.ClaimRejected] = []
    context = _context(stack, loop, settings, seq, refused)
    policy = make_policy(
        settings, (loop.agent,), own=load_rules(settings.rules, (), Path(loop.root)), is_resumable=False
    )
    trees = make_trees(context)
    request = requests.RunRequest(settings=settings, workspace=loop.root, goal_text=loop.task)
    parts = make_parts(request, policy, context, agent=HostAgent(), trees=trees, earlier=earlier)

    def wait(requested: Wait, run: Run) -> None:
        if requested.until:
            parts.tell(events.Paused(requested.reason, asks=requested.until == "answer"))
            raise Parked(requested.reason, run)
        parts.wait(requested, run)

    parts_here = replace(parts, wait=wait, followups=())
    return Engine(context=context, policy=policy, trees=trees, parts=parts_here, refused=refused)


def _context(
    stack: ExitStack, loop: Loop, settings: Settings, seq: int | None, refused: list[events.ClaimRejected]
) -> Context:
    folder, redact = folder_of(loop), Redactor(secret_values(os.environ))
    journal = _open_journal(stack, folder)
    writer = Writer(loop.run, [journal] if seq is not None else [], seq=seq or 0, redact=redact)

    def tell(*happened: events.Event) -> None:
        writer(*happened)
        refused.extend(event for event in happened if isinstance(event, events.ClaimRejected))

    prepare(Path(loop.root))
    interrupt, keeper = stack.enter_context(Interrupt()), Keeper()
    if settings.checks or settings.exams:  # nothing else needs it, and it takes as long as the rest of the hook
        keeper = stack.enter_context(Keeper.start())
    return Context(
        root=Path(loop.root),
        workspace=loop.root,
        settings=settings,
        folder=folder,
        keeper=keeper,
        tell=tell,
        redact=redact,
        clock=Clock(max_time=_time_limit(loop, settings), before=max(0.0, time.time() - loop.started)),
        deadline=Deadline(interrupt, loop.run, settings.grace),
    )


def _time_limit(loop: Loop, settings: Settings) -> float:
    """Return the seconds after the start of the loop at which everything must have ended: its time is over, or the host
    is about to kill the hook."""
    hook_ends = max(0.0, time.time() - loop.started) + loops.HOOK_TIMEOUT - RESERVED_TIME
    return min(settings.max_time or hook_ends, hook_ends)


def _open_journal(stack: ExitStack, folder: RunFolder) -> Journal:
    folder.make()
    journal = Journal(folder.journal).open()
    stack.callback(journal.close)
    return journal


def _with_lost_iterations(run: Run, loop: Loop) -> Run:
    """Add empty iterations until there are as many as the loop's file counts: a damaged journal must not raise the
    limit."""
    while len(run.iterations) < loop.iteration:
        run = run.plus(Iteration(number=run.number, turn=Turn(text="")))
    return run
