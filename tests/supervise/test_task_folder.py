import os
from pathlib import Path

import pytest

from ralph.errors import UserError
from ralph.supervise.task_folder import (
    Markers,
    TaskFolder,
    around,
    keep_prompt,
    markers,
    reopen,
    task_environment,
    task_folder,
)


@pytest.fixture
def folder(tmp_path: Path) -> TaskFolder:
    folder = task_folder(tmp_path, "project", "task-1")
    folder.path.mkdir(parents=True)
    return folder


def test_a_task_has_its_place_below_the_root(tmp_path: Path) -> None:
    folder = task_folder(tmp_path, "p", "t")
    places = {folder.path, folder.prompt, folder.done, folder.wait, folder.bus, folder.runs, folder.project_bus}
    assert {str(place.relative_to(tmp_path)) for place in places} == {
        "p/t",
        "p/t/TASK.md",
        "p/t/DONE",
        "p/t/WAIT_WITHOUT_RESTART",
        "p/t/TASK-MESSAGE-BUS.md",
        "p/t/runs",
        "p/PROJECT-MESSAGE-BUS.md",
    }
    assert not folder.path.exists()


def test_the_root_may_be_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert task_folder("here", "p", "t").path == tmp_path / "here/p/t"


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../up", "a/b", "/etc", "a\\b", "a\0b", "a\nb", " a", "a ", ".hidden", "-rf", "x" * 201, "\udcff"],
)
def test_names_that_play_tricks_are_refused(tmp_path: Path, name: str) -> None:
    for names in ((name, "task"), ("project", name)):
        with pytest.raises(UserError, match="not a name for a"):
            task_folder(tmp_path, *names)


def test_a_task_cannot_take_the_place_of_its_projects_bus(tmp_path: Path) -> None:
    with pytest.raises(UserError):
        task_folder(tmp_path, "p", "PROJECT-MESSAGE-BUS.md")


@pytest.mark.parametrize("name", ["task-20261115-fix", "Überarbeitung", "two words", "v1.2_x", "12"])
def test_ordinary_names_are_accepted(tmp_path: Path, name: str) -> None:
    assert task_folder(tmp_path, name, name).path == tmp_path / name / name


def test_a_given_prompt_becomes_the_task(tmp_path: Path) -> None:
    folder = task_folder(tmp_path / "new", "p", "t")
    assert keep_prompt(folder, "do\r\nthis {{x}} \u2028 $(y)") == "do\r\nthis {{x}} \u2028 $(y)"
    assert folder.prompt.read_bytes().decode() == "do\r\nthis {{x}} \u2028 $(y)"
    assert keep_prompt(folder, None) == "do\r\nthis {{x}} \u2028 $(y)"


def test_a_given_prompt_wins_for_this_run_and_overwrites_nothing(folder: TaskFolder) -> None:
    folder.prompt.write_text("the task")
    assert keep_prompt(folder, "something else") == "something else"
    assert folder.prompt.read_text() == "the task"
    assert keep_prompt(folder, None) == "the task"


def test_a_given_prompt_wins_over_a_task_that_cannot_be_read(folder: TaskFolder) -> None:
    folder.prompt.write_bytes(b"\xff")
    assert keep_prompt(folder, "given") == "given"
    with pytest.raises(UserError, match="not UTF-8"):
        keep_prompt(folder, None)


def test_a_link_to_nowhere_is_not_written_through(folder: TaskFolder, tmp_path: Path) -> None:
    folder.prompt.symlink_to(tmp_path / "elsewhere")
    assert keep_prompt(folder, "given") == "given"
    assert not (tmp_path / "elsewhere").exists()


def test_neither_prompt_nor_task_is_an_error_and_makes_no_folder(tmp_path: Path) -> None:
    folder = task_folder(tmp_path, "p", "t")
    for given in (None, "", " \n"):
        with pytest.raises(UserError, match="nothing to do") as caught:
            keep_prompt(folder, given)
        assert "--prompt" in caught.value.hint
    assert not (tmp_path / "p").exists()


