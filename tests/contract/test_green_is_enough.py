"""Green is enough once the agent has nothing to add: a forgetful agent costs `ralph loop` one turn, not all of them."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ralph import RalphConfig, RalphLoop

Ralph = Callable[..., Any]
Agent = Callable[..., str]
Prompts = Callable[..., list[str]]
FORGETFUL = "test -e made || touch made; echo I did step $N"
DONE = "the checks pass and the agent had nothing to add"
LOOP = ("loop", "make it", "--check", "test -e made", "-m", "4", "--json")


def outcome(result: Any) -> tuple[str, int]:
    finished = result.one("run_finished")
    return finished["outcome"], finished["iterations"]


def test_a_forgetful_agent_costs_one_turn(ralph: Ralph, agent: Agent, prompts: Prompts) -> None:
    result = ralph(*LOOP, "--agent", agent(FORGETFUL))
    assert outcome(result) == ("done", 2)
    assert f"done after 2 iterations: {DONE}" in result.last_line
    assert result.one("ralph_converged")["signal"] == "green"
    assert "Every check passes now." in prompts()[1]


def test_green_is_enough_in_a_repository_and_while_ralph_commits(ralph: Ralph, agent: Agent, repository: Path) -> None:
    assert outcome(ralph(*LOOP, "--commit", "--agent", agent(FORGETFUL))) == ("done", 2)


@pytest.mark.parametrize(
    "script",
    [
        "touch made; echo $N >> work",  # changes something in every turn
        "echo $N; touch made; if [ $N -gt 1 ]; then exit 1; fi",  # fails
        "touch made; echo $N; ralph ask 'which one?'",  # asks
    ],
    ids=["changes", "fails", "asks"],
)
def test_an_agent_that_still_does_something_is_not_done(ralph: Ralph, agent: Agent, script: str) -> None:
    assert outcome(ralph(*LOOP, "--max-failures", "9", "--agent", agent(script)))[0] == "exhausted"


def test_a_report_of_blocked_is_not_a_claim(ralph: Ralph, agent: Agent) -> None:
    blocked = "touch made; if [ $N = 2 ]; then echo '<response>BLOCKED: no key</response>'; else echo hm; fi"
    assert outcome(ralph(*LOOP, "--agent", agent(blocked))) == ("blocked", 2)


def test_checks_that_were_never_red_are_not_enough(ralph: Ralph, agent: Agent) -> None:
    result = ralph("loop", "x", "--check", "true", "-m", "3", "--agent", agent("echo step $N"))
    assert result.code == 1
    assert re.search(r"ralph resume \w+ --until checks", result.err), "the last screen suggests it"


def test_a_check_that_was_red_after_the_baseline_is_enough(ralph: Ralph, agent: Agent) -> None:
    breaks = agent("if [ $N = 1 ]; then rm made; else test -e made || touch made; fi; echo step $N")
    result = ralph(*LOOP, "--no-baseline", "--agent", breaks)
    assert outcome(result) == ("done", 3)


@pytest.mark.parametrize("words", [("--until", "tag:COMPLETE"), ("--completion-tag", "COMPLETE")])
def test_an_explicit_claim_is_taken_literally(ralph: Ralph, agent: Agent, words: tuple[str, ...]) -> None:
    assert outcome(ralph(*LOOP, *words, "--agent", agent(FORGETFUL)))[0] == "exhausted"


def test_the_other_commands_need_a_claim(ralph: Ralph, agent: Agent, workspace: Path) -> None:
    words = ("run", "make it", "--preset", "checks", "--check", "test -e made", "-m", "3", "--json")
    assert outcome(ralph(*words, "--agent", agent(FORGETFUL)))[0] == "exhausted"


class Forgetful:
    def run(self, prompt: str) -> str:
        if not Path("made").exists():
            Path("made").touch()
        return "I did something"


def test_the_python_api_needs_the_tag_unless_asked(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workspace)
    config = RalphConfig(task="x", checks=["test -e made"], max_iterations=3)
    assert RalphLoop(config, Forgetful, workspace).run().stop_reason == "max_iterations"
    (workspace / "made").unlink()
    config.baseline = config.green_is_enough = True
    result = RalphLoop(config, Forgetful, workspace).run()
    assert (result.stop_reason, result.total_iterations) == ("all_checks_passed", 2)
