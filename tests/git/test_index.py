import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from ralph.errors import UserError
from ralph.git import index
from ralph.git import index as index_module
from ralph.git.checkpoints import changed_files, diff
from ralph.git.index import is_run_data, parse_status, walk_fingerprint

CHANGES: dict[str, Callable[[Any], object]] = {
    "an edit": lambda repo: repo.write("a.txt", "changed\n"),
    "an edit of the same size": lambda repo: repo.write("a.txt", "eno\n"),
    "a second edit of a dirty file": lambda repo: repo.write("dirty.txt", "more\n"),
    "an edit of a new file": lambda repo: repo.write("new.txt", "more\n"),
    "an edit of a staged new file": lambda repo: repo.write("staged.txt", "more\n"),
    "a new file": lambda repo: repo.write("newer.txt"),
    "a new file in a new folder": lambda repo: repo.write("x/y/z.txt"),
    "a deletion": lambda repo: (repo.path / "a.txt").unlink(),
    "the deletion of a new file": lambda repo: (repo.path / "new.txt").unlink(),
    "another mode": lambda repo: (repo.path / "a.txt").chmod(0o755),
    "a moved file": lambda repo: (repo.path / "a.txt").rename(repo.path / "c.txt"),
    "another target of a link": lambda repo: ((repo.path / "link").unlink(), (repo.path / "link").symlink_to("folder")),
    "a file that becomes a link": lambda repo: ((repo.path / "a.txt").unlink(), (repo.path / "a.txt").symlink_to("b")),
    "a file that becomes a folder": lambda repo: ((repo.path / "a.txt").unlink(), repo.write("a.txt/inside")),
    "a folder that becomes a file": lambda repo: (
        (repo.path / "folder/b.txt").unlink(),
        (repo.path / "folder").rmdir(),
        repo.write("folder"),
    ),
    "a commit": lambda repo: repo.commit(),
    "a commit of nothing": lambda repo: repo.git("commit", "-q", "--allow-empty", "-m", "nothing"),
    "a file that is no longer ignored": lambda repo: repo.write(".gitignore", "# nothing\n"),
}

SAME: dict[str, Callable[[Any], object]] = {
    "nothing": lambda repo: None,
    "a file that was written anew with the same content": lambda repo: repo.write("a.txt", "one\n"),
    "another time": lambda repo: os.utime(repo.path / "a.txt", (1, 1)),
    "a file that is ignored": lambda repo: repo.write("some.ignored", "more"),
    "a file that was staged": lambda repo: repo.git("add", "-A"),
    "an empty folder": lambda repo: (repo.path / "nothing-in-it").mkdir(),
    "another branch at the same commit": lambda repo: repo.git("checkout", "-q", "-b", "other"),
    "an edit that was undone": lambda repo: (repo.write("a.txt", "x"), repo.write("a.txt", "one\n")),
    "run data": lambda repo: repo.write(".ralph/runs/1/journal.ndjson", "{}\n"),
    "progress": lambda repo: repo.write(".ralph/progress.md", "iteration 2"),
    "run data of a subfolder": lambda repo: repo.write("folder/.ralph/guardrail_001_x.log", "no"),
    "new settings": lambda repo: repo.write(".ralph/settings.json", "{}"),
}


@pytest.fixture
def busy(repo: Any) -> Any:
    """A repository with staged, changed, new and deleted files."""
    repo.write("dirty.txt", "clean\n")
    (repo.path / "link").symlink_to("a.txt")
    repo.commit()
    repo.write("dirty.txt", "dirty\n")
    repo.write("staged.txt", "staged\n")
    repo.git("add", "staged.txt")
    repo.write("new.txt", "new\n")
    repo.write("some.ignored", "ignored\n")
    repo.write(".ralph/runs/1/journal.ndjson", "")
    return repo


@pytest.mark.parametrize("change", CHANGES)
def test_the_fingerprint_changes_with_each_of_these_edits(busy: Any, change: str) -> None:
    index = busy.index()
    before = index.tree()
    CHANGES[change](busy)
    after = index.tree()
    assert after != before
    assert after == index.tree() == busy.index().tree()


@pytest.mark.parametrize("change", SAME)
def test_the_fingerprint_ignores_each_of_these_changes(busy: Any, change: str) -> None:
    index = busy.index()
    before = index.tree()
    SAME[change](busy)
    assert index.tree() == before == busy.index().tree()


