"""What has the agent said, done and spent lately? Read from the end of its host's transcript, however long that is.

A transcript is a file of JSON lines, and every host has its own: the shape of a line tells whose it is. What
sub-agents, tools and people say in it is never taken for the agent's own words.
"""

import os
import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from msgspec import Struct

from ralph.core.model import Turn, Usage
from ralph.files import open_given
from ralph.hooks import loops
from ralph.hooks.loops import Loop, table

TranscriptRow = dict[str, Any]
UsageReport = tuple[str, str, Usage]  # the message (a later report on the same one replaces it), its model, tokens


FIRST_BLOCK, LARGEST_BLOCK = 1 << 16, 1 << 18
PATIENCE = 3.0  # seconds
LONGEST_LINE = 2 << 20  # what is longer is a tool's output, and not worth the memory

# What a line must hold before it is worth parsing.
AGENT = (b'"assistant"', b'"gemini"', b'"response_item"', b'"assistant.message"')
CALL = (b'"tool_use"', b'"functionCall"', b'"toolCalls"', b'"toolRequests"', b'_call"')
PERSON = (b'"user"', b'"user.message"', b'"response_item"')
SPENT = (b'"usage"', b'"tokens"', b'"usageMetadata"', b'"token_count"')


class HostTurn(Struct, frozen=True):
    """The turn that a host's agent has just taken, the transcript that tells of it, and how long that is by now."""

    turn: Turn
    path: str
    size: int


def turn_of(loop: Loop, event: "loops.Event", marker: str, is_priced: bool) -> HostTurn:
    """What the host and its transcript say of the turn. A claim is worth a moment: what the host has not written down
    yet may be the work behind it."""
    path = _text(event.get("transcript_path")) or _text(event.get("transcriptPath")) or loop.transcript
    size = _size(path)
    since = loop.offset if loop.transcript in ("", path) and loop.offset <= size else 0
    text = _last_words(path, since, event)
    if marker in text and size and event.get("last_assistant_message"):
        wait_for_text(path, text, since)
        size = _size(path)
    calls, spent = usage_since(path, since, _text(event.get("model")), is_priced)
    told = Turn(text=text, tool_calls=calls, usage=spent, session=loop.session, ended_at=time.time(), agent=loop.agent)
    return HostTurn(told, path, size)


def _last_words(path: str, since: int, event: "loops.Event") -> str:
    """The host's own word for the last message, if it has one: it is there before the transcript is."""
    text = _text(event.get("last_assistant_message"))
    if not text and path:
        asked = event.get("timestamp")
        if "stopReason" in event and isinstance(asked, int):
            wait_for_mark(path, b'"timestamp":%d' % asked)
        text = last_text(path, since)
    if not text and not event.get("stop_hook_active"):
        # All texts since the prompt, joined: of use only while they cannot hold a claim that was refused before.
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
    """The tool calls (None if nobody can tell) and the tokens after `since` bytes of a transcript. `model` is the one
    at work where the transcript does not name it; what it costs is estimated where somebody wants to know."""
    if not path:
        return None, Usage()
    total, seen = Usage(), set[str]()
    for line in newest_first(path, since):  # of two reports on one message the later one counts
        report: UsageReport | None = _read(line, _REPORTERS) if _holds(line, SPENT) else None
        if report is None or report[0] in seen:
            continue
        message, named, spent = report
        if is_priced:
            from ralph.agents.reader import priced  # late: the table of prices takes longer than all the rest

            spent = priced(spent, named or model)
        total = total.plus(spent)
        if message:
            seen.add(message)
    return tool_calls(path, since), total


class TranscriptEntry(Struct, frozen=True):
    """What one line holds: who speaks, in which message, the words, how many tools are called, and whether the message
    may be written again, whole, in a later line."""

    by_agent: bool
    message: str = ""
    text: str = ""
    calls: int = 0
    rewritten: bool = False


def wait_for_mark(path: str, mark: bytes, patience: float = PATIENCE) -> bool:
    """Waits until the last lines hold `mark`: some hosts ask first, and write down what was said a moment later."""
    return _comes_true(lambda: any(mark in line for line in islice(newest_first(path), 20)), patience)


def wait_for_text(path: str, text: str, since: int) -> bool:
    """Waits until the agent's last message is the one that the host speaks of, or a part of it."""
    wanted = text.strip()

    def is_written() -> bool:
        last = last_text(path, since).strip()
        return bool(last) and (last in wanted or wanted in last)

    return _comes_true(is_written, PATIENCE / 2)


def _comes_true(condition: Callable[[], bool], patience: float) -> bool:
    deadline = time.monotonic() + patience
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def last_text(path: str, since: int = 0) -> str:
    """The agent's last message after `since` bytes; empty if it has said nothing since it was last spoken to."""
    texts, message = list[str](), ""
    for line in newest_first(path, since):
        said = _said(line) if _holds(line, AGENT) or _holds(line, PERSON) else None
        if said is None:
            continue
        if not said.by_agent or (texts and said.message != message):
            break
        if said.text:
            texts.append(said.text)
            message = said.message
            if not message:
                break
    return "\n".join(reversed(texts))


