"""A run in a worktree tests the worktree, even if an install or a variable leads to the user's tree."""

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Start = Callable[..., Any]
Git = Callable[..., str]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has mount namespaces")
BREAK = "echo 'exit 1' > lib/check.sh"


@pytest.fixture
def project(repository: Path, git: Git, environment: dict[str, str]) -> Path:
    """A repository whose check leads to the user's tree, as an editable install does."""
    (repository / "lib").mkdir()
    (repository / "lib/check.sh").write_text("exit 0\n")
    git("add", "-A")
    git("commit", "-qm", "lib")
    environment["LIBRARY"] = str(repository / "lib")
    return repository


CHECK = 'sh "$LIBRARY/check.sh"'


def settings(project: Path, **values: object) -> None:
    (project / ".ralph").mkdir(exist_ok=True)
    (project / ".ralph/settings.json").write_text(json.dumps(values))


def test_the_check_of_a_worktree_sees_what_the_agent_broke(
    ralph: Start, agent: Start, project: Path, git: Git, environment: dict[str, str]
) -> None:
    fake = agent(f"pwd; {BREAK}; git status --short; echo COMPLETE")
    done = ralph("loop", "T", "--worktree", "--check", CHECK, "--agent", fake, "-m", "1")
    assert done.code == 1, done.err
    assert f"the agent works on a copy, which it sees at {project} (yours stays as it is)" in " ".join(done.err.split())
    assert f"{project}\n" in done.err
    assert " M lib/check.sh" in done.err
    assert (project / "lib/check.sh").read_text() == "exit 0\n"
    assert git("status", "--short") == ""


@pytest.mark.usefixtures("bubblewrap")
def test_in_a_sandbox_the_check_and_git_see_the_copy(ralph: Start, agent: Start, project: Path) -> None:
    (project / "node_modules").mkdir()
    (project / "node_modules/x").write_text("theirs\n")
    (project / ".git/info/exclude").write_text("node_modules\n.ralph\n")
    fake = agent(f"cat node_modules/x; echo n > node_modules/y; {BREAK}; git status --short; git log --oneline -1")
    done = ralph("loop", "T", "--worktree", "--check", CHECK, "--agent", fake, "-m", "1", "--sandbox", "--commit")
    assert done.code == 1, done.err
    assert "theirs" in done.err
    assert " M lib/check.sh" in done.err
    assert "lib\n" in done.err
    assert "cannot" not in done.err
    assert os.listdir(project / "node_modules") == ["x"]


def test_an_exam_sees_the_copy(ralph: Start, agent: Start, project: Path, environment: dict[str, str]) -> None:
    exam = Path(environment["HOME"]) / "exam.sh"
    exam.write_text('pwd > "$TMPDIR/pwd" && grep -qx "$(dirname "$LIBRARY")" "$TMPDIR/pwd" && sh "$LIBRARY/check.sh"\n')
    for script, code in (("touch new", 0), (BREAK, 1)):
        fake = agent(f"{script}; echo '<response>DONE</response>'")
        done = ralph("run", "T", "--exam", f"sh {exam}", "--agent", fake, "-m", "1")
        assert done.code == code, done.err


def test_a_resumed_run_keeps_its_place(ralph: Start, agent: Start, project: Path) -> None:
    fake = agent("pwd > seen; echo COMPLETE")
    settings(project, copies="plain")
    words = ("--worktree", "--check", "test $(wc -l < lib/check.sh) = 2", "--agent", fake, "-m", "1")
    assert ralph("loop", "T", *words).code == 1
    settings(project)
    done = ralph("resume", "-m", "1", "--json")
    assert [event["copies"] for event in done.all("run_started")] == ["plain"]
    done = ralph("loop", "T", *words, "--json")
    assert [event["copies"] for event in done.all("run_started")] == ["in-place"]
    settings(project, copies="plain")
    done = ralph("resume", "-m", "1", "--json")
    assert [event["copies"] for event in done.all("run_started")] == ["in-place"]


def without_namespaces(environment: dict[str, str]) -> None:
    """Make `unshare` and bubblewrap fail, as on a machine that forbids namespaces."""
    for name in ("unshare", "bwrap"):
        program = Path(environment["HOME"]) / "bin" / name
        program.write_text(f"#!/bin/sh\necho {name}: unshare failed: Operation not permitted >&2\nexit 1\n")
        program.chmod(0o755)


@pytest.mark.parametrize("words", [("loop", "T", "--worktree", "--agent"), ("work", "TASKS.md", "--agent")])
def test_in_place_on_a_machine_without_namespaces_is_refused_before_anything_is_spent(
    ralph: Start, agent: Start, project: Path, environment: dict[str, str], words: tuple[str, ...]
) -> None:
    (project / "TASKS.md").write_text("- [ ] T1 One\n")
    without_namespaces(environment)
    settings(project, copies="in-place")
    fake = agent("touch called; echo COMPLETE")
    done = ralph(*words, fake, "--check", "true")
    assert done.code == 2
    reason, hint = done.err.splitlines()[-2:]
    assert reason.startswith('ralph: "copies": "in-place" is not possible: ')
    assert reason.endswith("(unshare: unshare failed: Operation not permitted)")
    assert hint.endswith('set "copies": "auto"')
    assert not list(Path(environment["HOME"]).glob("fake-agent.argv.*"))


def test_without_namespaces_a_run_says_once_that_its_copy_is_at_its_own_path(
    ralph: Start, agent: Start, project: Path, environment: dict[str, str]
) -> None:
    without_namespaces(environment)
    fake = agent("pwd; echo COMPLETE")
    done = ralph("loop", "T", "--worktree", "--check", "true", "--agent", fake, "-m", "1")
    assert done.code == 0, done.err
    assert done.err.count("the agent sees its copy at the copy's own path") == 1


@pytest.mark.parametrize("reason", ["only in your tree", "contains your home", "submodules"])
def test_a_copy_that_cannot_be_in_place_is_at_its_own_path(
    ralph: Start, agent: Start, project: Path, environment: dict[str, str], git: Git, tmp_path: Path, reason: str
) -> None:
    check = "true"
    if reason == "only in your tree":
        (project / "mine.sh").write_text("exit 0\n")
        check = f"sh {project}/mine.sh"
    elif reason == "contains your home":
        shutil.copytree(environment["HOME"], project / "home")
        environment |= {"HOME": str(project / "home"), "XDG_STATE_HOME": str(tmp_path / "state")}
    else:
        shutil.copytree(project, tmp_path / "sub")
        git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(tmp_path / "sub"), "sub")
        git("commit", "-qm", "submodule")
    fake = agent("git status --short; touch new; echo COMPLETE")
    done = ralph("loop", "T", "--worktree", "--check", check, "--agent", fake, "-m", "1")
    assert done.code == 0, done.err
    assert reason in done.err
