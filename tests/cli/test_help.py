"""What a person is told who asks for help, and what a shell completes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pexpect
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


def offered(ralph: Ralph, shell: str, *words: str) -> list[str]:
    asked = {"COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1), "_RALPH_COMPLETE": f"{shell}_complete"}
    return [value for value in ralph(**asked).out.replace(",", "\n").splitlines() if value not in ("plain", "_", "")]


@pytest.mark.parametrize("shell", ["bash", "zsh"])
@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("ralph run --agent co", ["codex", "copilot"]),
        ("ralph run --until che", ["checks"]),
        ("ralph loop --until tag", ["tag:COMPLETE"]),
    ],
)
def test_a_shell_completes_what_there_is(ralph: Ralph, shell: str, typed: str, found: list[str]) -> None:
    assert offered(ralph, shell, *typed.split()) == found


def test_a_value_behind_an_equals_sign_takes_the_place_of_what_the_shell_calls_a_word(ralph: Ralph) -> None:
    """That is all of it in zsh and fish, and in bash what follows the last `=` or `:`."""
    assert offered(ralph, "zsh", "ralph", "run", "--agent=cop") == ["--agent=copilot"]
    assert offered(ralph, "bash", "ralph", "run", "--agent", "=", "cop") == ["copilot"]
    assert offered(ralph, "bash", "ralph", "run", "--until", "=", "promise", ":", "D") == ["DONE"]
    assert offered(ralph, "bash", "ralph", "run", "--until", "promise", ":") == ["DONE"]
    assert offered(ralph, "bash", "ralph", "run", "--agent", "=", "codex", "--until", "=")[0] == "checks"


def test_tab_in_bash_completes_what_is_typed(environment: dict[str, str]) -> None:
    env = {**environment, "TERM": "dumb", "PS1": "ready> "}
    bash = pexpect.spawn("bash", ["--norc", "--noprofile", "-i"], env=env, encoding="utf-8", timeout=120)
    bash.expect_exact("ready> ")
    bash.sendline('eval "$(ralph completion bash)"; echo l""oaded')
    bash.expect_exact("loaded")
    for typed, whole in (("ralph run --agent cop", "copilot "), ("ralph run --until=prom", "promise:DONE ")):
        bash.expect_exact("ready> ")
        bash.send(f"{typed}\t")
        bash.expect_exact(whole)
        bash.send("\x15\r")
    bash.close(force=True)


def test_a_shell_completes_runs(ralph: Ralph) -> None:
    ralph("run", "Do it", "-m", "1", "--agent", "true")
    short, whole = offered(ralph, "bash", "ralph", "show", "")
    assert whole.endswith(f"-{short}")


def test_a_run_that_could_not_begin_is_on_no_list(ralph: Ralph, workspace: Path) -> None:
    assert ralph("run", "Do it", "--worktree", "--agent", "true").code == 2
    assert "killed" not in ralph("ps", "-a").out
    assert ralph("show").code == 2
    assert ralph("resume").code == 2
