"""What has a turn inside a session cost? The tokens that the host's transcript tells of, and an estimate of a price."""

from collections.abc import Callable, Iterator
from typing import Any

from ralph.agents.reader import priced
from ralph.core.model import Usage
from ralph.hooks.notation import table
from ralph.hooks.transcript import newest_first, tool_calls

Row = dict[str, Any]
Report = tuple[str, str, Usage]  # the message it is about (a later report on the same one replaces it), model, tokens

MARKS = (b'"usage"', b'"tokens"', b'"usageMetadata"', b'"token_count"')


def usage_since(path: str, since: int, model: str = "") -> tuple[int | None, Usage]:
    """The tool calls (None if nobody can tell) and the tokens after `since` bytes of a transcript. `model` is the one
    at work where the transcript does not name it."""
    if not path:
        return None, Usage()
    total, seen = Usage(), set[str]()
    for message, named, usage in _reports(path, since):
        if message not in seen:
            total = total.plus(priced(usage, named or model))
        if message:
            seen.add(message)
    return tool_calls(path, since), total


def _reports(path: str, since: int) -> Iterator[Report]:
    """Newest first: of two reports on one message the later one counts."""
    for line in newest_first(path, since):
        if not any(mark in line for mark in MARKS):
            continue
        try:
            row = table(line)
            report = READERS.get(row.get("type", ""), _nothing)(row)
        except (ValueError, TypeError, AttributeError, KeyError):
            continue
        if report:
            yield report


def _nothing(row: Row) -> None:
    return None


def _claude_or_qwen(row: Row) -> Report | None:
    message = row["message"]
    if "usageMetadata" in row:
        used = row["usageMetadata"]
        cached = used.get("cachedContentTokenCount") or 0
        fresh = (used.get("promptTokenCount") or 0) - cached
        return row.get("uuid", ""), row.get("model", ""), Usage(fresh, used.get("candidatesTokenCount") or 0, cached)
    used = message.get("usage")
    if not used:
        return None
    return (
        message.get("id", ""),
        message.get("model", ""),
        Usage(
            used.get("input_tokens") or 0,
            used.get("output_tokens") or 0,
            used.get("cache_read_input_tokens") or 0,
            used.get("cache_creation_input_tokens") or 0,
        ),
    )


def _gemini(row: Row) -> Report:
    used = row["tokens"]
    cached = used.get("cached") or 0
    output = (used.get("output") or 0) + (used.get("thoughts") or 0)
    return row["id"], row.get("model", ""), Usage((used.get("input") or 0) - cached, output, cached)


def _codex(row: Row) -> Report | None:
    if row["payload"]["type"] != "token_count" or not row["payload"].get("info"):
        return None
    used = row["payload"]["info"]["last_token_usage"]
    cached = used.get("cached_input_tokens") or 0
    return "", "", Usage((used.get("input_tokens") or 0) - cached, used.get("output_tokens") or 0, cached)


def _copilot(row: Row) -> Report:
    used = row["data"]["usage"]
    names = ("inputTokens", "outputTokens", "cacheReadTokens", "cacheWriteTokens")
    fresh, output, read, written = (int(used.get(name) or 0) for name in names)
    return "", used.get("model", ""), Usage(fresh, output, read, written)


READERS: dict[str, Callable[[Row], Report | None]] = {
    "assistant": _claude_or_qwen,
    "gemini": _gemini,
    "event_msg": _codex,
    "session.usage_record": _copilot,
}
