import pytest

from ralph.core.model import Failure, Turn
from ralph.supervise import remarks
from ralph.supervise.remarks import Remark

FAILED = Turn(text="", exit_code=1)


def test_a_failed_attempt_is_a_warning_and_says_what_comes_next() -> None:
    assert list(remarks.troubles(1, FAILED)) == [Remark("WARNING", "agent failed on restart #0: exit code 1")]
    assert list(remarks.restarting(1, 100, FAILED)) == [
        Remark("", "Attempt 1: Agent failed (exit 1), restarting...", "info"),
        Remark("INFO", "Agent failed with exit code 1, restarting (attempt 2/100)"),
    ]


def test_after_the_last_attempt_the_limit_is_named() -> None:
    assert list(remarks.exhausted(100)) == [
        Remark("", "Attempt 100: Max restarts exceeded, stopping", "warning"),
        Remark("ERROR", "max restarts exceeded, stopping: no DONE marker after 100 attempts"),
    ]
    assert next(remarks.exhausted(0)).body == "Max restarts exceeded, stopping"


def test_an_agent_that_hung_is_said_to_be_killed() -> None:
    turn = Turn(text="", exit_code=-15, ended_by="turn-timeout")
    assert [remark.body for remark in remarks.troubles(1, turn, timeout=300)] == [
        "Agent timeout after 5m0s, killing process group",
        "Process group killed, treating as failure",
        "agent failed on restart #0: exit code -15 (turn-timeout)",
    ]


def test_a_passing_fault_is_named() -> None:
    turn = Turn(text="", exit_code=1, failure=Failure("transient", "overloaded\nplease retry"))
    assert Remark("WARNING", "Transient error: overloaded please retry") in list(remarks.troubles(1, turn))


def test_exit_code_zero_is_no_failure_and_no_completion() -> None:
    assert list(remarks.troubles(1, Turn(text=""))) == []
    said = "Attempt 1: Agent succeeded, but there is no DONE marker, restarting..."
    assert list(remarks.restarting(1, 100, Turn(text=""))) == [Remark("INFO", said, "info")]


def test_an_attempt_that_a_person_ended_is_no_warning() -> None:
    assert list(remarks.troubles(1, Turn(text="", exit_code=-15, ended_by="interrupt"))) == []


def test_an_agent_that_asks_to_wait_has_not_failed() -> None:
    turn = Turn(text="", exit_code=42, failure=Failure("ordinary", "exit code 42"))
    assert list(remarks.troubles(1, turn)) == []


@pytest.mark.parametrize(
    ("turn", "text"),
    [
        (Turn(text="", exit_code=0), "exit code 0"),
        (Turn(text="", exit_code=1, failure=Failure("ordinary", "exit code 1: boom")), "exit code 1: boom"),
        (
            Turn(text="", exit_code=-9, failure=Failure("ordinary", "killed by signal 9")),
            "exit code -9 (killed by signal 9)",
        ),
        (Turn(text="", exit_code=None, failure=Failure("fatal", "not found")), "no exit code (not found)"),
    ],
)
def test_an_end_is_told_once(turn: Turn, text: str) -> None:
    assert remarks.how_ended(turn) == text


def test_the_first_attempt_starts_and_the_others_restart() -> None:
    assert remarks.starting(1, 100) == Remark("INFO", "Starting agent (attempt 1/100)")
    assert remarks.starting(2, 100) == Remark("INFO", "Restarting agent (attempt 2/100)")


@pytest.mark.parametrize(
    ("remark", "type_", "body"),
    [
        (remarks.DONE_ALONE, "INFO", "task completed (DONE marker present, no active children)"),
        (remarks.DONE_TOGETHER, "INFO", "task completed (all children finished)"),
        (remarks.waiting_requested(), "INFO", "Wait-without-restart signal detected"),
        (remarks.waiting_requested("for\nyou"), "INFO", "Wait-without-restart signal detected: for you"),
        (remarks.fatal("claude: not found"), "ERROR", "Fatal error: claude: not found"),
        (remarks.cancelled("Ctrl-C"), "INFO", "task cancelled: Ctrl-C"),
        (remarks.awaiting(["a", "b"]), "INFO", "waiting for 2 child runs to complete: a, b"),
        (remarks.not_awaited(["a"], 300), "WARNING", "timeout waiting for children after 5m0s: a"),
        (remarks.child_died("a", "gone"), "WARNING", "child run a marked as failed: gone"),
        (remarks.blocked(["p/a"]), "INFO", "waiting for other tasks to be done: p/a"),
        (remarks.run_started("attempt 1", "claude", 7), "RUN_START", "attempt 1: claude started as process 7"),
        (remarks.run_stopped("attempt 1", FAILED), "RUN_STOP", "attempt 1: exit code 1 after 0s"),
        (
            remarks.completion("p/t", "now", "r", 1),
            "FACT",
            "task p/t completed: DONE at now, 1 attempt, last run r",
        ),
    ],
)
def test_every_remark_has_its_type_and_its_words(remark: Remark, type_: str, body: str) -> None:
    assert (remark.type, remark.body) == (type_, body)


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
def test_durations_are_written_as_the_messages_have_them(seconds: float, text: str) -> None:
    assert remarks.go_duration(seconds) == text
