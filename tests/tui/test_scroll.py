"""The stream of the TUI: which lines are made of a run's events."""

import msgspec
import pytest

from ralph.core import events as e
from ralph.history.feed import News
from ralph.show.outlet import GLYPHS, Style
from ralph.store.journal import Entry
from ralph.tui.tui_state import MAX_BYTES, MAX_EVENTS, EventStream

LINE = Entry("agent_text", "", "r", 1, msgspec.Raw(b"{}"))


@pytest.fixture
def stream() -> EventStream:
    return EventStream(Style(GLYPHS), 30)


def news(*events: e.Event, size: int = 100) -> list[News]:
    return [News(event, LINE, size) for event in events]


def test_the_todo_list_is_not_in_the_stream(stream: EventStream) -> None:
    assert stream.add(news(e.TodoUpdated((e.TodoItem("read"),)), e.AgentText("hello"))) == ["  hello"]


def test_the_outcome_ends_the_stream(stream: EventStream) -> None:
    finished = e.RunFinished(
        outcome="done", reason="2 checks passed", iterations=2, cost_usd=None, duration_s=4.0, exit_code=0
    )
    assert stream.add(news(finished)) == ["", "done after 2 iterations: 2", "checks passed (4s)"]


def test_a_line_says_that_earlier_events_are_left_out(stream: EventStream) -> None:
    stream.leaves_out = True
    lines = stream.add(news(e.AgentText("hello"), e.AgentText("you")))
    assert lines == ["… earlier events: see `ralph logs`", "  hello", "  you"]


def test_another_width_gives_other_lines(stream: EventStream) -> None:
    lines = stream.add(news(e.AgentText("one two three four five six seven eight")))
    assert lines == ["  one two three four five six", "  seven eight"]
    assert stream.fit(60) == ["  one two three four five six seven eight"]
    assert stream.fit(12) == ["  one two", "  three four", "  five six", "  seven", "  eight"]


def test_memory_is_bounded_by_count_and_by_size(stream: EventStream) -> None:
    stream.add(news(*(e.AgentText("x") for _ in range(MAX_EVENTS + 10))))
    assert len(stream.fit(40)) == MAX_EVENTS
    stream.add(news(*(e.AgentText("y") for _ in range(10)), size=MAX_BYTES // 4))
    assert stream.fit(30) == ["  y"] * 4
