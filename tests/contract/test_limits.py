"""§2 and §3: success is tested before every limit, and a limit ends a run when it is reached."""

import re
from collections.abc import Callable
from typing import Any

import pytest

Ralph = Callable[..., Any]
Agent = Callable[..., str]
SAID_DONE = "echo '<response>DONE</response>'"


def turn(text: str, cost: float = 1.0) -> str:
    return (
        f'{{"type":"result","subtype":"success","is_error":false,"result":"{text}","total_cost_usd":{cost},'
        '"usage":{"input_tokens":100,"output_tokens":50}}'
    )


@pytest.mark.parametrize(
    ("words", "text", "outcome", "iterations"),
    [
        (("--max-cost", "2"), "work", "budget", 2),
        (("--max-cost", "2.01"), "work", "budget", 3),
        (("--max-tokens", "300"), "work", "budget", 2),
        (("-m", "2", "--max-cost", "2"), "work", "budget", 2),
        (("-m", "2"), "work", "exhausted", 2),
        (("-m", "1", "--max-cost", "1", "--max-tokens", "1"), "<response>DONE</response>", "done", 1),
        (("--stall", "1", "--max-cost", "2"), "work", "stalled", 2),
    ],
)
def test_limits_apply_in_their_order(
    ralph: Ralph, agent: Agent, words: tuple[str, ...], text: str, outcome: str, iterations: int
) -> None:
    fake = agent(f"echo '{turn(text)}'")
    finished = ralph("run", "-p", "x", "--json", "--agent", fake, *words).one("run_finished")
    assert (finished["outcome"], finished["iterations"]) == (outcome, iterations)


def test_the_budget_includes_the_cost_of_commit_messages(ralph: Ralph, agent: Agent, repository: object) -> None:
    fake = agent(f"echo x >> work; echo '{turn('work')}'")
    result = ralph("run", "-p", "x", "--commit", "--check", "true", "--max-cost", "4", "--json", "--agent", fake)
    finished = result.one("run_finished")
    assert (finished["outcome"], finished["iterations"], finished["cost_usd"]) == ("budget", 2, 4.0)
    resumed = ralph("resume", "--max-cost", "6", "--json").one("run_finished")
    assert (resumed["iterations"], resumed["cost_usd"]) == (3, 6.0)
    assert "$6.00" in ralph("ps", "-a").out
    assert "$6.00" in ralph("show").out


@pytest.mark.parametrize(
    ("script", "outcome"),
    [("echo same", "stalled"), ("echo same; echo x >> dirty", "exhausted"), ("echo $N", "exhausted")],
)
def test_a_stall_is_the_same_answer_and_the_same_files(
    ralph: Ralph, agent: Agent, repository: object, script: str, outcome: str
) -> None:
    result = ralph("run", "G", "--ralph", "3", "--json", "--agent", agent(script))
    assert (result.code, result.one("run_finished")["outcome"]) == (1, outcome)


def test_the_time_limit_ends_a_running_check(ralph: Ralph, agent: Agent) -> None:
    fake = agent("echo '<response>DONE</response>'")
    result = ralph("run", "-p", "x", "--max-time", "0.5", "--check", "sleep 60", "--json", "--agent", fake)
    finished = result.one("run_finished")
    assert (result.code, finished["outcome"]) == (1, "timeout")
    assert finished["reason"] == "the time limit of 0.5 seconds is over"


@pytest.mark.parametrize("text", ["abc", "", "-5", "1m30", "inf", "5 m"])
def test_a_wrong_duration_is_a_one_line_error(ralph: Ralph, agent: Agent, text: str) -> None:
    result = ralph("run", "-p", "x", "--turn-timeout", text, "--agent", agent("true"))
    assert result.code == 2
    assert "expected a duration" in result.err


def test_a_usage_limit_is_reported_with_the_time_of_day(ralph: Ralph, agent: Agent) -> None:
    limit = 'echo "Claude AI usage limit reached|$(($(date +%s) + 2))"; exit 1'
    agent(f"if [ $N = 1 ]; then {limit}; fi; {SAID_DONE}", "claude")
    result = ralph("run", "-p", "x", "--agent", "claude")
    assert result.code == 0, result.err
    told = [line for line in result.err.splitlines() if "usage limit" in line and "|" not in line]
    assert told[0].startswith("✗ turn failed: Claude AI usage limit reached")
    assert re.fullmatch(r"◔ waiting .+ until \d\d:\d\d(:\d\d)?: usage limit: Claude AI usage limit reached", told[1])
