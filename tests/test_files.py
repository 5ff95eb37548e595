"""What ralph removes, it removes without being led elsewhere."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ralph.files import make_folder, remove_tree


def test_removing_a_folder_follows_no_link_that_is_put_in_its_place(tmp_path: Path, monkeypatch: Any) -> None:
    """A process that lives on may exchange a folder for a link in the moment in which it is to be emptied."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "kept").touch()
    (tmp_path / "run" / "a" / "b" / "c").mkdir(parents=True)
    rename = os.rename

    def exchanged(old: str, new: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        rename(old, f"{new}.away", src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        os.symlink(tmp_path / "outside", new, dir_fd=dst_dir_fd)

    monkeypatch.setattr(os, "rename", exchanged)
    with pytest.raises(OSError):
        remove_tree(tmp_path / "run")
    monkeypatch.undo()
    assert (tmp_path / "outside" / "kept").exists()
    remove_tree(tmp_path / "run")
    assert [*tmp_path.iterdir()] == [tmp_path / "outside"]


def test_folders_are_made_however_deep_they_are(tmp_path: Path) -> None:
    deep = tmp_path / "/".join("d" * 1500)
    make_folder(str(deep))
    assert deep.is_dir()
    remove_tree(tmp_path / "d")
    assert not (tmp_path / "d").exists()


def test_a_link_to_a_folder_is_not_removed_as_one(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there")
    with pytest.raises(OSError):
        remove_tree(tmp_path / "link")
    assert (tmp_path / "there").exists()


def test_folders_that_are_closed_to_their_owner_go_as_well(tmp_path: Path) -> None:
    """Root may do everything: somebody else has to try."""
    script = """
import os
from ralph.files import make_folder, remove_tree
os.chdir(os.environ["PLACE"])
if os.geteuid() == 0:
    os.chown(".", 65534, 65534)
    os.setuid(65534)
os.makedirs("x/y/z")
open("x/y/z/f", "w").close()
os.chmod("x/y/z", 0o500), os.chmod("x/y", 0), os.chmod("x", 0o500)
remove_tree("x")
"""
    env = {**os.environ, "PLACE": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr, [*tmp_path.iterdir()]) == (0, "", [])