def test_a_change_that_is_undone_gives_the_old_fingerprint(busy: Any) -> None:
    index = busy.index()
    before = index.tree()
    busy.write("a.txt", "other\n")
    busy.write("more.txt")
    index.tree()
    busy.write("a.txt", "one\n")
    (busy.path / "more.txt").unlink()
    assert index.tree() == before


def test_the_tree_contains_every_file_that_git_does_not_ignore(busy: Any) -> None:
    fingerprint = busy.index().tree()
    names = busy.git("ls-tree", "-r", "--name-only", fingerprint.files).splitlines()
    assert names == [".gitignore", "a.txt", "dirty.txt", "folder/b.txt", "link", "new.txt", "staged.txt"]
    assert busy.git("show", f"{fingerprint.files}:dirty.txt") == "dirty"
    assert fingerprint.head == busy.git("rev-parse", "HEAD")


def test_the_users_index_branch_and_files_are_not_changed(busy: Any) -> None:
    busy.git("stash", "push", "-q", "--", "dirty.txt")
    before, files = busy.state(), busy.files()
    index = busy.index()
    index.tree()
    busy.write("newer.txt")
    index.tree()
    (busy.path / "newer.txt").unlink()
    assert (busy.state(), busy.files()) == (before, files)


def test_an_edit_in_the_same_moment_as_the_users_own_add_is_noticed(repo: Any) -> None:
    for number in range(20):
        repo.write("a.txt", f"{number:03}\n")
        repo.git("add", "a.txt")
        repo.write("a.txt", f"{number:03}"[::-1] + "!")
        assert repo.git("show", f"{repo.index().tree().files}:a.txt") == f"{number:03}"[::-1] + "!"


def test_many_edits_in_one_moment_are_all_noticed(repo: Any) -> None:
    index = repo.index()
    seen = set()
    for number in range(20):
        repo.write("a.txt", f"{number:03}\n")
        seen.add(index.tree())
    assert len(seen) == 20


def test_new_files_in_one_moment_are_all_noticed(repo: Any) -> None:
    index = repo.index()
    seen = set()
    for number in range(20):
        repo.write(f"folder/{number}")
        seen.add(index.tree())
    assert len(seen) == 20


ODD = [
    b"with space",
    b"line\nend",
    b"not-utf8-\xff\xfe",
    b"-dash",
    b"--all",
    b'"quoted"',
    b"back\\slash",
    b":(top)x",
    b"*",
    "é".encode(),
]


def test_files_with_any_name_are_in_the_tree(repo: Any) -> None:
    index = repo.index()
    for name in ODD:
        repo.write(name, b"1")
    first = index.tree()
    listed = subprocess.run(
        ("git", "-C", repo.path, "ls-tree", "-r", "-z", "--name-only", first.files), capture_output=True, check=True
    )
    assert {*ODD} < {*listed.stdout.split(b"\0")}
    for name in ODD:
        repo.write(name, b"2")
        second = index.tree()
        assert second != first
        first = second


def test_a_repository_without_a_commit_has_a_fingerprint(empty: Any) -> None:
    index = empty.index()
    before = index.tree()
    assert before.head == ""
    empty.write("a.txt")
    after = index.tree()
    assert after != before
    empty.commit()
    assert index.tree().files == after.files
    assert index.tree() != after


def test_a_detached_head_works_like_a_branch(repo: Any) -> None:
    before = repo.index().tree()
    repo.git("checkout", "-q", "--detach")
    assert repo.index().tree() == before


def test_a_packed_branch_is_still_checked_out(repo: Any) -> None:
    """A branch whose longer name begins in the same way is a different branch."""
    before = repo.index().tree()
    branch = repo.git("symbolic-ref", "--short", "HEAD")
    repo.git("branch", f"{branch}-too", "HEAD")
    repo.git("pack-refs", "--all")
    assert repo.index().tree() == before
    repo.git("symbolic-ref", "HEAD", f"refs/heads/{branch[:-1]}")
    assert repo.index().tree().head == ""
    repo.git("symbolic-ref", "HEAD", f"refs/heads/{branch}")
    commit = repo.commit()
    assert repo.index().tree().head == commit != before.head


