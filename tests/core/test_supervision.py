import pytest

from ralph.core import supervision
from ralph.core.model import Failure, Turn
from ralph.core.supervision import Remark

FAILED = Turn("", exit_code=1)


def test_a_failed_attempt_is_a_warning_and_says_what_comes_next() -> None:
    assert supervision.after(1, 100, FAILED) == (
        Remark("WARNING", "agent failed on restart #0: exit code 1"),
        Remark("INFO", "Agent failed with exit code 1, restarting (attempt 2/100)"),
    )


def test_after_the_last_attempt_no_restart_is_announced() -> None:
    assert supervision.after(3, 3, FAILED) == (Remark("WARNING", "agent failed on restart #2: exit code 1"),)
    assert supervision.exhausted(3) == Remark(
        "ERROR", "max restarts exceeded, stopping: no DONE marker after 3 attempts"
    )


def test_an_agent_that_hung_is_said_to_be_killed() -> None:
    turn = Turn("", exit_code=-15, ended_by="turn timeout")
    assert [remark.body for remark in supervision.after(1, 100, turn, timeout=300)] == [
        "Agent timeout after 5m0s, killing process group",
        "Process group killed, treating as failure",
        "agent failed on restart #0: exit code -15 (turn timeout)",
        "Agent failed with exit code -15, restarting (attempt 2/100)",
    ]


def test_a_passing_fault_is_named() -> None:
    turn = Turn("", exit_code=1, failure=Failure("transient", "overloaded\nplease retry"))
    assert Remark("WARNING", "Transient error: overloaded please retry") in supervision.after(1, 2, turn)


def test_exit_code_zero_is_no_failure_and_no_completion() -> None:
    assert supervision.after(1, 100, Turn("")) == (
        Remark("INFO", "Attempt 1: Agent succeeded, but there is no DONE marker"),
    )


def test_the_first_attempt_starts_and_the_others_restart() -> None:
    assert supervision.starting(1, 100) == Remark("INFO", "Starting agent (attempt 1/100)")
    assert supervision.starting(2, 100) == Remark("INFO", "Restarting agent (attempt 2/100)")


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (supervision.attempt_line(1, FAILED), "Attempt 1: Agent failed (exit 1), restarting..."),
        (supervision.attempt_line(2, FAILED, restarting=False), "Attempt 2: Agent failed (exit 1)"),
        (supervision.attempt_line(2, Turn("", exit_code=None)), "Attempt 2: Agent failed, restarting..."),
        (supervision.attempt_line(3, Turn("")), "Attempt 3: Agent succeeded"),
        (supervision.exhausted_line(100), "Attempt 100: Max restarts exceeded, stopping"),
        (supervision.exhausted_line(0), "Max restarts exceeded, stopping"),
    ],
)
def test_the_log_has_a_line_for_each_attempt(line: str, text: str) -> None:
    assert line == text


@pytest.mark.parametrize(
    ("remark", "type_", "body"),
    [
        (supervision.DONE_ALONE, "INFO", "task completed (DONE marker present, no active children)"),
        (supervision.DONE_TOGETHER, "INFO", "task completed (all children finished)"),
        (supervision.waiting_requested(), "INFO", "Wait-without-restart signal detected"),
        (supervision.waiting_requested("for\nyou"), "INFO", "Wait-without-restart signal detected: for you"),
        (supervision.fatal("claude: not found"), "ERROR", "Fatal error: claude: not found"),
        (supervision.cancelled("Ctrl-C"), "INFO", "task cancelled: Ctrl-C"),
        (supervision.awaiting(["a", "b"]), "INFO", "waiting for 2 child runs to complete: a, b"),
        (supervision.not_awaited(["a"], 300), "WARNING", "timeout waiting for children after 5m0s: a"),
        (supervision.child_died("a", "gone"), "WARNING", "child run a marked as failed: gone"),
        (supervision.blocked(["p/a"]), "INFO", "waiting for other tasks to be done: p/a"),
        (supervision.run_started(1, "claude", 7), "RUN_START", "attempt 1: claude started as process 7"),
        (supervision.run_stopped(1, FAILED), "RUN_STOP", "attempt 1: exit code 1 after 0s"),
        (
            supervision.completion("p/t", "now", "r", 1),
            "FACT",
            "task p/t completed: DONE at now, 1 attempt, last run r",
        ),
    ],
)
def test_every_remark_has_its_type_and_its_words(remark: Remark, type_: str, body: str) -> None:
    assert remark == Remark(type_, body)


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
    assert supervision.go_duration(seconds) == text
