"""One run at a time in a workspace."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ralph.errors import UserError
from ralph.store.folder import workspace_lock

HOLDER = """
import sys, time
from pathlib import Path
from ralph.store.folder import workspace_lock
with workspace_lock(Path(sys.argv[1]), "first"):
    print("held", flush=True)
    {then}
"""


@pytest.fixture
def ralph_folder(tmp_path: Path) -> Path:
    folder = tmp_path / ".ralph"
    folder.mkdir()
    return folder


def hold(folder: Path, then: str = "time.sleep(100)") -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", HOLDER.format(then=then), str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_the_error_names_the_holder_of_the_lock(ralph_folder: Path) -> None:
    with hold(ralph_folder) as holder:
        with pytest.raises(UserError) as refusal, workspace_lock(ralph_folder, "second"):
            pass
        assert f"run first, process {holder.pid}" in refusal.value.message
        assert str(ralph_folder.parent) in refusal.value.message
        holder.kill()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_lock_ends_with_its_holder(ralph_folder: Path, number: int) -> None:
    with hold(ralph_folder) as holder:
        holder.send_signal(number)
        holder.wait()
        with workspace_lock(ralph_folder, "second"):
            assert (ralph_folder / "lock").read_text() == f"run second, process {os.getpid()}\n"


def test_the_lock_waits_for_a_starting_child_of_a_dead_holder(ralph_folder: Path) -> None:
    """The child was forked and has not executed its program yet, so it still has the lock."""
    then = "import os; os.fork() or (time.sleep(0.7), os._exit(0)); os.kill(os.getpid(), 9)"
    with hold(ralph_folder, then) as holder:
        holder.wait()
        with workspace_lock(ralph_folder, "second"):
            pass


def test_the_lock_can_be_acquired_repeatedly(ralph_folder: Path) -> None:
    for number in range(3):
        with workspace_lock(ralph_folder, str(number)):
            pass


def test_children_do_not_inherit_the_lock(ralph_folder: Path) -> None:
    with workspace_lock(ralph_folder, "first"):
        child = subprocess.Popen(["sleep", "100"], close_fds=False)
    with workspace_lock(ralph_folder, "second"):
        child.kill()
        child.wait()


def test_a_removed_lock_file_is_locked_again(ralph_folder: Path) -> None:
    with workspace_lock(ralph_folder, "first") as lock_again:
        lock_again()
        (ralph_folder / "lock").unlink()
        lock_again()
        with pytest.raises(UserError), workspace_lock(ralph_folder, "second"):
            pass


def test_an_unwritable_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot write"), workspace_lock(tmp_path / "nowhere", "first"):
        pass
