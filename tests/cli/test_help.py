"""What a person is told who asks for help, and what a shell completes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Ralph = Callable[..., Any]


@pytest.mark.parametrize("command", ["run", "loop", "task", "work"])
def test_h_shows_the_options_that_matter_and_help_shows_all(ralph: Ralph, command: str) -> None:
    short, whole = ralph(command, "-h").out, ralph(command, "--help").out
    assert "--check" in short
    assert "--claim-anywhere" not in short
    assert "--claim-anywhere" in whole
    assert f"all of them: ralph {command} --help" in short
    assert short.count("\n  -") <= 18


def test_the_help_of_run_says_what_done_means(ralph: Ralph) -> None:
    said = " ".join(ralph("run", "--help").out.split())
    assert "Done means: the agent claims it, and every gate" in said
    assert "There are five ways to loop" in said


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("ralph run --agent co", ["codex", "copilot"]),
        ("ralph run --until che", ["checks"]),
        ("ralph loop --until tag", ["tag:COMPLETE"]),
    ],
)
def test_a_shell_completes_what_there_is(ralph: Ralph, typed: str, offered: list[str]) -> None:
    words = {"COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1), "_RALPH_COMPLETE": "bash_complete"}
    assert ralph(**words).out.split() == [f"plain,{name}" for name in offered]


def test_a_shell_completes_runs(ralph: Ralph) -> None:
    ralph("run", "Do it", "-m", "1", "--agent", "true")
    words = {"COMP_WORDS": "ralph show ", "COMP_CWORD": "2", "_RALPH_COMPLETE": "bash_complete"}
    short, whole = ralph(**words).out.split()
    assert whole.endswith(short.removeprefix("plain,"))


def test_a_run_that_could_not_begin_is_on_no_list(ralph: Ralph, workspace: Path) -> None:
    assert ralph("run", "Do it", "--worktree", "--agent", "true").code == 2
    assert "killed" not in ralph("ps", "-a").out
    assert ralph("show").code == 2
    assert ralph("resume").code == 2
