import pytest

from ralph.core import events as e
from ralph.core.model import Check, Failure, Iteration, Review, Turn
from ralph.show.tally import Tally, outcome_sentence, whereabouts


def finished(outcome: str = "done", reason: str = "the agent said DONE", **more: object) -> e.RunFinished:
    facts: dict[str, object] = {"iterations": 3, "cost_usd": 0.42, "duration_s": 72.0, "exit_code": 0} | more
    return e.RunFinished(outcome, reason, **facts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("event", "failing", "sentence"),
    [
        (
            finished(reason="the agent said COMPLETE and 2 checks passed"),
            [],
            "ralph: done after 3 iterations: the agent said COMPLETE and 2 checks passed (1m12s, $0.42)",
        ),
        (
            finished(iterations=1, verified=False, cost_usd=None),
            [],
            "ralph: done (unverified) after 1 iteration: the agent said DONE; "
            "no gate was configured, so nothing has verified it (1m12s)",
        ),
        (
            finished("exhausted", "10 iterations without an accepted claim", iterations=10, exit_code=1),
            ["make lint"],
            "ralph: exhausted: 10 iterations without an accepted claim; still failing: make lint (1m12s, $0.42)",
        ),
        (
            finished("stalled", "iteration 4 gave the same answer as the one before", iterations=4, exit_code=1),
            [],
            "ralph: stalled: iteration 4 gave the same answer as the one before (1m12s, $0.42)",
        ),
        (
            finished("budget", "$2.01 of $2.00 spent", exit_code=1),
            ["a", "b", "c", "d", "e"],
            "ralph: budget after 3 iterations: $2.01 of $2.00 spent; still failing: a, b, c and 2 more (1m12s, $0.42)",
        ),
        (
            finished("interrupted", "received SIGINT", iterations=0, cost_usd=None, duration_s=0.4, exit_code=130),
            [],
            "ralph: interrupted: received SIGINT (0.4s)",
        ),
        (
            finished("fatal", "bad\nlogin \x1b[31m", iterations=0, cost_usd=None, duration_s=0, exit_code=2),
            [],
            "ralph: fatal: bad login (0s)",
        ),
        (finished("failed", "", exit_code=1), [], "ralph: failed after 3 iterations (1m12s, $0.42)"),
    ],
)
def test_the_outcome_is_one_plain_sentence(event: e.RunFinished, failing: list[str], sentence: str) -> None:
    assert outcome_sentence(event, failing) == sentence


def test_work_in_a_worktree_can_be_found_and_taken_over() -> None:
    assert whereabouts(finished()) == []
    assert whereabouts(finished(worktree="/tmp/w", branch="ralph/1")) == [
        "The work is on branch ralph/1 in /tmp/w",
        "To take it over: git merge ralph/1",
    ]
    assert whereabouts(finished(worktree="/tmp/w")) == ["The work is in /tmp/w"]
    cut_off = whereabouts(finished("interrupted", worktree="/tmp/w", branch="ralph/1"))
    assert cut_off[-1] == "To take what is committed of it over: git merge ralph/1"


def test_where_nothing_was_changed_there_is_nothing_to_take_over() -> None:
    untouched = finished(worktree="/tmp/w", branch="ralph/1", untouched=True)
    assert whereabouts(untouched) == ["Nothing was changed on branch ralph/1 in /tmp/w"]


RED, GREEN = Check("make test", False, 1), Check("make lint", True)


def happened(iteration: Iteration, *after: e.Event, outcome: str = "exhausted") -> str:
    tally = Tally()
    for event in (e.IterationFinished(iteration.number, iteration), *after, finished(outcome)):
        tally(event)
    return tally.rows[0].happened


@pytest.mark.parametrize(
    ("iteration", "after", "outcome", "what"),
    [
        (Iteration(1, Turn("x"), (GREEN,)), (), "exhausted", "no claim"),
        (Iteration(1, Turn("x"), (GREEN, RED)), (), "exhausted", "checks failed"),
        (Iteration(1, Turn("x"), (GREEN,)), (), "done", "done"),
        (Iteration(1, Turn("x"), (GREEN,)), (), "interrupted", "interrupted"),
        (Iteration(1, Turn("x"), (RED,)), (), "interrupted", "checks failed"),
        (Iteration(1, Turn("x", failure=Failure("ordinary", "exit 1"))), (), "failed", "failed: exit 1"),
        (
            Iteration(1, Turn("x"), (RED,)),
            (e.ClaimRejected("DONE", "checks", "…"), e.ClaimRejected("DONE", "tasks", "…")),
            "exhausted",
            "claim refused: checks, tasks",
        ),
        (Iteration(1, Turn("x"), (GREEN,)), (e.ScmFinished(1, "commit", True),), "done", "done, committed"),
        (Iteration(1, Turn("x"), (GREEN,)), (e.ScmFinished(1, "commit", False),), "done", "done"),
        (Iteration(1, Turn("x"), reviews=(Review("a", True), Review("b", True))), (), "done", "done, 2 reviews"),
    ],
)
def test_each_row_says_what_happened(iteration: Iteration, after: tuple[e.Event, ...], outcome: str, what: str) -> None:
    assert happened(iteration, *after, outcome=outcome) == what


def test_an_iteration_before_the_one_that_was_interrupted_has_been_judged() -> None:
    last = Iteration(1, Turn("x"), (GREEN,))
    assert happened(last, e.IterationStarted(2, 9, "goal"), outcome="interrupted") == "no claim"


def test_a_refusal_belongs_to_the_iteration_before_it(run: list[e.Event]) -> None:
    tally = Tally()
    for event in run:
        tally(event)
    assert [row.happened for row in tally.rows] == [
        "claim refused: checks",
        "failed: the agent exited with 1",
        "done, committed",
    ]
    assert tally.failing == []


def test_a_resumed_run_keeps_the_rows_of_its_first_part(run: list[e.Event]) -> None:
    tally = Tally()
    resumed = e.RunStarted("goal", "checks", "claude", "/repo", 10, resumed=True)
    for event in (*run, resumed, e.IterationFinished(4, Iteration(4, Turn("x"))), finished()):
        tally(event)
    assert [row.number for row in tally.rows] == [1, 2, 3, 4]
