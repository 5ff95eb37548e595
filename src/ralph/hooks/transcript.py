"""Reads what the agent said, did and spent lately from the end of its host's transcript, however long that is.

A transcript is a file of JSON lines, in a different format for each host; the type of a line tells the format. Only the
agent's own words count, not those of sub-agents, tools and the user.
"""

import os
import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from msgspec import Struct

from ralph.agents import wire
from ralph.agents.reader import priced
from ralph.core.model import Turn, Usage
from ralph.files import open_given
from ralph.hooks import loops
from ralph.hooks.loops import Loop, parse_object

TranscriptRow = dict[str, Any]
UsageReport = tuple[str, str, Usage]  # the message (a later report on the same message replaces it), model, tokens

FIRST_BLOCK, LARGEST_BLOCK = 1 << 16, 1 << 18  # bytes
MAX_LINE = 2 << 20  # bytes; a longer line is a tool's output
WRITE_TIMEOUT = 3.0  # seconds to wait for what the host has not written yet
MAX_EARLIER = 20  # messages of one turn

# A line is only parsed if it contains one of these.
AGENT = (b'"assistant"', b'"gemini"', b'"response_item"', b'"assistant.message"')
CALL = (b'"tool_use"', b'"functionCall"', b'"toolCalls"', b'"toolRequests"', b'_call"')
USER = (b'"user"', b'"user.message"', b'"response_item"')
USAGE = (b'"usage"', b'"tokens"', b'"usageMetadata"', b'"token_count"')


class HostTurn(Struct, frozen=True):
    """The turn that a host's agent has just taken, and the transcript that records it, with its size by now."""

    turn: Turn
    path: str
    size: int


class TranscriptEntry(Struct, frozen=True):
    """The contents of a line: its text, the number of tool calls, and whether a later line may repeat the message."""

    by_agent: bool
    message: str = ""
    text: str = ""
    calls: int = 0
    rewritten: bool = False


def host_turn(loop: Loop, event: loops.HookEvent, marker: str, is_priced: bool) -> HostTurn:
    """Return the turn that the host and its transcript describe. If it contains a claim, wait a moment: the host may
    not have written the work behind it yet."""
    path = _text(event.get("transcript_path")) or _text(event.get("transcriptPath")) or loop.transcript
    size = _size(path)
    since = loop.offset if loop.transcript in ("", path) and loop.offset <= size else 0
    text = _last_message(path, since, event)
    if marker in text and size and event.get("last_assistant_message"):
        wait_for_text(path, text, since)
        size = _size(path)
    calls, usage = usage_since(path, since, _text(event.get("model")), is_priced)
    # Without a known offset the messages may be older than the loop.
    earlier = earlier_texts(path, since, marker, text) if path == loop.transcript else ()
    turn = Turn(
        text=text,
        earlier=earlier,
        tool_calls=calls,
        usage=usage,
        session=loop.session,
        ended_at=time.time(),
        agent=loop.agent,
    )
    return HostTurn(turn, path, size)


def _last_message(path: str, since: int, event: loops.HookEvent) -> str:
    """Return the agent's last message, from the event if it is there: the transcript is written later."""
    text = _text(event.get("last_assistant_message"))
    if not text and path:
        asked = event.get("timestamp")
        if "stopReason" in event and isinstance(asked, int):
            wait_for_mark(path, b'"timestamp":%d' % asked)
        text = last_text(path, since)
    if not text and not event.get("stop_hook_active"):
        # All texts since the prompt, joined: only useful while they can't contain a claim that was refused before.
        text = _text(event.get("prompt_response"))
    return text


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size if path else 0
    except (OSError, ValueError):
        return 0


