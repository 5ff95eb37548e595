"""What do all runs on this machine do at this moment? For `ralph ps` and everything else that looks at many runs."""

import os
import time
from collections.abc import Mapping

from msgspec import Struct

from ralph.records.register import Listed, loops, runs
from ralph.steering.mailbox import Mail, Mailbox

LONGEST = 1e12  # seconds: what is longer is forged, and may have no end


class RunNow(Struct, frozen=True, kw_only=True):
    """One run at one moment, also as `ralph ps --json` prints it. `state` is asking while a question is open, whether
    the run is `held` until a person speaks or not; `iteration` is the one at work, or the last one; `lasted_s` ends
    with the run, `age_s` does not; `doing` since the moment `since`; `reason` is why it waits, is held or has ended."""

    run: str
    state: str
    alive: bool
    held: bool
    needs_you: bool
    iteration: int
    max_iterations: int | None
    checks: int
    checks_passed: int
    cost_usd: float | None
    tokens: int
    age_s: float
    lasted_s: float
    doing: str
    since: float
    questions: tuple[str, ...]
    notes: int
    pausing: bool
    waiting_until: float
    outcome: str
    reason: str
    workspace: str
    goal: str
    agent: str
    preset: str
    branch: str
    pid: int
    verified: bool = True
    interrupted_by: str = ""
    kind: str = ""
    work: str = ""
    item: str = ""


def runs_now(everything: bool = False, env: Mapping[str, str] = os.environ) -> list[RunNow]:
    """The runs that live, or all of them, newest first."""
    now = time.time()
    return [run_now(run, now) for run in reversed(runs(env)) if everything or run.is_alive]


def loops_at_work(env: Mapping[str, str] = os.environ) -> dict[str, int]:
    """How many loops inside sessions go on in each workspace that has any."""
    found: dict[str, int] = {}
    for file in loops(env).values():
        workspace = file.rsplit("/", 3)[0]
        found[workspace] = found.get(workspace, 0) + 1
    return found


def run_now(run: Listed, now: float, mail: Mail | None = None) -> RunNow:
    """One run as it stands. Only of a living one more than its facts is read, unless its `mail` is given."""
    facts = run.facts
    if mail is None:
        mail = Mailbox(run.place).read() if run.is_alive else Mail()
    held = run.is_alive and bool(facts.paused)
    is_asking = run.is_alive and (facts.asks or bool(mail.questions))
    age = max(now - facts.began, 0.0) if facts.began else 0.0
    return RunNow(
        run=run.id,
        state="asking" if is_asking and run.state != "stopping" else run.state,
        alive=run.is_alive,
        held=held,
        needs_you=held or is_asking if run.is_alive else run.state not in ("done", "stopped"),
        iteration=facts.iterations + (run.is_alive and not held and not facts.waits),
        max_iterations=facts.cap,
        checks=facts.checks,
        checks_passed=facts.passed,
        cost_usd=facts.cost_usd,
        tokens=facts.tokens,
        age_s=age,
        lasted_s=age if run.is_alive else facts.duration_s or min(max(facts.changed - facts.began, 0.0), LONGEST),
        doing=facts.doing if run.is_alive or facts.kind == "work" else "",
        since=facts.since,
        questions=tuple(question.text for question in mail.questions),
        notes=run.ungiven(len(mail.notes)),
        pausing=mail.is_paused,
        waiting_until=facts.until if facts.waits else 0.0,
        outcome=facts.outcome,
        reason=facts.waits or facts.paused or facts.reason,
        workspace=facts.workspace,
        goal=facts.goal,
        agent=facts.agent,
        preset=facts.preset,
        branch=facts.branch,
        pid=facts.pid,
        interrupted_by=facts.interrupted_by,
        verified=facts.verified or facts.outcome != "done",
        kind=facts.kind,
        work=facts.work,
        item=facts.item,
    )
