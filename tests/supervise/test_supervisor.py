"""The supervisor from Python, with a function of the caller as the agent."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ralph import MessageBus, Supervisor
from ralph.errors import UserError
from ralph.supervise.task import TaskFolder


@pytest.fixture
def supervisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Supervisor]:
    """Return a supervisor whose `run_root` is called with the supervisor and the attempt."""
    monkeypatch.chdir(tmp_path)

    def make(run_root: Callable[[Supervisor, int], Any] | None = None, **options: Any) -> Supervisor:
        given = {"restart_delay": 0.0, "poll_interval": 0.05, **options}
        made: Supervisor
        called = (lambda attempt: run_root(made, attempt)) if run_root else None
        made = Supervisor(tmp_path / "root" / "project" / "task", run_root=called, **given)
        return made

    return make


def statuses(task: TaskFolder) -> list[tuple[str, int | None]]:
    return [(run.status, run.exit_code) for run in task.list_runs()]


def done(supervisor: Supervisor) -> None:
    supervisor.task.done.touch()


def test_an_attempt_that_leaves_done_is_the_last(supervisor: Any) -> None:
    made = supervisor(lambda self, attempt: done(self))
    result = made.run()
    assert (result.outcome, result.attempts, result.success) == ("done", 1, True)
    assert statuses(made.task) == [("completed", 0)]


def test_attempts_are_counted_from_zero_and_every_end_without_done_restarts(supervisor: Any) -> None:
    calls = []

    def root(self: Supervisor, attempt: int) -> Any:
        calls.append(attempt)
        if attempt == 0:
            raise RuntimeError("boom")
        if attempt == 1:
            subprocess.run([sys.executable, "-c", "raise SystemExit(3)"], check=True)
        if attempt == 5:
            done(self)
        return [None, None, 7, subprocess.CompletedProcess([], 4), False, "all is well"][attempt]

    made = supervisor(root)
    assert made.run().attempts == 6
    assert calls == [0, 1, 2, 3, 4, 5]
    assert statuses(made.task) == [
        ("failed", None),
        ("failed", 3),
        ("failed", 7),
        ("failed", 4),
        ("failed", 1),
        ("completed", 0),
    ]
    assert made.task.list_runs()[0].error_summary == "no exit code (RuntimeError: boom)"
    assert (made.task.runs / made.task.list_runs()[5].run_id / "output.md").read_text() == "all is well"


def test_a_supervisor_gives_up_after_max_restarts(supervisor: Any) -> None:
    result = supervisor(lambda self, attempt: None, max_restarts=3).run()
    assert (result.outcome, result.attempts, result.success, result.exit_code) == ("exhausted", 3, False, 1)
    assert supervisor(lambda self, attempt: pytest.fail("called"), max_restarts=0).run().attempts == 0


def test_a_task_with_done_needs_no_attempt(supervisor: Any) -> None:
    made = supervisor(lambda self, attempt: pytest.fail("called"))
    made.task.path.mkdir(parents=True)
    done(made)
    assert made.run().success


@pytest.mark.parametrize(
    "error", [FileNotFoundError("no agent"), PermissionError("not executable"), UserError("bad configuration")]
)
def test_a_fatal_error_stops_at_once(supervisor: Any, error: Exception) -> None:
    def root(self: Supervisor, attempt: int) -> None:
        raise error

    result = supervisor(root).run()
    assert (result.outcome, result.reason, result.attempts, result.exit_code) == ("fatal", str(error), 1, 2)


def test_an_attempt_may_ask_to_wait(supervisor: Any) -> None:
    result = supervisor(lambda self, attempt: 42).run()
    assert (result.outcome, result.attempts, result.success) == ("stopped", 1, True)


def test_an_event_cancels_between_attempts_and_before_the_first(supervisor: Any) -> None:
    cancel = threading.Event()
    result = supervisor(lambda self, attempt: cancel.set(), cancel=cancel, restart_delay=600.0).run()
    assert (result.outcome, result.attempts, result.exit_code) == ("interrupted", 1, 130)
    assert supervisor(lambda self, attempt: pytest.fail("called"), cancel=cancel).run().outcome == "interrupted"


def test_an_event_wakes_a_supervisor_that_waits(supervisor: Any) -> None:
    cancel, ended = threading.Event(), threading.Event()
    made = supervisor(lambda self, attempt: None, cancel=cancel, restart_delay=600.0, poll_interval=600.0)
    results = []

    def supervise() -> None:
        results.append(made.run())
        ended.set()

    thread = threading.Thread(target=supervise)
    thread.start()
    path = made.task.path / ".ralph" / "progress.md"
    while not path.exists():
        assert not ended.wait(0.01)
    cancel.set()
    thread.join(30)
    assert [result.outcome for result in results] == ["interrupted"]


def test_an_event_ends_an_agent_that_runs(supervisor: Any) -> None:
    cancel = threading.Event()
    made = supervisor(agent="sh -c 'touch up; sleep 600'", prompt="x", cancel=cancel)

    def when_up() -> None:
        while not Path("up").exists():
            if cancel.wait(0.01):
                return
        cancel.set()

    thread = threading.Thread(target=when_up)
    thread.start()
    result = made.run()
    thread.join()
    assert result.outcome == "interrupted"
    assert [status for status, _ in statuses(made.task)] == ["stopped"]


def test_an_agent_is_run_as_the_command_would(supervisor: Any) -> None:
    made = supervisor(agent="sh -c 'cat; touch $TASK_FOLDER/DONE'", prompt="Build it.")
    assert made.run().success
    (run,) = made.task.list_runs()
    assert (made.task.runs / run.run_id / "agent-stdout.txt").read_text() == "Build it."


def test_children_find_the_attempt_in_the_environment(supervisor: Any) -> None:
    def root(self: Supervisor, attempt: int) -> None:
        command = [sys.executable, "-m", "ralph", "job", "--agent", "echo child", "-p", "x"]
        subprocess.run(command, env=self.environment, check=True, capture_output=True)
        done(self)

    made = supervisor(root)
    assert made.run().success
    first, second = made.task.list_runs()
    assert (second.parent_run_id, second.status) == (first.run_id, "completed")


def test_projects_and_tasks_may_have_other_names_than_their_folders(supervisor: Any) -> None:
    made = supervisor(lambda self, attempt: done(self), project_id="shop", task_id="task-001")
    assert made.run().success
    messages = list(made.task.bus.read())
    assert {(message.project, message.task) for message in messages} == {("shop", "task-001")}
    (fact,) = made.task.project_bus.read()
    assert fact.body.startswith("task shop/task-001 completed")


def test_a_bad_option_is_a_user_error(supervisor: Any) -> None:
    with pytest.raises(UserError, match="Supervisor: maximumIterations"):
        supervisor(lambda self, attempt: None, max_restarts=-1).run()


def test_ctrl_c_in_the_callers_function_is_raised_to_the_caller(supervisor: Any) -> None:
    def root(self: Supervisor, attempt: int) -> None:
        raise KeyboardInterrupt

    made = supervisor(root)
    with pytest.raises(KeyboardInterrupt):
        made.run()
    assert statuses(made.task) == [("failed", None)]
    assert os.listdir(made.task.path / ".ralph" / "runs")


@pytest.mark.parametrize("closed", ["<&-", "<&- >&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_cost_no_extra_attempts(tmp_path: Path, closed: str) -> None:
    program = """
