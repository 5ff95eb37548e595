"""Reading a repository runs no program that an agent may have put or configured there."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ralph.errors import UserError
from ralph.git.checkpoints import changed_files, diff
from ralph.git.client import find_git
from ralph.git.index import PrivateIndex

Plant = Callable[[Any, str], None]


def filters(repo: Any, evil: str) -> None:
    repo.config("filter.evil.clean", evil)
    repo.config("filter.evil.process", evil)
    repo.config("filter.evil.required", "true")
    repo.write(".gitattributes", "* filter=evil diff=evil\n")


def drivers(repo: Any, evil: str) -> None:
    repo.config("diff.evil.textconv", evil)
    repo.config("diff.evil.command", evil)
    repo.config("diff.external", evil)
    repo.write(".git/info/attributes", "* diff=evil\n")


def monitor(repo: Any, evil: str) -> None:
    repo.config("core.fsmonitor", evil)


def hooks(repo: Any, evil: str) -> None:
    for name in ("post-index-change", "reference-transaction", "pre-commit", "post-checkout"):
        repo.hook(name, evil)
    repo.config("core.hooksPath", str(repo.path / ".git/hooks"))


def promisor(repo: Any, evil: str) -> None:
    repo.config("core.repositoryFormatVersion", "1")
    repo.config("extensions.partialClone", "far")
    repo.config("remote.far.url", "ssh://nowhere.invalid/x")
    repo.config("remote.far.promisor", "true")
    repo.config("core.sshCommand", evil)


@pytest.mark.parametrize("plant", [filters, drivers, monitor, hooks, promisor])
def test_a_look_runs_no_program_that_the_agent_configured(repo: Any, plant: Plant, tmp_path: Path) -> None:
    index = repo.index()
    before = index.tree()
    proof = tmp_path / "it-ran"
    plant(repo, f"sh -c 'touch {proof}; cat' #")
    repo.write("a.txt", "another text\n")
    repo.write("new.txt", "new\n")
    after = index.tree()
    assert after.files != before.files
    assert "another text" in diff(repo.found(), before.files, after.files, 5000)
    assert {one.path for one in changed_files(repo.found(), before.files, after.files)} >= {"a.txt", "new.txt"}
    assert not proof.exists()


def test_a_look_ignores_replaced_objects(repo: Any) -> None:
    index = repo.index()
    before = index.tree()
    repo.write("a.txt", "the truth\n")
    after = index.tree()
    good = repo.git("rev-parse", f"{after.files}:a.txt")
    forged = repo.write("forged", "a forgery\n")
    lie = repo.git("hash-object", "-w", str(forged))
    repo.git("replace", good, lie)
    said = diff(repo.found(), before.files, after.files, 5000)
    assert "the truth" in said
    assert "a forgery" not in said


def test_files_that_the_users_settings_ignore_stay_ignored(repo: Any, tmp_path: Path) -> None:
    mine = tmp_path / "my-ignore"
    mine.write_text("*.log\n")
    repo.config("core.excludesFile", str(mine))
    repo.write(".git/info/exclude", "*.tmp\n")
    index = repo.index()
    before = index.tree()
    repo.write("x.log")
    repo.write("x.tmp")
    assert index.tree() == before


def test_an_agent_cannot_hide_files_by_repository_settings(repo: Any) -> None:
    index = repo.index()
    before = index.tree()
    repo.write(".git/info/exclude", "*\n")
    repo.write("hidden.txt")
    assert index.tree() != before


@pytest.mark.parametrize("swap", ["rm -r .git; touch .git", "rm -r .git; mkfifo .git", "rm -r .git; mkdir .git"])
def test_a_repository_that_disappears_during_the_run_is_an_error(repo: Any, swap: str) -> None:
    index = repo.index()
    subprocess.run(("sh", "-c", swap), cwd=repo.path, check=True)
    with pytest.raises(UserError):
        index.tree()


@pytest.mark.parametrize(
    "before",
    [
        "true",
        "git checkout -q --detach",
        "git pack-refs --all",
        "git checkout -q -b deep/er/branch && git commit -q --allow-empty -m more",
        "git symbolic-ref refs/heads/other refs/heads/main && git symbolic-ref HEAD refs/heads/other",
        "git checkout -q --orphan unborn",
        "git worktree add -q ../linked && git -C ../linked commit -q --allow-empty -m more && cd ../linked",
        "git worktree add -q ../linked && cd ../linked && git update-ref refs/worktree/mine HEAD"
        " && git symbolic-ref HEAD refs/worktree/mine",
        "echo 'ref: refs/heads/../heads/main' >.git/HEAD; true",
        "echo 0123 >.git/refs/heads/main",
    ],
)
def test_the_checked_out_commit_is_the_one_that_git_reports(repo: Any, before: str, tmp_path: Path) -> None:
    repo.write("a.txt")
    repo.commit()
    done = subprocess.run(f"{before} && pwd", shell=True, cwd=repo.path, check=True, capture_output=True, text=True)
    place = done.stdout.strip()
    found = repo.found() if place == str(repo.path) else find_git(Path(place))
    asked = found.try_run("rev-parse", "--verify", "--quiet", "HEAD")
    commit = "" if asked.code else asked.out.decode().strip()
    assert found.resolve("HEAD") == commit
    assert PrivateIndex(found, str(tmp_path / "private")).tree().head == commit
