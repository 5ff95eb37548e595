"""Prove the change of a run that is done, if `--prove` asks for it. With `--prove=ask` the agent gets one turn about
what is untested. The proof doesn't change the outcome of the run.
"""

from pathlib import Path

from msgspec.structs import replace

from ralph.core import events
from ralph.core.model import Fingerprint, Iteration, Outcome, Run, Stop
from ralph.core.prompts import proof_question
from ralph.core.proof import Proof
from ralph.core.text import listed
from ralph.errors import UserError
from ralph.git.checkpoints import Checkpoints
from ralph.git.client import find_git
from ralph.loop import Parts
from ralph.process.signals import Deadline
from ralph.run.followups import ask_agent
from ralph.run.request import RunRequest
from ralph.verdict.context import Context
from ralph.verdict.trees import Trees
from ralph.verdict.undo import prove_change


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
    home = trees.repository
    if not is_wanted or last is None or last.tree is None or home is None:
        return run

    def prove_now(tree: Fingerprint | None = None) -> Proof:
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
        is_interrupted = context.interrupt.level > 0
        reason = "interrupted (`ralph prove` starts it again)" if is_interrupted else error.advice
        context.tell(events.Notice(f"no proof: {reason}"))
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
