from collections.abc import Callable

from ralph.core import events as e
from ralph.core.model import Failure, Iteration, Turn
from ralph.history.feed import MOST_CHECKS, MOST_ITERATIONS, Bar, Checked, Facts

STARTED = e.RunStarted("go", "checks", "claude", "/w", 10, ("check 1", "check 2"))


def heard(*events: e.Event) -> Facts:
    facts = Facts()
    for event in events:
        facts.hear(event)
    return facts


def test_checks_are_known_before_they_have_run() -> None:
    assert list(heard(STARTED).checks.values()) == [Checked("check 1"), Checked("check 2")]


def test_a_check_runs_and_ends() -> None:
    running = heard(STARTED, e.CheckStarted("check 1"))
    assert running.checks["check 1"] == Checked("check 1", is_running=True)
    ended = heard(STARTED, e.CheckStarted("check 1"), e.CheckFinished("check 1", False, 1, 2.5))
    assert ended.checks["check 1"] == Checked("check 1", False, 2.5)


def test_each_iteration_is_a_bar(iteration: Callable[..., Iteration]) -> None:
    facts = heard(
        STARTED, e.IterationFinished(1, iteration(1, True, False)), e.IterationFinished(2, iteration(2, True, True))
    )
    assert facts.bars == [Bar(1, 1, 2, 0.1, is_red=True), Bar(2, 2, 2, 0.1)]


def test_a_turn_that_failed_is_red_without_any_check() -> None:
    failed = Iteration(1, Turn("", 1, failure=Failure("ordinary", "exited with 1")))
    assert heard(STARTED, e.IterationFinished(1, failed)).bars == [Bar(1, 0, 0, 0.0, is_red=True)]


def test_a_todo_list_is_of_one_turn() -> None:
    items = (e.TodoItem("read", "done"), e.TodoItem("write", "active"))
    facts = heard(STARTED, e.AgentStarted("claude"), e.TodoUpdated(items))
    assert facts.todo == items
    facts.hear(e.AgentStarted("claude", purpose="message"))
    assert facts.todo == items
    facts.hear(e.AgentStarted("claude"))
    assert facts.todo == ()


def test_a_run_that_goes_on_keeps_what_is_known(iteration: Callable[..., Iteration]) -> None:
    facts = heard(STARTED, e.CheckFinished("check 1", True), e.IterationFinished(1, iteration(1, True)), STARTED)
    assert facts.checks["check 1"].passed
    assert len(facts.bars) == 1


def test_memory_is_bounded(iteration: Callable[..., Iteration]) -> None:
    facts = heard(STARTED)
    for number in range(1, MOST_ITERATIONS + 11):
        facts.hear(e.IterationFinished(number, iteration(number, True)))
        facts.hear(e.CheckStarted(f"check {number}"))
    assert len(facts.bars) == MOST_ITERATIONS
    assert facts.bars[0].number == 11
    assert len(facts.checks) == MOST_CHECKS
