"""The loop. Read this first: ask the rules; if none says stop, give the agent one more turn, run the checks, look at
the workspace, and ask again. `tell` gets every event."""

from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from ralph.core import events
from ralph.core.claims import find_echoes
from ralph.core.model import (
    Check,
    Continue,
    FailureKind,
    Fingerprint,
    HandOver,
    Iteration,
    Note,
    Outcome,
    Refusal,
    Rule,
    Run,
    Snapshot,
    Stop,
    Turn,
    Usage,
    Verdict,
    Wait,
)
from ralph.core.prompts import without_answer
from ralph.core.rules import startup_problem
from ralph.errors import UserError


class Agent(Protocol):
    def take_turn(self, prompt: str, run: Run, purpose: str = "work") -> Turn: ...


class Workspace(Protocol):
    def look(self, run: Run) -> Snapshot:
        """Return the current facts: the time, the done file, requests of people. It is called often, so it must be
        cheap."""
        ...

    def guard(self) -> tuple[str, ...]:
        """Restore protected files; return the paths that had been changed."""
        ...

    def check(self, number: int) -> tuple[Check, ...] | None:
        """Run every check; return None if they were interrupted."""
        ...

    def tree(self, number: int) -> Fingerprint | None:
        """Return a fingerprint of the workspace after iteration `number`."""
        ...

    def restore(self, iteration: Iteration) -> tuple[Fingerprint, str] | None:
        """Restore the files of an iteration. Return the new fingerprint, and the ref of a commit with the files as they
        were before; return None, and change nothing, if that is impossible."""
        ...


UNCOUNTED: Sequence[FailureKind] = ("fatal", "limit", "transient")


class Parts(Struct, kw_only=True):
    """The parts of a run. Bring your own agent, rules or workspace.

    `cap` is the iteration limit, for prompts and events. A turn that fails with a kind in `uncounted` is not an
    iteration. A followup runs after an iteration and returns what it has spent.

    Before the first turn `check_start` returns the results of the checks (None if it was interrupted), `examine_start`
    runs the exams, and `measure_start` measures the number that the run optimises.

    `referees` (reviews, exams, a host's checks) cost time or money. They run in order, and only if `is_claimed` returns
    True: the last iteration claims to be done, and every gate agrees. Each returns the iteration with its result, which
    a rule then reads.

    `accepts_files`: a person has accepted test and protected files as they are, so the last iteration is checked again.
    """

    agent: Agent
    workspace: Workspace
    rules: Sequence[Rule]
    compose: Callable[[Run, tuple[Note, ...]], str]
    tell: events.Tell = lambda event: None
    wait: Callable[[Wait, Run], None] = lambda wait, run: None
    referees: "Sequence[Callable[[Run, Iteration, Parts], Iteration]]" = ()
    is_claimed: Callable[[Run], bool] = lambda run: True
    followups: Sequence[Callable[[Run, Iteration], Usage | None]] = ()
    check_start: Callable[[], tuple[Check, ...] | None] | None = None
    examine_start: Callable[[], None] = lambda: None
    cap: int | None = None
    uncounted: Sequence[FailureKind] = UNCOUNTED
    measure_start: Callable[[Run], Run] | None = None
    accepts_files: bool = False


def run_loop(parts: Parts, run: Run, followed: int | None = None) -> tuple[Run, Stop]:
    """Take turns until a rule says stop, or until something fails that only a person can fix.

    The followups of the first `followed` iterations (default: all) have already run.
    """
    followed = len(run.iterations) if followed is None else followed
    is_new = not run.iterations and not run.retries
    accepts_files = parts.accepts_files
    while True:
        turn: Turn | None = None
        try:
            if accepts_files and run.last:
                accepts_files, followed = False, min(followed, run.last.number - 1)
                run = accept_files(run, run.last, parts)
            for iteration in run.iterations[followed:]:
                followed = iteration.number
                for followup in parts.followups:
                    if spent := followup(run, iteration):
                        run = run.spending(spent)
            if is_new:
                is_new = False
                run = take_baseline(run, parts)
                parts.examine_start()
            if parts.measure_start and run.start is None:
                run = parts.measure_start(run)
            run = run.seeing(parts.workspace.look(run))
            verdict = judge(run, parts.rules)
            if isinstance(verdict, Continue) and verdict.wait:
                parts.wait(verdict.wait, run)
                continue
            if isinstance(verdict, Continue) and verdict.hand_over:
                run = hand_over(run, verdict.hand_over, parts)
                continue
            for refusal in verdict.refusals:
                parts.tell(events.ClaimRejected(refusal.claim, refusal.gate, refusal.reason))
            if isinstance(verdict, Stop):
                return run, verdict
            turn = take_turn(run, verdict.notes, parts)
            run = conclude(run, turn, parts)
        except UserError as error:
            if turn:  # it costs money, although it is not an iteration
                run = drop_turn(run, turn, parts)
            return run, stop_after(run, error.advice, parts)


def take_baseline(run: Run, parts: Parts) -> Run:
    """Get the results of the checks before the first turn. Raise a UserError if one cannot start."""
    checks = parts.check_start() if parts.check_start and run.baseline is None else None
    if checks is None:
        return run
    parts.tell(events.Baseline(checks))
    if problem := startup_problem(checks):
        raise UserError(*problem)
    return replace(run, baseline=checks)


