"""Every state of a run has one row, which all views read."""

import pytest

from ralph.core.model import Outcome
from ralph.history.states import BADGES, COLORS, STATES, state_of


@pytest.mark.parametrize("outcome", Outcome)
def test_every_outcome_has_a_row(outcome: Outcome) -> None:
    assert outcome.value in STATES


@pytest.mark.parametrize("name", ["running", "stopping", "waiting", "paused", "asking", "killed"])
def test_every_state_without_an_outcome_has_a_row(name: str) -> None:
    assert name in STATES


@pytest.mark.parametrize("name", STATES)
def test_a_row_has_a_color_a_badge_and_marks_of_one_column(name: str) -> None:
    state = state_of(name)
    assert (state.color, state.badge) == (COLORS[state.tone], BADGES[state.tone])
    assert (len(state.mark), len(state.plain_mark), state.plain_mark.isascii()) == (1, 1, True)


@pytest.mark.parametrize("outcome", Outcome)
def test_every_outcome_but_done_and_stopped_needs_a_person(outcome: Outcome) -> None:
    assert state_of(outcome.value).needs_you is (outcome not in (Outcome.DONE, Outcome.STOPPED))


def test_an_unknown_state_is_shown_as_bad_and_needs_a_person() -> None:
    assert (state_of("new in a later version").tone, state_of("").needs_you) == ("bad", True)
