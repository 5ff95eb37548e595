"""The summary of a run depends only on its events."""

import msgspec
import pytest
from msgspec.structs import replace

from ralph.core import events as e
from ralph.core.model import Check, Iteration, Outcome, PersonNote, Turn, Usage
from ralph.core.state import Activity, BacklogSummary, RunSummary, after, decode_summary

STARTED = e.RunStarted(
    goal="the\ngoal",
    preset="checks",
    agent="claude",
    workspace="/ws",
    max_iterations=10,
    checks=("make test",),
    pid=7,
    version="1",
    branch="b",
)
FIRST = Iteration(
    number=1,
    turn=Turn(text="x", usage=Usage(input_tokens=10, output_tokens=5, cost_usd=0.5)),
    checks=(Check(name="a", passed=True), Check(name="b", passed=False)),
)


def told(*events: e.Event) -> RunSummary:
    facts = RunSummary(run="r")
    for at, event in enumerate(events, 1):
        facts = after(facts, event, float(at))
    return facts


def test_a_started_run_has_its_agent_workspace_and_goal_in_the_summary() -> None:
    facts = told(STARTED)
    assert (facts.pid, facts.agent, facts.workspace, facts.max_iterations) == (7, "claude", "/ws", 10)
    assert (facts.goal, facts.began, facts.outcome) == ("the goal", 1.0, "")


def test_an_iteration_counts_checks_and_money() -> None:
    facts = told(STARTED, e.IterationFinished(1, FIRST), e.TurnNotCounted(Turn(text="", usage=Usage(cost_usd=0.25))))
    assert (facts.finished, facts.checks_passed, facts.checks) == (1, 1, 2)
    assert (facts.cost_usd, facts.tokens) == (0.75, 15)


def test_the_summary_of_a_backlog_is_read_back_even_if_an_older_ralph_stored_its_tasks_as_checks() -> None:
    backlog = BacklogSummary(run="r", tasks=3, merged=1, parked=1, outcome="parked")
    assert decode_summary(msgspec.json.encode(backlog)) == backlog
    older = {"run": "r", "kind": "work", "checks": 3, "checks_passed": 1, "outcome": "parked"}
    assert decode_summary(msgspec.json.encode(older)) == BacklogSummary(run="r", tasks=3, merged=1, outcome="parked")
    assert decode_summary(b'{"run": "r", "checks": 3}') == RunSummary(run="r", checks=3)


@pytest.mark.parametrize("end", [e.AgentStarted("claude"), e.Continued(3.0)])
def test_a_wait_or_a_pause_is_over_when_the_run_continues(end: e.Event) -> None:
    for held in (e.Waiting(60.0, "usage limit", 99.0), e.Paused("a person asked for it")):
        assert told(STARTED, held).waits or told(STARTED, held).paused
        facts = told(STARTED, held, end)
        assert (facts.waits, facts.paused) == ("", "")


def test_the_outcome_is_kept_until_the_run_is_resumed() -> None:
    finished = e.RunFinished(
        outcome=Outcome.BUDGET, reason="spent", iterations=3, cost_usd=1.5, duration_s=60.0, exit_code=1
    )
    facts = told(STARTED, finished)
    assert (facts.outcome, facts.finished, facts.cost_usd, facts.exit_code) == ("budget", 3, 1.5, 1)
    again = told(STARTED, finished, replace(STARTED, resumed=True))
    assert (again.outcome, again.exit_code, again.began) == ("", None, 1.0)


def test_notes_in_the_current_prompt_are_counted_until_the_turn_ends() -> None:
    notes = e.PersonTold(2, (PersonNote("1", "a"), PersonNote("2", "b")))
    assert told(STARTED, notes).given == 2
    assert told(STARTED, notes, e.IterationFinished(1, FIRST)).given == 0


@pytest.mark.parametrize("event", [e.AgentText("x"), e.ToolStarted("t", "Bash"), e.Notice("n"), e.CheckStarted("c")])
def test_an_event_that_changes_nothing_returns_the_same_summary(event: e.Event) -> None:
    facts = told(STARTED)
    assert after(facts, event, 9.0) is facts


def test_the_activity_is_the_latest_thing_that_started() -> None:
    activity = Activity()
    script: list[tuple[e.Event, str]] = [
        (e.AgentStarted("claude"), "claude"),
        (e.AgentProgress("session 1f3e some-model", routine=True), "thinking"),
        (e.AgentProgress("retrying in 5 s"), "retrying in 5 s"),
        (e.AgentText("hm"), "thinking"),
        (e.ToolStarted("1", "Bash", "pytest -q"), "Bash(pytest -q)"),
        (e.ToolStarted("2", "Read", ""), "Read"),
        (e.AgentText("meanwhile"), "Read"),
        (e.ToolFinished(id="2", name="Read", ok=True), "Bash(pytest -q)"),
        (e.ToolFinished(id="1", name="Bash", ok=True), "thinking"),
        (e.ToolStarted("3", "Bash", "pytest"), "Bash(pytest)"),
        (e.ToolStarted("4", "Read", ""), "Read"),
        (e.AgentFinished(exit_code=0, duration_s=1.0), ""),
        (e.CheckStarted("make test"), "check make test"),
        (e.CheckFinished(name="make test", passed=True), ""),
        (e.Paused("a person asked for it"), "paused: a person asked for it"),
        (e.Continued(5.0), ""),
    ]
    for at, (event, text) in enumerate(script):
        activity(event, float(at))
        assert activity.text == text


def test_the_activity_starts_when_it_changes() -> None:
    activity = Activity()
    for at, event in enumerate((e.AgentText("a"), e.AgentText("b"), e.Notice("c"), e.AgentText("d")), 1):
        activity(event, float(at))
    assert activity.since == 1.0
