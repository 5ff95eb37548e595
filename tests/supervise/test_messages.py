"""The supervisor's messages about an attempt have the wording of the seed."""

import pytest

from ralph.core.model import Failure, Turn
from ralph.supervise.attempts import describe_end, failure_warnings, go_duration


def test_a_failed_attempt_is_a_warning() -> None:
    assert list(failure_warnings(1, Turn(text="", exit_code=1))) == ["agent failed on restart #0: exit code 1"]


def test_an_agent_that_hung_is_reported_as_killed() -> None:
    turn = Turn(text="", exit_code=-15, ended_by="turn-timeout")
    assert list(failure_warnings(1, turn, timeout=300)) == [
        "Agent timeout after 5m0s, killing process group",
        "Process group killed, treating as failure",
        "agent failed on restart #0: exit code -15 (turn-timeout)",
    ]


def test_a_transient_error_is_named() -> None:
    turn = Turn(text="", exit_code=1, failure=Failure("transient", "overloaded\nplease retry"))
    assert "Transient error: overloaded please retry" in list(failure_warnings(1, turn))


@pytest.mark.parametrize(
    "turn",
    [
        Turn(text=""),
        Turn(text="", exit_code=-15, ended_by="interrupt"),
        Turn(text="", exit_code=42, failure=Failure("ordinary", "exit code 42")),
    ],
    ids=["exit code 0", "ended by a person", "asks to wait"],
)
def test_an_attempt_that_did_not_fail_gives_no_warning(turn: Turn) -> None:
    assert list(failure_warnings(1, turn)) == []


@pytest.mark.parametrize(
    ("turn", "text"),
    [
        (Turn(text="", exit_code=0), "exit code 0"),
        (Turn(text="", exit_code=1, failure=Failure("ordinary", "exit code 1: boom")), "exit code 1: boom"),
        (Turn(text="", exit_code=-9, failure=Failure("ordinary", "killed")), "exit code -9 (killed)"),
        (Turn(text="", exit_code=None, failure=Failure("fatal", "not found")), "no exit code (not found)"),
    ],
)
def test_the_exit_code_and_its_reason_are_not_repeated(turn: Turn, text: str) -> None:
    assert describe_end(turn) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (300, "5m0s"),
        (90, "1m30s"),
        (45, "45s"),
        (1.5, "1.5s"),
        (0.5, "500ms"),
        (0, "0s"),
        (3600, "1h0m0s"),
        (90061, "25h1m1s"),
    ],
)
def test_durations_are_formatted_as_in_go(seconds: float, text: str) -> None:
    assert go_duration(seconds) == text
