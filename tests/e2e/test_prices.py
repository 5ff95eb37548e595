"""What did a run cost whose agent reports tokens only? An estimate, where the price list is installed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def codex(ralph, agent, streams: Path) -> Callable[..., Any]:
    """A run with Codex, whose stream tells of 1000 tokens in and 50 out, and of no cost."""
    agent(f"cat {streams}/codex/text.ndjson", "codex")

    def run(*words: str, **env: str) -> Any:
        return ralph("run", "go", "--agent", "codex", *words, **env)

    return run


@pytest.fixture
def no_prices(tmp_path: Path) -> dict[str, str]:
    """An environment in which the price list is not installed."""
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['genai_prices'] = None")
    return {"PYTHONPATH": str(tmp_path)}


def notices(result: Any) -> str:
    return "\n".join(notice["text"] for notice in result.all("notice") if notice.get("level") != "debug")


def test_tokens_of_a_known_model_are_priced_and_marked_as_an_estimate(codex) -> None:
    result = codex("--model", "gpt-5", "--until", "word:STOP", "--json")
    told = result.one("agent_result")
    assert (told["input_tokens"], told["output_tokens"], told["estimated"]) == (1000, 50, True)
    assert 0 < told["cost_usd"] < 0.1
    assert result.one("run_finished")["cost_usd"] == told["cost_usd"]
    assert result.one("iteration_finished")["record"]["turn"]["usage"]["estimated"] is True


def test_an_estimated_cost_is_marked(codex) -> None:
    assert "~$0.00" in codex("--model", "gpt-5", "-m", "1").err


def test_an_estimate_can_end_a_run(codex) -> None:
    result = codex("--model", "gpt-5", "--max-cost", "0.0001", "--json")
    assert (result.code, result.one("run_finished")["outcome"]) == (1, "budget")
    assert not notices(result)


def test_without_the_price_list_the_cost_is_unknown(codex, no_prices) -> None:
    result = codex("--model", "gpt-5", "-m", "1", "--json", **no_prices)
    told = result.one("agent_result")
    assert (told["input_tokens"], told.get("cost_usd"), told.get("estimated")) == (1000, None, None)
    assert result.one("run_finished")["cost_usd"] is None
    assert not notices(result)


@pytest.mark.parametrize("words", [("--model", "gpt-5"), ()], ids=["no list", "no model"])
def test_a_budget_without_known_costs_is_reported_once(words: tuple[str, ...], codex, no_prices) -> None:
    env = no_prices if words else {}
    result = codex(*words, "--max-cost", "0.0001", "-m", "3", "--json", **env)
    assert result.one("run_finished")["outcome"] == "exhausted"
    assert notices(result).count("codex doesn't report its cost: --max-cost cannot end this run") == 1


def test_a_budget_of_tokens_works_without_prices(codex, no_prices) -> None:
    result = codex("--max-tokens", "2000", "--json", **no_prices)
    finished = result.one("run_finished")
    assert (finished["outcome"], finished["iterations"]) == ("budget", 2)
    assert not notices(result)


def test_a_budget_has_no_effect_without_reported_usage(ralph, agent) -> None:
    line = agent("echo working")
    result = ralph("run", "go", "--agent", line, "-m", "2", "--max-cost", "1", "--max-tokens", "9", "--json")
    assert notices(result).count("use --max-time") == 2


def test_the_hint_about_prices_depends_on_whether_the_list_is_installed(codex, no_prices) -> None:
    words = ("--max-cost", "1", "-m", "1", "--json")
    assert "name its model with --model, or use --max-tokens" in notices(codex(*words))
    assert "name its model with --model and " in notices(codex(*words, **no_prices))
