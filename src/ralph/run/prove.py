"""Proof: undo the parts of a change one at a time in a throwaway copy, and see whether any check fails.

`--prove` does so after a run that is done; with `--prove=ask` the agent gets one turn about what is untested. The proof
doesn't change the outcome of the run.
"""

import math
import os
import time
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from ralph.core import events
from ralph.core.model import Iteration, Outcome, Run, Stop
from ralph.core.prompts import proof_question
from ralph.core.proof import Hunk, Part, Proof, hunks_worth_undoing, parse_diff, prove, without
from ralph.core.text import listed
from ralph.errors import UserError
from ralph.files import read_given
from ralph.git.checkpoints import Checkpoints, diff_without_context
from ralph.git.client import Git, find_git
from ralph.loop import Parts
from ralph.process.signals import Deadline
from ralph.run.checks import Checks
from ralph.run.context import Clock, Context
from ralph.run.copies import open_copy
from ralph.run.followups import ask_agent
from ralph.run.request import RunRequest
from ralph.run.trees import Trees

MIN_LIMIT, LIMIT_FACTOR = 10.0, 3.0  # seconds; how much longer a run of the checks may take than the first one


def prove_change(home: Git, before: str, after: str, context: Context) -> Proof:
    """Return the proof of a change, between two commits of the user's repository, by the run's checks."""
    limit = math.inf

    def tell_notices(*happened: events.Event) -> None:
        """Leave out the events of checks, because these checks belong to no iteration."""
        if notices := [event for event in happened if isinstance(event, events.Notice)]:
            context.tell(*notices)

    def passes_without(parts: Sequence[Part], seconds: float) -> bool | None:
        """Return whether every check passes without these parts; None if that took longer than this many seconds."""
        nonlocal limit
        if limit < math.inf:  # the copy has been used
            copy.check_out(after)
        _undo(parts, folder)
        seconds = min(seconds, context.clock.time_left())
        clock = Clock(min(seconds, limit))
        settings = replace(copy.context.settings, fail_fast=True)
        inside = replace(copy.context, clock=clock, tell=tell_notices, settings=settings)
        checks = Checks(inside, settings.checks).run(0)
        if checks is None:
            raise UserError("interrupted", "`ralph prove` starts it again")
        passes = all(check.passed for check in checks)
        if not passes and seconds <= limit and clock.time_left() <= 0:
            return None
        if limit == math.inf:
            limit = LIMIT_FACTOR * clock.elapsed() + MIN_LIMIT
        return passes

    with open_copy(context, home, after) as copy:
        folder = Path(copy.worktree.path)
        found = parse_diff(diff_without_context(home, before, after))
        hunks = hunks_worth_undoing(found, {path: _read(folder / path) for path in {hunk.path for hunk in found}})
        if hunks:
            context.tell(events.ProofStarted(len(hunks)))
        return prove(hunks, passes_without, time.monotonic)


def _undo(parts: Sequence[Part], folder: Path) -> None:
    hunks: dict[str, list[Hunk]] = {}
    for part in parts:
        hunks.setdefault(part.path, []).extend(part.hunks)
    for path, undone in hunks.items():
        if undone[0].is_new_file:
            os.unlink(folder / path)
        else:
            (folder / path).write_bytes(without(_read(folder / path), undone).encode("utf-8", "surrogateescape"))


def _read(path: Path) -> str:
    return read_given(path).decode("utf-8", "surrogateescape")


def refuse_unprovable(request: RunRequest, deadline: Deadline | None) -> None:
    """Raise if `--prove` cannot work."""
    if request.settings.prove == "off" or request.looks_only:
        return
    if not request.settings.checks:
        raise UserError("--prove needs a check", 'add one: --check "CMD"')
    if not find_git(Path(request.workspace), deadline):
        raise UserError(f"--prove needs a git repository: {request.workspace} isn't in one", "git init, then try again")


def prove_run(run: Run, stop: Stop, request: RunRequest, *, parts: Parts, context: Context, trees: Trees) -> Run:
    """Prove the change of a run that is done, if that was asked for. Return the run; a turn about untested parts adds
    its cost and its changes."""
    settings, last = request.settings, run.last
    is_wanted = settings.prove != "off" and stop.outcome is Outcome.DONE and not request.looks_only
    home = trees.home
    if not is_wanted or last is None or last.tree is None or home is None:
        return run

    def prove_now(tree: str | None = None) -> Proof:
        proof = prove_change(home, *Checkpoints(home, run.id).ends(), context)
        context.tell(events.ProofFinished(last.number, proof, tree))
        return proof

    try:
        proof = prove_now()
        if settings.prove == "ask" and proof.whole and not context.interrupt.level:
            run = _ask_about(proof, request.goal(), run, last, parts, trees=trees)
            if run.last and run.last is not last:
                prove_now(run.last.tree)
    except UserError as error:
        context.tell(events.Notice(f"no proof: {error.advice}"))
    return run


def _ask_about(proof: Proof, goal: str, run: Run, last: Iteration, parts: Parts, *, trees: Trees) -> Run:
    """Give the agent one turn about the untested parts. Return the run with the cost, and with the changes if they pass
    everything; otherwise undo them."""
    parts.tell(events.ProofAsked(last.number, tuple(part.place for part in proof.whole)))
    question = proof_question(goal, proof.whole)
    turn = ask_agent(parts.agent, question, run, "proof", number=last.number, tell=parts.tell)
    run = run.spending(turn.usage)
    if touched := parts.workspace.guard():
        parts.tell(events.Notice(f"protected files were changed, and restored: {listed(touched, 5)}"))
    if not trees.has_changed(last):
        return run
    if not turn.failure and not turn.ended_by and (amended := _amend(run, last, parts)):
        return amended
    trees.undo_since(last, "the agent's version of the untested parts does not pass")
    return run


def _amend(run: Run, last: Iteration, parts: Parts) -> Run | None:
    """Return the run with the new state of the files as its last one; None if that fails a check or a referee."""
    before = replace(run, iterations=run.iterations[:-1])
    checks = parts.workspace.check(last.number)
    if not checks or not all(check.passed for check in checks):
        return None
    now = replace(last, checks=checks, tree=parts.workspace.tree(last.number))
    for referee in parts.referees:
        now = referee(before, now, parts)
        if now.is_refused:
            return None
    run = replace(run, iterations=(*before.iterations, now))
    for followup in parts.followups:
        if spent := followup(run, now):
            run = run.spending(spent)
    return run