def test_a_linked_worktree_has_its_own_fingerprint(repo: Any, tmp_path: Path) -> None:
    repo.git("worktree", "add", "-q", "-b", "other", str(tmp_path / "linked"))
    linked = type(repo)(tmp_path / "linked")
    before = repo.index().tree()
    assert linked.index().tree() == before
    linked.write("a.txt", "there\n")
    assert linked.index().tree() != before == repo.index().tree()


def test_with_a_subfolder_as_workspace_the_fingerprint_covers_the_whole_repository(repo: Any) -> None:
    index = repo.index("folder")
    before = index.tree()
    repo.write("a.txt", "outside\n")
    assert index.tree() != before
    assert repo.git("show", f"{index.tree().files}:a.txt") == "outside"


def test_a_home_folder_that_is_a_repository_is_not_read(repo: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(repo.path))
    index = repo.index("folder")
    before = index.tree()
    repo.write("private/diary.txt")
    assert index.tree() == before
    repo.write("folder/new.txt")
    assert index.tree() != before
    assert "private" not in repo.git("ls-tree", "-r", "--name-only", index.tree().files)


def test_the_fingerprint_works_during_a_merge_with_conflicts(repo: Any) -> None:
    repo.git("checkout", "-q", "-b", "other")
    repo.write("a.txt", "other\n")
    repo.commit()
    repo.git("checkout", "-q", "main")
    repo.write("a.txt", "main\n")
    repo.commit()
    repo.git("merge", "other", check=False)
    index = repo.index()
    before = index.tree()
    assert "<<<<<<<" in repo.git("show", f"{before.files}:a.txt")
    repo.write("a.txt", "resolved\n")
    assert index.tree() != before
    assert repo.git("status", "--porcelain") == "UU a.txt"


def test_a_file_added_with_intent_to_add_is_in_the_tree(repo: Any) -> None:
    repo.write("later.txt")
    repo.git("add", "--intent-to-add", "later.txt")
    assert "later.txt" in repo.git("ls-tree", "-r", "--name-only", repo.index().tree().files)


@pytest.mark.parametrize("words", [("--split-index",), ("--index-version", "4"), ("--untracked-cache",)])
def test_every_format_of_the_users_index_works(repo: Any, words: tuple[str, ...]) -> None:
    repo.write(".ralph/progress.md", "tracked by mistake")
    repo.write(".rajah/x")
    repo.commit()
    repo.git("update-index", *words)
    index = repo.index()
    before = index.tree()
    assert ".ralph" not in repo.git("ls-tree", "-r", "--name-only", before.files)
    repo.write(".ralph/progress.md", "iteration 1")
    assert index.tree() == before
    repo.write("a.txt", "changed\n")
    assert index.tree() != before


def test_the_fingerprint_works_without_an_index(repo: Any) -> None:
    before = repo.index().tree()
    (repo.path / ".git/index").unlink()
    assert repo.index().tree() == before


@pytest.mark.parametrize("removed", ["index", "."])
def test_a_removed_private_index_is_recreated(repo: Any, removed: str) -> None:
    index = repo.index()
    repo.write("new.txt", "new\n")
    before = index.tree()
    place = repo.path.parent / "private" / removed
    shutil.rmtree(place) if place.is_dir() else place.unlink()
    assert index.tree() == before
    repo.write("new.txt", "newer\n")
    assert index.tree() != before


@pytest.mark.parametrize(
    "content", [b"", b"DIRC garbage", b"DIRC\0\0\0\2", b"other garbage" * 9, b"DIRC\0\0\0\2link" * 9]
)
def test_the_fingerprint_works_with_a_broken_index(repo: Any, content: bytes) -> None:
    """An agent or a full disk may have broken the index; the objects that git has saved can still be restored."""
    before = repo.index().tree()
    repo.write(".git/index", content)
    assert repo.index().tree() == before


def test_an_index_that_cannot_be_written_is_an_error(repo: Any) -> None:
    (repo.path.parent / "private/index").mkdir(parents=True)
    with pytest.raises(UserError, match="cannot write"):
        repo.index()


def test_a_stale_lock_on_the_private_index_is_removed(repo: Any) -> None:
    before = repo.index().tree()
    (repo.path.parent / "private/index.lock").write_bytes(b"")
    repo.write("a.txt", "changed\n")
    assert repo.index().tree() != before


