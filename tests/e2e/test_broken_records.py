"""Records of runs are damaged by a disk, an agent or another version: ralph reports it in one line and doesn't
crash."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Agent = Callable[..., str]
Ralph = Callable[..., Any]

NESTED = b"[" * 50_000 + b"]" * 50_000
BROKEN: dict[str, Callable[[bytes], bytes]] = {
    "nothing": lambda data: b"",
    "its first half": lambda data: data[: len(data) // 2],
    "a bit": lambda data: data[: len(data) // 3] + bytes([data[len(data) // 3] ^ 8]) + data[len(data) // 3 + 1 :],
    "no UTF-8": lambda data: data.replace(b'":"', b'":"\xff'),
    "another type": lambda data: b"[7]\n",
    "nested without end": lambda data: data.rstrip().removesuffix(b"}") + b',"more":' + NESTED + b"}\n",
}
LOOKS = ("ps -a", "show", "logs", "report -o -")
RECORDS = {
    "state.json": ("ps -a", "ps -a --json", "show", "logs", "report -o -", "clean"),
    "journal.ndjson": (*LOOKS, "resume -m 1"),
    "orders/{}/run.json": (*LOOKS, "resume -m 1"),
    "orders/{}/tasks.json": ("resume -m 1",),
    "orders/{}/protected/protected.json": ("resume -m 1",),
}


@pytest.fixture
def kept(agent: Agent, ralph: Ralph, repository: Path) -> Path:
    """The folder of a run that has used all its iterations."""
    (repository / "TASKS.md").write_text("- [ ] work\n")
    options = ("--check", "false", "--tasks", "TASKS.md", "--protect", "README")
    done = ralph(
        "run", "g", "-m", "1", *options, "--agent", agent("echo more >> work; echo '<response>DONE</response>'")
    )
    assert done.code == 1, done.err
    (folder,) = repository.glob(".ralph/runs/*")
    return folder


@pytest.mark.parametrize("record", RECORDS)
def test_a_broken_record_of_a_run_is_not_a_crash(
    kept: Path, ralph: Ralph, environment: dict[str, str], record: str
) -> None:
    state = Path(environment["HOME"], ".local/state/ralph")
    path = state / record.format(kept.name) if "{}" in record else kept / record
    whole = path.read_bytes()
    for what, broken in BROKEN.items():
        for words in RECORDS[record]:
            before = path.stat()
            path.write_bytes(broken(whole))
            done = ralph(*words.split())
            assert done.code in (0, 1, 2), (what, words, done.err)
            assert "internal error" not in done.err, (what, words, done.err)
            assert len(done.err.splitlines()) <= 2 or done.code != 2, (what, words, done.err)
            path.write_bytes(whole)
            os.chmod(path, before.st_mode)


def test_a_broken_record_does_not_hide_other_runs(kept: Path, ralph: Ralph, agent: Agent) -> None:
    whole = (kept / "state.json").read_bytes()
    (kept / "state.json").write_bytes(BROKEN["nested without end"](whole))
    ralph("run", "another goal", "-m", "1", "--agent", agent("echo hi"))
    assert "another goal" in ralph("ps", "-a").out


@pytest.mark.parametrize("record", ["work.json", "state.json", "journal.ndjson"])
def test_a_broken_record_of_a_backlog_is_not_a_crash(
    agent: Agent, ralph: Ralph, repository: Path, git: Callable[..., str], environment: dict[str, str], record: str
) -> None:
    (repository / "list.md").write_text("- [ ] T1 one\n")
    git("add", "-A")
    git("commit", "-q", "-m", "a list")
    ralph("work", "list.md", "--check", "false", "-m", "1", "--agent", agent("echo more >> work"))
    (folder,) = (path.parent for path in repository.glob(".ralph/runs/*/work.json"))
    orders = Path(environment["HOME"], ".local/state/ralph/orders")
    (path,) = orders.glob(f"{folder.name}-*/work.json") if record == "work.json" else [folder / record]
    whole = path.read_bytes()
    for what, broken in BROKEN.items():
        for words in ("ps -a", "show {}", "logs {}", "report {} -o -", "stop {}", "rewind 1", "resume {}"):
            path.write_bytes(broken(whole))
            done = ralph(*words.format(folder.name).split())
            assert done.code in (0, 1, 2), (what, words, done.err)
            assert "internal error" not in done.err, (what, words, done.err)
        path.write_bytes(whole)


def test_a_file_in_place_of_the_tasks_folder_is_refused_in_one_line(
    agent: Agent, ralph: Ralph, repository: Path, git: Callable[..., str]
) -> None:
    (repository / "list.md").write_text("- [ ] T1 one\n")
    git("add", "-A")
    git("commit", "-q", "-m", "a list")
    ralph("work", "list.md", "--check", "true", "-m", "1", "--agent", agent("echo more >> work"))
    (tasks,) = repository.glob(".ralph/runs/*/tasks")
    tasks.rename(tasks.with_name("were"))
    tasks.touch()
    done = ralph("resume")
    assert (done.code, f"cannot use {tasks}: " in done.err) == (2, True), done.err
