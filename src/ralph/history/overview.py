"""The present state of the runs on this machine, for `ralph ps`, the TUI and the web UI."""

import os
import time
from collections.abc import Iterable, Mapping

from msgspec.structs import asdict

from ralph.core.state import STOP_REQUEST, RunSummary
from ralph.history.states import state_of
from ralph.store.mailbox import Mail, Mailbox
from ralph.store.register import Listed, runs

MAX_SECONDS = 1e12  # of a run without a recorded duration; its recorded times may be wrong
DISMISSED = "dismissed"
"""A file in a run's folder: a person has dismissed the run since it ended."""
STOPPED_BY_PERSON = ("SIGINT", "SIGTERM", "SIGHUP", STOP_REQUEST)

Successes = Mapping[tuple[str, str], float]
"""The start of the latest successful run, by workspace and goal."""
NO_SUCCESSES: Successes = {}


class RunNow(RunSummary, omit_defaults=False, kw_only=True):
    """The summary of a run with its present state. `ralph ps --json` prints it.

    - `state` is "asking" while a question is open.
    - `held`: the run is paused or waits for the answer.
    - `iteration` is the current iteration, or the last one.
    - `age_s` is the time since the start, `lasted_s` the time from start to end.
    - `reason` says why the run waits, is held or has ended.
    - `pausing`: the run pauses before its next turn.
    - `mergeable`: its branch can be accepted.
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
    mergeable: bool = False

    @property
    def label(self) -> str:
        """The state as lists show it: "unverified" if the run is done but nothing has verified its work."""
        return self.state if self.verified else "unverified"


def runs_now(everything: bool = False, env: Mapping[str, str] = os.environ) -> list[RunNow]:
    """Return the running runs, or all of them, newest first."""
    now, known = time.time(), runs(env)
    successes = latest_successes(known)
    return [run_now(run, now, successes=successes) for run in reversed(known) if everything or run.is_alive]


def latest_successes(known: Iterable[Listed]) -> dict[tuple[str, str], float]:
    found: dict[tuple[str, str], float] = {}
    for facts in (run.facts for run in known if run.facts.outcome == "done"):
        key = facts.workspace, facts.goal
        found[key] = max(found.get(key, 0.0), facts.began)
    return found


def run_now(run: Listed, now: float, mail: Mail | None = None, successes: Successes = NO_SUCCESSES) -> RunNow:
    """Return a run as it is at the time `now`. Without `mail`, the mailbox of a running run is read."""
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
    mergeable = is_mergeable(run)
    is_busy = run.is_alive and not held and not facts.waits
    is_last = facts.finished == facts.max_iterations  # the run only has to measure or prove its result
    return RunNow(
        **known,
        state="asking" if is_asking and run.state != "stopping" else run.state,
        alive=run.is_alive,
        held=held,
        needs_you=held or is_asking or (not run.is_alive and _is_open(run, successes, mergeable)),
        iteration=facts.finished + (is_busy and not is_last),
        age_s=age,
        lasted_s=age if run.is_alive else facts.seconds or min(max(facts.changed - facts.began, 0.0), MAX_SECONDS),
        questions=tuple(question.text for question in mail.questions),
        notes=run.pending_notes(len(mail.notes)),
        pausing=mail.is_paused,
        mergeable=mergeable,
    )


def is_mergeable(run: Listed) -> bool:
    """Return whether an ended run has work in its own worktree, or an ended backlog has merged tasks.

    Accept and discard remove the worktree of a run, and dismiss a backlog.
    """
    facts = run.facts
    if facts.kind == "work":
        return bool(facts.outcome and facts.checks_passed and not facts.untouched and not is_dismissed(run))
    has_work = bool(facts.outcome and facts.branch and not facts.untouched and not facts.work)
    return has_work and os.path.isdir(facts.worktree)


def _is_open(run: Listed, successes: Successes, mergeable: bool) -> bool:
    """Return whether a person still has to act on an ended run."""
    facts = run.facts
    if facts.work or is_dismissed(run):  # a task needs a person as part of its backlog
        return False
    if mergeable and facts.outcome == "done":
        return True
    had_work = facts.outcome and facts.branch and not facts.untouched and facts.kind != "work"
    if had_work and not mergeable:  # accepted or discarded
        return False
    if facts.interrupted_by in STOPPED_BY_PERSON and run.state == "interrupted":
        return False
    is_superseded = bool(facts.goal) and successes.get((facts.workspace, facts.goal), 0.0) > facts.began
    return state_of(run.state).needs_you and not is_superseded


def is_dismissed(run: Listed) -> bool:
    try:
        return os.stat(f"{run.place}/{DISMISSED}").st_mtime >= run.facts.changed
    except OSError:
        return False
