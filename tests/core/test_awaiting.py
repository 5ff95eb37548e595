"""The rules of supervised tasks: what a run waits for, and that no limit ends a run that is nearly done."""

from ralph.core import limits, rules
from ralph.core.claims import Claim
from ralph.core.model import Continue, Failure, Iteration, Outcome, Run, Snapshot, Stop, Turn, Wait
from ralph.loop import judge
from ralph.testing import a_run

DONE = rules.completed([Claim("file", "DONE")], [rules.wait_for_children(300.0)], doubts=[rules.running_children])
SUPERVISE = [
    rules.wait_exit_code,
    rules.unless_waiting(DONE, rules.at_most(iterations=1), rules.pause_between_turns(60.0)),
]


def seen(**facts: object) -> Run:
    return a_run(Turn(text="", ended_at=100.0), seen=Snapshot(at=101.0, done_file=True, **facts))  # type: ignore[arg-type]


def verdict(run: Run) -> Stop | Continue:
    return judge(run, SUPERVISE)


def test_a_claim_without_running_children_is_done() -> None:
    found = verdict(seen())
    assert isinstance(found, Stop)
    assert (found.outcome, found.reason) == (Outcome.DONE, "the file DONE is there")


def test_a_run_waits_for_its_children_before_any_limit() -> None:
    found = verdict(seen(children=("a", "b"), done_for=10.0))
    assert found == Continue(wait=Wait(290.0, "children are running: a, b", children=("a", "b")))


def test_children_that_take_too_long_are_named() -> None:
    found = verdict(seen(children=("a", "b"), done_for=300.0))
    assert isinstance(found, Stop)
    assert found.outcome is Outcome.DONE
    assert found.reason == "the file DONE is there; warning: these children have not ended: a, b"


def test_limits_apply_without_a_claim() -> None:
    found = verdict(a_run("x", seen=Snapshot(children=("a",))))
    assert isinstance(found, Stop)
    assert found.outcome is Outcome.EXHAUSTED


def test_an_exit_code_that_asks_to_wait_takes_precedence_over_done() -> None:
    run = a_run(Turn(text="", exit_code=42), seen=Snapshot(done_file=True))
    found = judge(run, SUPERVISE)
    assert isinstance(found, Stop)
    assert found.outcome is Outcome.STOPPED
    assert isinstance(judge(run.plus(Iteration(number=2, turn=Turn(text=""))), [rules.wait_exit_code]), Continue)


def limited(resets_at: float | None, at: float) -> Run:
    turn = Turn(
        text="", exit_code=1, failure=Failure("limit", "usage limit", resets_at), ended_at=1000.0, agent="claude"
    )
    return a_run(turn, seen=Snapshot(at=at))


def test_if_every_turn_counts_ralph_still_waits_for_a_stated_reset() -> None:
    found = judge(limited(5000.0, 1001.0), [limits.wait_for_limit()])
    assert found == Continue(wait=Wait(3999.0 + limits.AFTER_RESET, "usage limit: usage limit", limited=True))
    assert judge(limited(5000.0, 5000.0 + limits.AFTER_RESET), [limits.wait_for_limit()]) == Continue()


def test_if_every_turn_counts_a_limit_without_a_reset_adds_no_wait() -> None:
    assert judge(limited(None, 1001.0), [limits.wait_for_limit()]) == Continue()
    assert judge(limited(900.0, 1001.0), [limits.wait_for_limit()]) == Continue()
