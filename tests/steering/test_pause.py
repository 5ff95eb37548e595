"""A run pauses between two turns until a person continues it. Paused time doesn't count against its time limit."""

import signal
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

Ralph = Callable[..., Any]


def test_a_pause_begins_after_the_turn_and_ends_with_resume(ralph: Ralph, start: Any, eventually: Any) -> None:
    run = start("--check", "true")
    run.in_turn()
    assert "pauses before its next turn" in ralph("pause").out
    assert "pauses after this turn" in ralph("ps").out
    run.let()
    run.until("paused")
    eventually(lambda: '"state":"paused"' in ralph("ps", "--json").out)  # listeners get it before the file is written
    assert ralph("resume").out == f"run {run.id} continues\n"
    run.until("continued")
    run.in_turn()
    run.let("<response>DONE</response>")
    assert run.finish() == 0
    assert len(run.prompts()) == 2


def test_a_pause_does_not_count_against_the_time_limit(ralph: Ralph, start: Any) -> None:
    run = start("--max-time", "8")
    run.in_turn()
    ralph("pause")
    run.let()
    run.until("paused")
    with pytest.raises(subprocess.TimeoutExpired):  # it does not end, although its time is over
        run.process.wait(8)
    ralph("resume")
    run.until("continued")
    run.in_turn()
    run.let("<response>DONE</response>")
    assert run.finish() == 0
    assert run.all("run_finished")[0]["duration_s"] < 8


def test_a_run_can_end_as_done_in_spite_of_a_requested_pause(ralph: Ralph, start: Any) -> None:
    run = start()
    run.in_turn()
    ralph("pause")
    run.let("<response>DONE</response>")
    assert run.finish() == 0


def test_a_run_killed_while_paused_can_be_resumed(ralph: Ralph, start: Any) -> None:
    run = start()
    run.in_turn()
    ralph("pause")
    run.let()
    run.until("paused")
    run.process.send_signal(signal.SIGKILL)
    run.process.wait()
    again = start(command="resume")
    again.in_turn()
    again.let("<response>DONE</response>")
    assert again.finish() == 0
    assert again.id == run.id


def test_a_running_run_is_not_resumed(ralph: Ralph, start: Any) -> None:
    run = start()
    run.in_turn()
    result = ralph("resume", run.id)
    assert result.code == 2
    assert "is running" in result.err


def test_limits_are_not_changed_while_a_run_is_paused(ralph: Ralph, start: Any) -> None:
    run = start()
    run.in_turn()
    ralph("pause")
    run.let()
    run.until("paused")
    result = ralph("resume", "-m", "3")
    assert result.code == 2
    assert "its limits are fixed" in result.err
