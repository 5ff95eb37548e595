"""Which iterations are progress, how long a run has made none, and which iteration was best."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from ralph.core.limits import next_worker
from ralph.core.model import Check, Failure, Fingerprint, HandOver, Iteration, Outcome, Run, Snapshot, Stop, Turn
from ralph.core.progress import (
    best_iteration,
    describe_standstill,
    is_measurable,
    list_attempts,
    steps,
    stuck_for,
)
from ralph.core.stuck_rules import stuck

N = 3  # how often new output alone counts


def red(output: str, name: str = "pytest -q", **fields: object) -> Check:
    return Check(name=name, passed=False, exit_code=1, head=output, tail=output, **fields)


def green(name: str = "pytest -q") -> Check:
    return Check(name=name, passed=True)


def pytest_says(failed: int, passed: int) -> Check:
    return red(f"FAILED tests/test_a.py\n{failed} failed, {passed} passed in 0.{failed}{passed}s")


def a_history(*rows: Check | Sequence[Check], trees: Sequence[str] = (), baseline: Sequence[Check] = ()) -> Run:
    iterations = []
    for number, row in enumerate(rows, 1):
        checks = (row,) if isinstance(row, Check) else tuple(row)
        tree = trees[number - 1] if trees else f"head:t{number}"
        iterations.append(Iteration(number=number, turn=Turn(text="ok"), checks=checks, tree=Fingerprint.parse(tree)))
    return Run(
        id="r", base_tree=Fingerprint.parse("head:t0"), iterations=tuple(iterations), baseline=tuple(baseline) or None
    )


def kinds(run: Run) -> list[str]:
    return [step.gain for step in steps(run, N)]


def test_more_passing_checks_than_ever_are_progress() -> None:
    lint, tests = "ruff", "pytest -q"
    run = a_history(
        [red("a", lint), red("b", tests)],
        [green(lint), red("b", tests)],
        [red("a", lint), green(tests)],
        [green(lint), green(tests)],
        baseline=[red("a", lint), red("b", tests)],
    )
    assert kinds(run) == ["", "checks", "", "checks"]


def test_fewer_failures_are_progress_but_not_by_deleting_tests() -> None:
    run = a_history(pytest_says(5, 95), pytest_says(3, 97), pytest_says(2, 40), pytest_says(1, 99))
    assert kinds(run) == ["output", "failures", "", "failures"]


def test_more_tests_with_as_many_failures_are_not_progress() -> None:
    run = a_history(pytest_says(3, 97), pytest_says(3, 107), pytest_says(3, 117))
    assert kinds(run)[1:] == ["", ""]


def test_a_collection_error_after_three_failures_is_not_a_gain() -> None:
    broken = red("ERROR collecting tests/test_a.py\n1 error in 0.1s")
    run = a_history(pytest_says(3, 97), broken, pytest_says(3, 97))
    assert "failures" not in kinds(run)


def test_a_timeout_reports_no_failures() -> None:
    late = red("1 failed, 2 passed in 9s", timeout=120.0)
    assert "failures" not in kinds(a_history(pytest_says(3, 97), late))


def test_new_output_counts_only_n_times_after_the_last_gain() -> None:
    words = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta"]
    run = a_history(*(red(f"random {word}") for word in words), baseline=[red("start")])
    assert kinds(run) == ["output"] * N + [""] * 3
    assert stuck_for(run, N) == 3


def test_times_addresses_temporary_paths_and_numbers_are_not_new_output() -> None:
    run = a_history(
        red("at 0x7f3a in /tmp/pytest-1/x.py line 3\nfailed after 1.2s"),
        red("at 0x7f4b in /tmp/pytest-2/x.py line 9\nfailed after 0.9s"),
    )
    assert kinds(run)[1:] == [""]


def test_numbers_in_the_last_line_of_an_unknown_format_count() -> None:
    run = a_history(red("checking\n7 problems left"), red("checking\n6 problems left"))
    assert kinds(run)[1:] == ["output"]


def test_alternating_failures_are_a_standstill() -> None:
    one, other = red("first thing"), red("second thing")
    run = a_history(one, other, one, other, one, other, baseline=[one])
    assert stuck_for(run, N) == 4


def test_a_green_port_over_many_iterations_is_never_stuck() -> None:
    run = a_history(*[green()] * 12, baseline=[green()])
    assert stuck_for(run, N) == 0


def test_green_iterations_that_change_nothing_are_a_standstill() -> None:
    run = a_history(*[green()] * 4, trees=["head:t0"] * 4, baseline=[green()])
    assert stuck_for(run, N) == 4


def test_a_green_check_that_turns_red_on_the_same_files_was_not_progress() -> None:
    run = a_history(red("a"), green(), red("a"), trees=["head:x", "head:y", "head:y"], baseline=[red("a")])
    assert kinds(run)[1] == ""


def test_failed_turns_are_not_counted() -> None:
    run = a_history(red("a"), red("a"), baseline=[red("a")])
    failed = Iteration(number=3, turn=Turn(text="", failure=Failure("ordinary", "boom")), checks=(red("new"),))
    run = replace(run, iterations=(*run.iterations, failed))
    assert stuck_for(run, N) == 2
    assert kinds(run) == ["", "", ""]


def test_the_work_of_a_failed_turn_is_progress_and_may_be_the_best() -> None:
    run = a_history(pytest_says(5, 1), pytest_says(3, 3), pytest_says(4, 2), baseline=[pytest_says(6, 0)])
    failed = replace(run.iterations[1], turn=Turn(text="", failure=Failure("ordinary", "boom")))
    run = replace(run, iterations=(run.iterations[0], failed, run.iterations[2]))
    assert kinds(run) == ["failures", "failures", ""]
    assert stuck_for(run, N) == 1
    assert best_iteration(run) == 2


def test_an_iteration_without_checks_at_the_time_limit_is_not_the_best() -> None:
    run = a_history(pytest_says(5, 1), ())
    run = replace(run, iterations=(run.iterations[0], replace(run.iterations[1], checked=False)))
    assert best_iteration(run) == 1


def test_ticked_tasks_are_progress() -> None:
    done = [0, 1, 1, 2]
    iterations = [Iteration(number=n, turn=Turn(text="ok"), tasks_done=ticked) for n, ticked in enumerate(done, 1)]
    assert kinds(Run(id="r", iterations=tuple(iterations))) == ["", "tasks", "", "tasks"]


def test_progress_is_not_measured_without_checks_or_tasks() -> None:
    bare = Run(id="r", iterations=(Iteration(number=1, turn=Turn(text="ok")),) * 3)
    assert not is_measurable(bare)
    assert not list(stuck(N)(bare))
    assert is_measurable(Run(id="r", seen=Snapshot(tasks=())))


RED = red("FAILED tests/test_a.py\n3 failed, 97 passed in 0.1s")
RULES = {
    "a green port over many iterations": ([green()] * 30, [green()], False),
    "an error after three failures": ([RED, *[red("1 error in 0.1s")] * 7], [RED], True),
    "a growing suite with as many failures": ([pytest_says(3, 97 + n) for n in range(9)], [pytest_says(3, 97)], True),
    "a growing suite with fewer failures": (
        [pytest_says(20 - n, 80 + 2 * n) for n in range(12)],
        [pytest_says(21, 79)],
        False,
    ),
    "random failure text": ([red(f"oops {chr(97 + n) * 5}") for n in range(8)], [red("start")], True),
    "alternating failures": ([red("one"), red("other")] * 4, [red("one")], True),
    "a flaky green": ([RED, green(), RED, RED], [RED], True),
    "a first green that breaks again": ([RED, RED, green(), RED, RED], [RED], False),
    "no checks at all": ([()] * 20, [], False),
}


@pytest.mark.parametrize("name", RULES)
def test_iterations_without_progress_are_counted(name: str) -> None:
    rows, baseline, is_stuck = RULES[name]
    same = name == "a flaky green"
    run = a_history(*rows, baseline=baseline, trees=["head:t0"] * len(rows) if same else ())
    found = [opinion for opinion in stuck(N)(run) if isinstance(opinion, Stop)]
    assert bool(found) == is_stuck
    assert all(stop.outcome is Outcome.STALLED for stop in found)


def test_the_last_agent_ends_the_run_and_another_one_takes_over() -> None:
    run = a_history(*[RED] * 4, baseline=[RED])
    (asked,) = stuck(N, ("claude", "codex"))(run)
    assert asked == HandOver(after=4, agent="claude", to="codex", reason="no progress for 4 iterations", start=4)
    handed = replace(run, hand_overs=(asked,))
    assert list(stuck(N, ("claude", "codex"))(handed)) == []
    assert next_worker(handed, ("claude", "codex")) == "codex"
    ended = a_history(*[RED] * 7, baseline=[RED])
    ended = replace(ended, hand_overs=handed.hand_overs)
    (stop,) = stuck(N, ("claude", "codex"))(ended)
    stayed_red = '"pytest -q" has 3 failures'
    assert stop.reason == f"no progress for 3 iterations; {stayed_red} (best: iteration 7)"


def test_a_run_that_ended_as_stalled_gets_a_new_chance_but_not_one_that_was_killed() -> None:
    run = a_history(*[RED] * 4, baseline=[RED])
    assert list(stuck(N)(replace(run, resumed=4)))
    assert not list(stuck(N)(replace(run, resumed=4, stalled=4)))
    assert list(stuck(N, ("claude", "codex"))(replace(run, resumed=4, stalled=4))), "unless another agent is left"


def test_files_are_not_restored_if_no_check_was_red_at_the_start_or_without_git() -> None:
    agents = ("claude", "codex")
    (kept,) = stuck(N, agents)(a_history(*[RED] * 4, baseline=[green()]))
    assert kept == HandOver(after=4, agent="claude", to="codex", reason="no progress for 3 iterations")
    bare = a_history(*[RED] * 4, baseline=[RED])
    bare = replace(bare, iterations=tuple(replace(one, tree=None) for one in bare.iterations))
    (kept,) = stuck(N, agents)(bare)
    assert kept == HandOver(after=4, agent="claude", to="codex", reason="no progress for 4 iterations")


def test_the_latest_of_many_iterations_are_listed() -> None:
    counts = [pytest_says(max(9 - n, 5), 91 + n) for n in range(40)]
    rows = list_attempts(a_history(*counts, baseline=[pytest_says(10, 90)])).split("\n")
    assert len(rows) == 15
    assert rows[0].startswith("26. ")
    assert rows[-1].startswith("40. ")
    assert max(map(len, rows)) <= 130


@pytest.mark.parametrize(
    ("rows", "best"),
    [
        ([pytest_says(5, 95), pytest_says(3, 97), pytest_says(4, 96)], 2),
        ([pytest_says(3, 97), pytest_says(3, 97)], 2),
        ([[green("a"), red("x", "b")], [red("y", "a"), red("x", "b")]], 1),
        ([red("no count"), pytest_says(9, 1)], 2),
    ],
)
def test_the_best_iteration_is_the_latest_of_the_best(rows: list[Check], best: int) -> None:
    assert best_iteration(a_history(*rows)) == best


def test_a_standstill_names_the_check_that_stayed_red() -> None:
    run = a_history(*map(pytest_says, (7, 5, 3, 3, 3), (93, 95, 97, 97, 97)))
    said = 'no progress for 2 iterations; "pytest -q" has 3 failures (best: iteration 5)'
    assert describe_standstill(run, stuck_for(run, N)) == said


def test_counting_starts_again_after_a_hand_over() -> None:
    run = a_history(*[red("same")] * 6, baseline=[red("same")])
    assert (stuck_for(run, N), stuck_for(run, N, since=4)) == (6, 2)


def test_a_step_describes_the_results_of_the_checks() -> None:
    (step,) = steps(a_history(pytest_says(3, 97), baseline=[green("ruff")]), N)
    assert (step.number, step.passing, step.failures, step.gain) == (1, 0, 3, "output")
