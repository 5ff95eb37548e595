"""Scaffolding tools and `git clone` make repositories in the workspace: their files belong to the work."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Git = Callable[..., str]

UNBORN = "mkdir app; cd app; git init -q; echo a > a; mkdir deeper; cd deeper; git init -q; echo b > b"
COMMITTED = "mkdir app; cd app; git init -q; echo a > a; mkdir deeper; echo b > deeper/b; git add .; git commit -qm 1"
ADDED = f"({COMMITTED}); git add -A; git commit -qm outer"
WAYS = {"without a commit": UNBORN, "with a commit": COMMITTED, "added to the repository around": ADDED}
MESSAGE = 'case "$PROMPT" in *"commit message"*) echo Message; exit;; esac'


@pytest.fixture
def play(ralph: Callable[..., Any], agent: Callable[..., str]) -> Callable[..., Any]:
    def run(script: str, *words: str) -> Any:
        fake = agent(f"{MESSAGE}\n({script})\necho COMPLETE")
        return ralph("loop", "T", "--check", "test -f app/a", "--agent", fake, "-m", "2", *words)

    return run


@pytest.mark.parametrize("way", WAYS)
def test_the_files_of_a_repository_that_the_agent_makes_in_a_worktree_are_merged(
    play: Callable[..., Any], ralph: Callable[..., Any], repository: Path, git: Git, way: str
) -> None:
    done = play(WAYS[way], "--worktree")
    assert done.code == 0, done.err
    assert done.err.count("app is a nested repository: its files are part of the work") == 1, done.err
    accepted = ralph("accept")
    assert accepted.code == 0, accepted.err
    assert (repository / "app" / "a").read_text() == "a\n"
    assert {"app/a", "app/deeper/b"} <= {*git("ls-files").splitlines()}
    assert "160000" not in git("ls-files", "--stage")
    assert git("status", "--porcelain") == ""


@pytest.mark.parametrize("way", WAYS)
def test_a_discarded_run_keeps_the_files_of_a_nested_repository(
    play: Callable[..., Any], ralph: Callable[..., Any], repository: Path, git: Git, way: str
) -> None:
    assert play(WAYS[way], "--worktree").code == 0
    done = ralph("discard")
    assert done.code == 0, done.err
    (kept,) = [ref for ref in git("for-each-ref", "--format=%(refname)").split() if ref.endswith("/discarded")]
    assert git("show", f"{kept}:app/a") == "a\n"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("option", ["--commit", "--commit=all"])
def test_files_of_a_new_nested_repository_are_committed_but_not_those_of_the_users(
    play: Callable[..., Any], repository: Path, git: Git, way: str, option: str
) -> None:
    (repository / "mine").mkdir()
    git("-C", "mine", "init", "-q")
    (repository / "mine" / "m").write_text("of the user\n")
    done = play(WAYS[way], option)
    assert done.code == 0, done.err
    files = git("ls-tree", "-r", "--name-only", "HEAD").splitlines()
    assert {"app/a", "app/deeper/b"} <= {*files}, done.err
    assert not any(name.startswith("mine") for name in files)
    assert (repository / "app" / ".git").is_dir(), "nothing is taken from the user's tree"


def test_a_rewind_removes_and_restores_nested_repositories(
    play: Callable[..., Any], ralph: Callable[..., Any], repository: Path
) -> None:
    assert play(COMMITTED).code == 0
    assert ralph("rewind", "0").code == 0
    assert not (repository / "app" / "a").exists()
    assert ralph("rewind", "1").code == 0
    assert (repository / "app" / "deeper" / "b").read_text() == "b\n"


def test_ignored_files_of_nested_repositories_and_worktrees_are_not_committed(
    play: Callable[..., Any], repository: Path, git: Git
) -> None:
    (repository / ".gitignore").write_text("*.log\n")
    git("add", "-A")
    git("commit", "-qm", "ignore")
    script = f"({COMMITTED}); echo '*.o' > app/.gitignore; touch app/x.o app/x.log; git worktree add -q sub"
    assert play(script, "--commit").code == 0
    files = git("ls-tree", "-r", "--name-only", "HEAD").splitlines()
    assert [name for name in files if name.startswith(("app", "sub"))] == ["app/.gitignore", "app/a", "app/deeper/b"]


def test_an_empty_repository_does_not_keep_a_run_from_being_accepted(
    play: Callable[..., Any], ralph: Callable[..., Any], repository: Path
) -> None:
    assert play("git init -q empty; mkdir app; echo a > app/a", "--worktree").code == 0
    accepted = ralph("accept")
    assert accepted.code == 0, accepted.err
    assert (repository / "app" / "a").read_text() == "a\n"
