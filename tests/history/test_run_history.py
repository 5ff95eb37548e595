"""The events of a run are folded into its history: iterations, spans of time, refusals, questions."""

import time

import pytest

from ralph.core import events as e
from ralph.core.model import Check, Failure, Fingerprint, Iteration, Outcome, PersonNote, Question, Turn, Usage
from ralph.history.fold import UNCOUNTED, Fold
from ralph.history.run_history import RunHistory

STARTED = e.RunStarted(
    goal="goal",
    preset="checks",
    agent="claude",
    workspace="/ws",
    max_iterations=9,
    checks=("a",),
    claims=("tag:X",),
    gates=("checks",),
    base_tree=Fingerprint.parse("h:t0"),
)
BEGUN = e.IterationStarted(1, 9, "goal")
RED, GREEN = Check(name="a", passed=False, exit_code=1, duration=1.0), Check(name="a", passed=True, duration=1.0)


def fold_of(*events: e.Event) -> Fold:
    fold = Fold("r1")
    for at, event in enumerate(events):
        fold.add(event, 1000.0 + at)
    return fold


def told(*events: e.Event, state: str = "", now: float = 0.0) -> RunHistory:
    return fold_of(*events).as_of(now, state)


def iteration(number: int, *checks: Check, **more: object) -> e.IterationFinished:
    turn = Turn(
        text="answer", tool_calls=2, usage=Usage(input_tokens=100, output_tokens=10, cost_usd=0.5), duration=3.0
    )
    record = Iteration(
        number=number, turn=turn, checks=checks or (RED,), tree=Fingerprint.parse(f"h:t{number}"), **more
    )  # type: ignore[arg-type]
    return e.IterationFinished(number, record)


def finished(outcome: str) -> e.RunFinished:
    return e.RunFinished(
        outcome=Outcome(outcome),
        reason="why",
        iterations=1,
        cost_usd=None,
        duration_s=1.0,
        exit_code=0 if outcome == "done" else 1,
    )


def test_a_whole_run_becomes_a_history(run: list[e.Event]) -> None:
    history = told(*run)
    assert [(one.number, one.result) for one in history.iterations] == [(1, "refused"), (2, "failed"), (3, "done")]
    first, _, third = history.iterations
    assert [(check.name, check.passed, check.exit_code) for check in first.checks] == [
        ("make test", False, 1),
        ("make lint", True, 0),
    ]
    assert [(one.claim, one.gate) for one in first.refused] == [("COMPLETE", "checks")]
    assert third.scm == [("commit", True, "Accept empty input"), ("push", False, "no remote named origin")]
    assert (history.outcome, history.state, history.finished) == ("done", "done", 3)


FAILED = Turn(text="x", exit_code=1, failure=Failure("ordinary", "exit code 1"))


@pytest.mark.parametrize(
    ("record", "after", "result"),
    [
        (Iteration(number=1, turn=Turn(text="x"), checks=(GREEN,)), [], "no claim"),
        (Iteration(number=1, turn=Turn(text="x"), checks=(GREEN, RED)), [], "checks failed"),
        (Iteration(number=1, turn=Turn(text="x"), checks=(GREEN,)), [finished("done")], "done"),
        (Iteration(number=1, turn=Turn(text="x"), checks=(GREEN,)), [finished("interrupted")], "interrupted"),
        (Iteration(number=1, turn=Turn(text="x"), checks=(RED,)), [finished("interrupted")], "checks failed"),
        (Iteration(number=1, turn=FAILED), [finished("failed")], "failed"),
        (Iteration(number=1, turn=FAILED), [e.ClaimRejected("DONE", "checks", "…")], "failed"),
        (Iteration(number=1, turn=FAILED), [finished("done")], "done"),  # the DONE file counts, however the turn ended
        (Iteration(number=1, turn=Turn(text="x"), checked=False), [finished("timeout")], "not checked"),
        (Iteration(number=1, turn=Turn(text="x"), checks=(RED,)), [e.ClaimRejected("DONE", "checks", "…")], "refused"),
        (
            Iteration(number=1, turn=Turn(text="x"), checks=(GREEN,)),
            [e.IterationStarted(2, 9, "g"), finished("interrupted")],
            "no claim",
        ),
    ],
)
def test_the_result_of_an_iteration_depends_on_its_events(record: Iteration, after: list[e.Event], result: str) -> None:
    history = told(STARTED, BEGUN, e.IterationFinished(1, record), *after)
    assert history.iterations[0].result == result


def test_an_interrupted_iteration_is_judged_when_the_run_is_resumed() -> None:
    interrupted = (STARTED, BEGUN, iteration(1, GREEN), finished("interrupted"))
    assert [one.result for one in told(*interrupted, STARTED, finished("done")).iterations] == ["done"]
    again = told(*interrupted, STARTED, e.IterationStarted(2, 9, "goal"), finished("interrupted"))
    assert [one.result for one in again.iterations] == ["no claim", "unfinished"]


def test_a_claim_is_refused_once_however_many_checks_object() -> None:
    refusals = [e.ClaimRejected("DONE", "checks", f"check {number} failed") for number in range(3)]
    again = [STARTED, *refusals]  # a run that continues looks at its last claim once more
    history = told(STARTED, BEGUN, iteration(1), *refusals, e.IterationStarted(2, 9, "g"), iteration(2), *refusals)
    assert [len(one.refused) for one in history.iterations] == [3, 3]
    assert history.refused_claims == 2
    history = told(STARTED, BEGUN, iteration(1), *refusals, *again)
    assert (history.refused_claims, len(history.iterations[0].refused)) == (1, 3)


