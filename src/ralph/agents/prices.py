"""Estimate what tokens cost, with the price table of the extra `prices`."""

from importlib.util import find_spec

from msgspec.structs import replace

from ralph.core.model import Usage
from ralph.errors import to_install


def priced(usage: Usage, model: str) -> Usage:
    """Return `usage` with an estimated cost, unless the agent reported one. A reported cost of 0 doesn't count if
    tokens were used."""
    if usage.cost_usd or not usage.tokens:
        return usage
    provider, _, name = model.rpartition("/")
    cost = estimate(usage, name, provider) if model else None
    return replace(usage, cost_usd=cost, estimated=cost is not None)


def price_hint() -> str:
    """Return the hint for an agent that reports tokens but no cost: how to have ralph estimate it."""
    return "name its model with --model" + ("" if find_spec("genai_prices") else f" and {to_install('prices')}")


def estimate(usage: Usage, model: str, provider: str = "") -> float | None:
    """Return the price of these tokens in dollars; None if it is unknown."""
    try:
        from genai_prices import Usage as Tokens
        from genai_prices import calc_price
    except ImportError:
        return None
    tokens = Tokens(
        input_tokens=usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens,
        cache_read_tokens=usage.cache_read_tokens,
        cache_write_tokens=usage.cache_write_tokens,
        output_tokens=usage.output_tokens,
    )
    try:
        return float(calc_price(tokens, model_ref=model, provider_id=provider or None).total_price)
    except (LookupError, ValueError):
        return None
