"""ralph is killed before and after every git command of accept, discard, rewind, clean and prove. Afterwards the same
command finishes the work, and nothing of the user's is lost."""

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

# Kills ralph at one of its git commands, every second time together with its keeper, so that nobody tidies up. (A git
# command of a hook runs below the keeper.)
WRAPPER = """#!/bin/sh
read -r n < "$HOME/count"; n=$((n + 1)); echo $n > "$HOME/count"
strike() {
  [ "$STEP $n" = "$1 $STEP_AT" ] || return 0
  read -r ralph < "$HOME/pid"; kill -STOP $ralph
  children=$(cat /proc/$ralph/task/$ralph/children)
  [ $((n & 1)) = 0 ] || for child in $children; do [ $child = $$ ] || kill -9 $child; done
  kill -9 $ralph
  [ $1 = after ] || kill -9 $$
}
strike before; GIT "$@"; code=$?; strike after; exit $code
"""
USERS_FILES = {"mine": "staged\n", "notes": "untracked\n", "secret": "ignored\n"}


class Ground:
    """A repository with a run that has ended. `restore` undoes everything since `save`."""

    def __init__(self, ralph: Any, agent: Any, git: Any, repository: Path, environment: dict[str, str]) -> None:
        self.ralph, self.agent, self.git, self.repository = ralph, agent, git, repository
        self.environment, self.home = environment, Path(environment["HOME"])
        self.worktrees = self.home / ".local/state/ralph/worktrees"
        self.saved = repository.parent / "saved"
        self.temporary = self.home / "temporary"
        self.temporary.mkdir()
        environment["TMPDIR"] = str(self.temporary)
        (repository / ".gitignore").write_text("secret\n")
        git("add", ".gitignore")
        git("commit", "-qm", "ignore")
        for name, text in USERS_FILES.items():
            (repository / name).write_text(text)
        git("add", "mine")

    def play(self, *words: str) -> None:
        """Play a run of two iterations."""
        turns = self.agent('echo $N >> fresh; [ $(wc -l < fresh) = 1 ] || echo "<response>DONE</response>"')
        assert self.ralph("run", "go", "--check", "test -s fresh", "--agent", turns, *words).code == 0

    def save(self) -> None:
        for folder in (self.repository, self.home):
            shutil.copytree(folder, self.saved / folder.name, symlinks=True)

    def restore(self) -> None:
        for folder in (self.repository, self.home):
            shutil.rmtree(folder)
            shutil.copytree(self.saved / folder.name, folder, symlinks=True)

    def kill_at(self, number: int, when: str, words: tuple[str, ...]) -> int:
        """Kill ralph at its git command with this number; return its exit code, which differs if it has fewer."""
        own_git = self.home / "bin/git"
        own_git.write_text(WRAPPER.replace("GIT ", f"{shutil.which('git', path='/usr/local/bin:/usr/bin:/bin')} "))
        own_git.chmod(0o755)
        (self.home / "count").write_text("0\n")
        ended = subprocess.run(
            ["sh", "-c", 'echo $$ > "$HOME/pid"; exec "$@"', "sh", sys.executable, "-m", "ralph", *words],
            cwd=self.repository,
            env={**self.environment, "STEP": when, "STEP_AT": str(number)},
            capture_output=True,
            text=True,
        )
        own_git.unlink()
        assert "internal error" not in ended.stderr, ended.stderr
        return ended.returncode

    def refs(self, prefix: str) -> dict[str, str]:
        rows = self.git("for-each-ref", "--format=%(refname) %(objectname)", prefix).splitlines()
        return dict(row.split(" ") for row in rows)

    def look(self) -> None:
        """Check what holds after every command: the user's files and index, and no leftovers."""
        assert {name: (self.repository / name).read_text() for name in USERS_FILES} == USERS_FILES
        assert "A  mine\n" in self.git("status", "--porcelain")
        assert [*self.temporary.glob("ralph-exam-*"), *self.worktrees.glob("*.copy*")] == []
        assert not [*(self.repository / ".git").rglob("*.lock")]


@pytest.fixture
def ground(ralph: Any, agent: Any, git: Any, repository: Path, environment: dict[str, str]) -> Ground:
    return Ground(ralph, agent, git, repository, environment)


