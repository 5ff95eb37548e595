"""Durations and sizes as users write them."""

from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ralph.errors import UserError
from ralph.settings import format_duration, parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("0", 0),
        ("0.5", 0.5),
        ("90s", 90),
        ("5m", 300),
        ("1h30m", 5400),
        ("2d", 172800),
        ("1d2h3m4s", 93784),
        ("1.5h", 5400),
        ("250ms", 0.25),
        ("1s250ms", 1.25),
        (" 5M ", 300),
    ],
)
def test_durations_are_parsed(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text",
    ["", " ", "x", "-5", "-5s", "5 parsecs", "5x", "1m1h", "1h1h", "1e3", "inf", "nan", "5,5s", "s", "٣", "+5", "1_0"],
)
def test_invalid_durations_are_refused_with_examples(text: str) -> None:
    with pytest.raises(UserError, match="not a duration") as caught:
        parse_duration(text)
    assert "1h30m" in caught.value.hint


@pytest.mark.parametrize("text", ["9" * 19, "99999999d", "9" * 19 + "d"])
def test_a_duration_too_long_for_a_timer_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="too long"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("500000", 500_000),
        ("512kB", 512_000),
        ("32MB", 32_000_000),
        ("32 mb", 32_000_000),
        ("32M", 32_000_000),
        ("1GiB", 1 << 30),
        ("1.5MB", 1_500_000),
        ("10b", 10),
    ],
)
def test_sizes_are_parsed(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MB", "-1", "32 parsecs", "1e9", "1 2MB", "0x10"])
def test_invalid_sizes_are_refused_with_examples(text: str) -> None:
    with pytest.raises(UserError, match="not a size") as caught:
        parse_size(text)
    assert "32MB" in caught.value.hint


def test_a_size_too_large_for_a_disk_is_refused() -> None:
    with pytest.raises(UserError, match="too large"):
        parse_size("99999999TB")


@given(st.integers(0, 10**12))
def test_formatted_durations_are_parsed_to_the_same_value(milliseconds: int) -> None:
    assert round(parse_duration(format_duration(milliseconds / 1000)) * 1000) == milliseconds


@pytest.mark.parametrize("parse", [parse_duration, parse_size])
@given(text=st.text())
def test_any_text_is_parsed_or_refused_with_a_user_error(parse: Callable[[str], float], text: str) -> None:
    with suppress(UserError):
        assert parse(text) >= 0
