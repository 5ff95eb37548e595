import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ralph.supervise import run_info
from ralph.supervise.run_info import (
    RunInfo,
    active_children,
    bury,
    create,
    ended,
    is_active,
    is_dead,
    load,
    started,
    update,
)
from ralph.supervise.task_folder import TaskFolder, task_folder


@pytest.fixture
def folder(tmp_path: Path) -> TaskFolder:
    folder = task_folder(tmp_path, "project", "task")
    folder.path.mkdir(parents=True)
    return folder


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


@pytest.mark.parametrize(
    ("run", "active", "dead"),
    [
        (RunInfo(run_id="r", pid=7, pid_start="then"), True, False),
        (RunInfo(run_id="r", pid=7, pid_start="earlier"), False, True),
        (RunInfo(run_id="r", pid=8, pid_start="then"), False, True),
        (RunInfo(run_id="r", owner_pid=7, owner_start="then"), True, False),
        (RunInfo(run_id="r", pid=8, pid_start="then", owner_pid=7, owner_start="then"), True, False),
        (RunInfo(run_id="r"), False, True),
        (RunInfo(run_id="r", status="completed", pid=7, pid_start="then"), False, False),
        (RunInfo(run_id="r", status="failed"), False, False),
        (RunInfo(run_id="r", status="unreadable"), False, False),
    ],
)
def test_a_run_is_at_work_while_its_agent_or_its_owner_lives(run: RunInfo, active: bool, dead: bool) -> None:
    def living(pid: int, start: str) -> bool:
        return (pid, start) == (7, "then")

    assert (is_active(run, living), is_dead(run, living)) == (active, dead)


def orphan(folder: TaskFolder, parent: str, process: subprocess.Popen[bytes]) -> Path:
    """A child run with this agent, whose ralph is gone."""
    path = folder.runs / create(folder, "claude", 1.0, parent=parent).run_id
    started(path, process.pid, process.pid)
    run_info.release(path)
    return path


def test_a_child_is_active_until_its_process_dies_and_then_marked_as_failed(
    folder: TaskFolder, sleeper: subprocess.Popen[bytes]
) -> None:
    root = create(folder, "claude", 0.0, attempt=1)
    child = orphan(folder, root.run_id, sleeper)
    assert [run.run_id for run in active_children(folder)] == [child.name]
    assert bury(folder) == []
    sleeper.kill()
    sleeper.wait()
    assert active_children(folder) == []
    assert load(child).status == "running"
    (buried,) = bury(folder, now=lambda: 5.0)
    assert load(child) == buried
    assert buried.status == "failed"
    assert buried.ended_at == "1970-01-01T00:00:05.000000Z"
    assert buried.error_summary == f"its process {sleeper.pid} is gone"
    assert bury(folder) == []


def test_another_process_with_the_childs_number_does_not_keep_it_alive(
    folder: TaskFolder, sleeper: subprocess.Popen[bytes]
) -> None:
    child = orphan(folder, "root", sleeper)
    update(child, pid_start="a time long ago")
    assert active_children(folder) == []
    assert [run.run_id for run in bury(folder)] == [child.name]


def test_a_child_that_has_ended_is_left_as_it_is(folder: TaskFolder, sleeper: subprocess.Popen[bytes]) -> None:
    child = orphan(folder, "root", sleeper)
    over = ended(child, 2.0, "completed", 0)
    assert active_children(folder) == []
    assert bury(folder) == []
    assert load(child) == over


def test_a_child_whose_agent_has_not_started_yet_is_active(folder: TaskFolder) -> None:
    child = create(folder, "claude", 1.0, parent="root")
    assert active_children(folder) == [child]


def test_an_attempt_of_the_supervisor_is_no_child(folder: TaskFolder) -> None:
    create(folder, "claude", 1.0, attempt=1)
    assert active_children(folder) == []
    assert bury(folder) == []


def test_an_attempt_whose_supervisor_died_is_buried_too(folder: TaskFolder) -> None:
    attempt = create(folder, "claude", 1.0, attempt=1)
    update(folder.runs / attempt.run_id, owner_start="a time long ago")
    assert [run.run_id for run in bury(folder)] == [attempt.run_id]
