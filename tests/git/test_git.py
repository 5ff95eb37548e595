import os
from pathlib import Path
from shutil import which
from typing import Any

import pytest

from ralph.errors import UserError
from ralph.git import client as git
from ralph.git.client import find_git, git_at, require_git


def test_every_update_ref_in_the_source_uses_no_deref() -> None:
    source = Path(git.__file__).parents[1]
    words = [line for path in source.rglob("*.py") for line in path.read_text().splitlines() if '"update-ref"' in line]
    assert len(words) > 6
    assert [line for line in words if '"update-ref", "--no-deref"' not in line] == []


def test_a_folder_outside_any_repository_has_no_repository(tmp_path: Path) -> None:
    assert find_git(tmp_path) is None
    with pytest.raises(UserError, match="not in a git repository"):
        require_git(tmp_path)


def test_a_workspace_may_be_a_subfolder(repo: Any) -> None:
    found = repo.found("folder")
    assert (found.root, found.prefix) == (str(repo.path), "folder")
    assert repo.found().prefix == ""


def test_a_workspace_may_have_line_ends_and_spaces_in_its_name(repo: Any) -> None:
    odd = "a\nb c/ d\n"
    (repo.path / odd).mkdir(parents=True)
    assert (repo.found(odd).root, repo.found(odd).prefix) == (str(repo.path), odd)


def test_a_workspace_may_be_a_link(repo: Any, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(repo.path / "folder")
    found = find_git(tmp_path / "link")
    assert found is not None
    assert (found.root, found.prefix) == (str(repo.path), "folder")


def test_a_linked_worktree_is_a_repository(repo: Any, tmp_path: Path) -> None:
    repo.git("worktree", "add", "-q", str(tmp_path / "linked"))
    found = find_git(tmp_path / "linked")
    assert found is not None
    assert found.root == str(tmp_path / "linked")
    assert found.git_dir == str(repo.path / ".git/worktrees/linked")


def test_a_submodule_is_a_repository(repo: Any) -> None:
    repo.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(repo.path), "sub")
    found = repo.found("sub/folder")
    assert (found.root, found.prefix) == (str(repo.path / "sub"), "folder")
    assert found.git_dir == str(repo.path / ".git/modules/sub")


