"""A throwaway copy of the repository is always removed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ralph.git.worktree_setup import check_out_copy
from ralph.process.keeper import Keeper

HOLD = """
import sys, time
from pathlib import Path
from ralph.git.client import find_git
from ralph.git.worktree_setup import check_out_copy
from ralph.process.keeper import Keeper

git = find_git(Path(sys.argv[1]))
with Keeper.start() as keeper, check_out_copy(git, "run", git.resolve("HEAD"), keeper) as copy:
    print(copy.path, keeper.pid, flush=True)
    time.sleep(60)
"""


def copies(repo: Any) -> list[str]:
    listed: str = repo.git("worktree", "list", "--porcelain")
    return listed.split("worktree ")[2:]


def hold(repo: Any) -> tuple["subprocess.Popen[str]", str, int]:
    """Start a process that has a copy open; return the copy's folder and the pid of its keeper."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(repo.path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    path, pid = process.stdout.readline().split()
    process.stdout.close()
    return process, path, int(pid)


def wait_until_gone(*paths: Path) -> None:
    deadline = time.monotonic() + 20
    while any(path.exists() for path in paths):
        assert time.monotonic() < deadline, paths
        time.sleep(0.01)


def test_a_copy_is_removed_with_all_changes_in_it(repo: Any) -> None:
    before, files = repo.state(), repo.files()
    with (
        Keeper.start() as keeper,
        check_out_copy(repo.found("folder"), "run", repo.git("rev-parse", "HEAD"), keeper) as copy,
    ):
        assert copy.workspace == f"{copy.path}/folder"
        assert os.listdir(copy.workspace) == ["b.txt"]
        Path(copy.path, "a.txt").write_text("changed")
        Path(copy.path, "new").write_text("new")
    assert not [name for name in os.listdir(os.path.dirname(copy.path)) if not name.startswith(".")]
    assert not copies(repo)
    assert (repo.state(), repo.files()) == (before, files)


def test_a_copy_is_removed_after_an_error(repo: Any) -> None:
    with (
        pytest.raises(KeyboardInterrupt),
        Keeper.start() as keeper,
        check_out_copy(repo.found(), "run", repo.git("rev-parse", "HEAD"), keeper) as copy,
    ):
        raise KeyboardInterrupt
    assert not os.path.exists(copy.path)
    assert not copies(repo)


def test_the_keeper_removes_the_copy_of_a_killed_ralph(repo: Any) -> None:
    process, path, _ = hold(repo)
    kept = repo.path / ".git/worktrees" / Path(path).name
    assert kept.exists()
    process.kill()
    process.wait()
    wait_until_gone(Path(path), Path(f"{path}.index"), kept)
    assert not copies(repo)


def test_the_next_copy_removes_one_whose_keeper_was_killed(repo: Any) -> None:
    process, path, keeper_pid = hold(repo)
    living, other, _ = hold(repo)
    os.kill(keeper_pid, signal.SIGKILL)
    process.kill()
    process.wait()
    assert os.path.exists(path)
    with Keeper.start() as keeper, check_out_copy(repo.found(), "run", repo.git("rev-parse", "HEAD"), keeper):
        assert not os.path.exists(path)
        assert os.path.exists(other)
    living.kill()
    living.wait()
    wait_until_gone(Path(other))
