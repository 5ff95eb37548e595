"""How a measured number is read, and when a candidate counts as better than noise."""

import random
from collections.abc import Callable

import pytest

from ralph.core.measuring import (
    Decision,
    Metric,
    Pairs,
    classify_noise,
    decide_once,
    decide_without_time,
    read_number,
    run_to_run_difference,
    visible_gain,
)


@pytest.mark.parametrize(
    ("output", "name", "number"),
    [
        ("3.2\n", "", 3.2),
        ("warming up\n1e-3\n\n", "", 0.001),
        ("-4", "", -4.0),
        (".5", "", 0.5),
        ("1 failed in 3.2s", "", None),
        ("3.2 ms", "", None),
        ("nan", "", None),
        ("inf", "", None),
        ("1e999", "", None),
        ("", "", None),
        ("val_bpb: 0.98\nval_bpb: 0.97\nbye", "val_bpb", 0.97),
        ("METRIC total_ms=12.5", "total_ms", 12.5),
        ("total=3", "tota", None),
        ("latency = 7", "latency", 7.0),
        ("latency=nan", "latency", None),
        ("7", "latency", None),
    ],
)
def test_a_number_is_read_only_from_its_place_in_the_output(output: str, name: str, number: float | None) -> None:
    assert read_number(output, name) == number


def test_three_equal_runs_are_exact_and_a_small_spread_is_nearly_exact() -> None:
    assert classify_noise([7, 7, 7], 0.01) == "exact"
    assert classify_noise([1000, 1001, 1000], 0.01) == "nearly exact"
    assert classify_noise([0.195, 0.203, 0.199], 0.01) == "noisy"
    assert classify_noise([0.0, 0.1, 0.0], 0.01) == "noisy"


def test_the_direction_of_a_gain_depends_on_the_metric() -> None:
    assert Metric().gain(10, 9) == pytest.approx(0.1)
    assert Metric(maximize=True).gain(10, 9) == pytest.approx(-0.1)
    assert Metric(maximize=True).gain(0, 5) > 1
    assert Metric().gain(-10, -12) == pytest.approx(0.2)


def test_an_exact_metric_takes_any_gain_and_a_nearly_exact_one_the_threshold() -> None:
    assert decide_once(Metric(), "exact", 100, 99.99) == "keep"
    assert decide_once(Metric(), "exact", 100, 100) == "drop"
    assert decide_once(Metric(), "nearly exact", 100, 99.5) == "drop"
    assert decide_once(Metric(), "nearly exact", 100, 98) == "keep"


def test_the_smallest_visible_gain_is_twice_the_difference_between_two_runs() -> None:
    start = [100.0, 104.0, 102.0]
    assert run_to_run_difference(start) == pytest.approx(2 / 102)
    assert visible_gain(start, "noisy", 0.01) == pytest.approx(4 / 102)
    assert visible_gain([5.0, 5.0, 5.0], "exact", 0.01) == 0.01


def test_without_time_for_pairs_a_gain_must_be_three_times_the_spread() -> None:
    assert decide_without_time(Metric(), [100, 102, 104], 0.05) == "drop"
    assert decide_without_time(Metric(), [100, 102, 104], 0.2) == "keep"


def decide(measure: Callable[[int], tuple[float, float]], metric: Metric | None = None) -> tuple[Decision, int]:
    """Return the decision and the number of pairs that it took."""
    pairs = Pairs(metric or Metric())
    while (decision := pairs.decide()) == "more":
        pairs = pairs.plus(*measure(len(pairs.values)))
    return decision, len(pairs.values)


def test_a_worse_candidate_is_dropped_after_six_runs() -> None:
    assert decide(lambda _: (100, 101)) == ("drop", 3)


def test_a_clear_gain_is_kept_after_seven_pairs() -> None:
    assert decide(lambda _: (100, 90)) == ("keep", 7)
    assert decide(lambda _: (100, 110), Metric(maximize=True)) == ("keep", 7)


def test_a_gain_below_the_threshold_is_dropped() -> None:
    assert decide(lambda _: (100, 99.9)) == ("drop", 7)
    assert decide(lambda _: (100, 99.4))[0] == "drop"


def test_a_candidate_with_one_worse_pair_is_measured_seven_more_times() -> None:
    assert decide(lambda number: (100, 120 if number == 2 else 90)) == ("keep", 14)


def drawn(chance: random.Random, noise: float, gain: float) -> Callable[[int], tuple[float, float]]:
    return lambda _: (chance.lognormvariate(0, noise), (1 - gain) * chance.lognormvariate(0, noise))


def share_kept(noise: float, gain: float, tries: int = 1500) -> float:
    chance = random.Random(7)
    return sum(decide(drawn(chance, noise, gain))[0] == "keep" for _ in range(tries)) / tries


@pytest.mark.parametrize("noise", [0.005, 0.01, 0.04, 0.2])
def test_candidates_without_effect_are_rarely_kept(noise: float) -> None:
    assert share_kept(noise, 0.0) <= 0.03


@pytest.mark.parametrize("noise", [0.01, 0.03, 0.05])
def test_a_gain_of_twice_the_run_to_run_difference_is_found(noise: float) -> None:
    chance = random.Random(3)
    differences = sorted(abs(chance.lognormvariate(0, noise) - chance.lognormvariate(0, noise)) for _ in range(4001))
    assert share_kept(noise, 2 * differences[2000]) >= 0.85
