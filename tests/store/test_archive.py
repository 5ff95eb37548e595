"""The logs of a very long run are put away, and nothing of them is lost."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ralph.store.archive import Archive, Logs


@pytest.fixture
def ralph_folder(tmp_path: Path) -> Path:
    run = tmp_path / "runs" / "1"
    run.mkdir(parents=True)
    (run / "run.json").write_text("{}")
    for number in range(1, 31):
        folder = run / "iterations" / f"{number:03d}"
        folder.mkdir(parents=True)
        (folder / "prompt.md").write_text(f"prompt {number}")
        (folder / "stdout.log").write_bytes(b"line\n" * number * 100)
        (folder / "empty").touch()
        (tmp_path / f"guardrail_{number:03d}_true.log").write_text(f"check {number}\n")
    return tmp_path


def listed(ralph: Path) -> list[str]:
    """The names in the archive, by what everybody has to read one."""
    words = ["tar", "-tf", str(ralph / "runs" / "1" / "iterations.tar")]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.splitlines()


def test_older_logs_go_into_one_archive_that_tar_reads(ralph_folder: Path) -> None:
    run = ralph_folder / "runs" / "1"
    archive = Archive(run)
    archive.put_away(11, ralph_folder)
    archive.put_away(21, ralph_folder)
    assert sorted(os.listdir(run / "iterations")) == [f"{number:03d}" for number in range(21, 31)]
    assert len([*ralph_folder.glob("guardrail_*")]) == 10
    names = listed(ralph_folder)
    assert len(names) == len({*names}) == 20 * 4
    words = ["tar", "-xOf", run / "iterations.tar", "guardrail_007_true.log", "iterations/020/prompt.md"]
    assert subprocess.run(words, check=True, capture_output=True, text=True).stdout == "check 7\nprompt 20"


@pytest.mark.parametrize("number", [1, 10, 11, 30])
def test_a_log_is_read_wherever_it_is(ralph_folder: Path, number: int) -> None:
    run = ralph_folder / "runs" / "1"
    Archive(run).put_away(11, ralph_folder)
    assert Logs(run).read(number, "prompt.md", 1000).data == f"prompt {number}".encode()
    log = Logs(run).read(number, "stdout.log", 7, tail=True)
    assert (log.data, log.size) == (b"e\nline\n", number * 500)
    with pytest.raises(FileNotFoundError):
        Logs(run).read(number, "nothing", 1000)


@pytest.mark.parametrize("cut", [1, 400, 513, 1024, 1500, 5000])
def test_an_archive_that_a_kill_cut_off_is_continued(ralph_folder: Path, cut: int) -> None:
    run = ralph_folder / "runs" / "1"
    Archive(run).put_away(11, ralph_folder)
    os.truncate(run / "iterations.tar", os.path.getsize(run / "iterations.tar") - cut)
    Archive(run).put_away(21, ralph_folder)
    assert "iterations/020/prompt.md" in listed(ralph_folder)
    assert Logs(run).read(5, "prompt.md", 1000).data == b"prompt 5"
    assert Logs(run).read(15, "prompt.md", 1000).data == b"prompt 15"


def test_only_regular_files_are_archived(ralph_folder: Path) -> None:
    run, outside = ralph_folder / "runs" / "1", ralph_folder.parent / "outside"
    outside.mkdir(exist_ok=True)
    (outside / "precious").write_text("precious")
    (run / "iterations" / "003" / "link").symlink_to(outside / "precious")
    (run / "iterations" / "003" / "scratch").mkdir()
    os.mkfifo(run / "iterations" / "003" / "pipe")
    Archive(run).put_away(11, ralph_folder)
    assert len(listed(ralph_folder)) == 10 * 4
    assert (outside / "precious").read_text() == "precious"


def test_a_long_run_keeps_its_latest_logs_and_the_archive_the_rest(
    ralph: Callable[..., Any], agent: Callable[..., str], workspace: Path
) -> None:
    done = ralph("run", "g", "-m", "205", "--agent", "echo hello", "--check", "true", "--no-stall", timeout=120)
    assert done.code == 1, done.err
    (run,) = (workspace / ".ralph" / "runs").iterdir()
    assert sorted(os.listdir(run / "iterations"))[0] == "100"
    assert len([*(workspace / ".ralph").glob("guardrail_*")]) == 106
    assert b"g" in Logs(run).read(3, "prompt.md", 1000).data
    assert Logs(run).read(99, "stdout.log", 1000).data == b"hello\n"
    assert ralph("report", timeout=60).code == 0
