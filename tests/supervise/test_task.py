"""The folder of a task: names, prompt, markers and runs."""

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from msgspec import convert

from ralph.errors import UserError
from ralph.process.descendants import start_of
from ralph.supervise.supervision import post_completion
from ralph.supervise.task import RUN_FILE, RunInfo, TaskFolder, current_task, task_folder


@pytest.fixture
def task(tmp_path: Path) -> TaskFolder:
    return make(tmp_path, "task")


def make(root: Path, name: str, project: str = "project") -> TaskFolder:
    task = task_folder(root, project, name)
    task.path.mkdir(parents=True, exist_ok=True)
    return task


def test_a_task_is_a_folder_below_the_root(tmp_path: Path) -> None:
    task = task_folder(tmp_path, "p", "t")
    files = (task.path, task.prompt, task.done, task.wait, task.runs, task.bus.path, task.project_bus.path)
    assert {os.path.relpath(file, tmp_path) for file in files} == {
        "p/t",
        "p/t/TASK.md",
        "p/t/DONE",
        "p/t/WAIT_WITHOUT_RESTART",
        "p/t/TASK-MESSAGE-BUS.md",
        "p/t/runs",
        "p/PROJECT-MESSAGE-BUS.md",
    }
    assert not task.path.exists()


def test_the_root_may_be_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert task_folder("here", "p", "t").path == tmp_path / "here/p/t"


@pytest.mark.parametrize(
    "name",
    [
        *("", ".", "..", "../up", "a/b", "/etc", "a\\b", "a\0b", "a\nb", " a", "a ", ".hidden", "-rf", "x" * 201),
        *("\udcff", "PROJECT-MESSAGE-BUS.md"),
    ],
)
def test_names_that_would_lead_out_of_the_root_are_refused(tmp_path: Path, name: str) -> None:
    for names in ((name, "task"), ("project", name)):
        with pytest.raises(UserError, match="not a name for a"):
            task_folder(tmp_path, *names)


@pytest.mark.parametrize("name", ["task-20261115-fix", "Überarbeitung", "two words", "v1.2_x", "12"])
def test_ordinary_names_are_accepted(tmp_path: Path, name: str) -> None:
    assert task_folder(tmp_path, name, name).path == tmp_path / name / name


def test_a_given_prompt_is_saved_as_task_md(tmp_path: Path) -> None:
    task = task_folder(tmp_path / "new", "p", "t")
    prompt = "do\r\nthis {{x}} \u2028 $(y)"
    assert task.save_prompt(prompt) == prompt
    assert task.prompt.read_bytes().decode() == prompt
    assert task.prompt.stat().st_mode & 0o777 == 0o600
    assert task.save_prompt(None) == prompt


def test_a_given_prompt_is_used_for_this_run_and_task_md_is_not_overwritten(task: TaskFolder) -> None:
    task.prompt.write_text("the task")
    assert task.save_prompt("something else") == "something else"
    assert task.save_prompt(None) == "the task"
    task.prompt.write_bytes(b"\xff")
    assert task.save_prompt("given") == "given"
    with pytest.raises(UserError, match="not UTF-8"):
        task.save_prompt(None)


def test_without_prompt_and_task_nothing_is_created(tmp_path: Path) -> None:
    task = task_folder(tmp_path, "p", "t")
    for given in (None, "", " \n"):
        with pytest.raises(UserError, match="nothing to do") as caught:
            task.save_prompt(given)
        assert "--prompt" in caught.value.hint
    assert not (tmp_path / "p").exists()


def test_an_empty_task_is_an_error(task: TaskFolder) -> None:
    task.prompt.write_text("\n")
    with pytest.raises(UserError, match="is empty"):
        task.save_prompt(None)


def test_a_file_in_the_place_of_the_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "p").write_text("a file")
    for given in (None, "do it"):
        with pytest.raises(UserError, match="cannot use"):
            task_folder(tmp_path, "p", "t").save_prompt(given)


def test_markers_can_be_removed(task: TaskFolder) -> None:
    task.done.touch()
    task.wait.touch()
    task.remove_markers()
    assert not task.done.exists()
    assert not task.wait.exists()
    task.done.mkdir()
    with pytest.raises(UserError, match="cannot remove"):
        task.remove_markers()


def test_a_child_finds_the_task_of_its_environment(task: TaskFolder) -> None:
    env = task.environment("run-2", parent_run_id="run-1")
    found = current_task(env)
    assert found is not None
    assert found[1] == "run-2"
    assert found[0].environment("run-2", "run-1") == env
    assert (env | task.environment("run-3"))["JRUN_PARENT_ID"] == "", "an inherited parent is not passed on"
    alone = current_task({"TASK_FOLDER": str(task.path)})
    assert alone is not None
    assert alone[0].environment("r") == task.environment("r")
    assert current_task({"PATH": "/bin"}) is None


def test_any_yaml_parser_reads_a_run(task: TaskFolder) -> None:
    info = task.create_run("claude", attempt=2, parent="up")
    path = task.runs / info.run_id
    odd = 'é 🐎 "x": {y} \n\t\0\x7f\x85\u2028 # no'
    task.update_run(info.run_id, error_summary=odd)
    read = yaml.safe_load((path / RUN_FILE).read_text())
    assert convert({**read, "error_summary": odd}, RunInfo) == task.load_run(info.run_id)
    assert read["error_summary"].startswith('é 🐎 "x": {y} \n\t\0\x7f\x85\u2028')
    assert (read["attempt"], read["exit_code"], read["parent_run_id"]) == (2, None, "up")
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in (task.runs, path)] == [0o700, 0o700]