def test_an_empty_task_is_nothing_to_do(folder: TaskFolder) -> None:
    folder.prompt.write_text("\n")
    with pytest.raises(UserError, match="is empty"):
        keep_prompt(folder, None)


def test_a_file_where_the_folder_should_be_is_said(tmp_path: Path) -> None:
    (tmp_path / "p").write_text("a file")
    for given in (None, "do it"):
        with pytest.raises(UserError, match="cannot use"):
            keep_prompt(task_folder(tmp_path, "p", "t"), given)


def test_no_marks_on_a_fresh_task(folder: TaskFolder, tmp_path: Path) -> None:
    assert markers(folder) == Markers()
    assert markers(task_folder(tmp_path, "no", "such")) == Markers()


def test_an_empty_file_is_enough_to_be_done(folder: TaskFolder) -> None:
    folder.done.touch()
    assert markers(folder) == Markers(done=True)


def test_a_link_to_a_file_counts_and_a_link_to_nothing_does_not(folder: TaskFolder) -> None:
    folder.done.symlink_to("result")
    assert markers(folder) == Markers()
    (folder.path / "result").touch()
    assert markers(folder) == Markers(done=True)


def test_whatever_else_is_in_the_place_of_done_is_trouble(folder: TaskFolder, tmp_path: Path) -> None:
    folder.done.mkdir()
    assert markers(folder) == Markers(trouble="DONE is a directory")
    folder.done.rmdir()
    os.mkfifo(folder.done)
    assert markers(folder) == Markers(trouble="DONE is not a regular file")
    folder.done.unlink()
    folder.done.symlink_to("DONE")
    assert markers(folder).trouble.startswith("stat DONE: ")
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "t").touch()
    assert markers(task_folder(tmp_path, "p", "t")).trouble == "stat DONE: Not a directory"


def test_the_wait_marker_says_why(folder: TaskFolder) -> None:
    folder.wait.touch()
    assert markers(folder) == Markers(wait="WAIT_WITHOUT_RESTART")
    folder.wait.write_text("Waiting for\nuser input\n")
    assert markers(folder) == Markers(wait="Waiting for user input")


def test_a_task_that_is_reopened_bears_no_marks(folder: TaskFolder) -> None:
    folder.done.touch()
    folder.wait.touch()
    reopen(folder)
    assert markers(folder) == Markers()
    reopen(folder)
    folder.done.mkdir()
    with pytest.raises(UserError, match="cannot remove"):
        reopen(folder)


def test_the_agent_learns_where_it_is_under_both_names(folder: TaskFolder) -> None:
    environment = task_environment(folder, "run-2", parent_run_id="run-1")
    short = {name: value for name, value in environment.items() if not name.startswith("JRUN_")}
    assert short == {
        "PROJECT_ID": "project",
        "TASK_ID": "task-1",
        "RUN_ID": "run-2",
        "PARENT_ID": "run-1",
        "TASK_FOLDER": str(folder.path),
        "RUN_FOLDER": str(folder.path / "runs/run-2"),
        "RUNS_DIR": str(folder.path / "runs"),
        "MESSAGE_BUS": str(folder.path / "TASK-MESSAGE-BUS.md"),
    }
    assert {f"JRUN_{name}": value for name, value in short.items()}.items() <= environment.items()
    assert environment["JRUN_ID"] == "run-2"


def test_an_inherited_parent_is_not_passed_on(folder: TaskFolder) -> None:
    inherited = task_environment(folder, "run-2", "run-1")
    assert (inherited | task_environment(folder, "run-3"))["JRUN_PARENT_ID"] == ""


def test_a_child_finds_the_task_around_it(folder: TaskFolder) -> None:
    assert around(task_environment(folder, "run-2")) == (folder, "run-2")
    assert around({"PATH": "/bin"}) is None


def test_the_prompt_of_a_task_is_for_its_owner_alone(tmp_path: Path) -> None:
    from ralph.supervise.task_folder import _write_once

    _write_once(tmp_path / "TASK.md", "use the key")
    assert (tmp_path / "TASK.md").stat().st_mode & 0o777 == 0o600
