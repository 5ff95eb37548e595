from pathlib import Path

import pytest

from ralph.errors import UserError
from ralph.supervise import bus, task_list
from ralph.supervise.run_info import RunInfo, create, ended, release
from ralph.supervise.task_folder import Markers, keep_prompt, task_folder
from ralph.supervise.task_list import depend

MINE = {"owner_pid": 7, "owner_start": "then"}
GONE = {"owner_pid": 8, "owner_start": "then"}


def attempt(status: str = "running", **fields: object) -> RunInfo:
    return RunInfo(run_id="r", status=status, attempt=1, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "runs", "waits_for", "word"),
    [
        (Markers(), [], [], "new"),
        (Markers(), [], ["other"], "blocked"),
        (Markers(), [attempt(**MINE)], [], "running"),
        (Markers(), [attempt("failed", **MINE)], [], "restarting"),
        (Markers(), [attempt("failed", **GONE)], [], "failed"),
        (Markers(), [attempt("completed", **GONE)], [], "unfinished"),
        (Markers(), [attempt("stopped", **GONE)], [], "stopped"),
        (Markers(wait="input"), [attempt("completed")], [], "stopped"),
        (Markers(), [attempt("running", **GONE)], [], "failed"),
        (Markers(), [attempt("completed"), RunInfo(run_id="child", pid=7, pid_start="then")], [], "running"),
        (Markers(done=True), [attempt("completed", **MINE)], [], "finishing"),
        (Markers(done=True), [attempt("completed"), RunInfo(run_id="child", pid=7, pid_start="then")], [], "finishing"),
        (Markers(done=True), [attempt("failed", **GONE)], [], "done"),
        (Markers(done=True), [], [], "done"),
        (Markers(trouble="DONE is a directory"), [], [], "trouble"),
    ],
)
def test_one_word_says_how_a_task_stands(found: Markers, runs: list[RunInfo], waits_for: list[str], word: str) -> None:
    def living(pid: int, start: str) -> bool:
        return (pid, start) == (7, "then")

    assert task_list.state(found, runs, waits_for, found.done, living) == word


def test_done_that_was_not_accepted_is_not_done() -> None:
    last = [attempt("completed", **GONE)]
    assert task_list.state(Markers(done=True), last, [], accepted=False, living=lambda *_: False) == "unfinished"


def test_every_task_has_a_row(tmp_path: Path) -> None:
    for name in ("b", "a"):
        keep_prompt(task_folder(tmp_path, "p", name), "do it")
    worked = task_folder(tmp_path, "q", "worked")
    keep_prompt(worked, "do it")
    for number in (1, 2):
        path = worked.runs / create(worked, "claude", float(number), attempt=number).run_id
        ended(path, number + 0.5, "failed", 1)
        release(path)
    bus.post(worked.bus, "WARNING", "agent failed\non restart #1 " + "x" * 100)
    (tmp_path / "q" / "not-a-task").mkdir()
    (tmp_path / ".git" / "x").mkdir(parents=True)
    rows = task_list.every(tmp_path, now=worked.bus.stat().st_mtime + 60)
    assert [(row.project, row.task, row.state, row.attempt) for row in rows] == [
        ("p", "a", "new", 0),
        ("p", "b", "new", 0),
        ("q", "worked", "failed", 2),
    ]
    assert rows[2].age == pytest.approx(60)
    assert rows[2].last_message.startswith("WARNING agent failed on restart #1 x")
    assert len(rows[2].last_message) <= 81
    assert [row.task for row in task_list.every(tmp_path, 0.0, project="p")] == ["a", "b"]


def test_a_task_in_trouble_spoils_no_list(tmp_path: Path) -> None:
    good, bad, linked = (task_folder(tmp_path, "p", name) for name in ("good", "bad", "linked"))
    for folder in (good, bad, linked):
        keep_prompt(folder, "do it")
    depend(bad, ["good"])
    (bad.path / "DEPENDS-ON").write_text("../../etc\n")
    linked.bus.symlink_to("/dev/null")
    states = {row.task: row for row in task_list.every(tmp_path, 0.0)}
    assert states["good"].state == "new"
    assert states["bad"].state == "trouble"
    assert "symbolic link" in states["linked"].last_message


def test_a_root_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no folder"):
        task_list.every(tmp_path / "none", 0.0)