def test_run_ids_sort_by_time(task: TaskFolder) -> None:
    ids = [task.create_run("a").run_id for _ in range(5)]
    assert [run.run_id for run in task.list_runs()] == sorted(ids) == ids


UPDATER = """
import sys
from ralph.supervise.task import task_at
task = task_at(sys.argv[1])
for number in range(200):
    task.update_run(sys.argv[2], attempt=number)
"""


def test_a_run_is_never_seen_half_written(task: TaskFolder) -> None:
    run_id = task.create_run("claude").run_id
    updater = subprocess.Popen([sys.executable, "-c", UPDATER, task.path, run_id])
    while updater.poll() is None:
        assert task.load_run(run_id).run_id == run_id
    assert (updater.returncode, task.load_run(run_id).attempt) == (0, 199)
    assert os.listdir(task.runs / run_id) == [RUN_FILE]


def test_a_run_that_cannot_be_read_is_not_listed(task: TaskFolder) -> None:
    assert task.list_runs() == []
    good = task.create_run("claude")
    for name, text in (
        ("bad", b'{"status": "dancing", "run_id": "x"}'),
        ("torn", b'{"run_id"'),
        ("deep", b"[" * 99999),
    ):
        (task.runs / name).mkdir()
        (task.runs / name / RUN_FILE).write_bytes(text)
    (task.runs / "just-begun").mkdir()
    (task.runs / "a-file").touch()
    assert [run.run_id for run in task.list_runs()] == [good.run_id]


def test_a_removed_run_cannot_be_updated(task: TaskFolder) -> None:
    for run_id in ("none", "."):
        with pytest.raises(UserError, match="cannot use"):
            task.update_run(run_id, status="failed")


@pytest.fixture
def only_process_7(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that the only running process has the pid 7 and was started at "then"."""
    monkeypatch.setattr("ralph.supervise.task.is_living", lambda pid, start: (pid, start) == (7, "then"))


@pytest.mark.usefixtures("only_process_7")
@pytest.mark.parametrize(
    ("run", "active", "dead"),
    [
        (RunInfo(run_id="r", pid=7, pid_start="then"), True, False),
        (RunInfo(run_id="r", pid=7, pid_start="earlier"), False, True),
        (RunInfo(run_id="r", owner_pid=7, owner_start="then"), True, False),
        (RunInfo(run_id="r", pid=8, pid_start="then", owner_pid=7, owner_start="then"), True, False),
        (RunInfo(run_id="r"), False, True),
        (RunInfo(run_id="r", status="completed", pid=7, pid_start="then"), False, False),
    ],
)
def test_a_run_is_active_while_its_agent_or_its_owner_lives(run: RunInfo, active: bool, dead: bool) -> None:
    assert (run.is_active(), run.is_dead()) == (active, dead)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def orphan(task: TaskFolder, process: subprocess.Popen[bytes]) -> RunInfo:
    """Create a child run with this agent, whose ralph has ended."""
    run_id = task.create_run("claude", parent="root").run_id
    start = start_of(process.pid) or ""
    return task.update_run(run_id, pid=process.pid, pid_start=start, owner_pid=0, owner_start="")


def test_a_child_whose_process_dies_is_marked_as_failed(task: TaskFolder, sleeper: subprocess.Popen[bytes]) -> None:
    task.create_run("claude", attempt=1)
    child = orphan(task, sleeper)
    assert task.active_children() == [child]
    assert task.fail_dead_runs() == []
    sleeper.kill()
    sleeper.wait()
    assert task.active_children() == []
    (failed,) = task.fail_dead_runs()
    assert failed == task.load_run(child.run_id)
    assert (failed.status, failed.error_summary) == ("failed", f"its process {sleeper.pid} is gone")
    assert failed.ended_at >= child.started_at
    assert task.fail_dead_runs() == []


def test_a_reused_pid_does_not_keep_a_run_alive(task: TaskFolder, sleeper: subprocess.Popen[bytes]) -> None:
    child = orphan(task, sleeper)
    task.update_run(child.run_id, pid_start="a time long ago")
    attempt = task.create_run("claude", attempt=1)
    task.update_run(attempt.run_id, owner_start="a time long ago")
    assert task.active_children() == []
    assert {run.run_id for run in task.fail_dead_runs()} == {child.run_id, attempt.run_id}


def test_a_child_that_has_ended_is_left_alone(task: TaskFolder, sleeper: subprocess.Popen[bytes]) -> None:
    over = task.update_run(orphan(task, sleeper).run_id, status="completed")
    assert (task.active_children(), task.fail_dead_runs()) == ([], [])
    assert task.load_run(over.run_id) == over


def test_each_completion_is_posted_once_on_the_projects_bus(tmp_path: Path) -> None:
    task, other = make(tmp_path, "task", "p"), make(tmp_path, "other", "p")
    for one in (task, other):
        one.done.touch()
        os.utime(one.done, (1, 1))
    for run_id, attempts in (("run-3", 3), ("run-3", 3), ("", 0)):
        post_completion(task, run_id, attempts)
    (fact,) = task.project_bus.read()
    assert (fact.type, fact.project, fact.task, fact.run) == ("FACT", "p", "task", "run-3")
    assert fact.body == "task p/task completed: DONE at 1970-01-01T00:00:01.000000Z, 3 attempts, last run run-3"
    post_completion(other, "run-4", 1)
    os.utime(task.done, (2, 2))
    post_completion(task, "run-5", 1)
    assert [fact.run for fact in task.project_bus.read()] == ["run-3", "run-4", "run-5"]
