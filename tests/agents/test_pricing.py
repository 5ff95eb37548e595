"""Estimated costs of tokens for which the agent reports none."""

import sys

import pytest

from ralph.agents.prices import priced
from ralph.core.model import Usage

TOKENS = Usage(input_tokens=1000, output_tokens=50, cache_read_tokens=200)


def test_a_stated_cost_is_kept() -> None:
    stated = Usage(input_tokens=1000, output_tokens=50, cost_usd=0.5)
    assert priced(stated, "gpt-5") is stated


def test_a_turn_without_tokens_has_no_estimated_cost() -> None:
    assert priced(Usage(), "gpt-5") == Usage()


@pytest.mark.parametrize("model", ["gpt-5", "openai/gpt-5"])
def test_the_cost_of_a_known_model_is_marked_as_estimated(model: str) -> None:
    pytest.importorskip("genai_prices")
    usage = priced(TOKENS, model)
    assert usage.estimated
    assert usage.cost_usd is not None
    assert 0 < usage.cost_usd < 0.1
    assert usage.tokens == TOKENS.tokens


@pytest.mark.parametrize("model", ["", "no-such-model-of-anyone", "nobody/gpt-5"])
def test_an_unknown_model_has_no_price(model: str) -> None:
    usage = priced(Usage(input_tokens=1000, output_tokens=50, cost_usd=0.0), model)
    assert (usage.cost_usd, usage.estimated) == (None, False)


def test_there_is_no_price_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "genai_prices", None)
    assert priced(TOKENS, "gpt-5").cost_usd is None
