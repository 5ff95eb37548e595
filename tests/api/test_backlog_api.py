"""`from ralph import Backlog` does what `ralph work` does, with the same outcomes."""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ralph import Backlog
from ralph.errors import UserError

WORK = """
key=$(printf '%s\\n' "$PROMPT" | sed -n 's/^\\([A-Za-z]*[0-9][0-9]*\\) .*/\\1/p' | head -1)
case $key in bad*) ;; *) echo "$key" > "$key.txt" ;; esac
"""


@pytest.fixture(autouse=True)
def _home(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)  # the commands of these tests have none


@pytest.fixture
def backlog(repository: Path, git: Callable[..., str], agent: Callable[..., str]) -> Callable[..., Backlog]:
    """Return a function that lists tasks in a repository and makes the backlog for them."""
    command = agent(WORK + "echo COMPLETE")

    def make(tasks: str, **given: Any) -> Backlog:
        (repository / "TASKS.md").write_text(tasks)
        git("add", "-A")
        git("commit", "-qm", "list")
        return Backlog("TASKS.md", ["true"], repository, **{"agent": command, **given})

    return make


def test_every_task_is_merged(backlog: Callable[..., Backlog], git: Callable[..., str]) -> None:
    before = dict(os.environ)
    result = backlog("- [ ] T1 One\n- [ ] T2 Two\n", jobs=2).run()
    assert (result.success, result.outcome, result.exit_code) == (True, "done", 0), result.reason
    assert (result.tasks, result.merged, result.parked) == (2, 2, 0)
    assert git("show", f"{result.target}:T2.txt") == "T2\n"
    assert dict(os.environ) == before


def test_it_is_listed_and_accepted_like_one_of_the_command(
    backlog: Callable[..., Backlog], repository: Path, ralph: Callable[..., Any]
) -> None:
    result = backlog("- [ ] T1 One\n").run()
    assert "1/1 merged" in ralph("ps", "-a").out
    assert ralph("accept", result.id).code == 0
    assert (repository / "T1.txt").exists()


def test_a_parked_task_has_the_exit_code_of_the_command(
    backlog: Callable[..., Backlog], ralph: Callable[..., Any]
) -> None:
    result = backlog("- [ ] T1 One\n- [ ] bad1 Nothing\n- [ ] T2 Two\n  after: bad1\n").run()
    assert (result.outcome, result.exit_code, result.success) == ("parked", 1, False)
    assert (result.tasks, result.merged, result.parked, result.blocked) == (3, 1, 1, 1)
    assert ralph("resume", result.id).code == 1


def test_a_backlog_that_cannot_start_raises_and_leaves_nothing(
    backlog: Callable[..., Backlog], repository: Path
) -> None:
    for given, message in [
        ({"agent": "/no/such/agent"}, "/no/such/agent"),
        ({"max_cost": 0}, "too small"),
        ({"push": "nowhere/main"}, "nowhere/main"),
        ({"jobs": 0}, "jobs"),
        ({"settings": {"wrok": {}}}, "wrok"),
    ]:
        with pytest.raises(UserError) as error:
            backlog(f"- [ ] T1 One\n- [ ] {given}\n", **given).run()
        assert message in error.value.message
    with pytest.raises(UserError, match="expected a list"):
        Backlog("TASKS.md", "make test", repository)
    assert not (repository / ".ralph" / "runs").exists()


def test_a_backlog_without_open_tasks_is_done(backlog: Callable[..., Backlog]) -> None:
    result = backlog("- [x] T1 One\n").run()
    assert (result.success, result.outcome, result.id) == (True, "done", "")


def test_the_caller_can_cancel_it_from_another_thread(
    backlog: Callable[..., Backlog], agent: Callable[..., str], tmp_path: Path
) -> None:
    started = tmp_path / "started"
    os.mkfifo(started)
    cancel, results = threading.Event(), []
    waiting = backlog("- [ ] T1 One\n", agent=agent(f"echo > {started}; sleep 99", "waiting"), cancel=cancel)
    thread = threading.Thread(target=lambda: results.append(waiting.run()))
    thread.start()
    started.read_text()  # the agent is running
    cancel.set()
    thread.join(60)
    (result,) = results
    assert (result.outcome, result.exit_code) == ("interrupted", 130)
