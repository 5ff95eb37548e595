import msgspec
import pytest

from ralph.core import events as e
from ralph.history.feed import News
from ralph.records.journal import Entry
from ralph.show.outlet import GLYPHS, Style
from ralph.ui.screen_state import MOST_BYTES, MOST_EVENTS, MOST_LINES, Scroll

LINE = Entry("agent_text", "", "r", 1, msgspec.Raw(b"{}"))


@pytest.fixture
def scroll() -> Scroll:
    return Scroll(Style(GLYPHS), 30)


def news(*events: e.Event, size: int = 100) -> list[News]:
    return [News(event, LINE, size) for event in events]


def test_the_todo_list_has_a_pane_of_its_own(scroll: Scroll) -> None:
    scroll.add(news(e.TodoUpdated((e.TodoItem("read"),)), e.AgentText("hello")))
    assert list(scroll.lines) == ["  hello"]


def test_the_end_is_said(scroll: Scroll) -> None:
    scroll.add(
        news(
            e.RunFinished(
                outcome="done", reason="2 checks passed", iterations=2, cost_usd=None, duration_s=4.0, exit_code=0
            )
        )
    )
    assert list(scroll.lines) == ["", "done after 2 iterations: 2", "checks passed (4s)"]


def test_what_was_left_out_is_said(scroll: Scroll) -> None:
    scroll.leaves_out = True
    scroll.add(news(e.AgentText("hello"), e.AgentText("you")))
    assert list(scroll.lines) == ["… earlier events: `ralph logs` has all", "  hello", "  you"]


def test_another_width_gives_other_lines(scroll: Scroll) -> None:
    scroll.add(news(e.AgentText("one two three four five six seven eight")))
    assert list(scroll.lines) == ["  one two three four five six", "  seven eight"]
    scroll.fit(60)
    assert list(scroll.lines) == ["  one two three four five six seven eight"]
    scroll.fit(12)
    assert list(scroll.lines) == ["  one two", "  three four", "  five six", "  seven", "  eight"]


def test_lines_keep_their_numbers_when_the_oldest_go(scroll: Scroll) -> None:
    for number in range(1, MOST_LINES + 8):
        scroll.add(news(e.AgentText(f"line {number}")))
    assert (len(scroll.lines), scroll.begin) == (MOST_LINES, 7)
    assert scroll.lines[0] == "  line 8"


def test_memory_is_bounded_by_count_and_by_size(scroll: Scroll) -> None:
    scroll.add(news(*(e.AgentText("x") for _ in range(MOST_EVENTS + 10))))
    scroll.fit(40)
    assert len(scroll.lines) == MOST_EVENTS
    scroll.add(news(*(e.AgentText("y") for _ in range(10)), size=MOST_BYTES // 4))
    scroll.fit(30)
    assert list(scroll.lines) == ["  y"] * 4
