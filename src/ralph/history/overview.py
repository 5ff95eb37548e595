"""What do all runs on this machine do at this moment? For `ralph ps` and everything else that looks at many runs."""

import os
import time
from collections.abc import Mapping

from ralph.records.register import Listed, loops, runs
from ralph.show.roster import Sight
from ralph.steering.mailbox import Mail, Mailbox


def sights(everything: bool = False, env: Mapping[str, str] = os.environ) -> list[Sight]:
    """The runs that live, or all of them, newest first."""
    now = time.time()
    return [sight(run, now) for run in reversed(runs(env)) if everything or run.is_alive]


def loops_at_work(env: Mapping[str, str] = os.environ) -> dict[str, int]:
    """How many loops inside sessions go on in each workspace that has any."""
    found: dict[str, int] = {}
    for file in loops(env).values():
        workspace = file.rsplit("/", 3)[0]
        found[workspace] = found.get(workspace, 0) + 1
    return found


def sight(run: Listed, now: float) -> Sight:
    """One run as it stands. Only of a living one more than its standing is read."""
    standing = run.standing
    mail = Mailbox(run.place).read() if run.is_alive else Mail()
    is_between = not run.is_alive or standing.parked or standing.waits
    return Sight(
        run.id,
        run.state,
        run.is_alive,
        standing.iterations if is_between else standing.iterations + 1,
        standing.cap,
        standing.checks,
        standing.passed,
        standing.cost_usd,
        standing.tokens,
        max(now - standing.began, 0.0) if standing.began else 0.0,
        standing.doing if run.is_alive else "",
        standing.since,
        tuple(question.text for question in mail.questions),
        run.ungiven(len(mail.notes)),
        mail.is_paused,
        standing.until if standing.waits else 0.0,
        standing.outcome,
        standing.waits or standing.reason,
        standing.workspace,
        standing.goal,
        standing.agent,
        standing.preset,
        standing.branch,
        standing.pid,
    )
