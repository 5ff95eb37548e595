import pytest
from hypothesis import given
from hypothesis import strategies as st

from ralph.show.words import cut, width, wrap

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
def test_what_is_cut_fits(text: str, columns: int) -> None:
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
