"""Runs that were started in the TUI are real processes, which end with it unless the user keeps them."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from ralph.actions.launch import Launched, NextRun
from ralph.process.ralph_child import StopLevel
from ralph.store.register import Listed, runs
from ralph.tui.app import RalphApp

PATIENCE = 30.0
Show = Callable[..., str]
OnScreen = Callable[..., RalphApp]
Typed = Callable[[Pilot[Any], str], Awaitable[None]]

OPENER = """
import os, sys
from ralph.actions.launch import Launched
launched = Launched()
launched.start(sys.argv[2:], os.environ)
print(launched.pid, flush=True)
sys.stdin.readline()
if sys.argv[1] == "let go":
    launched.let_go()
print("ready", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def gate(environment: dict[str, str]) -> Path:
    """Return a pipe: the agent announces that it is running, and continues when the test opens the pipe."""
    path = Path(environment["HOME"]) / "gate"
    os.mkfifo(path)
    return path


@pytest.fixture
def waiting_agent(agent: Callable[..., str], gate: Path) -> Path:
    """Return a file in which the agent's process id appears once it is running."""
    agent(f'echo $$ > "{gate}.new"; mv "{gate}.new" "{gate}.pid"; cat "{gate}" > /dev/null; echo STOP', "waiting-agent")
    return gate.with_name("gate.pid")


def eventually(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_there(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return stat.read().rpartition(b")")[2].split()[0] != b"Z"
    except OSError:
        return False


def only_run(env: dict[str, str]) -> Listed:
    (run,) = runs(env)
    return run


@pytest.fixture
def opener(
    workspace: Path, environment: dict[str, str], waiting_agent: Path
) -> Iterator[Callable[[str], "subprocess.Popen[str]"]]:
    """Another process that has started a run."""
    made: list[subprocess.Popen[str]] = []

    def start(way: str) -> "subprocess.Popen[str]":
        words = NextRun(workspace=str(workspace), agent="waiting-agent", cap=3).words("go")
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            [sys.executable, "-c", OPENER, way, *words], env=environment, stdin=pipe, stdout=pipe, text=True
        )
        made.append(process)
        assert process.stdout
        assert int(process.stdout.readline())
        eventually(waiting_agent.exists)
        assert process.stdin
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in made:
        process.kill()
        process.communicate()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing can be promised for kill -9")
def test_a_run_ends_with_the_tui_even_after_kill_9(
    opener: Callable[[str], "subprocess.Popen[str]"], waiting_agent: Path, environment: dict[str, str]
) -> None:
    screen = opener("hold")
    agent = int(waiting_agent.read_text())
    screen.send_signal(signal.SIGKILL)
    screen.wait()
    eventually(lambda: not is_there(agent))
    eventually(lambda: not only_run(environment).is_alive)
    assert only_run(environment).facts.outcome == "interrupted"


def test_a_run_that_was_kept_continues_without_the_tui(
    opener: Callable[[str], "subprocess.Popen[str]"], waiting_agent: Path, environment: dict[str, str], gate: Path
) -> None:
    screen = opener("let go")
    screen.send_signal(signal.SIGKILL)
    screen.wait()
    assert only_run(environment).is_alive
    gate.write_text("go\n")
    eventually(lambda: not only_run(environment).is_alive)
    assert only_run(environment).facts.outcome == "done"


def test_a_run_that_cannot_start_reports_why(workspace: Path, environment: dict[str, str]) -> None:
    launched = Launched()
    launched.start(NextRun(workspace=str(workspace), agent="no-such-agent").words("go"), environment)
    eventually(lambda: launched.exit_code is not None)
    assert launched.exit_code == 2
    assert "no-such-agent" in launched.error_text()
    assert "hint:" not in launched.error_text()
    launched.close()


def test_a_folder_called_ralph_is_not_imported(
    workspace: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (workspace / "ralph").mkdir()
    (workspace / "ralph" / "__init__.py").write_text("raise SystemExit('not this one')")
    monkeypatch.chdir(workspace)
    launched = Launched()
    launched.start(["--version"], environment)
    eventually(lambda: launched.exit_code is not None)
    assert launched.exit_code == 0
    launched.close()


async def settled(app: RalphApp, pilot: Pilot[Any], holds: Callable[[], bool]) -> None:
    """Wait until the TUI has seen what other processes do."""
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline
        app.survey()
        app.read_journal()
        await pilot.pause(0.01)


def test_a_goal_starts_a_run_with_the_cap_that_was_set(
    agent: Callable[..., str], on_screen: OnScreen, shown: Show, typed: Typed, environment: dict[str, str]
) -> None:
    agent('echo "try $N"; [ $N -ge 3 ] && printf "\\nSTOP\\n"')

    async def scenario(app: RalphApp, pilot: Pilot[Any]) -> None:
        await typed(pilot, "/agent fake-agent")
        await typed(pilot, "/ralph 5")
        await typed(pilot, "Make it so")
        await settled(app, pilot, lambda: "after 3 iterations" in shown(app, "stream"))
        await settled(app, pilot, lambda: "after 3 iterations" in shown(app, "message"))
        assert "iteration 3/5" in shown(app, "stream")

    on_screen(scenario, (100, 40))
    run = only_run(environment)
    assert (run.facts.goal, run.facts.max_iterations, run.facts.preset) == ("Make it so", 5, "goal")


def test_with_ralph_off_a_goal_is_a_single_shot(
    agent: Callable[..., str],
    on_screen: OnScreen,
    typed: Typed,
    environment: dict[str, str],
    prompts: Callable[..., Any],
) -> None:
    agent('echo "try $N"')

    async def scenario(app: RalphApp, pilot: Pilot[Any]) -> None:
        for line in ("/agent fake-agent", "/ralph 5", "/ralph off", "Make it so"):
            await typed(pilot, line)
        await settled(app, pilot, lambda: bool(app.state.runs) and not app.state.runs[0].is_alive)

    on_screen(scenario)
    assert prompts() == ["Make it so"]
    assert only_run(environment).facts.outcome == "done"


def test_a_promise_loop_is_started_and_cancelled(
    waiting_agent: Path, on_screen: OnScreen, shown: Show, typed: Typed, environment: dict[str, str]
) -> None:
    async def scenario(app: RalphApp, pilot: Pilot[Any]) -> None:
        await typed(pilot, "/agent waiting-agent")
        await typed(pilot, '/ralph-loop "Keep your word" --max-iterations 4')
        await settled(app, pilot, lambda: any(run.facts.preset == "promise" for run in app.state.runs))
        await settled(app, pilot, waiting_agent.exists)
        await typed(pilot, "/cancel-ralph")
        await settled(app, pilot, lambda: not app.state.run.is_alive)
        assert app.state.run.state == "interrupted"

    on_screen(scenario)


def test_s_stops_a_run_after_its_turn(
    waiting_agent: Path, on_screen: OnScreen, shown: Show, typed: Typed, gate: Path
) -> None:
    async def scenario(app: RalphApp, pilot: Pilot[Any]) -> None:
        await typed(pilot, "/agent waiting-agent")
        await typed(pilot, "go")
        await settled(app, pilot, lambda: waiting_agent.exists() and bool(app.state.runs))
        await pilot.press("escape", "s")
        assert "stops after its current turn; S stops it now" in shown(app, "message")
        gate.write_text("go\n")
        await settled(app, pilot, lambda: not app.state.launched)
        await pilot.press("s")
        assert "is not running" in shown(app, "message")

    on_screen(scenario)


def test_a_run_that_cannot_start_is_one_message(on_screen: OnScreen, shown: Show, typed: Typed) -> None:
    async def scenario(app: RalphApp, pilot: Pilot[Any]) -> None:
        await typed(pilot, "/agent no-such-agent")
        await typed(pilot, "go")
        await settled(app, pilot, lambda: shown(app, "message").startswith("✗"))
        assert "no-such-agent" in shown(app, "message")
        assert app.state.launched == []

    on_screen(scenario)


@pytest.mark.parametrize("answer", ["stop", "keep", "stay"])
def test_quitting_asks_what_to_do_with_runs_started_here(
    answer: str,
    waiting_agent: Path,
    on_screen: OnScreen,
    shown: Show,
    typed: Typed,
    environment: dict[str, str],
    gate: Path,
) -> None:
    async def scenario(app: RalphApp, pilot: Pilot[Any]) -> None:
        await typed(pilot, "/agent waiting-agent")
        await typed(pilot, "go")
        await settled(app, pilot, lambda: waiting_agent.exists() and bool(app.state.runs))
        await pilot.press("ctrl+c")
        await pilot.pause()
        assert "started here, is still running" in shown(app, "question")
        await pilot.press({"stop": "s", "keep": "k", "stay": "escape"}[answer])
        await pilot.pause()
        if answer == "stop":
            await settled(app, pilot, lambda: not app.state.launched)
        elif answer == "stay":
            assert len(app.screen_stack) == 1
            gate.write_text("go\n")
            await settled(app, pilot, lambda: not app.state.launched)

    app = on_screen(scenario)
    if answer == "keep":
        assert app.return_value == [only_run(environment).id]
        app.state.close()
        assert only_run(environment).is_alive
        gate.write_text("go\n")
        eventually(lambda: not only_run(environment).is_alive)
    state = only_run(environment).state
    assert state == ("interrupted" if answer == "stop" else "done")


def test_quitting_asks_nothing_if_the_run_has_just_ended(
    waiting_agent: Path, on_screen: OnScreen, typed: Typed, environment: dict[str, str], gate: Path
) -> None:
    async def scenario(app: RalphApp, pilot: Pilot[Any]) -> None:
        await typed(pilot, "/agent waiting-agent")
        await typed(pilot, "go")
        await settled(app, pilot, lambda: waiting_agent.exists() and bool(app.state.launched[0].run))
        gate.write_text("go\n")
        eventually(lambda: only_run(environment).state == "done")  # the screen, held up here, does not know it yet
        app.action_quit_or_ask()

    app = on_screen(scenario)
    assert app.return_value == []
    app.state.close()
    assert only_run(environment).state == "done"


def test_ctrl_c_twice_quits_at_once_even_if_the_agent_ignores_signals(
    agent: Callable[..., str], on_screen: OnScreen, typed: Typed, environment: dict[str, str], tmp_path: Path
) -> None:
    pid = tmp_path / "pid"
    agent(f"trap '' TERM INT HUP; echo $$ > {pid}.new; mv {pid}.new {pid}; while :; do sleep 600; done", "deaf-agent")

    async def scenario(app: RalphApp, pilot: Pilot[Any]) -> None:
        await typed(pilot, "/agent deaf-agent")
        await typed(pilot, "go")
        await settled(app, pilot, lambda: pid.exists() and bool(app.state.runs))
        await pilot.press("ctrl+c")
        await pilot.pause()
        await pilot.press("ctrl+c")
        await pilot.pause()

    app = on_screen(scenario)
    assert app.return_value == []
    app.state.close()
    eventually(lambda: not is_there(int(pid.read_text())))
    eventually(lambda: only_run(environment).state == "interrupted")


def test_r_resumes_a_run_that_was_stopped(
    waiting_agent: Path, workspace: Path, environment: dict[str, str], on_screen: OnScreen, shown: Show, gate: Path
) -> None:
    first = Launched()
    first.start(NextRun(workspace=str(workspace), agent="waiting-agent", cap=3).words("go"), environment)
    eventually(waiting_agent.exists)
    first.request_stop(StopLevel.NOW)
    eventually(lambda: first.exit_code == 130)
    first.close()
    waiting_agent.unlink()

    async def scenario(app: RalphApp, pilot: Pilot[Any]) -> None:
        assert "interrupted" in shown(app, "runs")
        await pilot.press("escape", "r")
        await settled(app, pilot, lambda: waiting_agent.exists() and app.state.run.is_alive)
        gate.write_text("go\n")
        await settled(app, pilot, lambda: not app.state.launched)
        assert "after 1 iteration" in shown(app, "message")

    on_screen(scenario)
    assert only_run(environment).state == "done"


def test_resuming_without_iterations_left_says_how_to_give_more(
    agent: Callable[..., str], ralph: Callable[..., Any], on_screen: OnScreen, shown: Show
) -> None:
    agent("echo again")
    assert ralph("run", "go", "--ralph", "1", "--agent", "fake-agent").code == 1

    async def scenario(app: RalphApp, pilot: Pilot[Any]) -> None:
        await pilot.press("escape", "r")
        await settled(app, pilot, lambda: shown(app, "message").startswith("✗"))
        assert "has used all its iterations · give it more: ralph resume -m N" in shown(app, "message")

    on_screen(scenario, (120, 40))


def test_a_hanging_git_does_not_delay_quitting(
    agent: Callable[..., str],
    ralph: Any,
    repository: Path,
    on_screen: OnScreen,
    environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    assert ralph("run", "go", "--ralph", "1", "--agent", agent("echo x > new; echo STOP")).code == 0
    pid = tmp_path / "pid"
    Path(agent("", "git")).write_text(f"#!/bin/sh\ntrap '' TERM HUP\necho $$ > {pid}\nwhile :; do sleep 600; done\n")
    monkeypatch.setenv("PATH", environment["PATH"])

    async def scenario(app: RalphApp, pilot: Pilot[Any]) -> None:
        await pilot.press("escape", "d")
        await settled(app, pilot, lambda: pid.exists() and bool(pid.read_text()))
        await pilot.press("ctrl+c")

    on_screen(scenario)  # which would take ten minutes
    assert not Path("/proc", pid.read_text().strip()).exists()
