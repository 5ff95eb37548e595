"""The stream of the TUI: which lines are made of a run's events."""

from collections.abc import Callable
from typing import Any

import pytest

from ralph.core import events as e
from ralph.core.model import Outcome
from ralph.show.event_lines import EventLines
from ralph.show.outlet import GLYPHS, Style
from ralph.tui.tui_state import ShownRun, TuiState, stream_lines

FINISHED = e.RunFinished(
    outcome=Outcome.DONE, reason="2 checks passed", iterations=2, cost_usd=None, duration_s=4.0, exit_code=0
)


def lines(*events: e.Event) -> list[str]:
    render = EventLines(Style(GLYPHS), columns=30)
    return [line for event in events for line in stream_lines(render, event, 1.0)]


def test_the_todo_list_is_not_in_the_stream() -> None:
    assert lines(e.TodoUpdated((e.TodoItem("read"),)), e.AgentText("hello")) == ["  hello"]


def test_the_outcome_ends_the_stream() -> None:
    assert lines(FINISHED) == ["", "done after 2 iterations: 2", "checks passed (4s)"]


@pytest.fixture
def shown_run(record: Callable[..., Any], state: TuiState) -> Callable[..., ShownRun]:
    def show(*events: e.Event) -> ShownRun:
        record("k3fa", *events)
        state.survey()
        return ShownRun(state.run, Style(GLYPHS))

    return show


def test_a_line_says_that_earlier_events_are_left_out(shown_run: Callable[..., ShownRun]) -> None:
    shown = shown_run(*(e.AgentText(f"line {number} {'.' * 1000}") for number in range(2000)))
    first, second, *_ = shown.open(40)
    shown.close()
    assert first == "… earlier events: see `ralph logs`"
    assert "line 0" not in second


def test_lines_are_wrapped_again_after_a_resize(shown_run: Callable[..., ShownRun]) -> None:
    shown = shown_run(e.AgentText("one two three four five six seven eight"))
    assert shown.open(30)[-2:] == ["  one two three four five six", "  seven eight"]
    assert shown.open(60)[-1] == "  one two three four five six seven eight"
    assert shown.open(12)[-5:] == ["  one two", "  three four", "  five six", "  seven", "  eight"]
    assert shown.fold.history.goal == "Make the parser accept empty input"
    shown.close()
