import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ralph.backlog import task_worktrees
from ralph.errors import UserError
from ralph.git.scm import STOPPED, CommandResult
from ralph.git.worktrees import (
    Worktree,
    check_out,
    commit_all,
    create,
    remove,
    remove_unstarted,
    worktree_lock,
    worktree_of,
)
from ralph.process.program import Command

RUN = "20261115-120000-abcd"


def created(repo: Any, run: str = RUN, folder: str = "") -> tuple[Worktree, str]:
    found = repo.found(folder)
    worktree = worktree_of(found, run)
    with worktree_lock(found):
        return worktree, create(worktree)


def made(repo: Any, folder: str = "") -> tuple[Worktree, Any]:
    worktree, _ = created(repo, RUN, folder)
    return worktree, type(repo)(Path(worktree.path))


def test_a_worktree_is_a_copy_of_the_last_commit_outside_the_users_tree(repo: Any, tmp_path: Path) -> None:
    repo.write("a.txt", "not committed\n")
    before, files = repo.state()[:3], repo.files()
    worktree, there = made(repo)
    assert worktree.path == str(tmp_path / f"home/.state/ralph/worktrees/repo-{RUN}")
    assert worktree.branch == f"ralph/{RUN}"
    assert worktree.workspace == worktree.path
    assert there.git("symbolic-ref", "HEAD") == f"refs/heads/ralph/{RUN}"
    assert there.files()["a.txt"] == b"one\n"
    assert (repo.state()[:3], repo.files()) == (before, files)
    assert worktree_of(repo.found(), RUN) == worktree


def test_uncommitted_changes_that_stay_behind_are_reported(repo: Any) -> None:
    repo.write("a.txt", "not committed\n")
    repo.write("new.txt")
    repo.write(".ralph/runs/1/x")
    _, notice = created(repo)
    assert notice == f"2 uncommitted changes stay in {repo.path}; the worktree starts from the last commit"
    repo.commit()
    assert created(repo, "another")[1] == ""


def test_a_subfolder_stays_the_workspace(repo: Any) -> None:
    worktree, _ = made(repo, "folder")
    assert worktree.workspace == f"{worktree.path}/folder"
    assert os.listdir(worktree.workspace) == ["b.txt"]


def test_a_subfolder_without_commits_is_created_in_the_worktree(repo: Any) -> None:
    (repo.path / "new/one").mkdir(parents=True)
    worktree, _ = made(repo, "new/one")
    assert os.listdir(worktree.workspace) == []


def test_merging_the_branch_merges_the_work(repo: Any) -> None:
    worktree, there = made(repo)
    there.write("a.txt", "done\n")
    there.write("new.txt", "new\n")
    (there.path / "folder/b.txt").unlink()
    there.write(".ralph/runs/1/journal.ndjson", "never")
    commit = commit_all(worktree, "the work\n\nwith a body")
    assert commit == there.git("rev-parse", "HEAD")
    assert commit_all(worktree, "nothing more") is None
    repo.git("merge", "-q", worktree.branch)
    assert repo.files() == {".gitignore": b"*.ignored\n", "a.txt": b"done\n", "new.txt": b"new\n"}
    assert repo.git("log", "-1", "--format=%an: %B") == "A Person: the work\n\nwith a body"


@pytest.mark.parametrize("moment", [1, 4_000_000_000], ids=["long ago", "dated ahead"])
def test_stale_locks_do_not_prevent_a_commit(repo: Any, moment: int) -> None:
    worktree, there = made(repo)
    there.write("new.txt")
    own = Path(there.git("rev-parse", "--absolute-git-dir"))
    for lock in (own / "index.lock", own / "HEAD.lock"):
        lock.write_bytes(b"")
        os.utime(lock, (moment, moment))
    assert commit_all(worktree, "work")
    assert not there.git("status", "--porcelain")


@pytest.fixture(params=["its folder is missing", "no git can read it"])
def half_made(repo: Any, request: pytest.FixtureRequest) -> Worktree:
    """Leave behind what a git leaves that is killed while it makes a worktree."""
    worktree = worktree_of(repo.found(), RUN)
    repo.git("worktree", "add", "-q", "--lock", "-b", worktree.branch, worktree.path)
    own = repo.path / ".git/worktrees" / Path(worktree.path).name
    (own / "index").unlink()
    if request.param == "no git can read it":
        (own / "commondir").write_bytes(b"")
    else:
        shutil.rmtree(worktree.path)
    return worktree