def tool_calls(path: str, since: int = 0) -> int | None:
    """How many tools the agent has called after `since` bytes; None if nobody can tell."""
    count, speaks = 0, False
    seen: set[str] = set()
    for line in newest_first(path, since):
        speaks = speaks or _holds(line, AGENT)
        said = _said(line) if _holds(line, CALL) else None
        if said is None or not said.by_agent or (said.rewritten and said.message in seen):
            continue
        seen.add(said.message)
        count += said.calls
    return count if speaks else None


def newest_first(path: str, since: int = 0) -> Iterator[bytes]:
    """The lines after `since` bytes, the last one first, in bounded memory. A file that cannot be read has none."""
    try:
        file = open(open_given(path), "rb", buffering=0)  # noqa: SIM115 - closed below; a missing file is no error
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
            if skipping or len(rest) > LONGEST_LINE:
                rest, skipping = b"", True
        if not skipping:
            yield rest


def _holds(line: bytes, marks: tuple[bytes, ...]) -> bool:
    return any(mark in line for mark in marks)


def _said(line: bytes) -> TranscriptEntry | None:
    """What the line holds, or None if it is nobody's words."""
    said: TranscriptEntry | None = _read(line, _READERS)
    return said


def _read(line: bytes, readers: dict[str, Callable[[TranscriptRow], Any]]) -> Any:
    """What the reader for this kind of line makes of it; None where there is none, or it makes no sense."""
    try:
        row = table(line)
        reader = readers.get(row.get("type", "") or row.get("role", ""))
        return reader(row) if reader else None
    except (ValueError, TypeError, AttributeError, KeyError):
        return None


def _claude_or_qwen(row: TranscriptRow) -> TranscriptEntry | None:
    """Both speak of `assistant` and `user`; the parts of a message differ."""
    if row.get("isSidechain"):
        return None
    message = row.get("message", row)
    content = message.get("content") or message.get("parts") or []
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    by_agent = (row.get("type") or row.get("role")) == "assistant"
    if not by_agent and any(part.get("type") == "tool_result" or "functionResponse" in part for part in parts):
        return None
    calls = sum(part.get("type") == "tool_use" or "functionCall" in part for part in parts)
    return TranscriptEntry(by_agent, message.get("id") or "", _joined(parts), calls)


def _gemini(row: TranscriptRow) -> TranscriptEntry:
    content = row.get("content") or ""
    text = content if isinstance(content, str) else _joined(content)
    return TranscriptEntry(True, row.get("id") or "", text, len(row.get("toolCalls") or ()), rewritten=True)


def _codex(row: TranscriptRow) -> TranscriptEntry | None:
    item = row["payload"]
    if item["type"] != "message":
        return TranscriptEntry(True, calls=1) if item["type"].endswith("_call") else None
    if item["role"] not in ("assistant", "user"):
        return None
    return TranscriptEntry(item["role"] == "assistant", "", _joined(item["content"]))


def _copilot(row: TranscriptRow) -> TranscriptEntry | None:
    data = row["data"]
    if data.get("parentToolCallId"):
        return None
    return TranscriptEntry(True, "", data.get("content") or "", len(data.get("toolRequests") or ()))


def _joined(parts: list[TranscriptRow]) -> str:
    return "\n".join(part["text"] for part in parts if part.get("text") and not part.get("thought"))


_READERS: dict[str, Callable[[TranscriptRow], TranscriptEntry | None]] = {
    "assistant": _claude_or_qwen,
    "user": _claude_or_qwen,
    "gemini": _gemini,
    "response_item": _codex,
    "assistant.message": _copilot,
    "user.message": lambda row: TranscriptEntry(False),
}


def _usage(used: TranscriptRow, names: tuple[str, ...], *, whole_input: bool = False) -> Usage:
    from ralph.agents import wire  # late: not every transcript tells of tokens

    return wire.usage(used, names, whole_input=whole_input)


def _claude_or_qwen_usage(row: TranscriptRow) -> UsageReport | None:
    message = row["message"]
    if "usageMetadata" in row:
        names = ("promptTokenCount", "candidatesTokenCount", "cachedContentTokenCount")
        return row.get("uuid", ""), row.get("model", ""), _usage(row["usageMetadata"], names, whole_input=True)
    if not message.get("usage"):
        return None
    known = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    return message.get("id", ""), message.get("model", ""), _usage(message["usage"], known)


def _gemini_usage(row: TranscriptRow) -> UsageReport:
    used = _usage(row["tokens"], ("input", "output", "cached"), whole_input=True)
    thought = _usage(row["tokens"], ("", "thoughts"))
    return row["id"], row.get("model", ""), used.plus(thought)


def _codex_usage(row: TranscriptRow) -> UsageReport | None:
    if row["payload"]["type"] != "token_count" or not row["payload"].get("info"):
        return None
    names = ("input_tokens", "output_tokens", "cached_input_tokens")
    return "", "", _usage(row["payload"]["info"]["last_token_usage"], names, whole_input=True)


def _copilot_usage(row: TranscriptRow) -> UsageReport:
    used = row["data"]["usage"]
    names = ("inputTokens", "outputTokens", "cacheReadTokens", "cacheWriteTokens")
    return "", used.get("model", ""), _usage(used, names)


_REPORTERS: dict[str, Callable[[TranscriptRow], UsageReport | None]] = {
    "assistant": _claude_or_qwen_usage,
    "gemini": _gemini_usage,
    "event_msg": _codex_usage,
    "session.usage_record": _copilot_usage,
}