def usage_since(path: str, since: int, model: str = "", is_priced: bool = False) -> tuple[int | None, Usage]:
    """Return the tool calls (None if unknown) and tokens after `since` bytes of a transcript, with the estimated cost
    if `is_priced`. `model` is used where the transcript doesn't name one."""
    if not path:
        return None, Usage()
    total, seen = Usage(), set[str]()
    for line in newest_first(path, since):
        report: UsageReport | None = _read(line, _REPORTERS) if _contains(line, USAGE) else None
        if report is None or report[0] in seen:
            continue
        message, named, usage = report
        total = total.plus(priced(usage, named or model) if is_priced else usage)
        if message:
            seen.add(message)
    return tool_calls(path, since), total


def wait_for_mark(path: str, mark: bytes, timeout: float = WRITE_TIMEOUT) -> bool:
    """Wait until one of the last lines contains `mark`: some hosts call the hook before they write the message."""
    return _wait_until(lambda: any(mark in line for line in islice(newest_first(path), 20)), timeout)


def wait_for_text(path: str, text: str, since: int) -> bool:
    """Wait until the agent's last message in the transcript is `text`, or a part of it."""
    wanted = text.strip()

    def is_written() -> bool:
        last = last_text(path, since).strip()
        return bool(last) and (last in wanted or wanted in last)

    return _wait_until(is_written, WRITE_TIMEOUT / 2)


def _wait_until(condition: Callable[[], bool], timeout: float) -> bool:
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def last_text(path: str, since: int = 0) -> str:
    """Return the agent's last message after `since` bytes; empty if it has not answered the latest prompt yet."""
    texts, message = list[str](), ""
    for line in newest_first(path, since):
        entry = _entry(line) if _contains(line, AGENT) or _contains(line, USER) else None
        if entry is None:
            continue
        if not entry.by_agent or (texts and entry.message != message):
            break
        if entry.text:
            texts.append(entry.text)
            message = entry.message
            if not message:
                break
    return "\n".join(reversed(texts))


def earlier_texts(path: str, since: int, marker: str, last: str) -> tuple[str, ...]:
    """Return the agent's messages after `since` bytes that contain the marker, except the `last` one, oldest first."""
    entries = (_entry(line) for line in newest_first(path, since) if _contains(line, AGENT))
    texts = (
        one.text for one in entries if one and one.by_agent and marker in one.text and one.text.strip() not in last
    )
    return tuple(reversed([*islice(texts, MAX_EARLIER)]))


def tool_calls(path: str, since: int = 0) -> int | None:
    """Return how many tools the agent has called after `since` bytes; None if it is unknown."""
    count, speaks = 0, False
    seen: set[str] = set()
    for line in newest_first(path, since):
        speaks = speaks or _contains(line, AGENT)
        entry = _entry(line) if _contains(line, CALL) else None
        if entry is None or not entry.by_agent or (entry.rewritten and entry.message in seen):
            continue
        seen.add(entry.message)
        count += entry.calls
    return count if speaks else None


def newest_first(path: str, since: int = 0) -> Iterator[bytes]:
    """Yield the lines after `since` bytes, the last one first, in bounded memory; none if the file can't be read."""
    try:
        file = open(open_given(path), "rb", buffering=0)  # noqa: SIM115 - closed below
    except (OSError, ValueError):
        return
    with file:
        end, rest, size, skipping = file.seek(0, os.SEEK_END), b"", FIRST_BLOCK, False
        while end > since:
            start = max(since, end - size)
            file.seek(start)
            block = (file.read(end - start) or b"") + rest
            end, size = start, min(size * 4, LARGEST_BLOCK)
            rest, *lines = block.split(b"\n")
            if skipping and lines:
                lines.pop()
                skipping = False
            yield from reversed(lines)
            if skipping or len(rest) > MAX_LINE:
                rest, skipping = b"", True
        if not skipping:
            yield rest


def _contains(line: bytes, marks: tuple[bytes, ...]) -> bool:
    return any(mark in line for mark in marks)


def _entry(line: bytes) -> TranscriptEntry | None:
    entry: TranscriptEntry | None = _read(line, _READERS)
    return entry