@pytest.mark.parametrize("elsewhere", [".", "elsewhere", "repo/folder"])
def test_the_setting_core_worktree_does_not_move_the_repository(repo: Any, tmp_path: Path, elsewhere: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    before = repo.found("folder")
    repo.config("core.worktree", str(tmp_path / elsewhere))
    assert repo.found("folder") == before
    assert (before.root, before.prefix) == (str(repo.path), "folder")


def test_a_folder_of_worktrees_around_a_bare_repository_is_refused(repo: Any, tmp_path: Path) -> None:
    (tmp_path / "trees").mkdir()
    repo.git("clone", "-q", "--bare", str(repo.path), str(tmp_path / "trees/.git"))
    with pytest.raises(UserError, match="not in its working tree"):
        find_git(tmp_path / "trees")
    repo.git("-C", str(tmp_path / "trees"), "worktree", "add", "-q", "one", "main")
    found = find_git(tmp_path / "trees/one")
    assert found is not None
    assert found.root == str(tmp_path / "trees/one")


def test_a_bare_repository_is_refused(repo: Any, tmp_path: Path) -> None:
    repo.git("clone", "-q", "--bare", str(repo.path), str(tmp_path / "bare.git"))
    for folder in (tmp_path / "bare.git", repo.path / ".git"):
        with pytest.raises(UserError, match="not in its working tree"):
            find_git(folder)


@pytest.mark.parametrize(
    "damage", ["rm -r .git/HEAD", "rm -r .git && mkdir .git", "rm -r .git && echo 'gitdir: /nowhere' > .git"]
)
def test_a_broken_repository_is_an_error(repo: Any, damage: str) -> None:
    assert os.system(f"cd '{repo.path}' && {damage}") == 0
    for folder in (repo.path, repo.path / "folder"):
        with pytest.raises(UserError, match="cannot be used: not a git repository"):
            find_git(folder)


def test_a_reftable_is_refused_with_a_hint(repo: Any) -> None:
    """With a reftable ralph would not find out which branches are checked out, and would move them."""
    (repo.path / ".git" / "HEAD").write_text("ref: refs/heads/.invalid\n")
    with pytest.raises(UserError, match="reftable") as refused:
        find_git(repo.path)
    assert "git refs migrate" in refused.value.hint


def test_broken_git_settings_are_an_error_that_names_them(repo: Any) -> None:
    repo.write(".git/config", "[core\n")
    with pytest.raises(UserError, match="bad config line 1"):
        find_git(repo.path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_repository_of_another_user_is_refused_with_a_hint(repo: Any) -> None:
    for folder in (repo.path, repo.path / ".git"):
        os.chown(folder, 12345, 12345)
    with pytest.raises(UserError, match="dubious ownership") as refused:
        find_git(repo.path)
    assert refused.value.hint == f"git config --global --add safe.directory {repo.path}"


def test_without_git_there_is_no_repository(repo: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert find_git(repo.path) is None
    with pytest.raises(UserError, match="git is not installed"):
        require_git(repo.path)


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere"):
        find_git(tmp_path / "nowhere")


def test_variables_meant_for_another_repository_are_ignored(
    repo: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("GIT_WORK_TREE", str(tmp_path))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "another-index"))
    monkeypatch.setenv("GIT_OBJECT_DIRECTORY", str(tmp_path / "objects"))
    monkeypatch.setenv("GIT_LITERAL_PATHSPECS", "1")
    assert repo.found().root == str(repo.path)
    assert repo.index().tree().head
    assert not (tmp_path / "objects").exists()


@pytest.fixture
def mortal_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A git that kills itself while there are files in a folder; each time it removes one of them."""
    programs, deaths = tmp_path / "programs", tmp_path / "deaths"
    for made in (programs, deaths):
        made.mkdir()
    real = which("git")
    (programs / "git").write_text(
        f'#!/bin/sh\nfor d in {deaths}/*; do [ -e "$d" ] && rm "$d" && kill -9 $$; done\nexec {real} "$@"\n'
    )
    (programs / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    return deaths


def test_a_killed_git_command_that_only_reads_is_run_again_once(repo: Any, mortal_git: Path) -> None:
    (mortal_git / "1").touch()
    assert repo.found().root == str(repo.path)
    (mortal_git / "1").touch()
    assert repo.found().run("rev-parse", "--is-inside-work-tree") == b"true\n"


def test_a_killed_git_command_is_an_error_and_not_a_negative_answer(repo: Any, mortal_git: Path) -> None:
    for name in "12":
        (mortal_git / name).touch()
    with pytest.raises(UserError, match="git rev-parse failed: it was killed by signal 9") as killed:
        repo.found().resolve("HEAD~0")
    assert killed.value.hint == "nothing is lost: start again"


def test_a_killed_git_command_that_writes_is_not_run_again(repo: Any, mortal_git: Path) -> None:
    found = repo.found()
    (mortal_git / "1").touch()
    assert found.try_run("branch", "other").code == -9
    assert not repo.found().resolve("other")


@pytest.mark.parametrize(
    "commands",
    [
        ("checkout -q --detach",),
        ("checkout -q -b deep/er",),
        ("pack-refs --all",),
        ("symbolic-ref refs/heads/alias refs/heads/main", "symbolic-ref HEAD refs/heads/alias"),
        ("checkout -q --orphan unborn",),
        ("update-ref refs/worktree/own HEAD", "symbolic-ref HEAD refs/worktree/own"),
    ],
)
def test_the_head_is_the_commit_that_git_reports(repo: Any, commands: tuple[str, ...]) -> None:
    repo.commit()
    for command in commands:
        repo.git(*command.split())
    assert repo.found().head() == repo.found().resolve("HEAD")


def test_loose_and_packed_branches_are_found(repo: Any, tmp_path: Path) -> None:
    repo.git("commit", "-q", "--allow-empty", "-m", "first")
    first = repo.git("rev-parse", "HEAD")
    repo.git("branch", "packed/away")
    repo.git("pack-refs", "--all")
    second = repo.commit()
    repo.git("symbolic-ref", "refs/heads/another", "refs/heads/packed/away")
    repo.git("tag", "-a", "-m", "x", "tagged")
    repo.git("worktree", "add", "-q", "--detach", str(tmp_path / "tree"), first)
    found = repo.found()
    assert [found.resolve(name) for name in ("HEAD", "refs/heads/main", "main")] == [second] * 3
    assert found.resolve("refs/heads/packed/away") == found.resolve("refs/heads/another") == first
    assert found.resolve("tagged") == second
    assert [found.resolve(f"refs/heads/{name}") for name in ("none", "packed", "main/more", "../../HEAD")] == [""] * 4
    assert git_at(str(tmp_path / "tree")).resolve("HEAD") == first
    assert git_at(str(tmp_path / "tree")).resolve("refs/heads/main") == second


@pytest.mark.parametrize("written", ["", "0" * 40 + "\n", "no commit\n"])
def test_a_damaged_branch_resolves_to_no_commit(repo: Any, written: str) -> None:
    repo.commit()
    repo.write(".git/refs/heads/broken", written)
    assert repo.found().resolve("refs/heads/broken") == ""


def test_a_repository_is_found_as_it_is_now(repo: Any) -> None:
    inside = repo.path / "inside"
    inside.mkdir()
    before = find_git(inside)
    assert before is not None
    assert (before.root, before.prefix) == (str(repo.path), "inside")
    repo.git("init", "-q", str(inside))
    after = find_git(inside)
    assert after is not None
    assert (after.root, after.prefix) == (str(inside), "")
    repo.config("core.bare", "true")
    with pytest.raises(UserError, match="not in its working tree"):
        find_git(repo.path)


@pytest.mark.parametrize(("name", "is_known"), [("A Person", True), ("", False), (None, False)])
def test_commits_have_the_users_name_if_git_knows_it(repo: Any, name: str | None, is_known: bool) -> None:
    for entry in ("user.name", "user.email"):
        repo.git("config", "--global", "--unset-all", entry, check=False)
        if name is not None:
            repo.config(entry, name)
    assert (repo.found().identity() == {}) is is_known