def test_committed_settings_are_in_the_tree_and_run_data_never_is(repo: Any) -> None:
    repo.write(".ralph/settings.json", "{}")
    repo.write(".ralph/PROMPT.md", "do it")
    repo.write(".ralph/runs/1/journal.ndjson", "")
    repo.commit()
    index = repo.index()
    before = index.tree()
    repo.write(".ralph/runs/1/journal.ndjson", "{}")
    repo.write(".ralph/runs/2/journal.ndjson", "{}")
    assert index.tree() == before
    for name in ("settings.json", "PROMPT.md"):
        repo.write(f".ralph/{name}", "changed")
        assert index.tree() != before
        before = index.tree()
    names = repo.git("ls-tree", "-r", "--name-only", before.files).splitlines()
    assert [name for name in names if ".ralph" in name] == [".ralph/PROMPT.md", ".ralph/settings.json"]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (b".ralph/runs/1/journal.ndjson", True),
        (b"sub/.ralph/progress.md", True),
        (b".ralph/runs/1/.ralph/settings.json", True),
        (b".ralph/guardrail_001_make_test.log", True),
        (b".ralph/settings.json", False),
        (b"my.ralph/runs/x", False),
        (b"runs/x", False),
    ],
)
def test_the_files_that_ralph_writes_are_run_data(path: bytes, expected: bool) -> None:
    assert is_run_data(path) is expected


def test_the_fingerprint_starts_no_hook_and_no_fsmonitor(repo: Any, tmp_path: Path) -> None:
    for name in ("post-index-change", "reference-transaction", "pre-commit", "query-watchman"):
        repo.hook(name, f"touch '{tmp_path}/started'; exit 1")
    repo.config("core.fsmonitor", str(repo.path / ".git/hooks/query-watchman"))
    index = repo.index()
    before = index.tree()
    repo.write("a.txt", "changed\n")
    assert index.tree() != before
    assert not (tmp_path / "started").exists()


def _in_a_clone(repo: Any, tmp_path: Path) -> Any:
    return repo


def _in_a_linked_worktree(repo: Any, tmp_path: Path) -> Any:
    repo.git("worktree", "add", "-q", str(tmp_path / "linked"))
    repo.config("extensions.worktreeConfig", "true")
    return type(repo)(tmp_path / "linked")


def _in_a_submodule(repo: Any, tmp_path: Path) -> Any:
    repo.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(repo.path), "sub")
    return type(repo)(repo.path / "sub")


@pytest.mark.parametrize("there", [_in_a_clone, _in_a_linked_worktree, _in_a_submodule])
@pytest.mark.parametrize(
    "settings",
    [{"core.worktree": "elsewhere"}, {"core.worktree": "."}, {"core.worktree": "nowhere"}, {"core.bare": "true"}],
)
def test_an_agent_cannot_redirect_the_fingerprint_to_another_folder(
    repo: Any, tmp_path: Path, there: Callable[[Any, Path], Any], settings: dict[str, str]
) -> None:
    (tmp_path / "elsewhere").mkdir()
    repo = there(repo, tmp_path)
    index = repo.index()
    before = index.tree()
    for name, value in settings.items():
        repo.git("config", "--worktree", name, value if value == "true" else str(tmp_path / value))
    assert index.tree() == before
    repo.write("new.txt", "here\n")
    after = index.tree()
    assert [change.path for change in changed_files(index.git, before.files, after.files)] == ["new.txt"]
    assert "+here" in diff(index.git, before.files, after.files, 1000)
    repo.write("more.txt", "x" * 4_000_000)  # more than the limit for files that are not in the index
    names = index.git.run("ls-tree", "-r", "--name-only", index.tree().files).decode().split()
    assert {"a.txt", "new.txt", "more.txt"} < {*names}


