"""Which run a command uses: the named one, the one here, or the only one; otherwise an error in one line."""

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ralph.core.state import RunSummary
from ralph.errors import UserError
from ralph.store.folder import new_run_id
from ralph.store.register import Listed, find_run

Ralph = Callable[..., Any]
Agent = Callable[..., str]


@pytest.fixture
def two(ralph: Ralph, agent: Agent, workspace: Path) -> list[str]:
    for _ in range(2):
        ralph("run", "-p", "x", "-m", "1", "--agent", agent("echo hello"))
    return sorted(os.listdir(workspace / ".ralph" / "runs"))


def test_without_a_name_the_last_run_here_is_used(ralph: Ralph, two: list[str]) -> None:
    assert two[1] in ralph("show").out


def test_any_unique_part_of_an_id_is_enough(ralph: Ralph, two: list[str], tmp_path: Path) -> None:
    assert two[0] in ralph("show", two[0][-4:], cwd=tmp_path).out


def test_an_ambiguous_name_lists_the_matches(ralph: Ralph, two: list[str]) -> None:
    result = ralph("show", two[0][:8])
    assert result.code == 2
    assert f"is ambiguous: {two[0]}, {two[1]}" in result.err
    assert "type more of the id" in result.err


@pytest.mark.parametrize("command", ["show", "logs", "report", "stop", "pause", "resume"])
def test_an_unknown_run_is_a_one_line_error(ralph: Ralph, two: list[str], command: str) -> None:
    result = ralph(command, "zzzz")
    assert (result.code, result.out) == (2, "")
    assert result.err == f"ralph: no such run: 'zzzz'\nhint: on record: {two[0]}, {two[1]}\n"


def test_the_run_of_a_repository_is_found_from_its_subfolders(ralph: Ralph, two: list[str], repository: Path) -> None:
    (repository / "src").mkdir()
    assert two[1] in ralph("show", cwd=repository / "src").out


def test_the_only_running_run_is_found_from_elsewhere(ralph: Ralph, start: Any, tmp_path: Path) -> None:
    run = start()
    run.in_turn()
    assert run.id in ralph("stop", "--now", cwd=tmp_path).out
    assert run.finish() == 130


def test_a_local_run_is_found_without_the_list_of_runs(ralph: Ralph, two: list[str], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert two[1] in ralph("show", XDG_STATE_HOME=str(tmp_path / "file")).out
    assert "cannot read" in ralph("show", cwd=tmp_path, XDG_STATE_HOME=str(tmp_path / "file")).err


def test_too_many_words_and_missing_folders_are_errors(ralph: Ralph) -> None:
    assert "too many words" in ralph("show", "a", "b").err
    assert "too many words" in ralph("ps", "a").err
    assert "folder not found" in ralph("show", "-C", "/nowhere/at/all").err


@given(st.floats(0, 4e9), st.integers(2, 5000))
def test_later_ids_sort_later(now: float, milliseconds: int) -> None:
    assert new_run_id(now) < new_run_id(now + milliseconds / 1000)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_the_run_of_another_user_is_not_steered(ralph: Ralph, start: Any, workspace: Path) -> None:
    run = start()
    run.in_turn()
    os.chown(workspace / ".ralph" / "runs" / run.id, 12345, 12345)
    for words in (("stop",), ("pause",), ("tell", "hello")):
        result = ralph(*words)
        assert result.code == 2
        assert f"run {run.id} belongs to user 12345" in result.err


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_the_runs_of_another_user_are_not_read() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / ".ralph" / "runs" / "x").mkdir(parents=True)
        (folder / ".ralph" / "runs").chmod(0o700)
        folder.chmod(0o755)
        os.seteuid(12345)
        try:
            with pytest.raises(UserError) as refused:
                find_run("", folder, env={"HOME": "/nowhere"})
        finally:
            os.seteuid(0)
        assert refused.value.advice == f"the runs in {folder} belong to root (only root may look at them)"


def test_finding_one_of_many_runs_is_fast(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def seconds(number: int) -> float:
        ids = [f"{one:05}" for one in range(number)]
        known = [Listed(one, str(tmp_path / one), RunSummary(run=one), is_alive=False) for one in ids]
        monkeypatch.setattr("ralph.store.register.runs_in", lambda ralph: known)
        monkeypatch.setattr("ralph.store.register.runs", lambda env: known)
        began = time.thread_time()
        looked: list[str] = []
        assert find_run("", tmp_path, lambda run: looked.append(run.id) or "").id == ids[-1]
        assert looked == ids[-1:], "to look at one may take as long as its journal is"
        return time.thread_time() - began

    assert min(seconds(5000) / seconds(500) for _ in range(3)) < 30
