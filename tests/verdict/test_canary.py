"""A check that stays green with every source of a copy broken doesn't test the copy. Runs say so once, and never trust
it silently."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ralph.git.client import git_at
from ralph.verdict.canary import break_sources

Start = Callable[..., Any]
Git = Callable[..., str]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has mount namespaces")
PASSES = "with every source file of the copy broken"


@pytest.fixture
def project(repository: Path, git: Git, environment: dict[str, str]) -> Path:
    """A repository with sources, tests, and a variable that leads to them."""
    for name in ("lib/app.sh", "tests/app.sh"):
        (repository / name).parent.mkdir(parents=True)
        (repository / name).write_text("exit 0\n")
    git("add", "-A")
    git("commit", "-qm", "sources")
    environment["LIBRARY"] = str(repository / "lib")
    return repository


@pytest.fixture
def loop(ralph: Start, agent: Start, project: Path) -> Start:
    def run(check: str, *words: str, script: str = "touch new", **settings: object) -> Any:
        (project / ".ralph").mkdir(exist_ok=True)
        (project / ".ralph/settings.json").write_text(json.dumps(settings))
        fake = agent(f"{script}; echo COMPLETE")
        return ralph("loop", "T", "--worktree", "--check", check, "--agent", fake, "-m", "1", *words)

    return run


def answers(environment: dict[str, str]) -> dict[str, str]:
    """Return the kept answers by mode."""
    files = Path(environment["HOME"], ".local/state/ralph/canary").glob("*")
    kept = [json.loads(file.read_text()) for file in files]
    return {answer["mode"]: answer["answer"] for answer in kept}


def test_nothing_is_said_about_a_check_that_tests_the_copy(loop: Start, environment: dict[str, str]) -> None:
    check = f"echo x >> {environment['HOME']}/runs; sh lib/app.sh"
    done = loop(check)
    assert done.code == 0
    assert PASSES not in done.err
    assert answers(environment) == {"in-place": "tested"}
    assert Path(environment["HOME"], "runs").read_text().count("x") == 3  # baseline, canary, iteration
    loop(check)
    assert Path(environment["HOME"], "runs").read_text().count("x") == 5, "the answer is kept"


def test_a_check_that_does_not_test_the_copy_is_named_in_the_last_line(
    loop: Start, environment: dict[str, str]
) -> None:
    done = loop("test -e README")
    assert done.code == 0
    assert f"this check passes {PASSES}: test -e README" in done.err
    assert "lib of your tree (variable: LIBRARY)" in done.err
    assert 'set "canary": false' in done.err
    assert done.last_line.startswith("ralph: done, but no check tests the copy, after 1 iteration")
    assert answers(environment) == {"in-place": "untested", "plain": "untested"}


def test_at_its_own_path_a_tracked_file_that_names_the_users_tree_is_reported(
    loop: Start, project: Path, git: Git
) -> None:
    """The canary is red for a part of the copy, although another part is read from the user's tree."""
    (project / "paths.txt").write_text(f"{project}/lib\n")
    git("add", "-A")
    git("commit", "-qm", "paths")
    check = 'test -e "$(cat paths.txt)" && sh tests/app.sh && sh lib/app.sh'
    named = "checks of the copy may read your tree, which is named in paths.txt"
    assert named in " ".join(loop(check, copies="plain").err.split())
    assert named not in " ".join(loop(check).err.split())


def test_one_check_that_tests_the_copy_is_enough(loop: Start) -> None:
    done = loop("test -e README", "--check", "sh lib/app.sh")
    assert PASSES not in done.err
    assert "no check tests" not in done.last_line


def test_the_setup_of_the_hint_is_asked_about_again(loop: Start) -> None:
    check = "test ! -e installed || sh lib/app.sh"
    assert "no check tests the copy" in loop(check).last_line
    done = loop(check, "--setup", "touch installed")
    assert PASSES not in done.err
    assert "no check tests the copy" not in done.last_line


def test_it_is_asked_only_when_all_checks_are_green_at_once(loop: Start, environment: dict[str, str]) -> None:
    """A check that is red anyway is red in the broken copy, whatever it reads."""
    turns = "if [ -e one ]; then touch two; else touch one; fi"
    done = loop("test -e one", "--check", "test ! -e one || test -e two", "-m", "2", script=turns)
    assert done.code == 0
    assert set(answers(environment).values()) == {"untested"}
    assert "no check tests the copy" in done.last_line