@pytest.mark.parametrize(
    "setting",
    [
        "color.ui=always",
        "color.status=always",
        "core.quotePath=true",
        "core.autocrlf=true",
        "core.autocrlf=input",
        "core.safecrlf=true",
        "core.fileMode=false",
        "core.preloadIndex=false",
        "core.splitIndex=true",
        "core.untrackedCache=false",
        "core.pager=false",
        "commit.gpgSign=true",
        "diff.external=false",
        "diff.ignoreSubmodules=all",
        "feature.manyFiles=true",
        "index.sparse=true",
        "status.branch=true",
        "status.relativePaths=true",
        "status.renames=copies",
        "status.showStash=true",
        "status.showUntrackedFiles=no",
        "status.short=true",
        "submodule.recurse=true",
    ],
)
def test_the_users_settings_change_nothing(busy: Any, setting: str) -> None:
    busy.write("crlf.txt", "one\r\ntwo\n")
    busy.config(*setting.split("="))
    busy.git("stash", "push", "-q", "--", "staged.txt")
    index = busy.index("folder")
    before = index.tree()
    assert index.tree() == before
    busy.write("folder/new.txt")
    after = index.tree()
    assert after != before
    assert "folder/new.txt" in busy.git("ls-tree", "-r", "--name-only", after.files).splitlines()


def test_changes_inside_a_submodule_and_a_nested_repository_are_noticed(repo: Any, tmp_path: Path) -> None:
    inner = type(repo)(tmp_path / "inner")
    inner.path.mkdir()
    inner.git("init", "-q")
    inner.write("x.txt", "1")
    inner.commit()
    repo.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(inner.path), "sub")
    repo.commit()
    (repo.path / "nested").mkdir()
    repo.git("-C", "nested", "init", "-q")
    index = repo.index()
    seen = [index.tree()]
    for change in (
        lambda: repo.write("sub/x.txt", "22"),
        lambda: repo.write("sub/x.txt", "333"),
        lambda: repo.write("sub/new.txt"),
        lambda: repo.git("-C", "sub", "add", "-A"),
        lambda: repo.git("-C", "sub", "commit", "-q", "-m", "inside"),
        lambda: repo.write("nested/new.txt"),
        lambda: repo.write("nested/new.txt", "again"),
        lambda: repo.git("-C", "nested", "add", "-A"),
    ):
        change()
        seen.append(index.tree())
        assert index.tree() == seen[-1]
    changed = [one != other for one, other in pairwise(seen)]
    assert changed == [True, True, True, False, True, True, True, False]


def test_a_removed_submodule_is_a_change(repo: Any, tmp_path: Path) -> None:
    repo.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(repo.path), "sub")
    repo.commit()
    index = repo.index()
    before = index.tree()
    repo.git("rm", "-q", "-r", "--cached", "sub")
    assert index.tree() == before
    assert os.system(f"rm -r '{repo.path}/sub'") == 0
    assert index.tree() != before


def test_big_new_files_are_reported_and_compared_by_size_and_time(repo: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "BIG_FILE", 1000)
    index = repo.index()
    repo.write("small.log", "x" * 1000)
    small = index.tree()
    assert index.left_out == ()
    repo.write("big.bin", b"\0" * 1001)
    big = index.tree()
    assert big == index.tree() != small
    assert big.files == small.files
    assert index.left_out == ("big.bin",)
    repo.write("big.bin", b"\0" * 1002)
    assert index.tree() != big
    repo.write("small.log", "x" * 2000)
    assert index.tree() != big
    assert index.left_out == ("big.bin", "small.log")
    assert "big.bin" in repo.git("ls-tree", "--name-only", index.tree(whole=True).files).splitlines()
    assert index.left_out == ()


def test_a_big_committed_file_is_always_in_the_tree(repo: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "BIG_FILE", 1000)
    repo.write("big.bin", b"\0" * 2000)
    repo.commit()
    index = repo.index()
    before = index.tree()
    repo.write("big.bin", b"\1" * 2000)
    assert index.tree().files != before.files
    assert index.left_out == ()


def test_the_total_size_of_new_files_in_the_tree_is_limited(repo: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "MAX_NEW_FILES", 2500)
    for number in range(4):
        repo.write(f"{number}.bin", b"\0" * 1000)
    index = repo.index()
    before = index.tree()
    assert index.left_out == ("2.bin", "3.bin")
    assert index.tree() == index.tree() == before


