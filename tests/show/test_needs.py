"""What needs a person in a run, and the actions that help."""

import pytest
from msgspec.structs import replace

from ralph.core import events as e
from ralph.core.model import Check, Fingerprint, Iteration, Outcome, PersonNote, Question, Turn
from ralph.history.fold import Fold
from ralph.history.run_history import RunHistory
from ralph.show.needs import Action, needs, next_steps

STARTED = e.RunStarted(goal="goal", preset="checks", agent="claude", workspace="/ws", max_iterations=9)


def told(*events: e.Event, state: str = "", started: e.RunStarted = STARTED) -> RunHistory:
    fold = Fold("r1")
    for event in (started, *events):
        fold.add(event, 1000.0)
    return fold.as_of(state=state)


def test_a_question_needs_an_answer_until_it_has_one() -> None:
    asked = e.QuestionAsked("q", "which?")
    (need,) = needs(told(asked))
    assert (need.kind, need.text) == ("question", "The agent asks: which?")
    assert need.actions == (Action("answer", "r1"),)
    assert need.commands == 'ralph tell r1 "…"'
    assert not needs(told(asked, e.PersonTold(2, (PersonNote("n", "this one", Question("q", "which?")),))))


@pytest.mark.parametrize(
    ("outcome", "command"),
    [
        ("exhausted", "ralph resume r1 -m 10"),
        ("budget", "ralph resume r1 --max-cost 6"),
        ("timeout", "ralph resume r1 --max-time 1h"),
        ("stalled", 'ralph tell r1 "…" && ralph resume r1'),
        ("failed", "ralph resume r1"),
        ("interrupted", "ralph resume r1"),
        ("fatal", "ralph resume r1"),
    ],
)
def test_a_run_that_ended_unfinished_has_a_command_that_resumes_it(outcome: str, command: str) -> None:
    record = Iteration(number=1, turn=Turn(text="x"), checks=(Check(name="a", passed=False, exit_code=1, log="a.log"),))
    first, second = needs(
        told(
            e.IterationFinished(1, record),
            e.RunFinished(
                outcome=Outcome(outcome),
                reason="why",
                iterations=1,
                cost_usd=3.0,
                duration_s=1.0,
                exit_code=1,
                branch="ralph/r1",  # not offered to accept, because accept would refuse it
            ),
        )
    )
    assert (first.kind, first.commands) == (outcome, command)
    assert first.text.endswith(".")
    assert second.text == "A check still fails (exit 1): a: see /ws/a.log"


@pytest.mark.parametrize("state", ["killed", "paused"])
def test_a_run_without_an_outcome_can_be_resumed(state: str) -> None:
    (need,) = needs(told(state=state))
    assert (need.kind, need.actions) == (state, (Action("resume", "r1"),))


def test_a_running_run_needs_nothing() -> None:
    for state in ("running", "waiting", "stopping", "asking"):
        assert not needs(told(state=state))


def test_unverified_work_needs_a_look_and_a_branch_needs_a_merge() -> None:
    finished = e.RunFinished(
        outcome=Outcome.DONE,
        reason="why",
        iterations=1,
        cost_usd=None,
        duration_s=1.0,
        exit_code=0,
        verified=False,
        branch="ralph/r1",
    )
    assert [need.commands for need in needs(told(finished))] == ["", "ralph accept r1"]
    assert not needs(
        told(
            e.RunFinished(outcome=Outcome.DONE, reason="why", iterations=1, cost_usd=None, duration_s=1.0, exit_code=0)
        )
    )


def test_a_branch_without_changes_needs_nothing() -> None:
    assert not needs(
        told(
            e.RunFinished(
                outcome=Outcome.STOPPED,
                reason="why",
                iterations=1,
                cost_usd=None,
                duration_s=1.0,
                exit_code=0,
                branch="ralph/r1",
                untouched=True,
            )
        )
    )


def test_failed_commits_restored_files_and_warnings_are_needs() -> None:
    record = Iteration(number=1, turn=Turn(text="x"), touched=("b", "a"))
    events = (e.IterationFinished(1, record), e.ScmFinished(1, "push", False, "no remote"), e.Notice("mind the gap"))
    assert [need.text for need in needs(told(*events))] == [
        "push failed after iteration 1: no remote",
        "The agent changed protected files, which ralph restored or removed: a, b. "
        "Its versions are in /ws/.ralph/runs/r1/protected/aside",
        "mind the gap",
    ]


def ended(outcome: str, **more: object) -> e.RunFinished:
    return e.RunFinished(
        outcome=Outcome(outcome), reason="why", iterations=1, cost_usd=None, duration_s=1.0, exit_code=0, **more
    )


def test_after_a_run_the_likeliest_next_step_comes_first() -> None:
    record = Iteration(number=1, turn=Turn(text="x"), tree=Fingerprint.parse("t:2"))
    began, worked = replace(STARTED, base_tree=Fingerprint.parse("t:1")), e.IterationFinished(1, record)
    done = told(worked, ended("done"), started=began)
    assert [step.verb for step in next_steps(done)] == ["diff", "report"]
    branched = told(worked, ended("done", branch="ralph/x", worktree="/w"), started=began)
    assert [step.verb for step in next_steps(branched)] == ["diff", "accept", "discard"]
    stalled = told(worked, ended("stalled"), started=began)
    assert [step.verb for step in next_steps(stalled)] == ["resume", "diff", "show"]
    assert next_steps(told(ended("fatal")))[0].verb == "resume"


def test_a_run_that_lacks_only_a_claim_can_be_finished_by_its_checks() -> None:
    record = Iteration(number=1, turn=Turn(text="x"), checks=(Check(name="a", passed=True),))
    (need,) = needs(
        told(replace(STARTED, claims=("tag:COMPLETE",)), e.IterationFinished(1, record), ended("exhausted"))
    )
    assert need.kind == "unclaimed"
    assert need.commands.endswith("--until checks")
    (with_tasks,) = needs(
        told(
            replace(STARTED, claims=("tag:COMPLETE",), gates=("checks", "tasks")),
            e.IterationFinished(1, record),
            ended("exhausted"),
        )
    )
    assert "--until checks" not in with_tasks.commands, "tasks may be open"