from ralph import MessageBus, Supervisor
result = Supervisor("root/project/task", agent="sh -c 'touch $TASK_FOLDER/DONE'", prompt="p").run()
open("result", "w").write(f"{result.outcome} {result.attempts}")
"""
    (tmp_path / "program.py").write_text(program)
    subprocess.run(["sh", "-c", f"{sys.executable} program.py {closed}"], cwd=tmp_path, check=True)
    assert (tmp_path / "result").read_text() == "done 1"


def test_the_callers_own_bus_is_used(supervisor: Any, tmp_path: Path) -> None:
    own = MessageBus(tmp_path / "bus.md")
    seen: list[str] = []

    def root(self: Supervisor, attempt: int) -> None:
        seen.append(self.environment["MESSAGE_BUS"])
        own.post("wait_without_restart", "for a key", run="mine")

    made = supervisor(root, bus=own)
    assert made.run().outcome == "stopped"
    assert seen == [own.path]
    types = [(message.type, message.run) for message in own.read()]
    assert ("wait_without_restart", "mine") in types
    assert ("INFO", types[0][1]) in types
    assert [message.body for message in own.read(types=["wait_without_restart"])] == ["for a key"]
    assert not (made.task.path / "TASK-MESSAGE-BUS.md").exists()
    assert Supervisor(made.task.path, own).task.bus.path == own.path, "as the second argument, too"
