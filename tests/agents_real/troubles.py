"""Errors of a provider, each in the form that the agent knows and soon gives up on."""

from datetime import UTC, datetime

from script import Fail

SOON = {"retry-after-ms": "10", "retry-after": "0.01"}  # what most agents obey before they try again


def no_login() -> Fail:
    return Fail(401, "invalid x-api-key")


def overloaded(agent: str) -> Fail:
    """Qwen obeys `retry-after` with 503 only; with 529 it would take minutes to give up."""
    return Fail(503 if agent == "qwen" else 529, "Overloaded", headers=SOON)


def limited(agent: str, until: float) -> Fail:
    """Return a usage limit that ends at `until`, if the agent's protocol can state the time."""
    match agent:
        case "claude":
            return Fail(429, "This request would exceed your account's rate limit.", headers=_unified(until))
        case "codex":
            fields = {"plan_type": "plus", "resets_at": int(until)}
            return Fail(429, "The usage limit has been reached", "usage_limit_reached", fields=fields)
        case "gemini":
            seconds = max(301, int(until - datetime.now(UTC).timestamp()))  # up to five minutes it waits by itself
            details = [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": f"{seconds}s"}]
            return Fail(429, "You exceeded your current quota.", fields={"details": details})
        case "qwen":
            moment = datetime.fromtimestamp(until, UTC).strftime("%Y-%m-%d %H:%M:%S")
            return Fail(429, f"Your hourly quota has been exceeded. It will reset at {moment} UTC.")
        case "builtin":
            return Fail(
                429, "Rate limit reached.", headers={"retry-after": str(int(until - datetime.now(UTC).timestamp()))}
            )
    return Fail(429, "Rate limit reached. Please try again later.", headers=SOON)


def _unified(until: float) -> dict[str, str]:
    """Return the headers of a subscription's limit."""
    reset = str(int(until))
    return {
        "anthropic-ratelimit-unified-status": "rejected",
        "anthropic-ratelimit-unified-reset": reset,
        "anthropic-ratelimit-unified-representative-claim": "five_hour",
        "anthropic-ratelimit-unified-5h-status": "rejected",
        "anthropic-ratelimit-unified-5h-reset": reset,
        "anthropic-ratelimit-unified-5h-utilization": "1.0",
    }