def test_variables_lead_to_each_copy_of_a_run_at_its_own_path(loop: Start, environment: dict[str, str]) -> None:
    """The broken copy, and that of an exam, have paths that differ from that of the run's worktree."""
    exam = Path(environment["HOME"], "exam.sh")
    exam.write_text('test "$LIBRARY" = "$PWD/lib"\n')
    done = loop('sh "$LIBRARY/app.sh"', "--exam", f"sh {exam}", copies="plain")
    assert done.code == 0, done.err
    assert PASSES not in done.err


def test_without_anything_that_leads_to_the_users_tree_it_is_only_a_note(
    loop: Start, environment: dict[str, str]
) -> None:
    del environment["LIBRARY"]
    done = loop("test -e README")
    assert done.err.count(PASSES) == 1
    assert done.last_line.startswith("ralph: done after 1 iteration")


def test_the_way_out_is_a_setting(loop: Start, environment: dict[str, str]) -> None:
    done = loop("test -e README", canary=False)
    assert PASSES not in done.err
    assert answers(environment) == {}


def test_a_repository_without_sources_is_not_asked(loop: Start, environment: dict[str, str], git: Git) -> None:
    git("rm", "-rqf", "lib", "tests")
    git("commit", "-qm", "no sources")
    assert PASSES not in loop("test -e README").err
    assert answers(environment) == {}


@pytest.fixture
def container(environment: dict[str, str], tmp_path: Path) -> str:
    """Return a command that stands for `docker run -v "$PWD:/app"`: it is asked for a path, and looks at it from
    outside of every namespace."""
    question, answer = tmp_path / "question", tmp_path / "answer"
    for pipe in (question, answer):
        os.mkfifo(pipe)
    daemon = f'while read -r path; do sh "$path/lib/app.sh" 2> /dev/null; echo $? > {answer}; done < {question}'
    if (pid := os.fork()) == 0:
        os.setsid()
        held = os.open(question, os.O_RDWR)  # so that the daemon sees no end of file between two questions
        os.set_inheritable(held, True)
        os.execv("/bin/sh", ["sh", "-c", daemon])
    environment["DAEMON"] = str(pid)
    return f"pwd > {question}; exit $(cat {answer})"


def test_a_check_that_asks_a_container_gets_its_copy_at_its_own_path(
    loop: Start, environment: dict[str, str], container: str, project: Path
) -> None:
    try:
        first = loop(container, script="echo exit 1 > lib/app.sh; pwd")
        assert first.code == 1, first.err
        assert first.err.count("the copy is seen at its own path from now on") == 1
        assert answers(environment) == {"in-place": "untested", "plain": "tested"}
        assert "cannot commit" not in first.err
        second = loop(container, script="echo exit 1 > lib/app.sh")
        assert second.code == 1
        assert "no check tests a copy in place of your tree" in second.err
        assert "which it sees at" not in second.err
    finally:
        os.killpg(int(environment["DAEMON"]), 9)
        os.waitpid(int(environment["DAEMON"]), 0)


@pytest.mark.parametrize("words", [("work", "TASKS.md"), ("accept",), ("prove",)])
def test_what_would_merge_or_prove_ends_with_2(
    ralph: Start, agent: Start, project: Path, git: Git, loop: Start, words: tuple[str, ...]
) -> None:
    (project / "TASKS.md").write_text("- [ ] T1 One\n")
    git("add", "-A")
    git("commit", "-qm", "tasks")
    loop("test -e README", script="echo more >> lib/app.sh")
    tip = git("rev-parse", "HEAD")
    more = ("--check", "test -e README", "--agent", agent("touch new; echo COMPLETE")) if words[0] == "work" else ()
    done = ralph(*words, *more)
    assert done.code == 2, done.err
    assert PASSES in done.err
    assert git("rev-parse", "HEAD") == tip


def test_tests_and_what_says_how_they_run_stay_whole(repository: Path, git: Git) -> None:
    for name in ("app/cart.py", "app/CartTest.java", "spec_helper.rb", "sitecustomize.py", "setup.py", "test_cart.py"):
        (repository / name).parent.mkdir(exist_ok=True)
        (repository / name).write_text("whole\n")
    git("add", "-A")
    assert break_sources(git_at(str(repository))) == ["app/cart.py"]
