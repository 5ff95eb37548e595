"""Committing obeys the user's settings and hooks as they were when the run started, never what an agent wrote since."""

from collections.abc import Callable
from pathlib import Path
from subprocess import CalledProcessError
from typing import Any

import pytest

Ralph = Callable[..., Any]
Git = Callable[..., str]


@pytest.fixture
def at_work(ralph: Ralph, workspace: Path, git: Git) -> Callable[[str], Any]:
    """Plays a run that commits, whose agent runs this script and then claims to be done."""
    git("init", "-q")
    git("config", "user.name", "A Person")
    git("config", "user.email", "person@example.org")
    (workspace / "a.txt").write_text("one\n")
    git("add", "-A")
    git("commit", "-qm", "first")

    def play(script: str, *words: str) -> Any:
        path = workspace.parent / "agent.sh"
        path.write_text(f"cat > /dev/null\n{script}\necho '<response>DONE</response>'\n")
        return ralph("run", "go", "--agent", f"sh {path}", "--check", "true", "--commit", "-m", "1", *words)

    return play


def test_a_hook_or_filter_that_the_agent_plants_does_not_run_when_ralph_commits(
    at_work: Callable[..., Any], git: Git, tmp_path: Path
) -> None:
    proof = tmp_path / "it-ran"
    planted = f"""
printf '#!/bin/sh\\ntouch {proof}\\n' > .git/hooks/pre-commit && chmod +x .git/hooks/pre-commit
git config filter.evil.clean "sh -c 'touch {proof}; cat'"
echo '*.txt filter=evil' > .gitattributes
echo two > a.txt
"""
    done = at_work(planted)
    assert done.code == 0
    assert git("log", "--format=%H").count("\n") == 2, done.err
    assert not proof.exists()
    assert "filter.evil.clean" in done.err
    assert "hooks/pre-commit" in done.err


def test_the_users_own_hooks_go_on_working(at_work: Callable[..., Any], workspace: Path, tmp_path: Path) -> None:
    proof = tmp_path / "mine-ran"
    hook = workspace / ".git" / "hooks" / "pre-commit"
    hook.write_text(f"#!/bin/sh\necho ran >> {proof}\n")
    hook.chmod(0o755)
    done = at_work("echo two > a.txt; rm .git/hooks/pre-commit")
    assert done.code == 0
    assert proof.read_text() == "ran\n"


def test_a_hooks_path_that_the_agent_sets_has_no_say(
    at_work: Callable[..., Any], workspace: Path, git: Git, tmp_path: Path
) -> None:
    proof = tmp_path / "it-ran"
    planted = f"""
mkdir evil && printf '#!/bin/sh\\ntouch {proof}\\n' > evil/pre-commit && chmod +x evil/pre-commit
git config core.hooksPath "$PWD/evil"; echo two > a.txt
"""
    assert at_work(planted).code == 0
    assert not proof.exists()


def test_work_is_not_pushed_where_the_agent_leads_it(
    at_work: Callable[..., Any], workspace: Path, git: Git, tmp_path: Path
) -> None:
    for name in ("mine", "theirs"):
        git("init", "-q", "--bare", str(tmp_path / name))
    git("remote", "add", "origin", str(tmp_path / "mine"))
    git("push", "-q", "-u", "origin", "HEAD")
    done = at_work(f"git config remote.origin.url {tmp_path}/theirs; echo two > a.txt", "--push")
    assert "changed meanwhile: remote.origin.url" in done.err
    assert git("--git-dir", str(tmp_path / "theirs"), "for-each-ref") == ""


def test_nothing_is_committed_in_the_middle_of_a_merge_of_the_users(
    at_work: Callable[..., Any], workspace: Path, git: Git
) -> None:
    git("checkout", "-qb", "other")
    (workspace / "a.txt").write_text("other\n")
    git("commit", "-qam", "other")
    git("checkout", "-q", "-")
    (workspace / "a.txt").write_text("mine\n")
    git("commit", "-qam", "mine")
    with pytest.raises(CalledProcessError):
        git("merge", "other")
    done = at_work("echo new > new.txt")
    assert "a merge is under way" in done.err
    assert git("log", "--format=%s", "-1") == "mine\n"
    assert (workspace / ".git" / "MERGE_HEAD").exists()
