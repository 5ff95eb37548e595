"""What the words of a command line mean: a goal, a place, a title, one shot."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pexpect
import pytest

Ralph = Callable[..., Any]
Agent = Callable[..., str]
Prompts = Callable[..., list[str]]


def test_print_alone_is_one_shot(ralph: Ralph, agent: Agent, prompts: Prompts) -> None:
    result = ralph("run", "--print", "Tidy up", "--agent", agent("echo tidy"), "--json")
    assert result.code == 0
    assert prompts() == ["Tidy up"]
    assert "ralph_iteration_started" not in result.kinds()
    assert result.one("run_finished")["outcome"] == "done"


def test_print_with_a_number_is_a_loop(ralph: Ralph, agent: Agent, prompts: Prompts) -> None:
    assert ralph("run", "--print", "Tidy up", "--ralph", "2", "--no-stall", "--agent", agent("echo $N")).code == 1
    assert len(prompts()) == 2


@pytest.mark.parametrize("word", ["./shop", "/no/such/folder", "~/shop", "src/shop", "../shop"])
@pytest.mark.parametrize("command", ["run", "loop"])
def test_a_missing_path_is_not_a_goal(command: str, word: str, ralph: Ralph, workspace: Path) -> None:
    result = ralph(command, word, "--agent", "true", "--check", "true")
    assert (result.code, result.err.splitlines()[0]) == (2, f"ralph: folder not found: {word}")
    assert not (workspace / ".ralph" / "runs").exists()


@pytest.mark.parametrize("word", ["nowhere.md", "docs/spec.txt"])
def test_a_missing_file_is_not_a_goal(ralph: Ralph, agent: Agent, word: str) -> None:
    result = ralph("run", word, "-m", "1", "--agent", agent("echo hi"))
    assert (result.code, result.err.splitlines()[0]) == (2, f"ralph: file not found: {word}")


def test_a_file_is_not_a_goal(ralph: Ralph, workspace: Path) -> None:
    (workspace / "PROMPT.md").write_text("Fix it")
    result = ralph("run", "PROMPT.md", "--agent", "true")
    assert result.code == 2
    assert result.err == "ralph: PROMPT.md is a file, not a goal\nhint: to send its text: -f PROMPT.md\n"


@pytest.mark.parametrize("goal", ["Refactor", "Fix and/or remove ./src/shop", "Read https://example.com/a and obey"])
def test_words_are_a_goal(goal: str, ralph: Ralph, agent: Agent, prompts: Prompts) -> None:
    ralph("run", goal, "-m", "1", "--agent", agent("echo working"))
    assert prompts()[0].startswith(goal)


def test_several_words_without_a_command_are_a_goal(ralph: Ralph, agent: Agent, prompts: Prompts) -> None:
    fake = agent('echo "<response>DONE</response>"')
    assert ralph("Make the tests pass", "--check", "true", "--agent", fake).code == 0
    assert prompts()[0].startswith("Make the tests pass\n")
    assert ralph("nonsense").code == 2


def test_a_goal_next_to_a_specification_is_the_title(
    ralph: Ralph, agent: Agent, prompts: Prompts, workspace: Path
) -> None:
    (workspace / "spec.md").write_text("All of it, in detail.")
    fake = agent("echo COMPLETE")
    result = ralph("loop", "Log people in", "--spec", "spec.md", "--check", "true", "--agent", fake, "--json")
    assert result.code == 0
    assert "All of it, in detail." in prompts()[0]
    assert "Log people in" not in prompts()[0]
    assert result.one("run_started")["goal"] == "Log people in"
    assert any("is sent instead of the goal, which is only the title" in e["text"] for e in result.all("notice"))


def test_a_specification_alone_prints_no_notice(ralph: Ralph, agent: Agent, workspace: Path) -> None:
    (workspace / "spec.md").write_text("All of it, in detail.")
    result = ralph("loop", "--spec", "spec.md", "--check", "true", "--agent", agent("echo COMPLETE"), "--json")
    assert result.one("run_started")["goal"] == "All of it, in detail."
    assert "instead of the goal" not in result.out


def test_a_loop_without_any_check_to_find_is_refused(ralph: Ralph) -> None:
    result = ralph("loop", "Fix it", "--agent", "true")
    assert (result.code, result.err.splitlines()[0]) == (2, "ralph: no checks given, and none found in this project")


def test_a_loop_without_a_check_names_what_the_project_has(ralph: Ralph, workspace: Path) -> None:
    (workspace / "Makefile").write_text("test:\n\ttrue\nlint:\n\ttrue\n")
    result = ralph("loop", "Fix it", "--agent", "true")
    assert result.code == 2
    assert result.err == (
        'ralph: no checks given\nhint: this project has some: --check "make test" --check "make lint"\n'
    )


@pytest.mark.parametrize(("answer", "code"), [("", 0), ("no", 2)])
def test_on_a_terminal_enter_accepts_the_checks_of_the_project(
    answer: str, code: int, agent: Agent, environment: dict[str, str], workspace: Path
) -> None:
    (workspace / "Makefile").write_text("test:\n\ttrue\n")
    words = ["-m", "ralph", "loop", "Fix it", "--agent", agent("echo COMPLETE")]
    child = pexpect.spawn(
        sys.executable,
        words,
        cwd=str(workspace),
        env=environment,  # type: ignore[arg-type]
        encoding="utf-8",
        timeout=60,
    )
    child.delaybeforesend = None
    child.expect_exact("This project has: make test")
    child.expect_exact("Use these checks? [Y/n] ")
    child.sendline(answer)
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == code
