"""What the agent reads about earlier attempts, and how a run that optimises a number ends."""

import pytest

from ralph.core.gains import attempts_table, conclude_tuning, format_change, format_value, read_idea
from ralph.core.measuring import Comparison, Metric, Start
from ralph.core.model import Iteration, Outcome, Run, Stop, Turn

METRIC = Metric()


def attempt(number: int, kept: bool = False) -> Iteration:
    gain = 0.1 if kept else -0.1
    measured = Comparison(before=100, after=90 if kept else 110, gain=gain, kept=kept)
    return Iteration(number=number, turn=Turn(text=f"IDEA: idea {number}"), measured=measured)


def run_of(*attempts: Iteration) -> Run:
    return Run(id="run", start=Start(METRIC, (100.0, 100.0, 100.0)), iterations=attempts)


def test_the_table_has_the_latest_attempts_and_the_older_ones_that_were_kept() -> None:
    table = attempts_table(run_of(*(attempt(number, kept=number == 3) for number in range(1, 31))))

    assert "| 3 | idea 3 | kept: −10.0 % (100 → 90) |" in table
    assert "| 11 | idea 11 |" in table
    assert "| 10 |" not in table
    assert table.endswith("9 older attempts dropped and not shown.")


@pytest.mark.parametrize(
    ("answer", "idea"),
    [
        ("I did a lot.\n**IDEA:** cache the lines\n", "cache the lines"),
        ("IDEA: first\nIDEA: second", "second"),
        ("# Faster\nIt was slow.", "Faster"),
        ("", ""),
    ],
)
def test_the_idea_is_the_last_line_marked_as_one_or_else_the_first_line(answer: str, idea: str) -> None:
    assert read_idea(answer) == idea


def test_numbers_are_written_as_people_read_them() -> None:
    seconds = Metric(unit="s")

    assert [format_value(value, seconds) for value in (0.0124, 0.1954, 12.3)] == ["12.4 ms", "0.195 s", "12.3 s"]
    assert [format_value(value, METRIC) for value in (48213.0, 0.98765)] == ["48213", "0.9877"]
    assert [format_change(gain, METRIC) for gain in (0.102, -0.004, 0.0)] == ["−10.2 %", "+0.40 %", "0 %"]
    assert format_change(0.1, Metric(maximize=True)) == "+10.0 %"


def test_a_run_is_done_only_if_its_end_is_better_than_its_start() -> None:
    limit = Stop(Outcome.EXHAUSTED, "2 iterations without an accepted claim")
    run = run_of(attempt(1), attempt(2, kept=True))
    better = Comparison(before=100, after=90, gain=0.1, pairs=21, better=21, kept=True)
    worse = Comparison(before=100, after=101, gain=-0.01, pairs=21, better=9)

    assert conclude_tuning(run, limit, better) == Stop(
        Outcome.DONE, "100 → 90 (−10.0 %, better in 21 of 21 pairs; 1 of 2 attempts kept)", claim="gain"
    )
    assert conclude_tuning(run, limit, worse).outcome is Outcome.STALLED
    assert conclude_tuning(run_of(attempt(1)), limit, None) == Stop(Outcome.EXHAUSTED, "none of 1 attempt was kept")
