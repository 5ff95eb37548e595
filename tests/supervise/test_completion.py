import os
from pathlib import Path

import pytest

from ralph.supervise import bus
from ralph.supervise.task_folder import TaskFolder, task_folder
from ralph.supervise.task_list import tell_project


@pytest.fixture
def folder(tmp_path: Path) -> TaskFolder:
    folder = task_folder(tmp_path, "project", "task")
    folder.path.mkdir(parents=True)
    folder.done.touch()
    os.utime(folder.done, (1, 1))
    return folder


def test_the_project_learns_of_a_completion_once(folder: TaskFolder) -> None:
    assert tell_project(folder, "run-3", 3) == ""
    assert tell_project(folder, "run-3", 3) == ""
    assert tell_project(folder, "", 0) == ""
    (fact,) = bus.read(folder.project_bus)
    assert (fact.type, fact.project, fact.task, fact.run) == ("FACT", "project", "task", "run-3")
    assert fact.body == ("task project/task completed: DONE at 1970-01-01T00:00:01.000000Z, 3 attempts, last run run-3")


def test_another_task_and_another_completion_are_told_too(folder: TaskFolder) -> None:
    tell_project(folder, "run-1", 1)
    other = task_folder(folder.root, "project", "other")
    other.path.mkdir()
    other.done.touch()
    os.utime(other.done, (1, 1))
    tell_project(other, "run-2", 1)
    os.utime(folder.done, (2, 2))
    tell_project(folder, "run-3", 1)
    assert [fact.run for fact in bus.read(folder.project_bus)] == ["run-1", "run-2", "run-3"]


def test_a_project_that_cannot_be_told_fails_nothing(folder: TaskFolder, tmp_path: Path) -> None:
    folder.project_bus.symlink_to(tmp_path / "elsewhere")
    assert "symbolic link" in tell_project(folder, "run-1", 1)
    folder.done.unlink()
    assert "No such file" in tell_project(folder, "run-1", 1)
