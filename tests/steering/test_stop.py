"""A run is ended from another terminal as Ctrl-C would end it."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Ralph = Callable[..., Any]


def test_stop_lets_the_current_turn_finish(ralph: Ralph, start: Any) -> None:
    run = start("--check", "true")
    run.in_turn()
    result = ralph("stop")
    assert (result.code, run.id in result.out) == (0, True)
    run.let("one thing done")
    assert run.finish() == 130
    assert run.all("agent_finished")[0].get("ended_by", "") == ""
    assert run.all("run_finished")[0]["outcome"] == "interrupted"


def test_a_run_is_stopping_until_it_has_ended(ralph: Ralph, start: Any, eventually: Any) -> None:
    run = start()
    run.in_turn()
    assert "again stops it now" in ralph("stop").out
    eventually(lambda: '"state":"stopping"' in ralph("ps", "--json").out)
    assert "stopping" in ralph("ps").out
    assert ralph("stop").out == f"run {run.id} stops now\n"
    assert run.finish() == 130
    assert '"state":"interrupted"' in ralph("ps", "-a", "--json").out


@pytest.mark.parametrize("ending", ["let", "kill"])
def test_a_resumed_run_is_not_stopping(ralph: Ralph, start: Any, eventually: Any, ending: str) -> None:
    run = start()
    run.in_turn()
    ralph("stop")
    eventually(lambda: '"state":"stopping"' in ralph("ps", "--json").out)
    run.let() if ending == "let" else run.process.kill()
    run.finish()
    resumed = start(command="resume")
    resumed.in_turn()
    assert '"state":"running"' in ralph("ps", "--json").out


def test_stop_now_ends_the_turn(ralph: Ralph, start: Any) -> None:
    run = start()
    run.in_turn()
    assert ralph("stop", "--now", "--wait", run.id[-4:]).code == 0
    assert run.finish() == 130
    assert run.all("agent_finished")[0]["ended_by"] == "interrupt"


@pytest.mark.parametrize("who", ["its own agent", "the agent of run 1234", "you"])
def test_ralph_says_who_stopped_a_run(ralph: Ralph, start: Any, workspace: Path, who: str) -> None:
    run = start("--check", "true")
    run.in_turn()
    # Files that an agent puts into the mailbox neither prevent a stop nor cause one.
    if who == "you":
        (workspace / ".ralph" / "runs" / run.id / "mail" / "stopped-by" / "x").mkdir(parents=True)
    mark = {"its own agent": run.id, "the agent of run 1234": "1234"}.get(who, "")
    assert ralph("stop", RALPH_RUN_ID=mark).code == 0
    run.let("one thing done")
    assert run.finish() == 130
    by = "SIGTERM" if who == "you" else f"a stop from {who}"
    assert run.all("run_finished")[0]["interrupted_by"] == by
    assert ("stopped by you" if who == "you" else f"received a stop from {who}") in ralph("show").out


def test_stop_now_reaches_a_run_that_ignores_hangups(ralph: Ralph, start: Any) -> None:
    run = start(wrapper=("sh", "-c", 'trap "" HUP; exec "$@"', "sh"))
    run.in_turn()
    assert ralph("stop", "--now").code == 0
    assert run.finish() == 130


def test_stop_then_stop_now_is_not_a_third_signal(ralph: Ralph, start: Any, eventually: Any) -> None:
    run = start()
    run.in_turn()
    ralph("stop")
    eventually(
        lambda: '"state":"stopping"' in ralph("ps", "--json").out
    )  # if two signals were pending, SIGHUP would be handled first
    assert ralph("stop", "--now").code == 0
    assert run.finish() == 130
    assert run.all("run_finished")[0]["reason"] == "received SIGHUP"


def test_stop_then_stop_now_is_not_a_third_signal_without_hangups(
    ralph: Ralph, start: Any, eventually: Any, workspace: Path
) -> None:
    """A third signal would kill the agent before it can clean up."""
    run = start(
        wrapper=("sh", "-c", 'trap "" HUP; exec "$@"', "sh"), before='trap "sleep 0.2; echo yes >cleaned; exit" TERM'
    )
    run.in_turn()
    ralph("stop")
    eventually(lambda: '"state":"stopping"' in ralph("ps", "--json").out)
    assert ralph("stop", "--now").code == 0
    assert run.finish() == 130
    assert (workspace / "cleaned").read_text() == "yes\n"


def test_a_paused_run_can_be_stopped(ralph: Ralph, start: Any) -> None:
    run = start()
    run.in_turn()
    ralph("pause")
    run.let()
    run.until("paused")
    assert ralph("stop").code == 0
    assert run.finish() == 130


def test_stop_without_a_run_is_an_error(ralph: Ralph, workspace: Path) -> None:
    result = ralph("stop")
    assert result.code == 2
    assert result.err == f'ralph: nothing has been run in {workspace}\nhint: start one with `ralph run "GOAL"`\n'


@pytest.mark.parametrize("command", ["stop", "pause"])
def test_a_finished_run_cannot_be_steered(ralph: Ralph, agent: Callable[..., str], command: str) -> None:
    ralph("run", "-p", "x", "-m", "1", "--agent", agent("echo hello"))
    result = ralph(command)
    assert result.code == 2
    assert "is not running: exhausted" in result.err


PROGRAMS = {
    "a loop in a thread": """
class Worker:
    def run(self, prompt):
        return work()

thread = threading.Thread(target=lambda: print(RalphLoop(RalphConfig("t", ["true"]), Worker).run().stop_reason))
thread.start()
thread.join()
""",
    "a supervisor": """
print(Supervisor("root/project/task", run_root=lambda attempt: work(), restart_delay=0).run().outcome)
""",
    "a supervisor that waits": """
root = lambda attempt: threading.Timer(0.5, work).start()
cancel = threading.Event()
print(Supervisor("root/project/task", run_root=root, restart_delay=600, poll_interval=600, cancel=cancel).run().outcome)
""",
    "a supervisor of a program": """
def stop():
    while not os.path.exists("root") or work("--now"):  # it is not at work yet
        pass

threading.Thread(target=stop).start()
print(Supervisor("root/project/task", agent="sleep 600", prompt="p").run().outcome)
""",
}


@pytest.mark.parametrize("kind", PROGRAMS)
def test_stop_ends_a_run_but_not_the_program_around_it(workspace: Path, environment: dict[str, str], kind: str) -> None:
    program = f"""
import os, subprocess, sys, threading
from ralph import RalphConfig, RalphLoop, Supervisor

def work(*options):
    place = "root/project/task" if os.path.exists("root") else "."
    words = [sys.executable, "-m", "ralph", "stop", *options, "-C", place]
    return subprocess.run(words, stdout=subprocess.DEVNULL).returncode
{PROGRAMS[kind]}
print("the program goes on")
"""
    process = subprocess.run(
        [sys.executable, "-c", program], cwd=workspace, env=environment, capture_output=True, text=True, timeout=120
    )
    assert process.stdout.splitlines() == ["interrupted", "the program goes on"], process.stderr
