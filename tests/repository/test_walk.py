import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ralph.repository import index
from ralph.repository.index import walk_fingerprint


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("a.txt", "b/c.txt", ".git/index", ".ralph/lock", "node_modules/x.js", "b/__pycache__/c.pyc"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    return tmp_path


SEEN: dict[str, Callable[[Path], object]] = {
    "an edit": lambda root: (root / "a.txt").write_text("xx"),
    "another time": lambda root: os.utime(root / "a.txt", (1, 1)),
    "a new file": lambda root: (root / "b/d.txt").write_text("x"),
    "a deletion": lambda root: (root / "b/c.txt").unlink(),
    "a moved file": lambda root: (root / "a.txt").rename(root / "b/a.txt"),
    "another mode": lambda root: (root / "a.txt").chmod(0o700),
    "a link": lambda root: (root / "link").symlink_to("/"),
    "an odd name": lambda root: (root / os.fsdecode(b"\n\xff")).write_text("x"),
}


@pytest.mark.parametrize("change", SEEN)
def test_the_walk_sees(root: Path, change: str) -> None:
    before = walk_fingerprint(root)
    SEEN[change](root)
    assert walk_fingerprint(root) != before


@pytest.mark.parametrize("name", [".git/index", ".ralph/lock", "node_modules/x.js", "b/__pycache__/c.pyc"])
def test_the_walk_does_not_enter(root: Path, name: str) -> None:
    before = walk_fingerprint(root)
    (root / name).write_text("changed")
    assert walk_fingerprint(root) == before


def test_the_walk_has_an_end(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "MOST", 1)
    before = walk_fingerprint(root)
    (root / "z.txt").write_text("x")
    assert walk_fingerprint(root) == before


def test_a_folder_that_is_gone_has_a_fingerprint_too(tmp_path: Path) -> None:
    assert walk_fingerprint(tmp_path / "gone") == walk_fingerprint(tmp_path / "gone too")
