import os
import signal
from pathlib import Path
from typing import Any

import pytest

from ralph.errors import UserError
from ralph.git import scm
from ralph.git.scm import Result, run_task, run_tasks


@pytest.fixture
def shared(repo: Any, tmp_path: Path) -> Any:
    """A bare repository, which is the upstream of `repo`."""
    path = tmp_path / "shared.git"
    path.mkdir()
    there = type(repo)(path)
    there.git("init", "-q", "--bare")
    repo.git("remote", "add", "origin", str(path))
    repo.git("push", "-q", "-u", "origin", "main")
    return there


def test_a_commit_takes_every_change_and_every_new_file(repo: Any) -> None:
    repo.write("a.txt", "changed\n")
    repo.write("new/file.txt")
    (repo.path / "folder/b.txt").unlink()
    done = run_task("git", "commit", "Do the work", folder=repo.path)
    assert done.ok
    assert "Do the work" in done.detail
    assert repo.git("status", "--porcelain") == ""
    assert repo.git("log", "-1", "--format=%s by %an") == "Do the work by A Person"


def test_the_summary_of_a_commit_skips_gits_warnings(repo: Any) -> None:
    repo.config("core.autocrlf", "true")
    repo.write("a.txt", "changed\n")
    assert "Do the work" in run_task("git", "commit", "Do the work", folder=repo.path).detail


def test_a_commit_from_a_subfolder_takes_the_whole_repository(repo: Any) -> None:
    repo.write("a.txt", "changed\n")
    repo.write("new.txt")
    assert run_task("git", "commit", "work", folder=repo.path / "folder").ok
    assert repo.git("status", "--porcelain") == ""


