"""The state of a run at one moment, and whether it needs a person."""

from pathlib import Path

import pytest

from ralph.core.model import PersonNote, Question
from ralph.core.state import RunSummary
from ralph.history.overview import RunNow, latest_successes, run_now, runs_now
from ralph.store.mailbox import Mail
from ralph.store.register import Listed

NOW = 1000.0
ASKED = Mail(questions=(Question("q", "Which?"),))


def now(facts: RunSummary, alive: bool = True, mail: Mail | None = None) -> RunNow:
    present = run_now(Listed("r", "/w/.ralph/runs/r", facts, alive), NOW, mail or Mail())
    assert isinstance(present, RunNow)
    return present


@pytest.mark.parametrize(
    ("facts", "alive", "mail", "state", "held", "needs_you"),
    [
        (RunSummary(run="r"), True, None, "running", False, False),
        (RunSummary(run="r", waits="usage limit", until=9.0), True, None, "waiting", False, False),
        (RunSummary(run="r", paused="a person asked for it"), True, None, "paused", True, True),
        (RunSummary(run="r", paused="waiting for an answer", asks=True), True, ASKED, "asking", True, True),
        (RunSummary(run="r"), True, ASKED, "asking", False, True),
        (RunSummary(run="r", stopping=True), True, ASKED, "stopping", False, True),
        (RunSummary(run="r", outcome="exhausted"), False, ASKED, "exhausted", False, True),
        (RunSummary(run="r", outcome="done"), False, None, "done", False, False),
        (RunSummary(run="r", outcome="stopped"), False, None, "stopped", False, False),
        (RunSummary(run="r"), False, None, "killed", False, True),
    ],
)
def test_the_state_of_a_run_follows_from_its_summary_and_mailbox(
    facts: RunSummary, alive: bool, mail: Mail | None, state: str, held: bool, needs_you: bool
) -> None:
    one = now(facts, alive, mail)
    assert (one.state, one.held, one.needs_you) == (state, held, needs_you)


def test_a_running_run_shows_its_current_iteration() -> None:
    assert now(RunSummary(run="r", finished=2)).iteration == 3
    for facts in (RunSummary(run="r", finished=2, waits="limit"), RunSummary(run="r", finished=2, paused="you")):
        assert now(facts).iteration == 2
    assert now(RunSummary(run="r", finished=2, outcome="done"), alive=False).iteration == 2


def test_the_age_of_an_ended_run_grows_but_its_duration_does_not() -> None:
    ended = now(RunSummary(run="r", began=100.0, changed=160.0, seconds=50.0, outcome="done"), alive=False)
    assert (ended.lasted_s, ended.age_s) == (50.0, 900.0)
    killed = now(RunSummary(run="r", began=100.0, changed=160.0), alive=False)
    assert killed.lasted_s == 60.0


def test_notes_that_are_already_in_the_prompt_are_not_counted() -> None:
    notes = Mail(notes=(PersonNote("1", "a"), PersonNote("2", "b")))
    assert now(RunSummary(run="r", given=1), mail=notes).notes == 1


def test_a_run_that_the_person_stopped_needs_nothing() -> None:
    stopped = RunSummary(run="r", outcome="interrupted", interrupted_by="SIGINT")
    assert not now(stopped, alive=False).needs_you
    assert now(RunSummary(run="r", outcome="interrupted"), alive=False).needs_you


@pytest.mark.parametrize(
    ("goal", "workspace", "began", "needs_you"),
    [
        ("fix it", "/w", 200.0, False),
        ("fix it", "/w", 50.0, True),  # before the failure
        ("fix it", "/other", 200.0, True),
        ("another goal", "/w", 200.0, True),
    ],
)
def test_a_failure_needs_nothing_after_a_success_with_the_same_goal(
    goal: str, workspace: str, began: float, needs_you: bool
) -> None:
    failure = Listed(
        "r", "/w/r", RunSummary(run="r", outcome="failed", goal="fix it", workspace="/w", began=100.0), False
    )
    success = Listed(
        "s", "/w/s", RunSummary(run="s", outcome="done", goal=goal, workspace=workspace, began=began), False
    )
    successes = latest_successes([failure, success])
    assert run_now(failure, NOW, successes=successes).needs_you == needs_you


def test_there_are_no_runs_before_the_first_one(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path)}
    assert runs_now(everything=True, env=home) == []
