"""Which facts end a run, which ones go into the next prompt, and in which order the rules are asked."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from ralph.core import rules, stuck_rules
from ralph.core.claims import Claim, Reading
from ralph.core.model import (
    Check,
    Continue,
    Failure,
    Fingerprint,
    HandOver,
    Iteration,
    Note,
    Opinion,
    Outcome,
    Refusal,
    Rule,
    Run,
    Snapshot,
    Stop,
    Task,
    Turn,
    Usage,
    Wait,
)
from ralph.loop import judge
from ralph.testing import a_run

RED = Check(name="make test", passed=False, exit_code=2, head="boom", tail="boom")
GREEN = Check(name="make test", passed=True)
CRASH = Turn(text="", exit_code=1, failure=Failure("ordinary", "exit code 1"))


def state(text: str | None) -> Fingerprint | None:
    return None if text is None else Fingerprint.parse(text)


def iterations(*trees: str | None) -> list[Iteration]:
    """Return iterations that differ in their trees alone."""
    turn, states = Turn(text="same"), map(state, trees)
    return [Iteration(number=number, turn=turn, tree=tree) for number, tree in enumerate(states, 1)]


def opinions(rule: Rule, run: Run) -> list[Opinion]:
    return list(rule(run))


def outcome(run: Run, asked: Sequence[Rule]) -> Outcome | None:
    verdict = judge(run, asked)
    return verdict.outcome if isinstance(verdict, Stop) else None


@pytest.mark.parametrize(
    ("trees", "stalls"),
    [
        (("a",), False),
        (("a", "a"), True),
        (("a", "b"), False),
        (("b", "a", "a"), True),
        (("a", "a", "b"), False),
        ((None, None), True),
    ],
)
def test_the_same_answer_on_the_same_tree_is_a_stall(trees: tuple[str | None, ...], stalls: bool) -> None:
    assert bool(opinions(stuck_rules.stalled(), a_run(*iterations(*trees)))) is stalls


def test_another_answer_is_not_a_stall() -> None:
    assert not opinions(stuck_rules.stalled(), a_run("one", "two"))


def test_two_failed_turns_are_failures_not_a_stall() -> None:
    assert not opinions(stuck_rules.stalled(), a_run(CRASH, CRASH))


def test_a_check_that_turned_green_is_not_a_stall() -> None:
    run = a_run(
        Iteration(number=1, turn=Turn(text="x"), checks=(RED,), tree=Fingerprint.parse("a")),
        Iteration(number=2, turn=Turn(text="x"), checks=(GREEN,), tree=Fingerprint.parse("a")),
    )
    assert not opinions(stuck_rules.stalled(), run)


@pytest.mark.parametrize(
    ("trees", "commits", "stalls"),
    [
        (("head:files", "next:files"), False, False),
        (("head:files", "next:files"), True, True),
        (("head:files", "next:other"), True, False),
        (("head:files:big", "next:files:bigger"), True, False),
        (("head:files", None), True, False),
        (("walked", "changed"), True, False),
    ],
)
def test_a_commit_is_a_sign_of_work_unless_ralph_makes_it(
    trees: tuple[str | None, ...], commits: bool, stalls: bool
) -> None:
    assert bool(opinions(stuck_rules.stalled(commits=commits), a_run(*iterations(*trees)))) is stalls


def test_a_stall_may_need_several_repeats() -> None:
    assert not opinions(stuck_rules.stalled(2), a_run(*iterations("a", "a")))
    assert opinions(stuck_rules.stalled(2), a_run(*iterations("a", "a", "a")))


def done_when(*gates: Rule) -> Rule:
    return rules.completed([Claim("word", "STOP")], gates)


def said_twice(*gates: Rule) -> Rule:
    claims = [Claim("word", "STOP")]
    return rules.completed(claims, [*gates, rules.claimed_in_a_row(2, claims, Reading(), gates)])


@pytest.mark.parametrize(
    ("answers", "trees", "accepted"),
    [
        (("STOP",), "a", False),
        (("STOP", "STOP"), "ab", False),
        (("STOP", "STOP"), "aa", True),
        (("STOP", "not yet", "STOP"), "aaa", False),
        (("STOP", "not yet", "STOP", "STOP"), "abcc", True),
        (("STOP", "STOP", "STOP"), "abb", True),
    ],
)
def test_two_claims_in_a_row_count_if_the_second_turn_changed_nothing(
    answers: tuple[str, ...], trees: str, accepted: bool
) -> None:
    done = [
        Iteration(number=number, turn=Turn(text=text), tree=Fingerprint.parse(f"{number}:{tree}"))
        for number, (text, tree) in enumerate(zip(answers, trees, strict=True), 1)
    ]
    verdict = judge(a_run(*done), [said_twice()])
    assert isinstance(verdict, Stop) is accepted
    if not accepted and answers[-1] == "STOP":
        assert [refusal.gate for refusal in verdict.refusals] == ["claims"]


def test_the_agent_is_not_reminded_of_a_claim_that_a_gate_refused() -> None:
    run = a_run(Iteration(number=1, turn=Turn(text="STOP"), checks=(RED,)))
    verdict = judge(run, [said_twice(rules.failing_checks())])
    assert [refusal.gate for refusal in verdict.refusals] == ["checks"]


def test_a_run_is_done_if_no_gate_objects_to_the_claim() -> None:
    assert outcome(a_run("STOP"), [done_when(rules.failing_checks())]) is Outcome.DONE


def test_a_claim_with_a_red_check_is_refused_and_the_agent_is_told() -> None:
    run = a_run(Iteration(number=1, turn=Turn(text="STOP"), checks=(RED,)))
    verdict = judge(run, [rules.failing_checks(), done_when(rules.failing_checks())])
    assert isinstance(verdict, Continue)
    assert [note.about for note in verdict.notes] == ["checks"], "told once, though the rule is also the gate"
    assert verdict.refusals[0] == Refusal("STOP", "checks", verdict.refusals[0].reason)
    assert "make test" in verdict.refusals[0].reason


TALK = "I will not say STOP yet"


def test_a_marker_that_does_not_count_is_reported() -> None:
    verdict = judge(a_run(TALK), [done_when()])
    assert isinstance(verdict, Continue)
    assert verdict.refusals == (Refusal("STOP", "wording", f'the agent wrote "{TALK}": it is not alone on its line'),)
    (note,) = verdict.notes
    assert note.about == "wording"
    assert note.text.startswith(f'You wrote "{TALK}"')
    assert "put STOP alone on the last line, after an empty line" in note.text


def test_one_accepted_claim_is_enough_if_another_is_refused() -> None:
    rule = rules.completed([Claim("tag", "COMPLETE"), Claim("word", "STOP")], ())
    assert outcome(a_run("Here is the COMPLETE plan.\n\nSTOP"), [rule]) is Outcome.DONE


def test_the_reason_never_calls_a_claim_missing_that_was_found() -> None:
    run = a_run(Iteration(number=1, turn=Turn(text=TALK), checks=(GREEN,)))
    verdict = judge(run, [rules.at_most(iterations=1, claims=[Claim("word", "STOP")])])
    assert isinstance(verdict, Stop)
    assert "did not" not in verdict.reason
    assert f'what the agent wrote ("{TALK}") does not count' in verdict.reason


def test_checks_that_were_not_run_do_not_count_as_green() -> None:
    run = a_run(Iteration(number=1, turn=Turn(text="STOP"), checked=False))
    assert outcome(run, [done_when(rules.failing_checks())]) is None


def test_checks_that_ran_before_the_latest_turn_do_not_count_as_green() -> None:
    file_there = Snapshot(done_file=True)
    rule = rules.completed([Claim("file", "DONE")], [rules.green_checks()])
    green = a_run(Iteration(number=1, turn=Turn(text="x"), checks=(Check(name="make", passed=True),)), seen=file_there)
    assert outcome(green, [rule]) is Outcome.DONE
    assert outcome(green.retrying(Turn(text="", failure=Failure("transient", "overloaded"))), [rule]) is None
    assert outcome(a_run(seen=file_there), [rule]) is None


NO_STOP = "the agent did not write STOP alone on the last line"


@pytest.mark.parametrize(
    ("turn", "checks", "blame"),
    [
        (Turn(text="still at it"), (GREEN,), f": the checks pass, but {NO_STOP}"),
        (Turn(text="still at it"), (), f": {NO_STOP}"),
        (Turn(text="still at it"), (RED,), ""),
        (Turn(text="STOP"), (GREEN,), ""),
        (Turn(text="STOP", failure=Failure("ordinary", "crashed")), (GREEN,), ": the last turn failed: crashed"),
    ],
)
def test_an_exhausted_run_names_a_missing_claim_only_if_one_was_missing(
    turn: Turn, checks: tuple[Check, ...], blame: str
) -> None:
    run = a_run(Iteration(number=1, turn=turn, checks=checks))
    verdict = judge(run, [rules.at_most(iterations=1, claims=[Claim("word", "STOP")])])
    assert verdict == Stop(Outcome.EXHAUSTED, f"1 iteration without an accepted claim{blame}")


def test_a_claim_on_the_last_allowed_iteration_counts() -> None:
    limits = rules.at_most(iterations=1, cost=0.01, seconds=1)
    turn = Turn(text="STOP", usage=Usage(cost_usd=5.0))
    assert outcome(a_run(turn, seen=Snapshot(elapsed=99)), [done_when(), limits]) is Outcome.DONE


def test_an_interruption_comes_before_every_other_rule() -> None:
    run = a_run("STOP", seen=Snapshot(interrupted="SIGINT", trouble="DONE is a directory"))
    assert outcome(run, [rules.interrupted, rules.fatal_trouble, done_when()]) is Outcome.INTERRUPTED


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"iterations": 2}, Outcome.EXHAUSTED),
        ({"iterations": 3}, None),
        ({"cost": 0.5}, Outcome.BUDGET),
        ({"cost": 0.51}, None),
        ({"tokens": 30}, Outcome.BUDGET),
        ({"tokens": 31}, None),
        ({"seconds": 60}, Outcome.TIMEOUT),
        ({"seconds": 61}, None),
        ({"iterations": 2, "seconds": 60, "cost": 0.5}, Outcome.BUDGET),
        ({"iterations": 2, "seconds": 60}, Outcome.TIMEOUT),
        ({"iterations": 0}, Outcome.EXHAUSTED),
    ],
)
def test_limits_end_a_run_when_they_are_reached(limits: dict[str, float], expected: Outcome | None) -> None:
    turn = Turn(text="x", usage=Usage(input_tokens=10, output_tokens=5, cost_usd=0.25))
    run = a_run(turn, turn, seen=Snapshot(elapsed=60))
    assert outcome(run, [rules.at_most(**limits)]) is expected  # type: ignore[arg-type]


def test_turns_that_do_not_count_are_still_paid_for() -> None:
    run = a_run("x").retrying(Turn(text="", usage=Usage(cost_usd=1.0)))
    assert outcome(run, [rules.at_most(cost=1.0)]) is Outcome.BUDGET


def test_a_fatal_failure_stops_at_once() -> None:
    run = a_run().retrying(Turn(text="", failure=Failure("fatal", "not logged in")))
    assert judge(run, [rules.fatal_trouble]) == Stop(Outcome.FATAL, "not logged in")


def test_failures_in_a_row_end_the_run_and_a_success_between_resets_the_count() -> None:
    assert outcome(a_run(CRASH, CRASH, CRASH), [stuck_rules.repeated_failures(3)]) is Outcome.FAILED
    assert outcome(a_run(CRASH, "fine", CRASH, CRASH), [stuck_rules.repeated_failures(3)]) is None
    assert outcome(a_run(CRASH, CRASH), [stuck_rules.repeated_failures(0)]) is None


def test_the_next_agent_takes_over_after_failures_in_a_row() -> None:
    agents = ("claude", "codex")
    run = a_run("fine", CRASH, CRASH, CRASH)
    verdict = judge(run, [stuck_rules.repeated_failures(3, agents)])
    assert isinstance(verdict, Continue)
    assert verdict.hand_over
    assert verdict.hand_over.to == "codex"
    taken = replace(run, hand_overs=(HandOver(after=4, agent="claude", to="codex"),))
    assert outcome(taken, [stuck_rules.repeated_failures(3, agents)]) is None
    again = replace(a_run("fine", *[CRASH] * 6), hand_overs=taken.hand_overs)
    assert outcome(again, [stuck_rules.repeated_failures(3, agents)]) is Outcome.FAILED


def test_failed_turns_are_counted_only_after_the_last_one_with_green_checks() -> None:
    def failed(*trees: tuple[str, Check]) -> Run:
        turns = [
            Iteration(number=at, turn=CRASH, checks=(one,), tree=state(tree)) for at, (tree, one) in enumerate(trees, 1)
        ]
        return Run(id="r", base_tree=Fingerprint.parse("a"), iterations=tuple(turns))

    run = failed(("b", RED), ("c", RED), ("d", GREEN), ("d", GREEN), ("d", GREEN))
    assert outcome(run, [stuck_rules.repeated_failures(3)]) is None
    for turns in ((("b", RED), ("c", RED), ("d", RED)), (("a", GREEN), ("a", GREEN), ("a", GREEN))):
        assert outcome(failed(*turns), [stuck_rules.repeated_failures(3)]) is Outcome.FAILED


def test_the_error_of_a_failed_turn_goes_into_the_next_prompt() -> None:
    (note,) = opinions(stuck_rules.last_failure, a_run(CRASH))
    assert isinstance(note, Note)
    assert "exit code 1" in note.text


def test_the_next_open_task_is_named() -> None:
    tasks = (Task("first", True), Task("stuck", False, failed=True), Task("second", False))
    (note,) = opinions(rules.open_tasks, a_run(seen=Snapshot(tasks=tasks)))
    assert isinstance(note, Note)
    assert note.text == "2 of 3 tasks are not done. Failed or blocked: 1. The next one: second"
    assert not opinions(rules.open_tasks, a_run(seen=Snapshot(tasks=(Task("first", True),))))


@pytest.mark.parametrize(
    ("turn", "trees", "accepted"),
    [
        (Turn(text="x", tool_calls=0), ("a", "b"), False),
        (Turn(text="x", tool_calls=1), ("a", "a"), True),
        (Turn(text="x", tool_calls=None), ("a", "a"), False),
        (Turn(text="x", tool_calls=None), ("a", "b"), True),
        (Turn(text="x", tool_calls=None), ("a", None), False),
    ],
)
def test_a_claim_needs_work(turn: Turn, trees: tuple[str | None, str | None], accepted: bool) -> None:
    run = a_run(Iteration(number=1, turn=turn, tree=state(trees[1])), base_tree=state(trees[0]))
    assert (not opinions(rules.no_work(1), run)) is accepted


def test_a_doubt_lets_the_claim_pass_with_a_warning() -> None:
    rule = rules.completed([Claim("word", "STOP")], (), doubts=[rules.no_work(1)])
    verdict = judge(a_run(Turn(text="STOP", tool_calls=0)), [rule])
    assert isinstance(verdict, Stop)
    assert "warning: Promise detected" in verdict.reason


def test_tool_calls_are_counted_over_the_whole_run() -> None:
    run = a_run(Turn(text="x", tool_calls=1), Turn(text="x", tool_calls=0))
    assert not opinions(rules.no_work(1), run)
    assert opinions(rules.no_work(2), run)


def test_a_claim_is_refused_if_protected_files_were_touched() -> None:
    run = a_run(Iteration(number=1, turn=Turn(text="STOP"), touched=("tests/test_a.py",)))
    assert outcome(run, [done_when(rules.protected_files)]) is None


def test_the_pause_between_turns_starts_when_the_last_one_ended() -> None:
    run = a_run(Turn(text="x", ended_at=100.0), seen=Snapshot(at=100.25))
    assert opinions(rules.pause_between_turns(1.0), run) == [Wait(0.75, "pause between turns")]
    assert not opinions(rules.pause_between_turns(1.0), run.seeing(Snapshot(at=101.0)))


def test_a_rule_that_raises_ends_the_run_instead_of_being_skipped() -> None:
    def broken(run: Run) -> list[Opinion]:
        raise RuntimeError("broken guard")

    with pytest.raises(RuntimeError, match="broken guard"):
        judge(a_run("STOP"), [broken, done_when()])


def test_the_agent_is_reminded_once_that_green_work_is_not_claimed() -> None:
    rule = rules.claim_reminder([Claim("tag", "COMPLETE")])
    green = [Iteration(number=number, turn=Turn(text="I fixed it."), checks=(GREEN,)) for number in (1, 2)]
    (note,) = opinions(rule, a_run(green[0]))
    assert isinstance(note, Note)
    assert "COMPLETE alone on the last line" in note.text
    assert not opinions(rule, a_run(*green))
    assert not opinions(rule, a_run(Iteration(number=1, turn=Turn(text="Fixed.\n\nCOMPLETE"), checks=(GREEN,))))
    assert not opinions(rule, a_run(Iteration(number=1, turn=Turn(text="I fixed it."), checks=(RED,))))


def test_an_agent_that_cannot_continue_can_report_that() -> None:
    rule = rules.blocked("BLOCKED")
    (stop,) = opinions(rule, a_run("I need a key.\n\n<response>BLOCKED: there is no API key</response>"))
    assert stop == Stop(Outcome.BLOCKED, "there is no API key")
    note, refusal = opinions(rule, a_run("I will not say <response>BLOCKED: x</response> here, but go on."))
    assert isinstance(note, Note)
    assert isinstance(refusal, Refusal)
    assert refusal.gate == "wording"
    assert not opinions(rule, a_run("All is well."))
    assert not opinions(rules.blocked(""), a_run("<response>BLOCKED: x</response>"))


def test_two_turns_of_nothing_but_denials_end_the_run() -> None:
    denied = [
        Iteration(
            number=number,
            turn=Turn(text="I may not.", denials=("Bash", "Edit"), tool_calls=2),
            tree=Fingerprint.parse("same"),
        )
        for number in (1, 2)
    ]
    (stop,) = opinions(stuck_rules.not_allowed(), a_run(*denied, base_tree=Fingerprint.parse("same")))
    assert isinstance(stop, Stop)
    assert stop.outcome is Outcome.FAILED
    assert "may not use Bash, Edit" in stop.reason
    assert not opinions(stuck_rules.not_allowed(), a_run(denied[0], base_tree=Fingerprint.parse("same")))
    assert not opinions(stuck_rules.not_allowed(), a_run(*denied, base_tree=Fingerprint.parse("another")))


def test_a_problem_that_no_turn_can_fix_ends_the_run() -> None:
    assert outcome(a_run("x", seen=Snapshot(trouble="the disk is full")), [rules.fatal_trouble]) is Outcome.FATAL
    refused = a_run("x").retrying(Turn(text="", failure=Failure("fatal", "wrong key")))
    assert outcome(refused, [rules.fatal_trouble]) is Outcome.FATAL
