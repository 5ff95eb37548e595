"""A tree that is grafted is the tree that the index would have given."""

import errno
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ralph.errors import UserError
from ralph.repository import graft, objects
from ralph.repository.checkpoints import Checkpoints
from ralph.repository.index import PrivateIndex, tree_of
from ralph.repository.objects import write

PLACES = ("a", "a.txt", "a-b", "a0", "a/b", "a/b.txt", "a/b/c", "a/b-c/d", "folder/b.txt", "folder/e/f/g", "é ü")


def fresh(repo: Any) -> PrivateIndex:
    """An index that has seen nothing: its first tree is not grafted."""
    return PrivateIndex(repo.found(), repo.path.parent / "fresh-index")


def content_of(path: Path) -> bytes:
    return path.read_bytes()


def _clear(path: Path) -> None:
    """Makes room, whatever stands there or on the way."""
    for parent in [*reversed(path.parents), path]:
        if parent.is_symlink() or parent.is_file():
            parent.unlink()
    if path.is_dir():
        shutil.rmtree(path)


def _write(repo: Any, path: Path, chance: random.Random) -> None:
    _clear(path)
    repo.write(os.fspath(path), chance.choice(["one\n", "two\n", f"{chance.random()}\n", "dos\r\n", ""]))


def _execute(repo: Any, path: Path, chance: random.Random) -> None:
    if path.is_file():
        path.chmod(chance.choice([0o644, 0o755]))


