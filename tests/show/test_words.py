import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ralph.core import events as e
from ralph.core.model import Check, Iteration, Outcome, Turn
from ralph.core.text import plural
from ralph.history.fold import Fold
from ralph.history.run_history import RunHistory
from ralph.show.words import (
    count,
    cut,
    duration,
    moment,
    money,
    outcome_sentence,
    whereabouts,
    width,
    wrap,
)


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
def test_a_duration_has_its_two_largest_units(seconds: float, said: str) -> None:
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


def test_plural_depends_on_the_number() -> None:
    assert [plural(n, "line") for n in (0, 1, 2)] == ["0 lines", "1 line", "2 lines"]


def test_a_moment_far_away_has_its_weekday(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    assert moment(1_700_000_000, 60) == "22:13"
    assert moment(1_700_000_000, 90_000) == "Tue 22:13"
    assert moment(1e300, 60) == "an unknown time"
    monkeypatch.undo()
    time.tzset()


words = st.text(alphabet=st.sampled_from("ab -日本é́🙂⏸️\u200d"), max_size=80)


@pytest.mark.parametrize(
    ("text", "columns"),
    [("", 0), ("abc", 3), ("日本", 4), ("e\u0301", 1), ("🙂", 2), ("⏸️", 2), ("a\u200db", 2), ("ｆｕｌｌ", 8)],
)
def test_the_width_of_text_counts_columns_not_characters(text: str, columns: int) -> None:
    assert width(text) == columns


@pytest.mark.parametrize(
    ("text", "columns", "shown"),
    [
        ("abcdef", 6, "abcdef"),
        ("abcdef", 5, "abcd…"),
        ("日本語テ", 7, "日本語…"),
        ("日本語テ", 6, "日本…"),
        ("abc", 1, "…"),
        ("abc", 0, ""),
        ("abc", -5, ""),
    ],
)
def test_a_cut_never_splits_a_wide_character(text: str, columns: int, shown: str) -> None:
    assert cut(text, columns) == shown


@given(words, st.integers(0, 30))
def test_cut_text_fits(text: str, columns: int) -> None:
    assert width(cut(text, columns)) <= columns


def test_rows_break_between_words_and_keep_the_indentation() -> None:
    assert wrap("  - one two three four", 12) == ["  - one two", "    three", "    four"]
    assert wrap("short", 12) == ["short"]
    assert wrap("x" * 25 + " y", 10) == ["x" * 10, "x" * 10, "xxxxx y"]
    assert wrap("日本語の長いテキスト", 8) == ["日本語の", "長いテキ", "スト"]


@given(words, st.integers(8, 40))
def test_wrapped_rows_fit_and_lose_nothing_but_space(line: str, columns: int) -> None:
    rows = wrap(line, columns)
    assert all(width(row) <= columns for row in rows)
    assert "".join(rows).replace(" ", "") == line.replace(" ", "")


def ended(event: e.RunFinished, failing: list[str] | None = None) -> RunHistory:
    fold = Fold("r")
    checks = tuple(Check(name=name, passed=False, exit_code=1) for name in failing or ())
    for one in (
        e.IterationFinished(event.iterations, Iteration(number=event.iterations, turn=Turn(text="x"), checks=checks)),
        event,
    ):
        fold.add(one, 0.0)
    return fold.history


def finished(outcome: str = "done", reason: str = "the agent said DONE", **more: object) -> e.RunFinished:
    facts: dict[str, object] = {"iterations": 3, "cost_usd": 0.42, "duration_s": 72.0, "exit_code": 0} | more
    return e.RunFinished(outcome=Outcome(outcome), reason=reason, **facts)  # type: ignore[arg-type]


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
            "no check or tasks file was given, so nothing has verified it (1m12s)",
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
            finished("interrupted", "why", iterations=0, cost_usd=None, duration_s=0.4, interrupted_by="SIGINT"),
            [],
            "ralph: interrupted: stopped by you; resume it with `ralph resume` (0.4s)",
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
    assert f"ralph: {outcome_sentence(ended(event, failing))}" == sentence


def test_work_in_a_worktree_is_named_with_the_command_to_accept_it() -> None:
    assert whereabouts(ended(finished())) == []
    assert whereabouts(ended(finished(worktree="/tmp/w", branch="ralph/1"))) == [
        "The work is on branch ralph/1 in /tmp/w",
        "To merge it: ralph accept r",
    ]
    assert whereabouts(ended(finished(worktree="/tmp/w"))) == ["The work is in /tmp/w"]
    cut_off = whereabouts(ended(finished("interrupted", worktree="/tmp/w", branch="ralph/1")))
    assert cut_off == ["The work is on branch ralph/1 in /tmp/w"]


def test_unchanged_work_has_no_command_to_accept_it() -> None:
    untouched = finished(worktree="/tmp/w", branch="ralph/1", untouched=True)
    assert whereabouts(ended(untouched)) == ["Nothing was changed on branch ralph/1 in /tmp/w"]
