"""What the runs on this machine do at this moment: for `ralph ps`, the TUI and the web UI."""

import os
import time
from collections.abc import Mapping

from msgspec.structs import asdict

from ralph.core.state import RunSummary
from ralph.history.states import state_of
from ralph.store.mailbox import Mail, Mailbox
from ralph.store.register import Listed, loops, runs

MAX_SECONDS = 1e12  # of a run without a duration; its times may be anything


class RunNow(RunSummary, omit_defaults=False, kw_only=True):
    """The summary of a run with what is true at this moment, also as `ralph ps --json` prints it.

    `state` is "asking" while a question is open, whether the run is `held` by it or not; `iteration` is the current
    one, or the last; `age_s` counts from the start until now, `lasted_s` until the end; `reason` is why it waits, is
    held or has ended; `pausing`: it pauses before its next turn.
    """

    state: str
    alive: bool
    held: bool
    needs_you: bool
    iteration: int
    age_s: float
    lasted_s: float
    questions: tuple[str, ...] = ()
    notes: int = 0
    pausing: bool = False


def runs_now(everything: bool = False, env: Mapping[str, str] = os.environ) -> list[RunNow]:
    """Return the running runs, or all of them, newest first."""
    now = time.time()
    return [run_now(run, now) for run in reversed(runs(env)) if everything or run.is_alive]


def loops_at_work(env: Mapping[str, str] = os.environ) -> dict[str, int]:
    """Return how many loops inside sessions run in each workspace that has any."""
    found: dict[str, int] = {}
    for file in loops(env).values():
        workspace = file.rsplit("/", 3)[0]
        found[workspace] = found.get(workspace, 0) + 1
    return found


def run_now(run: Listed, now: float, mail: Mail | None = None) -> RunNow:
    """Return a run as it is now. The mailbox is read only if the run is alive and its `mail` isn't given."""
    facts = run.facts
    if mail is None:
        mail = Mailbox(run.place).read() if run.is_alive else Mail()
    held = run.is_alive and bool(facts.paused)
    is_asking = run.is_alive and (facts.asks or bool(mail.questions))
    age = max(now - facts.began, 0.0) if facts.began else 0.0
    known = asdict(facts) | {
        "run": run.id,
        "reason": facts.waits or facts.paused or facts.reason,
        "doing": facts.doing if run.is_alive or facts.kind == "work" else "",
        "until": facts.until if facts.waits else 0.0,
        "verified": facts.verified or facts.outcome != "done",
    }
    return RunNow(
        **known,
        state="asking" if is_asking and run.state != "stopping" else run.state,
        alive=run.is_alive,
        held=held,
        needs_you=held or is_asking or state_of(run.state).needs_you,
        iteration=facts.finished + (run.is_alive and not held and not facts.waits),
        age_s=age,
        lasted_s=age if run.is_alive else facts.seconds or min(max(facts.changed - facts.began, 0.0), MAX_SECONDS),
        questions=tuple(question.text for question in mail.questions),
        notes=run.ungiven(len(mail.notes)),
        pausing=mail.is_paused,
    )