def test_an_iteration_that_was_cut_off_and_started_again_counts_once() -> None:
    started = (BEGUN, e.AgentStarted("claude"))
    history = told(
        STARTED, *started, STARTED, *started, e.AgentFinished(exit_code=0, duration_s=1.0), iteration(1, GREEN)
    )
    assert [one.number for one in history.iterations] == [1]
    assert history.iterations[0].is_whole


def test_a_run_of_one_turn_has_one_iteration() -> None:
    history = told(STARTED, e.AgentStarted("claude"), e.AgentFinished(exit_code=0, duration_s=1.0), iteration(1))
    assert [one.number for one in history.iterations] == [1]


def test_a_run_without_an_outcome_has_the_given_state() -> None:
    history = told(STARTED, BEGUN, e.AgentStarted("claude"), state="killed")
    assert (history.state, history.iterations[0].result) == ("killed", "unfinished")


def test_a_running_run_lasts_until_now_even_if_its_last_event_is_old() -> None:
    fold = fold_of(STARTED, BEGUN, e.AgentStarted("claude"))
    for now in (4600.0, 8200.0):  # a look does not change what is looked at
        history = fold.as_of(now, "running")
        assert (history.seconds, history.ended) == (now - 1000.0, now)


def test_cost_and_tokens_of_all_turns_are_added_up() -> None:
    lost = e.TurnNotCounted(Turn(text="", usage=Usage(input_tokens=7, cost_usd=0.25)))
    history = told(STARTED, BEGUN, lost, iteration(1), e.IterationStarted(2, 9, "g"), iteration(2))
    assert (history.cost_usd, history.usage.tokens) == (1.25, 227)


def test_a_resumed_run_has_the_total_cost_of_its_last_event() -> None:
    ended = e.RunFinished(outcome=Outcome.DONE, reason="why", iterations=7, cost_usd=9.5, duration_s=1.0, exit_code=0)
    history = told(STARTED, e.IterationStarted(7, 9, "g"), iteration(7), ended)
    assert (history.cost_usd, history.finished) == (9.5, 7)


def test_the_trees_before_and_after_each_iteration_are_known() -> None:
    history = told(STARTED, BEGUN, iteration(1), e.IterationStarted(2, 9, "g"), iteration(2))
    assert history.trees() == {1: ("t0", "t1"), 2: ("t1", "t2"), 0: ("t0", "t2")}


def test_a_question_has_its_answer() -> None:
    asked = e.QuestionAsked("q", "which?")
    answer = e.PersonTold(2, (PersonNote("n", "this one", Question("q", "which?")),))
    assert [question.answer for question in told(STARTED, asked, asked).questions] == [""]
    assert [question.answer for question in told(STARTED, asked, answer).questions] == ["this one"]


def test_checks_are_listed_before_while_and_after_they_run() -> None:
    assert fold_of(STARTED).last_results == {"a": None}
    running = fold_of(STARTED, BEGUN, e.CheckStarted("a"))
    assert running.running == {"a"}
    ended = fold_of(
        STARTED, BEGUN, e.CheckStarted("a"), e.CheckFinished(name="a", passed=False, exit_code=1, duration_s=2.5)
    )
    result = ended.last_results["a"]
    assert result
    assert (ended.running, result.passed, result.seconds) == (set(), False, 2.5)


def test_a_check_that_never_failed_is_not_proven() -> None:
    never = Check(name="b", passed=True, duration=1.0)
    history = told(STARTED, BEGUN, iteration(1, RED, never), e.IterationStarted(2, 9, "goal"), iteration(2, GREEN))
    assert (history.checked, history.proven, history.unproven) == (["a", "b"], ["a"], ["b"])


def test_a_resumed_run_keeps_its_check_results() -> None:
    result = fold_of(STARTED, BEGUN, iteration(1, GREEN), STARTED).last_results["a"]
    assert result
    assert result.passed


def test_a_new_turn_clears_the_todo_list() -> None:
    items = (e.TodoItem("read", "done"), e.TodoItem("write", "active"))
    fold = fold_of(STARTED, e.AgentStarted("claude"), e.TodoUpdated(items))
    assert fold.todo == items
    fold.add(e.AgentStarted("claude", purpose="message"), 0.0)
    assert fold.todo == items
    fold.add(e.AgentStarted("claude"), 0.0)
    assert fold.todo == ()


def test_events_that_change_nothing_are_not_read() -> None:
    assert e.IterationFinished not in UNCOUNTED
    assert {e.AgentText, e.ToolStarted, e.ToolFinished} <= UNCOUNTED


def test_the_time_to_read_a_journal_grows_linearly() -> None:
    def seconds(count: int) -> float:
        asked = [e.QuestionAsked(f"q{at}", "why?") for at in range(count)]
        told = [e.PersonTold(1, (PersonNote(f"n{at}", "so", Question(f"q{at}", "why?")),)) for at in range(count)]
        turns = [
            event
            for at in range(1, count)
            for event in (
                e.IterationStarted(at, None, "goal"),
                e.IterationFinished(at, Iteration(number=at, turn=Turn(text=""))),
                e.ScmFinished(1, "commit", True),
                e.Spent(1, "commit", Usage()),
            )
        ]
        began = time.thread_time()
        history = fold_of(STARTED, *asked, *told, *turns).history
        assert (len(history.questions), len(history.iterations)) == (count, count - 1)
        return time.thread_time() - began

    assert min(seconds(5_000) / seconds(500) for _ in range(3)) < 20
