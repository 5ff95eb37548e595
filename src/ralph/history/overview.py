"""The present state of the runs on this machine, for `ralph ps`, the TUI and the web UI."""

import os
import time
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.structs import asdict

from ralph.core.state import STOP_REQUEST, BacklogSummary, RunSummary
from ralph.core.text import plural
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
    """The summary of a run with its present state. `ralph ps --json` prints it."""

    state: str
    """`asking` while a question is open."""
    alive: bool
    held: bool
    """The run is paused or waits for the answer."""
    needs_you: bool
    iteration: int
    """The current iteration, or the last one."""
    age_s: float
    """The time since the start."""
    lasted_s: float
    """The time from start to end."""
    questions: tuple[str, ...] = ()
    notes: int = 0
    """Notes that the next prompt will have."""
    pausing: bool = False
    """The run pauses before its next turn."""
    mergeable: bool = False
    """Its branch can be accepted."""

    @property
    def label(self) -> str:
        """The state as lists show it: "unverified" if the run is done but nothing has verified its work."""
        return self.state if self.verified else "unverified"

    @property
    def counts(self) -> tuple[int, int | None]:
        return self.iteration, self.max_iterations

    def steps(self, least: int = 0) -> str:
        """Return the iteration, with the maximum if that is at least `least`."""
        shows_limit = self.max_iterations is not None and self.max_iterations >= least
        return f"{self.iteration}/{self.max_iterations}" if shows_limit else f"{self.iteration}"

    def progress(self, is_long: bool = False) -> str:
        """Return the steps for a column of `ralph ps`, or for the head of the TUI if `is_long`."""
        return f"iteration {self.steps()}" if is_long else self.steps()

    @property
    def progress_sentence(self) -> str:
        return f"iteration {self.iteration}" + (f" of {self.max_iterations}" if self.max_iterations else "")

    @property
    def check_counts(self) -> tuple[int, int] | None:
        """How many checks of the last iteration passed, and how many there were."""
        return (self.checks_passed, self.checks) if self.checks else None


class BacklogNow(BacklogSummary, omit_defaults=False, kw_only=True):
    """The summary of a backlog with its present state, as in `RunNow`."""

    state: str
    alive: bool
    held: bool
    needs_you: bool
    age_s: float
    lasted_s: float
    pausing: bool = False
    mergeable: bool = False

    check_counts = None

    @property
    def label(self) -> str:
        return self.state

    @property
    def counts(self) -> tuple[int, int | None]:
        return self.merged, self.tasks

    def steps(self, least: int = 0) -> str:
        """Return the number of merged tasks, and of all tasks."""
        return f"{self.merged}/{self.tasks}"

    def progress(self, is_long: bool = False) -> str:
        return f"{self.steps()} merged"

    @property
    def progress_sentence(self) -> str:
        return f"{self.merged} of {plural(self.tasks, 'task')} merged"


Now = RunNow | BacklogNow


def runs_now(everything: bool = False, env: Mapping[str, str] = os.environ) -> list[Now]:
    """Return the running runs, or all of them, newest first."""
    now, listed = time.time(), runs(env)
    successes = latest_successes(listed)
    return [run_now(run, now, successes=successes) for run in reversed(listed) if everything or run.is_alive]


def latest_successes(listed: Iterable[Listed]) -> dict[tuple[str, str], float]:
    latest: dict[tuple[str, str], float] = {}
    for facts in (run.facts for run in listed if run.facts.outcome == "done"):
        key = facts.workspace, facts.goal
        latest[key] = max(latest.get(key, 0.0), facts.began)
    return latest


def run_now(run: Listed, now: float, mail: Mail | None = None, successes: Successes = NO_SUCCESSES) -> Now:
    """Return a run as it is at the time `now`. Without `mail`, the mailbox of a running run is read."""
    facts = run.facts
    if mail is None:
        mail = Mailbox(run.place).read() if run.is_alive else Mail()
    mergeable = is_mergeable(run)
    age = max(now - facts.began, 0.0) if facts.began else 0.0
    is_held = run.is_alive and bool(facts.paused)
    present: dict[str, Any] = {
        "run": run.id,
        "state": run.state,
        "alive": run.is_alive,
        "held": is_held,
        "reason": facts.paused or facts.reason,
        "doing": facts.doing if run.is_alive else facts.last_activity,
        "age_s": age,
        "lasted_s": age if run.is_alive else facts.seconds or min(max(facts.changed - facts.began, 0.0), MAX_SECONDS),
        "needs_you": is_held or (not run.is_alive and _is_open(run, successes, mergeable)),
        "pausing": mail.is_paused,
        "mergeable": mergeable,
    }
    if isinstance(facts, BacklogSummary):
        return BacklogNow(**asdict(facts) | present)
    is_asking = run.is_alive and (facts.asks or bool(mail.questions))
    is_busy = run.is_alive and not facts.paused and not facts.waits
    is_last = facts.finished == facts.max_iterations  # the run only has to measure or prove its result
    present |= {
        "state": "asking" if is_asking and run.state != "stopping" else run.state,
        "reason": facts.waits or present["reason"],
        "needs_you": present["needs_you"] or is_asking,
        "until": facts.until if facts.waits else 0.0,
        "verified": facts.verified or facts.outcome != "done",
        "iteration": facts.finished + (is_busy and not is_last),
        "questions": tuple(question.text for question in mail.questions),
        # The notes in the current prompt stay in the mailbox until its turn has ended.
        "notes": max(len(mail.notes) - facts.given, 0) if run.is_alive else len(mail.notes),
    }
    return RunNow(**asdict(facts) | present)


def is_mergeable(run: Listed) -> bool:
    """Return whether an ended run has work in its own worktree, or an ended backlog has merged tasks.

    Accept and discard remove the worktree of a run, and dismiss a backlog.
    """
    facts = run.facts
    is_there = os.path.isdir(facts.worktree) if isinstance(facts, RunSummary) else not is_dismissed(run)
    return facts.has_result and is_there


def _is_open(run: Listed, successes: Successes, mergeable: bool) -> bool:
    """Return whether a person still has to act on an ended run."""
    facts = run.facts
    if facts.work or is_dismissed(run):  # a task needs a person as part of its backlog
        return False
    if mergeable and facts.outcome == "done":
        return True
    if facts.has_result and not mergeable:  # accepted or discarded
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