@pytest.mark.parametrize("count", [3, 400])
def test_deleted_files_free_their_share_of_the_limit(repo: Any, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """In the second case most files are in the private index already."""
    monkeypatch.setattr(index_module, "MAX_NEW_FILES", count * 10)
    index = repo.index()
    for night in range(3):
        made = [repo.write(f"{night}/{number}.bin", b"\0" * 10) for number in range(count)]
        tree = index.tree().files
        assert index.left_out == ()
        assert len(repo.git("ls-tree", "--name-only", f"{tree}:{night}").splitlines()) == count
        for path in made:
            path.unlink()
        index.tree()


def test_committed_files_free_their_share_of_the_limit(repo: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    enough = 3_100_000  # for git to know of it by the index
    monkeypatch.setattr(index_module, "MAX_NEW_FILES", enough)
    index = repo.index()
    for name in ("1.bin", "2.bin", "3.bin"):
        repo.write(name, b"\0" * enough)
        index.tree()
        assert index.left_out == ()
        repo.commit()


def test_a_file_left_out_for_its_size_is_added_once_there_is_room(repo: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "MAX_NEW_FILES", 1000)
    index = repo.index()
    junk = repo.write("junk.bin", b"\0" * 900)
    repo.write("code.py", "x" * 50)
    index.tree()
    repo.write("more.py", "x" * 200)
    index.tree()
    assert index.left_out == ("more.py",)
    junk.write_bytes(b"\0" * 100)
    smaller = index.tree()
    assert index.left_out == ()
    assert index.tree() == smaller, "no tree changes unless a file does"


def test_unreadable_files_are_reported_and_the_others_are_in_the_tree(repo: Any) -> None:
    repo.write(".gitattributes", "*.bad working-tree-encoding=UTF-16\n")  # which git misses in them
    index = repo.index()
    for name in ("1.bad", "2.txt", "3.txt", "4.bad", "5.txt"):
        repo.write(name)
    before = index.tree()
    assert index.left_out == ("1.bad", "4.bad")
    names = repo.git("ls-tree", "--name-only", before.files).splitlines()
    assert names == [".gitattributes", ".gitignore", "2.txt", "3.txt", "5.txt", "a.txt", "folder"]
    repo.write("4.bad", "another")
    assert index.tree() != before
    for number in range(30):
        repo.write(f"{number}.bad")
    with pytest.raises(UserError, match="git cannot save the workspace: "):
        index.tree()


def test_a_repository_that_the_agent_removed_is_an_error(repo: Any) -> None:
    index = repo.index()
    index.tree()
    assert os.system(f"rm -r '{repo.path}/.git'") == 0
    with pytest.raises(UserError, match="is no longer a git repository"):
        index.tree()


def test_malformed_status_output_is_ignored() -> None:
    assert parse_status(b"# branch.oid (initial)\0# branch.head main\0").head == ""
    assert parse_status(b"").changed == {}


@pytest.mark.skipif(sys.platform != "linux", reason="sockets in the file system")
def test_pipes_do_not_change_the_fingerprint(repo: Any) -> None:
    index = repo.index()
    before = index.tree()
    os.mkfifo(repo.path / "pipe")
    assert index.tree() == before


def test_one_unreadable_file_does_not_keep_others_out_of_the_tree(repo: Any) -> None:
    for number in range(100):
        repo.write(f"data/{number}.txt", f"{number}\n" * 3)
    # A folder in the place of a file is what git cannot take, root or not.
    index = repo.index()
    paths = [b"data/%d.txt" % number for number in range(100)]
    (repo.path / "data/50.txt").unlink()
    (repo.path / "data/50.txt/.git").mkdir(parents=True)
    assert index._update(paths) == [b"data/50.txt"]
    assert len(index.run("ls-files", "data").splitlines()) == 99


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
def test_the_walk_notices_each_of_these_changes(root: Path, change: str) -> None:
    before = walk_fingerprint(root)
    SEEN[change](root)
    assert walk_fingerprint(root) != before


@pytest.mark.parametrize("name", [".git/index", ".ralph/lock", "node_modules/x.js", "b/__pycache__/c.pyc"])
def test_the_walk_skips_these_folders(root: Path, name: str) -> None:
    before = walk_fingerprint(root)
    (root / name).write_text("changed")
    assert walk_fingerprint(root) == before


def test_the_walk_stops_at_its_limit(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "MAX_WALKED", 1)
    before = walk_fingerprint(root)
    (root / "z.txt").write_text("x")
    assert walk_fingerprint(root) == before


def test_a_missing_folder_has_a_fingerprint(tmp_path: Path) -> None:
    assert walk_fingerprint(tmp_path / "gone") == walk_fingerprint(tmp_path / "gone too")
