"""A flood of talk is thinned on the screen; what ralph itself says never is."""

import io

from ralph.core import events as e
from ralph.show.event_lines import MOST
from ralph.show.screen import make_screen


class Clock:
    def __init__(self) -> None:
        self.now = 1e9

    def __call__(self) -> float:
        return self.now


def flooded(*later: e.Event, more: int = 500, seconds: float = 0.0) -> list[str]:
    """What is shown of more lines than a person can read, and of what happens `seconds` later."""
    out, clock = io.StringIO(), Clock()
    screen = make_screen(out, env={}, clock=clock)
    screen(e.AgentStarted("agent"))
    screen(*(e.AgentText(f"line {number}") for number in range(MOST + more)))
    clock.now += seconds
    for event in later:
        screen(event)
    screen.close()
    return out.getvalue().splitlines()


def test_as_much_is_shown_as_anybody_could_read() -> None:
    lines = [line for line in flooded() if line.startswith("  line")]
    assert lines == [f"  line {number}" for number in range(MOST)]


def test_what_ralph_says_gets_through_and_tells_what_was_left_out() -> None:
    *_, left_out, empty, check = flooded(e.CheckStarted("make test"))
    assert "500 more things that nobody could have read: see the log" in left_out
    assert (empty, "make test" in check) == ("", True)


def test_a_second_later_talk_is_shown_again() -> None:
    *_, left_out, line = flooded(e.AgentText("still here"), seconds=1.0)
    assert ("500 more things" in left_out, line) == (True, "  still here")


def test_less_than_that_is_shown_whole() -> None:
    assert not [line for line in flooded(more=0) if "more things" in line]


def test_a_long_line_counts_as_the_rows_that_it_takes() -> None:
    out = io.StringIO()
    screen = make_screen(out, env={}, clock=Clock())
    screen(*(e.AgentText("x" * 999) for _ in range(MOST)))
    assert 900 < out.getvalue().count("xx\n") <= MOST // 10 + 1


def test_what_is_told_without_its_words_is_counted() -> None:
    *_, left_out, _, _ = flooded(e.Unheard(1000), e.CheckStarted("make test"))
    assert "1500 more things that nobody could have read" in left_out


def test_nothing_is_read_while_there_is_more_than_anybody_could() -> None:
    clock = Clock()
    screen = make_screen(io.StringIO(), env={}, clock=clock)
    assert screen.reads()
    screen(*(e.AgentText("line") for _ in range(MOST)))
    assert not screen.reads()
    clock.now += 1
    assert screen.reads()
    assert not make_screen(io.StringIO(), quiet=True, env={}).reads()
