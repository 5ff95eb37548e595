import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ralph.errors import UserError
from ralph.processes.descendants import own_start, start_of
from ralph.supervise import run_info
from ralph.supervise.run_info import FILE, create, dump, ended, load, parse, release, started, update
from ralph.supervise.task_folder import TaskFolder, task_folder


@pytest.fixture
def folder(tmp_path: Path) -> TaskFolder:
    folder = task_folder(tmp_path, "project", "task")
    folder.path.mkdir(parents=True)
    return folder


def test_a_run_is_written_so_that_any_yaml_parser_reads_it(folder: TaskFolder) -> None:
    info = create(folder, "claude", 1.5, attempt=2, parent="up", previous="before")
    path = folder.runs / info.run_id
    assert yaml.safe_load((path / FILE).read_text()) == {
        "run_id": info.run_id,
        "status": "running",
        "project_id": "project",
        "task_id": "task",
        "parent_run_id": "up",
        "previous_run_id": "before",
        "attempt": 2,
        "agent": "claude",
        "pid": 0,
        "pgid": 0,
        "pid_start": "",
        "owner_pid": os.getpid(),
        "owner_start": own_start(),
        "started_at": "1970-01-01T00:00:01.500000Z",
        "ended_at": "",
        "exit_code": None,
        "error_summary": "",
        "prompt_path": str(path / "prompt.md"),
        "stdout_path": str(path / "agent-stdout.txt"),
        "stderr_path": str(path / "agent-stderr.txt"),
        "output_path": str(path / "output.md"),
    }
    assert load(path) == info


def test_a_run_is_for_the_users_eyes_only(folder: TaskFolder) -> None:
    info = create(folder, "claude", 0.0)
    for path in (folder.runs, folder.runs / info.run_id):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700


def test_run_ids_sort_by_time_and_do_not_collide(folder: TaskFolder) -> None:
    ids = [create(folder, "a", now).run_id for now in (1.0, 1.000001, 1.0, 61.0)]
    assert len(set(ids)) == 4
    assert [run.run_id for run in run_info.every(folder)] == sorted(ids)
    assert sorted(ids)[2:] == [ids[1], ids[3]]


def test_a_run_tells_its_story(folder: TaskFolder) -> None:
    path = folder.runs / create(folder, "claude", 1.0).run_id
    begun = started(path, os.getpid(), os.getpgrp())
    assert (begun.pid, begun.pgid, begun.pid_start) == (os.getpid(), os.getpgrp(), start_of(os.getpid()))
    over = ended(path, 2.0, "failed", -9, "killed: it said\n\x1b[31mno: #1")
    assert load(path) == over
    assert (over.status, over.exit_code, over.pid) == ("failed", -9, os.getpid())
    assert over.error_summary == "killed: it said\n\x1b[31mno: #1"
    assert release(path).owner_pid == 0


UPDATER = """
import sys
from pathlib import Path
from msgspec.structs import replace
from ralph.supervise.run_info import amend, load
for _ in range(50):
    amend(Path(sys.argv[1]), lambda info: replace(info, attempt=info.attempt + 1))
    load(Path(sys.argv[1]))
"""


def test_updates_of_many_processes_are_all_kept(folder: TaskFolder) -> None:
    path = folder.runs / create(folder, "claude", 0.0).run_id
    updaters = [subprocess.Popen([sys.executable, "-c", UPDATER, path]) for _ in range(4)]
    while any(updater.poll() is None for updater in updaters):
        assert load(path).run_id == path.name
    assert [updater.returncode for updater in updaters] == [0] * 4
    assert load(path).attempt == 200
    assert os.listdir(path) == [FILE]


def test_a_run_that_cannot_be_read_says_so_and_spoils_no_list(folder: TaskFolder) -> None:
    good = create(folder, "claude", 5.0)
    for name, text in (("bad", b"status: dancing\nrun_id: x\n"), ("torn", b"run_id"), ("binary", b"\xff\0")):
        (folder.runs / name).mkdir()
        (folder.runs / name / FILE).write_bytes(text)
        with pytest.raises(UserError, match=f"{name}/{FILE} cannot be read"):
            load(folder.runs / name)
    (folder.runs / "just-begun").mkdir()
    (folder.runs / "a-file").touch()
    runs = {run.run_id: run for run in run_info.every(folder)}
    assert runs.keys() == {good.run_id, "bad", "torn", "binary"}
    assert runs["torn"].status == "unreadable"
    assert "cannot be read" in runs["torn"].error_summary


def test_a_task_without_runs_has_none(tmp_path: Path) -> None:
    assert run_info.every(task_folder(tmp_path, "p", "t")) == []


def test_an_update_of_a_run_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot use"):
        update(tmp_path / "none", status="failed")
    with pytest.raises(UserError, match="cannot use"):
        update(tmp_path, status="failed")


def test_fields_of_later_versions_are_passed_over(folder: TaskFolder) -> None:
    path = folder.runs / create(folder, "claude", 0.0).run_id
    with (path / FILE).open("a") as file:
        file.write("colour: blue\n")
    assert load(path).agent == "claude"


ODD = ("", " ", "yes", "No", "null", "~", "1", "-1", "1.5", "1e3", "0x1f", "2026-11-15", "12:30", "a: b", "- a", "# c")
ODDER = ("{a}", "[a]", "&a", "*a", "!a", "|", ">", "%a", "@a", "`a`", "'a'", '"a"', "a\\b", "é", "🐎", "\ufeff", "---")
CONTROLS = (
    "\n",
    "\r\n",
    "\t",
    "\0",
    "\x7f",
    "\x85",
    "\u2028",
    "\u00a0",
    "\ue000",
    "a\nb: c\n",
    "=",
    "<<",
    "\U000e0001",
)


@pytest.mark.parametrize("value", ODD + ODDER + CONTROLS)
def test_any_text_is_the_same_to_us_and_to_a_yaml_parser(value: str) -> None:
    written = dump({"key": value, "next": "x"})
    assert yaml.safe_load(written) == {"key": value, "next": "x"}
    assert parse(written) == {"key": value, "next": "x"}
    assert written.count("\n") == 2


@given(st.dictionaries(st.from_regex(r"[a-z][a-z_]{0,8}", fullmatch=True), st.text()))
def test_every_dictionary_comes_back(values: dict[str, str]) -> None:
    values = {key: value for key, value in values.items() if key not in ("y", "n", "on", "off", "no", "yes", "null")}
    written = dump(values)
    assert parse(written) == values
    assert (yaml.safe_load(written) or {}) == values


def test_numbers_and_nothing_are_themselves() -> None:
    assert yaml.safe_load(dump({"a": 0, "b": -15, "c": None})) == {"a": 0, "b": -15, "c": None}


def test_ordinary_words_have_no_quotes() -> None:
    assert dump({"status": "completed", "path": "/tmp/a-b.md"}) == "status: completed\npath: /tmp/a-b.md\n"


def test_what_another_yaml_writer_wrote_is_read() -> None:
    values = {"a": "x: y", "b": "it's", "c": "plain", "d": ""}
    assert parse("---\n# comment\n\n" + yaml.safe_dump(values)) == values


def test_half_a_character_is_replaced() -> None:
    assert yaml.safe_load(dump({"a": "\ud83d"})) == {"a": "\ufffd"}


@pytest.mark.parametrize("text", ["no colon\n", "a: b\n  nested: c\n", 'a: "unclosed\n', "\x00: b\n", "a: b\n- c: d\n"])
def test_what_is_not_flat_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse(text)
