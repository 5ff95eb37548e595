"""Creating and removing folders, and opening files where an agent may have put something else."""

import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from ralph.files import ReplacedFileError, make_folder, open_file, open_own, read_file, read_given, remove_tree


def test_deep_folders_are_created_and_removed(tmp_path: Path) -> None:
    deep = tmp_path / "/".join("d" * 1500)
    make_folder(str(deep))
    assert deep.is_dir()
    remove_tree(tmp_path / "d")
    assert not (tmp_path / "d").exists()


def test_remove_tree_refuses_a_link_to_a_folder(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there")
    with pytest.raises(OSError):
        remove_tree(tmp_path / "link")
    assert (tmp_path / "there").exists()


def test_folders_that_are_closed_to_their_owner_are_removed(tmp_path: Path) -> None:
    """Root ignores permissions, so the test runs as another user."""
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


def test_a_link_in_the_place_of_a_file_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("mine")
    (tmp_path / "link").symlink_to("target")
    with pytest.raises(ReplacedFileError):
        read_file(tmp_path / "link")
    with pytest.raises(ReplacedFileError):
        open_file(tmp_path / "link", os.O_WRONLY | os.O_TRUNC)
    assert (tmp_path / "target").read_text() == "mine"


def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ReplacedFileError):
        read_file(tmp_path / "pipe")
    with pytest.raises(ReplacedFileError):
        open_file(tmp_path / "pipe", os.O_WRONLY)


def test_a_link_is_replaced_by_a_regular_file(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("mine")
    (tmp_path / "link").symlink_to("target")
    os.close(open_own(tmp_path / "link"))
    assert not (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text() == "mine"


def test_the_last_file_stays_if_the_removal_is_interrupted(tmp_path: Path) -> None:
    (tmp_path / "run" / "sub").mkdir(parents=True)
    (tmp_path / "run" / "state.json").touch()
    (tmp_path / "run" / "sub" / "file").touch()
    script = """
import os, sys
from ralph.files import remove_tree
os.chdir(os.environ["PLACE"])
os.rmdir = lambda path: sys.exit("rmdir: " + os.path.basename(path))
remove_tree("run", last="state.json")
"""
    env = {**os.environ, "PLACE": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=False)
    assert done.stderr == "rmdir: sub\n"
    assert (tmp_path / "run" / "state.json").exists()
    remove_tree(tmp_path / "run", last="state.json")
    assert not (tmp_path / "run").exists()


def test_a_small_file_needs_little_memory_even_if_a_large_one_is_allowed(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x" * 100)
    tracemalloc.start()
    try:
        assert read_given(tmp_path / "f", 1 << 30) == b"x" * 100
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_a_file_may_be_as_large_as_the_limit(tmp_path: Path) -> None:
    for size in (1 << 20, 3 << 20):
        (tmp_path / "f").write_bytes(b"x" * size)
        assert len(read_given(tmp_path / "f", size)) == size
        with pytest.raises(OSError, match="it is larger than"):
            read_given(tmp_path / "f", size - 1)