def _read(line: bytes, readers: dict[str, Callable[[TranscriptRow], Any]]) -> Any:
    """Return what the reader for this type of line returns; None if there is no reader, or the line is malformed."""
    try:
        row = parse_object(line)
        reader = readers.get(row.get("type", "") or row.get("role", ""))
        return reader(row) if reader else None
    except (ValueError, TypeError, AttributeError, KeyError):
        return None


def _claude_or_qwen(row: TranscriptRow) -> TranscriptEntry | None:
    """Both have the types `assistant` and `user`; the parts of a message differ."""
    if row.get("isSidechain"):
        return None
    message = row.get("message", row)
    content = message.get("content") or message.get("parts") or []
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    by_agent = (row.get("type") or row.get("role")) == "assistant"
    if not by_agent and any(part.get("type") == "tool_result" or "functionResponse" in part for part in parts):
        return None
    calls = sum(part.get("type") == "tool_use" or "functionCall" in part for part in parts)
    return TranscriptEntry(by_agent, message.get("id") or "", _join_text(parts), calls)


def _gemini(row: TranscriptRow) -> TranscriptEntry:
    content = row.get("content") or ""
    text = content if isinstance(content, str) else _join_text(content)
    return TranscriptEntry(True, row.get("id") or "", text, len(row.get("toolCalls") or ()), rewritten=True)


def _codex(row: TranscriptRow) -> TranscriptEntry | None:
    item = row["payload"]
    if item["type"] != "message":
        return TranscriptEntry(True, calls=1) if item["type"].endswith("_call") else None
    if item["role"] not in ("assistant", "user"):
        return None
    return TranscriptEntry(item["role"] == "assistant", "", _join_text(item["content"]))


def _copilot(row: TranscriptRow) -> TranscriptEntry | None:
    data = row["data"]
    if data.get("parentToolCallId"):
        return None
    return TranscriptEntry(True, "", data.get("content") or "", len(data.get("toolRequests") or ()))


def _join_text(parts: list[TranscriptRow]) -> str:
    return "\n".join(part["text"] for part in parts if part.get("text") and not part.get("thought"))


_READERS: dict[str, Callable[[TranscriptRow], TranscriptEntry | None]] = {
    "assistant": _claude_or_qwen,
    "user": _claude_or_qwen,
    "gemini": _gemini,
    "response_item": _codex,
    "assistant.message": _copilot,
    "user.message": lambda row: TranscriptEntry(False),
}


def _claude_or_qwen_usage(row: TranscriptRow) -> UsageReport | None:
    message = row["message"]
    if "usageMetadata" in row:
        names = ("promptTokenCount", "candidatesTokenCount", "cachedContentTokenCount")
        return row.get("uuid", ""), row.get("model", ""), wire.usage(row["usageMetadata"], names, whole_input=True)
    if not message.get("usage"):
        return None
    known = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    return message.get("id", ""), message.get("model", ""), wire.usage(message["usage"], known)


def _gemini_usage(row: TranscriptRow) -> UsageReport:
    used = wire.usage(row["tokens"], ("input", "output", "cached"), whole_input=True)
    thought = wire.usage(row["tokens"], ("", "thoughts"))
    return row["id"], row.get("model", ""), used.plus(thought)


def _codex_usage(row: TranscriptRow) -> UsageReport | None:
    if row["payload"]["type"] != "token_count" or not row["payload"].get("info"):
        return None
    names = ("input_tokens", "output_tokens", "cached_input_tokens")
    return "", "", wire.usage(row["payload"]["info"]["last_token_usage"], names, whole_input=True)


def _copilot_usage(row: TranscriptRow) -> UsageReport:
    used = row["data"]["usage"]
    names = ("inputTokens", "outputTokens", "cacheReadTokens", "cacheWriteTokens")
    return "", used.get("model", ""), wire.usage(used, names)


_REPORTERS: dict[str, Callable[[TranscriptRow], UsageReport | None]] = {
    "assistant": _claude_or_qwen_usage,
    "gemini": _gemini_usage,
    "event_msg": _codex_usage,
    "session.usage_record": _copilot_usage,
}