def step_through(ground: Ground, when: str, words: tuple[str, ...], look: Callable[[Any], None], least: int) -> None:
    """Kill a command at each of its git commands, repeat it, and look at the result each time."""
    ground.save()
    number = 1
    while ground.kill_at(number, when, words) == -signal.SIGKILL:
        again = ground.ralph(*words)
        ground.ralph("clean")  # a prove or an accept that was killed with its keeper at its end has left a copy
        try:
            look(again)
            ground.look()
        except AssertionError as error:
            raise AssertionError(f"killed {when} git command {number} of {words}: {error}\n{again.err}") from error
        ground.restore()
        number += 1
    assert number > least, "so many commands were stepped through"


pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.parametrize("when", ["before", "after"])]


def test_accept(ground: Ground, when: str) -> None:
    hook = ground.repository / ".git/hooks/pre-commit"
    hook.write_text("#!/bin/sh\ngit diff --cached --quiet || exit 0; exit 1\n")
    hook.chmod(0o755)
    ground.play("--worktree")
    head = ground.git("rev-parse", "HEAD").strip()

    def look(again: Any) -> None:
        is_repeated = again.code == 0 or "is already accepted" in again.err
        assert is_repeated, again.code
        assert ground.git("log", "--format=%s", f"{head}..HEAD").split() == ["go"]
        assert ground.git("show", "HEAD:fresh") == (ground.repository / "fresh").read_text() == "1\n2\n"
        assert (*ground.refs("refs/heads"), ground.git("worktree", "list").count("\n")) == ("refs/heads/main", 1)
        assert [*ground.worktrees.iterdir()] == []

    step_through(ground, when, ("accept",), look, least=25)


def test_discard(ground: Ground, when: str) -> None:
    ground.play("--worktree")
    ((branch, tip),) = ground.refs("refs/heads/ralph").items()
    kept_as = f"refs/ralph/{branch.removeprefix('refs/heads/ralph/')}/discarded"

    def look(again: Any) -> None:
        assert again.code == 0 or "was discarded" in again.err, again.code
        assert (ground.refs("refs/heads/ralph"), ground.refs(kept_as)) == ({}, {kept_as: tip})
        assert [*ground.worktrees.iterdir()] == []

    step_through(ground, when, ("discard",), look, least=5)


def test_rewind(ground: Ground, when: str) -> None:
    ground.play()
    (ground.repository / "fresh").write_text("edited since\n")

    def look(again: Any) -> None:
        assert again.code == 0, again.code
        assert (ground.repository / "fresh").read_text() == "1\n"
        saved = [ref for ref in ground.refs("refs/ralph") if "before-rewind" in ref]
        assert "edited since\n" in [ground.git("show", f"{ref}:fresh") for ref in saved]

    step_through(ground, when, ("rewind", "1"), look, least=8)


def test_clean(ground: Ground, when: str) -> None:
    ground.play("--worktree")
    ((merged, _),) = ground.refs("refs/heads/ralph").items()
    ground.git("merge", "-q", merged)
    (ground.repository / "fresh").unlink()
    ground.git("commit", "-qm", "again", "fresh")
    ground.play("--worktree")
    ((unmerged, tip),) = {*ground.refs("refs/heads/ralph").items()} - {(merged, ground.refs(merged)[merged])}

    def look(again: Any) -> None:
        assert again.code == 0, again.code
        assert ground.refs("refs/heads/ralph") == {unmerged: tip}
        assert [(path / "fresh").read_text() for path in ground.worktrees.iterdir()] == ["3\n4\n"]

    step_through(ground, when, ("clean", "--older-than", "0s", "--yes", "-C", "."), look, least=5)


def test_prove(ground: Ground, when: str) -> None:
    ground.play("--worktree")
    (worktree,) = ground.worktrees.iterdir()
    before = ground.refs("refs")

    def look(again: Any) -> None:
        assert again.code in (0, 1), again.code
        assert ground.refs("refs") == before
        assert [*ground.worktrees.iterdir()] == [worktree]
        assert (worktree / "fresh").read_text() == "1\n2\n"

    step_through(ground, when, ("prove",), look, least=10)