def hand_over(run: Run, asked: HandOver, parts: Parts) -> Run:
    """Hand the work over to another agent, after restoring the files that it starts with.

    If ralph is killed before the event is written, the resumed run hands over again.
    """
    restored = parts.workspace.restore(run.iterations[asked.start - 1]) if asked.start else None
    tree, kept_as = restored or (None, "")
    completed = replace(asked, start=asked.start if restored else None, tree=tree, kept_as=kept_as)
    parts.tell(events.HandedOver(completed))
    return replace(run, hand_overs=(*run.hand_overs, completed))


def stop_after(run: Run, trouble: str, parts: Parts) -> Stop:
    """Return the end of a run that cannot continue: interrupted by a person, out of time, or else with `trouble`."""
    try:
        verdict = judge(run.seeing(parts.workspace.look(run)), parts.rules)
    except UserError:  # a rule raised; that may be the trouble itself
        return Stop(Outcome.FATAL, trouble)
    if isinstance(verdict, Stop) and verdict.outcome in (Outcome.INTERRUPTED, Outcome.TIMEOUT):
        return verdict
    return Stop(Outcome.FATAL, trouble)


def judge(run: Run, rules: Sequence[Rule]) -> Verdict:
    """Ask every rule in order: the first Stop wins; otherwise return all notes and the longest wait."""
    notes: list[Note] = []
    waits: list[Wait] = []
    refusals: list[Refusal] = []
    change: HandOver | None = None
    for rule in rules:
        for opinion in rule(run):
            match opinion:
                case Stop():
                    return replace(opinion, refusals=tuple(refusals))
                case Note() if opinion not in notes:
                    notes.append(opinion)
                case Wait():
                    waits.append(opinion)
                case Refusal():
                    refusals.append(opinion)
                case HandOver():
                    change = change or opinion
    wait = max(waits, key=lambda wait: wait.seconds, default=None)
    return Continue(tuple(notes), wait, tuple(refusals), change)


def take_turn(run: Run, notes: tuple[Note, ...], parts: Parts) -> Turn:
    """Let the agent take one turn, with `notes` in its prompt."""
    if not run.retries:
        parts.tell(events.IterationStarted(run.number, parts.cap, run.goal))
    if run.seen.told:
        parts.tell(events.PersonTold(run.number, run.seen.told))
    prompt = parts.compose(run, notes)
    turn = parts.agent.take_turn(prompt, run)
    if turn.text and turn.ended_by != "interrupt":
        turn = replace(turn, echoes=find_echoes(turn.text, without_answer(prompt, run.present)))
    return turn


def conclude(run: Run, turn: Turn, parts: Parts) -> Run:
    """Add an iteration with the turn, its checks and the workspace after it to the run, unless it doesn't count."""
    touched = parts.workspace.guard()
    if turn.ended_by == "interrupt" or (turn.failure and turn.failure.kind in parts.uncounted):
        return drop_turn(run, turn, parts)
    is_over = turn.ended_by == "max-time"
    checks = () if is_over else known_checks(run, turn, parts) or parts.workspace.check(run.number)
    if checks is None:
        return drop_turn(run, turn, parts)
    tree, notes = parts.workspace.tree(run.number), run.seen.told
    iteration = Iteration(
        number=run.number, turn=turn, checks=checks, touched=touched, checked=not is_over, told=notes, tree=tree
    )
    run = run.seeing(parts.workspace.look(run.plus(iteration)))
    if run.seen.tasks is not None:
        iteration = replace(iteration, tasks_done=sum(task.done for task in run.seen.tasks))
    iteration = ask_referees(run, iteration, parts)
    parts.tell(events.IterationFinished(iteration.number, iteration))
    return run.plus(iteration)


def accept_files(run: Run, last: Iteration, parts: Parts) -> Run:
    """Return the run with its last iteration as the checks and the referees see its files now."""
    checks = parts.workspace.check(last.number)
    if checks is None:  # interrupted
        return run
    iteration = replace(last, checks=checks, checked=True, accepted=True, touched=(), reviews=(), exams=())
    iteration = replace(iteration, tree=parts.workspace.tree(last.number), compared=None)
    before = replace(run, iterations=run.iterations[:-1]).spending(last.review_usage)
    before = before.seeing(parts.workspace.look(before.plus(iteration)))
    iteration = ask_referees(before, iteration, parts)
    parts.tell(events.FilesAccepted(iteration.number, iteration))
    return before.plus(iteration)


def drop_turn(run: Run, turn: Turn, parts: Parts) -> Run:
    """Return the run after a turn that costs money but is not an iteration."""
    parts.tell(events.TurnNotCounted(turn))
    return run.retrying(turn)


def known_checks(run: Run, turn: Turn, parts: Parts) -> tuple[Check, ...]:
    """Return the check results from before the turn, if it failed and changed nothing; empty if the checks must run."""
    before, present = run.tree_before(run.number), run.present
    results = (present.checks if present.checked else ()) if present else run.baseline or ()
    if turn.failure is None or before is None or not results or any(check.void for check in results):
        return ()
    if parts.workspace.tree(run.number) != before:
        return ()
    return tuple(replace(check, duration=0.0) for check in results)


def ask_referees(run: Run, iteration: Iteration, parts: Parts) -> Iteration:
    """Return the iteration with the results of the referees, up to the first that refuses the claim."""
    if parts.referees and parts.is_claimed(run.plus(iteration)):
        for referee in parts.referees:
            iteration = referee(run, iteration, parts)
            if iteration.is_refused:
                break
    return iteration
