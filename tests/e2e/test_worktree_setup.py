"""A new worktree has what the work needs: submodules, the files that `.worktreeinclude` names, and `--setup`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Git = Callable[..., str]


@pytest.fixture
def play(ralph: Callable[..., Any], agent: Callable[..., str]) -> Callable[..., Any]:
    def run(script: str, *words: str) -> Any:
        fake = agent(f"({script})\necho COMPLETE")
        return ralph("loop", "T", "--worktree", "--agent", fake, "-m", "2", *words)

    return run


@pytest.fixture
def with_submodule(repository: Path, git: Git, tmp_path: Path) -> Path:
    """The repository with a submodule that has a submodule, whose remotes are gone."""
    allow = ("-c", "protocol.file.allow=always")
    for name, inside in (("deep", ""), ("lib", "deep")):
        place = tmp_path / name
        place.mkdir()
        git("-C", str(place), "init", "-q")
        (place / f"{name}.txt").write_text(f"{name}\n")
        if inside:
            git("-C", str(place), *allow, "submodule", "--quiet", "add", str(tmp_path / inside), inside)
        git("-C", str(place), "add", "-A")
        git("-C", str(place), "commit", "-qm", name)
    git(*allow, "submodule", "--quiet", "add", str(tmp_path / "lib"), "vendor/lib")
    git(*allow, "submodule", "--quiet", "update", "--init", "--recursive")
    git("commit", "-qm", "with a submodule")
    for name in ("deep", "lib"):
        (tmp_path / name).rename(tmp_path / f"{name}-gone")
    return repository


def test_submodules_are_checked_out_without_their_remotes(
    play: Callable[..., Any], ralph: Callable[..., Any], with_submodule: Path
) -> None:
    check = "cat vendor/lib/lib.txt vendor/lib/deep/deep.txt new"
    done = play("echo n > new", "--check", check)
    assert done.code == 0, done.err
    accepted = ralph("accept")
    assert accepted.code == 0, accepted.err
    assert (with_submodule / "new").exists()
    assert (with_submodule / "vendor/lib/lib.txt").read_text() == "lib\n"


@pytest.mark.parametrize(
    "change",
    ["echo x > vendor/lib/lib.txt", "echo x > vendor/lib/deep/new", "cd vendor/lib; git commit -qm x --allow-empty"],
)
@pytest.mark.parametrize("end", ["accept", "discard"])
def test_a_worktree_whose_submodule_was_changed_is_not_removed(
    play: Callable[..., Any], ralph: Callable[..., Any], with_submodule: Path, git: Git, change: str, end: str
) -> None:
    assert play(f"echo n > new; {change}", "--check", "test -f new").code == 0
    done = ralph(end)
    assert done.code in (1, 2)
    assert "vendor/lib" in done.err
    assert len(git("worktree", "list").splitlines()) == 2


def test_a_submodule_that_the_users_tree_lacks_is_reported_at_the_start(
    play: Callable[..., Any], with_submodule: Path, git: Git
) -> None:
    git("submodule", "--quiet", "deinit", "--all", "--force")
    done = play("echo n > new", "--check", "test -f new")
    assert done.code == 0, done.err
    notice = done.err.index("submodules that are not in the worktree: vendor/lib")
    assert notice < done.err.index("iteration 1"), done.err


def test_the_setup_command_runs_once_and_its_files_are_not_committed(
    play: Callable[..., Any], ralph: Callable[..., Any], repository: Path, git: Git
) -> None:
    (repository / ".gitignore").write_text(".env\nlibs\n")
    (repository / ".worktreeinclude").write_text(".env\n")
    (repository / ".env").write_text("KEY=1\n")
    git("add", "-A")
    git("commit", "-qm", "settings")
    check = 'test -f new && test "$(cat libs)" = KEY=1'
    done = play("echo n > new", "--check", check, "--setup", "cat .env >> libs")
    assert done.code == 0, done.err
    assert ralph("accept").code == 0
    assert git("show", "--format=", "--name-only", "HEAD").split() == ["new"]


def test_a_setup_command_that_fails_ends_the_run_before_anything_is_spent(
    play: Callable[..., Any], repository: Path
) -> None:
    done = play("touch ../paid", "--check", "true", "--setup", "echo no such package; exit 3")
    assert done.code == 2
    assert "--setup failed" in done.err
    assert "no such package" in done.err
    assert "iteration 1" not in done.err
