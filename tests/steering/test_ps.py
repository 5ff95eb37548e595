"""`ralph ps` lists every running run in any workspace, and never shows a dead one as running."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Ralph = Callable[..., Any]


def listed(ralph: Ralph, *words: str, **env: Any) -> list[dict[str, Any]]:
    result = ralph("ps", "--json", *words, **env)
    assert result.code == 0, result.err
    return [json.loads(line) for line in result.out.splitlines()]


def test_ps_shows_a_running_run_from_anywhere(ralph: Ralph, start: Any, tmp_path: Path, workspace: Path) -> None:
    run = start("--check", "true")
    run.in_turn()
    (seen,) = listed(ralph, cwd=tmp_path)
    assert seen["run"] == run.id
    assert (seen["state"], seen["alive"], seen["iteration"], seen["max_iterations"]) == ("running", True, 1, 9)
    assert (seen["workspace"], seen["goal"], seen["pid"]) == (str(workspace), "the goal", run.process.pid)
    run.let("<response>DONE</response>")
    assert run.finish() == 0
    assert listed(ralph) == []
    (over,) = listed(ralph, "-a")
    assert (over["state"], over["outcome"], over["checks_passed"], over["checks"]) == ("done", "done", 1, 1)


def test_ps_shows_a_row_with_the_current_activity(ralph: Ralph, start: Any) -> None:
    run = start()
    run.until("agent_started")
    run.until("agent_text")
    said = ralph("ps").out
    assert run.id in said
    assert "running" in said
    assert "1/9" in said


def test_ps_without_runs_says_so_on_stderr(ralph: Ralph) -> None:
    result = ralph("ps")
    assert (result.code, result.out) == (0, "")
    assert "no run is running" in result.err


def test_a_killed_run_is_never_shown_as_alive(ralph: Ralph, start: Any) -> None:
    run = start()
    run.in_turn()
    run.process.send_signal(signal.SIGKILL)
    run.process.wait()
    assert listed(ralph) == []
    (seen,) = listed(ralph, "-a")
    assert (seen["state"], seen["alive"]) == ("killed", False)


def test_another_process_with_the_same_pid_is_not_the_run(ralph: Ralph, start: Any, workspace: Path) -> None:
    run = start()
    run.in_turn()
    run.process.send_signal(signal.SIGKILL)
    run.process.wait()
    state = workspace / ".ralph" / "runs" / run.id / "state.json"
    known = json.loads(state.read_text())
    state.write_text(json.dumps({**known, "pid": os.getpid()}))
    assert [seen["state"] for seen in listed(ralph, "-a")] == ["killed"]
    refused = ralph("stop", run.id)
    assert refused.code == 2
    assert "is not running: killed" in refused.err


@pytest.fixture
def ended(ralph: Ralph, agent: Callable[..., str], workspace: Path) -> Callable[..., None]:
    """Make a run that has ended; the function replaces a part of its record."""
    assert ralph("run", "x", "--agent", agent("echo '<response>DONE</response>'")).code == 0
    (state,) = (workspace / ".ralph" / "runs").glob("*/state.json")

    def edit(**changes: str) -> None:
        facts = json.loads(state.read_text())
        facts.pop("machine")
        state.write_text(json.dumps({**facts, **changes}))

    return edit


def test_a_run_on_another_machine_that_shares_the_home_is_only_listed_in_its_folder(
    ralph: Ralph, ended: Callable[..., None], tmp_path: Path, workspace: Path
) -> None:
    ended(machine="elsewhere")
    assert listed(ralph, "-a", cwd=tmp_path) == []
    (workspace / "src").mkdir()
    assert [run["state"] for run in listed(ralph, "-a", cwd=workspace / "src")] == ["done"]


def test_a_record_with_a_host_name_from_an_earlier_version_is_listed(
    ralph: Ralph, ended: Callable[..., None], tmp_path: Path
) -> None:
    ended(host="mac.fritz.box")
    assert [run["state"] for run in listed(ralph, "-a", cwd=tmp_path)] == ["done"]


def test_a_run_is_listed_after_the_machine_got_another_name(
    environment: dict[str, str], start: Any, tmp_path: Path
) -> None:
    run = start()
    run.in_turn()
    rename = ["unshare", "--user", "--map-root-user", "--uts", "sh", "-c"]
    if subprocess.run([*rename, "hostname other"], check=False, capture_output=True).returncode:
        pytest.skip("this user may not rename a machine in a namespace")
    command = f"hostname other; exec {sys.executable} -m ralph ps --json"
    ps = subprocess.run([*rename, command], env=environment, cwd=tmp_path, stdout=subprocess.PIPE, check=True)
    assert [json.loads(line)["state"] for line in ps.stdout.splitlines()] == ["running"]
    run.let("<response>DONE</response>")
    run.finish()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"run": 7}', "\0\0", None])
def test_an_unreadable_state_file_is_replaced_by_the_journal(
    ralph: Ralph, agent: Callable[..., str], workspace: Path, content: str | None
) -> None:
    ralph("run", "-p", "x", "-m", "1", "--agent", agent("echo hello"))
    (state,) = (workspace / ".ralph" / "runs").glob("*/state.json")
    state.unlink()
    state.mkdir() if content is None else state.write_text(content)
    (seen,) = listed(ralph, "-a")
    assert (seen["state"], seen["iteration"], seen["goal"]) == ("exhausted", 1, "x")


def test_a_run_in_a_removed_workspace_is_not_listed(ralph: Ralph, agent: Callable[..., str], workspace: Path) -> None:
    import shutil

    ralph("run", "-p", "x", "-m", "1", "--agent", agent("echo hello"))
    shutil.rmtree(workspace / ".ralph")
    assert listed(ralph, "-a") == []


def test_a_home_that_cannot_be_written_does_not_harm_the_run(
    ralph: Ralph, agent: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    result = ralph(
        "run", "-p", "x", "-m", "1", "--agent", agent("echo"), "--json", XDG_STATE_HOME=str(tmp_path / "file")
    )
    assert result.code == 1, result.err
    assert any("`ralph ps` will not list this run" in notice["text"] for notice in result.all("notice"))