def _link(repo: Any, path: Path, chance: random.Random) -> None:
    _clear(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to("a.txt")


ACTS: tuple[Callable[[Any, Path, random.Random], object], ...] = (
    *(_write,) * 6,
    *(lambda repo, path, chance: _clear(path),) * 3,
    _execute,
    _link,
    lambda repo, path, chance: repo.commit(),
)


@pytest.mark.parametrize("worth", [3, 300])
@pytest.mark.parametrize("seed", range(3))
def test_whatever_changes_the_tree_is_the_one_of_the_index(
    repo: Any, seed: int, worth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graft, "_WORTH", worth)
    chance = random.Random(seed)
    index, saved = repo.index(), Checkpoints(repo.found(), "run")
    index.tree()
    for step in range(15):
        for _ in range(chance.choice([1, 1, 2, 4])):
            chance.choice(ACTS)(repo, repo.path / chance.choice(PLACES), chance)
        fingerprint = index.tree()
        assert fingerprint == fresh(repo).tree(), step
        saved.save(step, fingerprint)
    repo.git("fsck", "--strict", "--no-dangling")


def test_a_few_changes_are_none_of_the_index(repo: Any) -> None:
    index, private = repo.index(), repo.path.parent / "private/index"
    index.tree()
    before = content_of(private)
    for number in range(5):
        repo.write("new.txt", str(number))
        repo.write("folder/b.txt", str(number))
        assert repo.git("show", f"{tree_of(index.tree())}:folder/b.txt") == str(number)
    (repo.path / "a.txt").unlink()
    index.tree()
    assert content_of(private) == before


def test_what_stays_changed_is_not_read_for_ever(repo: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graft, "_WORTH", 4)
    index, private = repo.index(), repo.path.parent / "private/index"
    index.tree()
    before = content_of(private)
    repo.write("new.txt")
    seen = [(index.tree(), content_of(private) == before) for _ in range(8)]
    assert len({tree for tree, _ in seen}) == 1
    assert [is_same for _, is_same in seen] == [True] * 6 + [False] * 2


def test_a_repository_with_long_names(tmp_path: Path, repo: Any) -> None:
    path = tmp_path / "long"
    path.mkdir()
    long = type(repo)(path)
    long.git("init", "-q", "--object-format=sha256")
    long.write("folder/a.txt", "one\n")
    long.commit()
    index = PrivateIndex(long.found(), tmp_path / "index")
    index.tree()
    long.write("folder/b.txt", "two\n")
    fingerprint = index.tree()
    assert fingerprint == fresh(long).tree()
    commit = Checkpoints(long.found(), "run").save(1, fingerprint)
    assert long.git("show", f"{commit}:folder/b.txt") == "two"


def test_a_linked_worktree_writes_to_the_store_of_its_repository(repo: Any, tmp_path: Path) -> None:
    repo.git("worktree", "add", "-q", "-b", "other", str(tmp_path / "linked"))
    linked = type(repo)(tmp_path / "linked")
    index = linked.index()
    index.tree()
    linked.write("folder/b.txt", "there\n")
    assert repo.git("show", f"{tree_of(index.tree())}:folder/b.txt") == "there"


@pytest.mark.parametrize("setting", ["true", "input", "false"])
def test_ends_of_lines_are_those_that_the_index_would_keep(repo: Any, setting: str) -> None:
    repo.config("core.autocrlf", "false")
    repo.write("dos.txt", "one\r\ntwo\r\n")
    repo.commit()
    repo.config("core.autocrlf", setting)
    index = repo.index()
    index.tree()
    repo.write("dos.txt", "one\r\ntwo\r\nthree\r\n")
    repo.write("new.txt", "one\r\n")
    assert index.tree() == fresh(repo).tree()
    repo.write("new.txt", "one\ntwo\n")
    assert index.tree() == fresh(repo).tree()


def test_filters_have_their_say(repo: Any) -> None:
    repo.config("filter.loud.clean", "tr a-z A-Z")
    repo.write(".gitattributes", "*.loud filter=loud\n")
    repo.commit()
    index = repo.index()
    index.tree()
    repo.write("folder/x.loud", "quiet")
    assert repo.git("show", f"{tree_of(index.tree())}:folder/x.loud") == "QUIET"


def test_a_folder_that_git_has_lost_is_made_again(repo: Any) -> None:
    index = repo.index()
    index.tree()
    lost = repo.git("rev-parse", "HEAD:folder")
    (repo.path / ".git/objects" / lost[:2] / lost[2:]).unlink()
    repo.write("folder/new.txt", "new\n")
    tree = tree_of(index.tree())
    assert repo.git("ls-tree", "--name-only", tree, "folder/").split() == ["folder/b.txt", "folder/new.txt"]


def test_nothing_is_missing_of_a_tree_that_git_has_lost(repo: Any) -> None:
    index = repo.index()
    repo.write("new.txt", "new\n")
    index.tree()
    repo.git("prune", "--expire=now")
    for number in range(2):
        repo.write("a.txt", str(number))
        assert "folder/b.txt" in repo.git("ls-tree", "-r", "--name-only", tree_of(index.tree())).split()


@pytest.mark.parametrize("names", [("name", "name\r"), ("folder/file", "folder\r/file")])
def test_a_name_that_ends_like_a_line_of_dos_is_no_other_name(repo: Any, names: tuple[str, str]) -> None:
    index = repo.index()
    index.tree()
    for name in names:
        repo.write(name, name.encode())
    assert index.tree() == fresh(repo).tree()
    repo.commit()
    for name in names:
        repo.write(name, f"{name} again".encode())
    assert index.tree() == fresh(repo).tree()


def test_an_index_that_the_agent_removed_is_made_again(repo: Any) -> None:
    index = repo.index()
    index.tree()
    repo.write("new.txt")
    before = index.tree()
    (repo.path.parent / "private/index").unlink()
    assert index.tree() == before
    repo.commit()
    (repo.path.parent / "private/index").unlink()
    assert tree_of(index.tree()) == tree_of(before)


def test_a_store_that_is_shared_stays_shared(repo: Any) -> None:
    shutil.rmtree(repo.path / ".git")
    repo.git("init", "-q", "--shared=group")
    old = os.umask(0o077)
    try:
        name = write(repo.found(), "tree", b"", "0" * 40)
    finally:
        os.umask(old)
    path = repo.path / ".git/objects" / name[:2] / name[2:]
    assert path.parent.stat().st_mode == path.parent.parent.stat().st_mode
    assert path.stat().st_mode & 0o777 == 0o444


def test_an_object_that_is_there_becomes_young(repo: Any) -> None:
    name = repo.git("rev-parse", "HEAD:folder")
    path = repo.path / ".git/objects" / name[:2] / name[2:]
    content = bytes.fromhex(repo.git("rev-parse", "HEAD:folder/b.txt"))
    os.utime(path, (1, 1))
    assert write(repo.found(), "tree", b"100644 b.txt\0" + content, name) == name
    assert path.stat().st_mtime > 1


def test_a_folder_of_the_store_that_git_sweeps_up_in_that_moment_is_made_again(
    repo: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = write(repo.found(), "blob", b"some", "0" * 40)
    path = repo.path / ".git/objects" / name[:2] / name[2:]
    path.unlink()
    sweeps = [path.parent] * 3

    def swept(file: Any, *how: Any, **more: Any) -> Any:
        if "tmp_obj_" in os.fspath(file) and sweeps:
            sweeps.pop().rmdir()
        return open(file, *how, **more)

    monkeypatch.setattr(objects, "open", swept, raising=False)
    assert write(repo.found(), "blob", b"some", "0" * 40) == name
    assert repo.git("cat-file", "-p", name) == "some"


def test_a_store_that_is_full_is_an_error_and_nothing_is_left(repo: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "rename", full)
    with pytest.raises(UserError, match=r"cannot write .*: No space left on device"):
        write(repo.found(), "blob", b"some", "0" * 40)
    assert not [*(repo.path / ".git/objects").rglob("tmp_obj_*")]