def test_in_a_home_folder_that_is_a_repository_only_the_workspace_is_committed(
    repo: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo.config("user.name", "A Person")
    repo.config("user.email", "person@example.org")
    monkeypatch.setenv("HOME", str(repo.path))
    repo.write("private/diary.txt")
    repo.write("folder/new.txt")
    assert run_task("git", "commit", "work", folder=repo.path / "folder").ok
    assert repo.git("show", "--name-only", "--format=") == "folder/new.txt"


@pytest.mark.parametrize("elsewhere", [".", "home", "nowhere"])
def test_nothing_is_committed_if_settings_redirect_git_to_another_folder(
    repo: Any, tmp_path: Path, elsewhere: str
) -> None:
    before = repo.git("rev-parse", "HEAD")
    repo.write("a.txt", "changed\n")
    (tmp_path / "private.txt").write_text("of somebody else")
    repo.config("core.worktree", str(tmp_path / elsewhere))
    done = run_task("git", "commit", "work", folder=repo.path / "folder")
    assert not done.ok
    repo.git("config", "--unset", "core.worktree")
    assert (repo.git("rev-parse", "HEAD"), repo.git("diff", "--cached")) == (before, "")
    assert run_task("git", "commit", "work", folder=repo.path / "folder").ok
    assert repo.git("show", "--name-only", "--format=") == "a.txt"


def test_hooks_of_a_commit_do_not_inherit_git_dir(repo: Any, tmp_path: Path) -> None:
    """With GIT_DIR set, a hook that runs git in another folder would change this repository."""
    repo.hook("pre-commit", f"env > '{tmp_path}/env'")
    repo.write("a.txt", "changed\n")
    assert run_task("git", "commit", "work", folder=repo.path).ok
    assert "GIT_WORK_TREE" not in (tmp_path / "env").read_text()


def test_run_data_is_never_committed(repo: Any) -> None:
    repo.write(".ralph/runs/1/journal.ndjson")
    repo.write("folder/.ralph/progress.md")
    repo.write("new.txt")
    assert run_task("git", "commit", "work", folder=repo.path).ok
    assert repo.git("show", "--name-only", "--format=") == "new.txt"


def test_settings_that_are_tracked_are_committed(repo: Any) -> None:
    repo.write(".ralph/settings.json", "{}")
    repo.write(".ralph/.gitignore", "*\n!settings.json\n!.gitignore\n")
    repo.commit()
    repo.write(".ralph/settings.json", '{"x": 1}')
    repo.write(".ralph/progress.md")
    assert run_task("git", "commit", "work", folder=repo.path).ok
    assert repo.git("show", "--name-only", "--format=") == ".ralph/settings.json"


def test_nothing_to_commit_is_a_success(repo: Any) -> None:
    repo.write(".ralph/progress.md")
    assert run_task("git", "commit", "work", folder=repo.path) == Result("commit", True, "nothing to commit")


def test_files_that_cannot_be_added_are_a_failure_with_the_reason(repo: Any) -> None:
    """`git add` fails like this on a full disk."""
    repo.write("new", "x\n")
    repo.write(".git/info/attributes", "new filter=broken\n")
    repo.git("config", "filter.broken.clean", "false")
    repo.git("config", "filter.broken.required", "true")
    done = run_task("git", "commit", "m", folder=repo.path)
    assert not done.ok
    assert "clean filter 'broken' failed" in done.detail


def test_the_first_commit_of_a_repository_can_be_made(empty: Any) -> None:
    assert run_task("git", "commit", "work", folder=empty.path) == Result("commit", True, "nothing to commit")
    empty.write("a.txt")
    assert run_task("git", "commit", "work", folder=empty.path).ok


@pytest.mark.parametrize(
    "message",
    [
        "-m",
        "--amend",
        "# 12 is fixed",
        "quo\"te 's $(touch x) `y` && z",
        "two\n\nlines: é 😀",
        "x" * 10_000,
        "with \0 zero",
        "half \ud83d",
    ],
)
def test_any_message_is_committed_verbatim(repo: Any, message: str) -> None:
    repo.config("commit.cleanup", "strip")
    repo.write("new.txt")
    assert run_task("git", "commit", message, folder=repo.path).ok
    assert repo.git("log", "-1", "--format=%B") == message.replace("\0", "").replace("\ud83d", "?")
    assert repo.git("rev-list", "--count", "HEAD") == "2"


def test_the_users_hooks_can_refuse_a_commit(repo: Any) -> None:
    repo.hook("pre-commit", "echo 'lint found 3 problems'; exit 1")
    repo.write("new.txt")
    done = run_task("git", "commit", "work", folder=repo.path)
    assert (done.ok, done.detail) == (False, "lint found 3 problems")


def test_a_hook_that_floods_its_output_and_leaves_a_server_running_does_no_harm(repo: Any, tmp_path: Path) -> None:
    repo.hook("post-commit", f"sleep 300 & echo $! > '{tmp_path}/pid'; yes | head -c 20000000")
    repo.write("new.txt")
    done = run_task("git", "commit", "work", folder=repo.path)
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    assert done.ok
    assert len(done.detail) < 3000


def test_a_command_that_hangs_is_ended(repo: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scm, "TASK_TIMEOUT", 0.2)
    repo.hook("pre-commit", "sleep 300")
    repo.write("new.txt")
    done = run_task("git", "commit", "work", folder=repo.path)
    assert not done.ok
    assert "took longer" in done.detail
    assert not (repo.path / ".git/index.lock").exists()


def test_a_push_sends_the_commit_to_the_upstream(repo: Any, shared: Any) -> None:
    repo.write("new.txt")
    results = list(run_tasks("git", ["commit", "push"], lambda task: run_task("git", task, "work", folder=repo.path)))
    assert [(one.task, one.ok) for one in results] == [("commit", True), ("push", True)]
    assert shared.git("log", "-1", "--format=%s", "main") == "work"


def test_a_push_that_fails_says_why(repo: Any) -> None:
    done = run_task("git", "push", "", folder=repo.path)
    assert not done.ok
    assert "No configured push destination" in done.detail


def test_nothing_is_pushed_after_a_commit_that_failed(repo: Any, shared: Any) -> None:
    repo.hook("pre-commit", "exit 1")
    repo.write("new.txt")
    results = list(run_tasks("git", ["commit", "push"], lambda task: run_task("git", task, "work", folder=repo.path)))
    assert [(one.task, one.ok) for one in results] == [("commit", False)]


def test_a_push_that_would_ask_for_a_password_fails_at_once(repo: Any) -> None:
    repo.git("remote", "add", "origin", "http://127.0.0.1:1/none.git")
    assert not run_task("git", "push origin main", "", folder=repo.path).ok


def test_any_other_task_is_run_verbatim(repo: Any) -> None:
    assert run_task("git", "tag 'v 1' -m x", "", folder=repo.path).ok is False
    assert run_task("git", "tag -m 'a message' v1", "", folder=repo.path).ok
    assert repo.git("tag", "-l", "--format=%(contents)", "v1") == "a message"


FAKE = '#!/bin/sh\nfor word; do printf "%s\\n" "[$word]"; done\n'


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("other", ["commit", "-am", "the 'message'"]),
        ("hg", ["commit", "--addremove", "-m", "the 'message'"]),
        ("jj", ["commit", "-m", "the 'message'"]),
    ],
)
def test_other_source_control_programs_can_commit(tmp_path: Path, name: str, words: list[str]) -> None:
    program = tmp_path / "with space" / name
    program.parent.mkdir()
    program.write_text(FAKE + f'printf "%s\\n" "$@" > "{tmp_path}/words"\n')
    program.chmod(0o755)
    done = run_task(f"'{program}'", "commit", "the 'message'", folder=tmp_path)
    assert (done.ok, done.detail) == (True, "[commit]")
    assert (tmp_path / "words").read_text().splitlines() == words


def test_git_may_be_given_by_path_and_with_options(repo: Any) -> None:
    import shutil

    repo.write("new.txt")
    assert run_task(f"{shutil.which('git')} -c user.name=Somebody", "commit", "work", folder=repo.path).ok
    assert repo.git("log", "-1", "--format=%an") == "Somebody"


def test_a_missing_program_is_a_failed_task(tmp_path: Path) -> None:
    done = run_task("no-such-scm", "commit", "work", folder=tmp_path)
    assert (done.ok, done.detail) == (False, "cannot run no-such-scm: No such file or directory")


def test_a_commit_outside_a_repository_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not in a git repository"):
        run_task("git", "commit", "work", folder=tmp_path)


@pytest.mark.parametrize(("command", "task"), [("", "commit"), ("git 'x", "commit"), ("git", " ")])
def test_a_command_that_cannot_be_parsed_is_refused(tmp_path: Path, command: str, task: str) -> None:
    with pytest.raises(UserError, match="scm: "):
        run_task(command, task, "work", folder=tmp_path)


def test_escape_sequences_are_removed_from_a_hooks_output(repo: Any) -> None:
    repo.hook("pre-commit", r"printf '\033[31mred\033[0m\007'; exit 1")
    repo.write("new.txt")
    assert run_task("git", "commit", "work", folder=repo.path).detail == "red"


def test_variables_meant_for_another_repository_are_ignored(
    repo: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "another"))
    repo.write("new.txt")
    assert run_task("git", "commit", "work", folder=repo.path).ok
