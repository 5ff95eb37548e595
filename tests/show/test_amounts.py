import time

import pytest

from ralph.show.words import count, duration, moment, money, plural


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (-3, "0s"),
        (0, "0s"),
        (0.004, "0s"),
        (0.04, "0.04s"),
        (0.097, "0.1s"),
        (1.24, "1.2s"),
        (2.0, "2s"),
        (9.94, "9.9s"),
        (9.96, "10s"),
        (45, "45s"),
        (59.6, "1m"),
        (61, "1m1s"),
        (367, "6m7s"),
        (3599.7, "1h"),
        (3600, "1h"),
        (3840, "1h4m"),
        (86_400, "1d"),
        (97_200, "1d3h"),
    ],
)
def test_a_duration_is_said_in_its_two_largest_units(seconds: float, said: str) -> None:
    assert duration(seconds) == said


@pytest.mark.parametrize(
    ("usd", "said"),
    [
        (0, "$0.00"),
        (0.00001, "<$0.0001"),
        (0.0234, "$0.0234"),
        (0.02, "$0.02"),
        (0.09999, "$0.10"),
        (0.1, "$0.10"),
        (5.761, "$5.76"),
        (1234.5, "$1234.50"),
    ],
)
def test_money_keeps_the_digits_that_matter(usd: float, said: str) -> None:
    assert money(usd) == said


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (0, "0"),
        (999, "999"),
        (1000, "1K"),
        (1050, "1.1K"),
        (45_000, "45K"),
        (850_000, "850K"),
        (999_499, "999K"),
        (999_500, "1M"),
        (1_200_000, "1.2M"),
        (12_345_678, "12M"),
        (2_000_000_000, "2B"),
    ],
)
def test_large_counts_are_rounded(number: int, said: str) -> None:
    assert count(number) == said


def test_one_line_is_not_one_lines() -> None:
    assert [plural(n, "line") for n in (0, 1, 2)] == ["0 lines", "1 line", "2 lines"]


def test_a_moment_far_away_has_its_weekday(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    assert moment(1_700_000_000, 60) == "22:13"
    assert moment(1_700_000_000, 90_000) == "Tue 22:13"
    assert moment(1e300, 60) == "an unknown time"
    monkeypatch.undo()
    time.tzset()
