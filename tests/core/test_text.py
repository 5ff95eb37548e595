import unicodedata

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ralph.core.text import both_ends, clean, escaped, head, one_line, tail, whole_words


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("plain, tab\tand\nnewline", "plain, tab\tand\nnewline"),
        ("grüße 日本 🙂 👩‍💻 é́", "grüße 日本 🙂 👩‍💻 é́"),
        ("👩‍👩‍👧 می‌خواهم क्‍ष", "👩‍👩‍👧 می‌خواهم क्‍ष"),
        ("rm \u202egpj.exe\u202c \u2066a\u2069\u200f\U000e0041", "rm gpj.exe a"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b[38;2;1;2;3mcolour\x1b[m", "colour"),
        ("\x1b[2J\x1b[Hgone", "gone"),
        ("\x1b[?25l\x1b[>4;2mhidden", "hidden"),
        ("\x9b31mred\x9b0m", "red"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;https://example.org\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b]52;c;cGF5bG9hZA==\x07text", "text"),
        ("\x9d0;title\x9ctext", "text"),
        ("\x1b]0;never ended\nnext", "\nnext"),
        ("\x1bPq#0;2;0;0;0\x1b\\after", "after"),
        ("\x1b_apc\x1b\\\x1b^pm\x1b\\\x1bXsos\x1b\\after", "after"),
        ("\x1bc\x1b7\x1b(0\x1b=x", "x"),
        ("\x1b\x1b[31m[31m", "[31m"),
        ("\x1b", ""),
        ("\x1b[", ""),
        ("\x1b[31", "31"),
        ("ends in \x1b[31;", "ends in 31;"),
        ("one\r\ntwo\rthree", "one\ntwo\nthree"),
        ("real\rfake", "real\nfake"),
        ("abc\b\b\bxyz", "abcxyz"),
        ("bell\x07 null\x00 delete\x7f", "bell null delete"),
        ("c1\x85\x90\x9f", "c1"),
        ("user\u202etxt.exe\u202c", "usertxt.exe"),
        ("\u2066isolate\u2069\u200f\u061c", "isolate"),
        ("hidden\U000e0041\U000e0042", "hidden"),
        ("line\u2028separator\u2029", "line\nseparator\n"),
        ("half \ud83d here", "half \ufffd here"),
        ("two halves \ud83d\ude00", "two halves 😀"),
        ("\ud83d\x1b[0m", "\ufffd"),
        ("raw byte \udcff", "raw byte \ufffd"),
    ],
)
def test_text_from_outside_loses_its_control_characters(text: str, safe: str) -> None:
    assert clean(text) == safe


@given(st.text(alphabet=st.characters(codec=None, categories=None), max_size=200))
def test_escape_sequences_and_control_characters_are_removed(text: str) -> None:
    safe = clean(text)
    assert all(char in "\n\t" or unicodedata.category(char) not in ("Cc", "Cs") for char in safe)
    assert safe.encode().decode() == safe
    assert clean(safe) == safe


@given(st.text(alphabet="\x1b[]P\\m0;\x07\x9b\x9c\nab", max_size=80))
def test_nested_escape_sequences_are_removed(text: str) -> None:
    assert "\x1b" not in clean(text)
    assert clean(clean(text)) == clean(text)


@given(st.text(alphabet=st.characters(categories=("L", "N", "P", "S"))))
def test_visible_text_is_left_alone(text: str) -> None:
    assert clean(text) == text


@pytest.mark.parametrize("piece", ["\x1b[", "\x1b]", "\x1b[0;", "\x1b", "\r", "\ud83d", "\x1bP0"])
def test_reading_a_hostile_text_takes_linear_time(piece: str) -> None:
    assert "\x1b" not in clean(piece * 200_000)


@pytest.mark.parametrize(
    ("limit", "beginning", "end"),
    [(10, "abcdef", "abcdef"), (6, "abcdef", "abcdef"), (4, "abcd…", "…cdef"), (0, "…", "…"), (-1, "…", "…")],
)
def test_each_way_to_cut_a_text_keeps_what_its_docstring_says(limit: int, beginning: str, end: str) -> None:
    assert head("abcdef", limit, "…") == beginning
    assert tail("abcdef", limit, "…") == end


def test_one_line_is_one_line() -> None:
    assert one_line("  a\n\n b\tc\u2028d ") == "a b c d"
    assert one_line("x" * 300, 5) == "xxxxx…"


@pytest.mark.parametrize(
    ("limit", "shown"),
    [
        (30, "one two three"),
        (13, "one two three"),
        (11, "one two…"),
        (8, "one two …"),
        (7, "one two…"),
        (6, "one…"),
        (2, "on…"),
        (0, "…"),
    ],
)
def test_a_word_is_cut_only_if_little_else_would_be_left(limit: int, shown: str) -> None:
    assert whole_words("one two three", limit, "…") == shown


def test_both_ends_of_a_long_text_are_kept_in_whole_words() -> None:
    text = " ".join(f"word{n:03}" for n in range(100))
    kept = both_ends(text, 100, " … ")
    assert kept.startswith("word000 word001")
    assert kept.endswith("word098 word099")
    assert all(len(word) == 7 for word in kept.split() if word != "…")
    assert both_ends("x" * 200, 100, "…") == "x" * 50 + "…" + "x" * 50
    assert both_ends("short", 100, "…") == "short"


@pytest.mark.parametrize("around", ["", "…", "“so” — "])
def test_only_hidden_characters_are_escaped_in_a_line_of_json(around: str) -> None:
    hidden = {*range(0x80, 0xA0), 0x61C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x2070)}
    hidden |= {*range(0xFFF9, 0xFFFC), *range(0xE0000, 0xE0080)}
    for code in (*range(0x80, 0x10000), *range(0x1F600, 0x1F650), *range(0xDFFF0, 0xE0200)):
        if not 0xD800 <= code < 0xE000:
            line = escaped(msgspec.json.encode(f"{around}{chr(code)}{around}"))
            assert msgspec.json.decode(line) == f"{around}{chr(code)}{around}"
            assert (chr(code) in line.decode()) == (code not in hidden)
