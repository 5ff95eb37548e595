"""How long a run waits after a usage limit or a transient failure."""

import pytest
from msgspec import structs

from ralph.core import limits, rules
from ralph.core.model import Failure, Iteration, Outcome, Rule, Run, Snapshot, Stop, Turn, Wait
from ralph.loop import judge
from ralph.testing import a_run


def limited(resets_at: float | None = None, at: float = 1000.0, agent: str = "claude") -> Turn:
    return Turn(text="", failure=Failure("limit", "You've hit your limit", resets_at), ended_at=at, agent=agent)


def faulty(at: float = 1000.0, reason: str = "529 Overloaded") -> Turn:
    return Turn(text="", failure=Failure("transient", reason), ended_at=at)


def run_with(*turns: Turn, at: float = 1000.0, elapsed: float = 0.0) -> Run:
    run = a_run()
    for turn in turns:
        run = run.retrying(turn)
    return run.seeing(Snapshot(at=at, elapsed=elapsed))


def wait_of(run: Run, rule: Rule) -> float | None:
    waits = [opinion.seconds for opinion in rule(run) if isinstance(opinion, Wait)]
    return waits[0] if waits else None


def test_ralph_waits_for_a_stated_reset_by_the_wall_clock() -> None:
    run = run_with(limited(resets_at=4600.0), at=1600.0)
    assert wait_of(run, limits.wait_for_limit()) == 3000.0 + limits.AFTER_RESET
    assert wait_of(run.seeing(Snapshot(at=9999.0)), limits.wait_for_limit()) is None, "the machine slept through it"


def test_waits_grow_if_the_end_of_a_limit_is_not_stated() -> None:
    assert wait_of(run_with(limited()), limits.wait_for_limit()) == 60.0
    assert wait_of(run_with(limited(), limited(), limited()), limits.wait_for_limit()) == 240.0


def test_a_reset_in_the_past_does_not_make_a_busy_loop() -> None:
    assert wait_of(run_with(limited(resets_at=10.0)), limits.wait_for_limit()) == 60.0


def test_ralph_does_not_wait_for_a_limit_that_ended_during_the_turn() -> None:
    turn = structs.replace(limited(resets_at=998.0), duration=10.0)
    assert wait_of(run_with(turn), limits.wait_for_limit()) == limits.AFTER_RESET - 2
    assert wait_of(run_with(turn, turn), limits.wait_for_limit()) == 120.0, "once more, and it is a busy loop"


def test_on_limit_stop_ends_the_run() -> None:
    verdict = judge(run_with(limited()), [limits.wait_for_limit("stop")])
    assert isinstance(verdict, Stop)
    assert verdict.outcome is Outcome.FAILED


def test_ralph_does_not_wait_for_a_limit_that_ends_after_the_time_limit() -> None:
    verdict = judge(run_with(limited(resets_at=9000.0)), [limits.wait_for_limit(seconds=600)])
    assert isinstance(verdict, Stop)
    assert verdict.outcome is Outcome.TIMEOUT
    assert "come back in 2.2 h" in verdict.reason


def test_on_limit_switch_continues_with_another_agent_until_all_are_limited() -> None:
    agents = ("claude", "codex")
    one = run_with(limited(resets_at=5000.0))
    assert limits.available(one, agents) == "codex"
    assert wait_of(one, limits.wait_for_limit("switch", agents)) is None
    both = run_with(limited(resets_at=5000.0), limited(resets_at=3000.0, agent="codex"))
    assert limits.available(both, agents) is None
    assert wait_of(both, limits.wait_for_limit("switch", agents)) == 2000.0 + limits.AFTER_RESET


def test_transient_failures_are_retried_with_growing_pauses() -> None:
    pauses = [
        wait_of(run_with(*[faulty(reason=str(n)) for n in range(count)]), limits.retry_transient)
        for count in range(1, 8)
    ]
    assert all(pause is not None for pause in pauses)
    for count, pause in enumerate(pauses):
        assert pause is not None
        assert 0.5 * 2 * 2**count <= pause <= 2 * 2**count


def test_a_lasting_transient_failure_ends_the_run_with_its_reason() -> None:
    failed = [faulty(reason=str(count), at=1000.0 + 30 * count) for count in range(limits.MAX_RETRIES)]
    verdict = judge(run_with(*failed), [limits.retry_transient])
    assert isinstance(verdict, Stop)
    assert verdict.outcome is Outcome.FAILED
    assert failed[-1].failure
    assert failed[-1].failure.reason in verdict.reason


def test_a_transient_failure_is_retried_for_at_least_two_minutes() -> None:
    failed = [faulty(at=1000.0)] * limits.MAX_RETRIES
    pauses = [wait_of(run_with(*failed[:count], at=1000.0), limits.retry_transient) for count in range(1, len(failed))]
    assert sum(pause or 0.0 for pause in pauses) > 120.0
    assert isinstance(judge(run_with(*failed), [limits.retry_transient]), Stop)


def test_the_pause_ends_by_the_clock() -> None:
    assert wait_of(run_with(faulty(at=1000.0), at=1010.0), limits.retry_transient) is None


def test_an_agent_with_a_usage_limit_gets_no_turn_while_another_works() -> None:
    agents = ("claude", "codex")
    run = run_with(limited(resets_at=5000.0)).plus(Iteration(number=1, turn=Turn(text="step", agent="codex")))
    assert not run.retries
    assert limits.available(run.seeing(Snapshot(at=2000.0)), agents) == "codex"
    assert limits.available(run.seeing(Snapshot(at=6000.0)), agents) == "claude"
    assert not run.plus(Iteration(number=2, turn=Turn(text="back", agent="claude"))).limited, (
        "it has worked again: its limit is over"
    )


def test_switching_agents_without_a_stated_reset_does_not_make_a_busy_loop() -> None:
    agents = ("claude", "codex")
    for stated in (None, 10.0):
        both = run_with(*[limited(stated), limited(stated, agent="codex")] * 2)
        assert limits.available(both, agents) is None
        assert wait_of(both, limits.wait_for_limit("switch", agents)) == 120.0


def test_a_lasting_limit_ends_the_run_with_its_reason() -> None:
    verdict = judge(run_with(*[limited()] * limits.MAX_LIMITED_TURNS), [limits.wait_for_limit()])
    assert isinstance(verdict, Stop)
    assert verdict.outcome is Outcome.FAILED
    assert "You've hit your limit" in verdict.reason


@pytest.mark.parametrize("turn", [limited(resets_at=1300.0), limited(), faulty()], ids=["stated", "unstated", "fault"])
def test_a_run_does_not_wait_forever_if_the_clock_was_set_back(turn: Turn) -> None:
    rule = limits.retry_transient if turn.failure and turn.failure.kind == "transient" else limits.wait_for_limit()
    assert wait_of(run_with(turn, at=1001.0), rule) is not None
    assert wait_of(run_with(turn, at=998.0), rule) is not None, "a small correction is no jump"
    assert wait_of(run_with(turn, at=1000.0 - 86400), rule) is None
    assert wait_of(run_with(turn, at=1000.0 + 86400), rule) is None


def test_the_pause_between_turns_is_not_longer_if_the_clock_was_set_back() -> None:
    run = a_run(Turn(text="a", ended_at=1000.0))
    waits = [
        wait_of(run.seeing(Snapshot(at=at)), rules.pause_between_turns(10.0)) for at in (1000.0, 1004.0, 1010.0, 500.0)
    ]
    assert waits == [10.0, 6.0, None, None]
