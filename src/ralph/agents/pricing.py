"""What did these tokens cost? An estimate from the optional library genai-prices, where it is installed."""

from msgspec.structs import replace

from ralph.core.model import Usage


def priced(usage: Usage, model: str) -> Usage:
    """`usage` with an estimated cost, where the agent stated none. A cost of nothing for some tokens is none stated."""
    if usage.cost_usd or not usage.tokens:
        return usage
    cost = _estimate(usage, model) if model else None
    return replace(usage, cost_usd=cost, estimated=cost is not None)


def _estimate(usage: Usage, model: str) -> float | None:
    try:
        from genai_prices import Usage as Tokens
        from genai_prices import calc_price
    except ImportError:
        return None
    provider, _, name = model.rpartition("/")
    tokens = Tokens(
        input_tokens=usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens,
        cache_read_tokens=usage.cache_read_tokens,
        cache_write_tokens=usage.cache_write_tokens,
        output_tokens=usage.output_tokens,
    )
    try:
        return float(calc_price(tokens, model_ref=name, provider_id=provider or None).total_price)
    except (LookupError, ValueError):
        return None
