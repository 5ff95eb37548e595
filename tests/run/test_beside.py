"""Any number of runs work at the same time in worktrees of a workspace, and one in the workspace itself."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Make = Callable[..., str]


@pytest.fixture
def waiting(agent: Make, environment: dict[str, str], git: Callable[..., str], workspace: Path) -> Callable[..., Any]:
    """Return a function that starts a run whose agent works until the file `go` exists."""
    git("init", "-q", "-b", "main")
    (workspace / "a").write_text("a\n")
    git("add", "-A")
    git("commit", "-qm", "first")
    go = Path(environment["HOME"]) / "go"
    agent(f'echo $$ >> started; while [ ! -e "{go}" ]; do sleep 0.1; done; echo done > "$RALPH_RUN_ID"; echo STOP')

    def start(*words: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "ralph", "run", "goal", "--agent", "fake-agent", "--check", "true", *words]
        command += ["--until", "checks", "-m", "1"]
        return subprocess.Popen(command, cwd=workspace, env=environment, stderr=subprocess.PIPE, text=True)

    return start


def test_runs_in_worktrees_work_next_to_each_other_and_to_a_run_in_the_workspace(
    waiting: Callable[..., Any],
    environment: dict[str, str],
    workspace: Path,
    eventually: Callable[..., None],
    ralph: Callable[..., Any],
) -> None:
    trees = Path(environment["HOME"]) / ".local/state/ralph/worktrees"
    runs = [waiting("--worktree"), waiting("--worktree"), waiting()]
    eventually(lambda: len(list(trees.glob("*/started"))) == 2 and (workspace / "started").exists())
    refused = ralph("run", "goal", "--agent", "fake-agent", "--until", "checks", "--check", "true")
    assert refused.code == 2
    assert "another run is running in" in refused.err
    assert "--worktree" in refused.err
    (Path(environment["HOME"]) / "go").touch()
    said = [run.communicate()[1] for run in runs]
    assert [run.returncode for run in runs] == [0, 0, 0], said
    for tree in filter(Path.is_dir, trees.iterdir()):
        assert (tree / ".ralph" / "progress.md").exists(), "the progress file is in the .ralph folder of the worktree"
        assert list((tree / ".ralph").glob("guardrail_*.log"))
    assert len(list((workspace / ".ralph" / "runs").iterdir())) == 3, "the folders of the runs are in the workspace"


def test_runs_that_start_at_the_same_time_do_not_kill_each_other_as_orphans(
    waiting: Callable[..., Any], environment: dict[str, str]
) -> None:
    (Path(environment["HOME"]) / "go").touch()
    runs = [waiting("--worktree") for _ in range(6)]
    said = [run.communicate()[1] for run in runs]
    assert [run.returncode for run in runs] == [0] * 6, said
    trees = Path(environment["HOME"]) / ".local/state/ralph/worktrees"
    assert len([tree for tree in trees.iterdir() if tree.is_dir()]) == 6