def test_a_half_made_worktree_is_recreated(repo: Any, half_made: Worktree) -> None:
    assert check_out(half_made, repo.git("rev-parse", "HEAD"))
    assert repo.git("worktree", "list").count("\n") == 1


def test_the_half_made_worktree_of_a_killed_run_is_removed(repo: Any, half_made: Worktree) -> None:
    repo.write(f".ralph/runs/{RUN}/journal.ndjson", "")
    remove_unstarted(repo.found(), repo.path / ".ralph/runs")
    assert repo.git("worktree", "list").count("\n") == 0
    assert half_made.branch not in repo.git("branch")


def test_a_half_made_worktree_of_a_task_does_not_count_as_work(repo: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    worktree, _ = made(repo)

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr(os, "unlink", killed)
        with pytest.raises(KeyboardInterrupt):
            task_worktrees._remove(worktree)
    assert not os.path.lexists(worktree.path)
    task_worktrees._remove(worktree)
    assert not [name for name in os.listdir(os.path.dirname(worktree.path)) if RUN in name]
    assert repo.git("worktree", "list").count("\n") == 0


def test_the_work_is_committed_even_if_the_agent_redirects_git(repo: Any, tmp_path: Path) -> None:
    worktree, there = made(repo)
    there.write("new.txt")
    there.git("config", "extensions.worktreeConfig", "true")
    there.git("config", "--worktree", "core.worktree", str(tmp_path))
    commit = commit_all(worktree, "work")
    assert commit == repo.git("rev-parse", worktree.branch)
    assert repo.git("show", "--name-only", "--format=", str(commit)) == "new.txt"


@pytest.mark.parametrize(
    "message", ["-m dash", "# looks like a comment", 'quo"ted $(x) `y`', "é\n\n- list", "", "x" * 10_000]
)
def test_any_message_is_committed_verbatim(repo: Any, message: str) -> None:
    repo.config("commit.cleanup", "strip")
    worktree, there = made(repo)
    there.write("new.txt")
    assert commit_all(worktree, message)
    assert there.git("log", "-1", "--format=%B") == message


def test_commits_in_a_worktree_skip_hooks_and_signatures(repo: Any, tmp_path: Path) -> None:
    repo.config("commit.gpgSign", "true")
    repo.config("gpg.program", "false")
    for hook in (
        "pre-commit",
        "commit-msg",
        "prepare-commit-msg",
        "post-commit",
        "post-checkout",
        "reference-transaction",
    ):
        repo.hook(hook, f"touch '{tmp_path}/started'; exit 1")
    worktree, there = made(repo)
    there.write("new.txt")
    assert commit_all(worktree, "work")
    remove_after_merge(repo, worktree)
    assert not (tmp_path / "started").exists()


def remove_after_merge(repo: Any, worktree: Worktree) -> None:
    repo.git("-c", "core.hooksPath=/dev/null", "-c", "commit.gpgSign=false", "merge", "-q", worktree.branch)
    remove(worktree)
    assert not Path(worktree.path).exists()
    assert repo.git("for-each-ref", "refs/heads/ralph") == ""
    assert repo.git("worktree", "list").count("\n") == 0


@pytest.mark.parametrize("only", [False, True])
def test_without_a_user_name_ralph_is_the_author(repo: Any, tmp_path: Path, only: bool) -> None:
    (tmp_path / "home/.gitconfig").write_text(f"[user]\n\tuseConfigOnly = {str(only).lower()}\n")
    worktree, there = made(repo)
    there.write("new.txt")
    assert commit_all(worktree, "work")
    assert there.git("log", "-1", "--format=%an <%ae> %cn") == "ralph <ralph@localhost> ralph"


def test_work_on_another_branch_still_reaches_the_branch_of_the_run(repo: Any) -> None:
    worktree, there = made(repo)
    there.git("checkout", "-q", "-b", "agents-idea")
    there.write("new.txt")
    there.commit("by the agent")
    there.write("newer.txt")
    commit = commit_all(worktree, "by the harness")
    assert there.git("rev-parse", worktree.branch) == commit
    there.git("checkout", "-q", "--detach")
    there.write("newest.txt")
    there.commit("by the agent, on no branch")
    assert commit_all(worktree, "nothing more") is None
    assert there.git("rev-parse", worktree.branch) == there.git("rev-parse", "HEAD")


def test_a_deleted_branch_is_recreated(repo: Any) -> None:
    worktree, there = made(repo)
    there.git("checkout", "-q", "-b", "other")
    there.git("branch", "-q", "-D", worktree.branch)
    there.write("new.txt")
    assert commit_all(worktree, "work") == there.git("rev-parse", worktree.branch)


def test_a_commit_that_was_stopped_is_not_retried(repo: Any) -> None:
    """A hook that hung would hang again, and a user who pressed Ctrl-C twice would wait twice."""
    worktree, there = made(repo)
    there.write("new.txt")
    asked: list[str] = []

    def ended(command: Command) -> CommandResult:
        asked.append(next(word for word in command.argv if word in ("add", "commit", "status")))
        return CommandResult(STOPPED, "git was ended: interrupt")

    with pytest.raises(UserError, match="git was ended: interrupt"):
        commit_all(worktree, "work", ended)
    assert asked == ["add"]


def test_diverged_branches_are_an_error(repo: Any) -> None:
    worktree, there = made(repo)
    there.write("one.txt")
    there.commit("on the branch")
    there.git("checkout", "-q", "-b", "other", "HEAD^")
    there.write("two.txt")
    with pytest.raises(UserError, match="no longer on its branch"):
        commit_all(worktree, "work")


def test_a_nested_repository_does_not_prevent_the_commit(repo: Any) -> None:
    worktree, there = made(repo)
    (there.path / "nested").mkdir()
    there.git("-C", "nested", "init", "-q")
    there.write("new.txt")
    assert commit_all(worktree, "work")
    assert "new.txt" in there.git("ls-tree", "--name-only", "HEAD")


def _detached(repo: Any) -> None:
    repo.git("checkout", "-q", "--detach")


def _linked(repo: Any) -> None:
    repo.git("worktree", "add", "-q", "-b", "another", str(repo.path.parent / "another"))


def _beside_a_branch_called_head(repo: Any) -> None:
    repo.git("update-ref", "refs/heads/HEAD", "HEAD")


@pytest.mark.parametrize("arrange", [_detached, _linked, _beside_a_branch_called_head])
def test_a_worktree_can_be_made_from_each_kind_of_checkout(repo: Any, arrange: Any) -> None:
    arrange(repo)
    worktree, _ = made(repo)
    remove(worktree)


def test_a_repository_without_a_commit_is_refused(empty: Any) -> None:
    with pytest.raises(UserError, match="needs a commit"):
        made(empty)


def _branch_exists(repo: Any) -> None:
    repo.git("branch", f"ralph/{RUN}")


def _branch_in_the_way(repo: Any) -> None:
    repo.git("branch", "ralph")


def _folder_exists(repo: Any) -> None:
    Path(worktree_of(repo.found(), RUN).path).mkdir(parents=True)


def _file_in_the_way(repo: Any) -> None:
    (repo.path.parent / "home/.state").write_text("not a folder")


def _broken_commit(repo: Any) -> None:
    blob = repo.git("rev-parse", "HEAD:a.txt")
    (repo.path / ".git/objects" / blob[:2] / blob[2:]).unlink()


@pytest.mark.parametrize(
    ("arrange", "message"),
    [
        (_branch_exists, "already exists"),
        (_branch_in_the_way, "'refs/heads/ralph' exists"),
        (_folder_exists, "already exists"),
        (_file_in_the_way, "cannot make a worktree in"),
        (_broken_commit, "cannot make a worktree: "),
    ],
)
def test_a_worktree_that_cannot_be_made_leaves_nothing_behind(repo: Any, arrange: Any, message: str) -> None:
    arrange(repo)
    before, branches = repo.files(), repo.git("branch", "--list")
    with pytest.raises(UserError, match=message):
        made(repo)
    assert repo.files() == before
    assert repo.git("branch", "--list") == branches
    assert repo.git("worktree", "list").count("\n") == 0


def test_a_worktree_inside_the_users_tree_is_refused(repo: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(repo.path / "state"))
    with pytest.raises(UserError, match="would be inside"):
        made(repo)
    assert not (repo.path / "state").exists()


@pytest.mark.parametrize("value", ["", "relative/path"])
def test_an_unusable_xdg_state_home_is_ignored(
    repo: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", value)
    assert worktree_of(repo.found(), RUN).path.startswith(str(tmp_path / "home/.local/state/ralph/worktrees/"))


def test_a_worktree_without_work_is_removed(repo: Any) -> None:
    worktree, there = made(repo)
    there.write("build.ignored", "built")
    there.write(".ralph/runs/1/x")
    remove(worktree)
    assert not Path(worktree.path).exists()
    assert repo.git("branch", "--list") == "* main"


def test_a_worktree_whose_work_is_merged_is_removed(repo: Any) -> None:
    worktree, there = made(repo)
    there.write("new.txt")
    commit_all(worktree, "work")
    remove_after_merge(repo, worktree)


def _uncommitted(there: Any) -> None:
    there.write("a.txt", "edited\n")


def _staged(there: Any) -> None:
    there.write("a.txt", "edited\n")
    there.git("add", "-A")


def _new_file(there: Any) -> None:
    there.write("deep/new.txt")


def _committed(there: Any) -> None:
    there.write("new.txt")
    there.commit()


def _on_no_branch(there: Any) -> None:
    there.git("checkout", "-q", "--detach")
    _committed(there)


def _own_repository(there: Any) -> None:
    (there.path / "nested").mkdir()
    there.git("-C", "nested", "init", "-q")
    there.git("-C", "nested", "commit", "-q", "--allow-empty", "-m", "inside")
    there.git("add", "nested")
    there.git("commit", "-q", "-m", "nested")
    there.git("branch", "elsewhere")


@pytest.mark.parametrize("work", [_uncommitted, _staged, _new_file, _committed, _on_no_branch])
def test_work_in_the_worktree_of_a_run_that_never_began_is_kept(repo: Any, tmp_path: Path, work: Any) -> None:
    _, there = made(repo)
    (tmp_path / "runs" / RUN).mkdir(parents=True)
    (tmp_path / "runs" / RUN / "journal.ndjson").touch()
    work(there)
    before = there.files()
    remove_unstarted(repo.found(), tmp_path / "runs")
    assert there.files() == before


def test_the_worktree_of_another_workspace_is_kept(repo: Any, tmp_path: Path) -> None:
    worktree, _ = made(repo)
    remove_unstarted(repo.found(), tmp_path / "runs")
    assert Path(worktree.path).exists()


@pytest.mark.parametrize("work", [_uncommitted, _staged, _new_file, _committed, _on_no_branch, _own_repository])
def test_a_worktree_with_work_that_is_nowhere_else_is_never_removed(repo: Any, work: Any) -> None:
    worktree, there = made(repo)
    work(there)
    before = there.files()
    with pytest.raises(UserError):
        remove(worktree)
    assert there.files() == before
    assert repo.git("rev-parse", worktree.branch)


def test_a_worktree_whose_folder_is_gone_is_removed_with_its_branch(repo: Any) -> None:
    worktree, _ = made(repo)
    assert subprocess.run(("rm", "-r", worktree.path), check=True)
    remove(worktree)
    assert repo.git("branch", "--list") == "* main"


def test_a_worktree_whose_folder_is_gone_keeps_a_branch_with_work(repo: Any) -> None:
    worktree, there = made(repo)
    there.write("new.txt")
    commit_all(worktree, "work")
    assert subprocess.run(("rm", "-r", worktree.path), check=True)
    with pytest.raises(UserError, match="not merged"):
        remove(worktree)
    assert repo.git("rev-parse", worktree.branch)


def test_variables_meant_for_another_repository_are_ignored(
    repo: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worktree, there = made(repo)
    there.write("new.txt")
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "another"))
    monkeypatch.setenv("GIT_DIR", str(repo.path / ".git"))
    commit = commit_all(worktree, "work")
    monkeypatch.undo()
    assert repo.git("rev-parse", worktree.branch) == commit != repo.git("rev-parse", "HEAD")
