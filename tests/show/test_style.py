import io

import pytest

from ralph.show.outlet import ASCII, GLYPHS, TEXT, Style, choose


def stream(encoding: str) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), encoding)


@pytest.mark.parametrize(
    ("env", "is_terminal", "color"),
    [
        ({"TERM": "xterm"}, True, True),
        ({"TERM": "xterm"}, False, False),
        ({"TERM": "xterm", "NO_COLOR": "1"}, True, False),
        ({"TERM": "xterm", "NO_COLOR": ""}, True, True),
        ({"TERM": "dumb"}, True, False),
        ({}, True, False),
        ({"FORCE_COLOR": "1"}, False, True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False, False),
    ],
)
def test_colour_is_for_terminals_that_have_it(env: dict[str, str], is_terminal: bool, color: bool) -> None:
    assert choose(stream("utf-8"), env, is_terminal, None, None).color is color


def test_a_persons_choice_of_colour_wins() -> None:
    assert choose(stream("utf-8"), {"NO_COLOR": "1"}, False, True, None).color
    assert not choose(stream("utf-8"), {"TERM": "xterm"}, True, False, None).color


@pytest.mark.parametrize(
    ("encoding", "terminal", "emoji", "marks"),
    [
        ("utf-8", "xterm", None, GLYPHS),
        ("UTF8", None, None, GLYPHS),
        ("utf-8", "xterm", False, TEXT),
        ("utf-8", "dumb", None, TEXT),
        ("utf-8", "dumb", True, GLYPHS),
        ("utf-8", "linux", None, ASCII),
        ("ascii", "xterm", None, ASCII),
        ("latin-1", None, True, ASCII),
    ],
)
def test_marks_are_what_the_reader_can_display(
    encoding: str, terminal: str | None, emoji: bool | None, marks: object
) -> None:
    style = choose(stream(encoding), {"TERM": terminal or "dumb"}, terminal is not None, None, emoji)
    assert style.marks is marks


def test_ascii_marks_are_ascii() -> None:
    assert all(getattr(ASCII, name).isascii() for name in ASCII.__struct_fields__)


def test_paint_without_colour_is_the_text_itself() -> None:
    assert Style(GLYPHS, False).paint("red", "x") == "x"
    assert Style(GLYPHS, True).paint("red", "x") == "\x1b[31mx\x1b[0m"
