"""What has the agent said and done lately? Reads a host's transcript from its end, however long the whole of it is.

A transcript is a file of JSON lines, and every host has its own: the shape of a line tells whose it is. What
sub-agents, tools and people say in it is never taken for the agent's own words.
"""

import os
import time

from ralph.core.promise import promised
from ralph.hooks.loops import Loop
from ralph.hooks.notation import table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    Row = dict[str, Any]
    from typing import Any

    Event = dict[str, Any]


FIRST_BLOCK, LARGEST_BLOCK = 1 << 16, 1 << 18
PATIENCE = 3.0  # seconds
LONGEST_LINE = 2 << 20  # what is longer is a tool's output, and not worth the memory

# What a line must hold before it is worth parsing.
AGENT = (b'"assistant"', b'"gemini"', b'"response_item"', b'"assistant.message"')
CALL = (b'"tool_use"', b'"functionCall"', b'"toolCalls"', b'"toolRequests"', b'_call"')
PERSON = (b'"user"', b'"user.message"', b'"response_item"')


class Said:
    """What one line holds: who speaks, in which message, the words, how many tools are called, and whether the message
    may be written again, whole, in a later line."""

    def __init__(
        self, by_agent: bool, message: str = "", text: str = "", calls: int = 0, rewritten: bool = False
    ) -> None:
        self.by_agent, self.message, self.text, self.calls = by_agent, message, text, calls
        self.rewritten = rewritten


def has_caught_up(path: str, mark: bytes, patience: float = PATIENCE) -> bool:
    """Waits until the last lines hold `mark`: some hosts ask first, and write down what was said a moment later."""
    return _comes_true(lambda: any(mark in line for line in _newest(path, 20)), patience)


def has_heard(path: str, text: str, since: int, patience: float = PATIENCE / 2) -> bool:
    """Waits until the agent's last message is the one that the host speaks of, or a part of it."""
    wanted = text.strip()

    def is_written() -> bool:
        last = last_text(path, since).strip()
        return bool(last) and (last in wanted or wanted in last)

    return _comes_true(is_written, patience)


def _comes_true(condition: "Callable[[], bool]", patience: float) -> bool:
    deadline = time.monotonic() + patience
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def _newest(path: str, count: int) -> "Iterator[bytes]":
    for _, line in zip(range(count), newest_first(path), strict=False):
        yield line


def last_text(path: str, since: int = 0) -> str:
    """The agent's last message after `since` bytes; empty if it has said nothing since it was last spoken to."""
    text, message = "", ""
    for line in newest_first(path, since):
        said = _said(line) if _holds(line, AGENT) or _holds(line, PERSON) else None
        if said is None:
            continue
        if not said.by_agent or (text and said.message != message):
            break
        if said.text:
            text, message = said.text + ("\n" + text if text else ""), said.message
            if not message:
                break
    return text


def tool_calls(path: str, since: int = 0, enough: int = 1 << 62) -> int | None:
    """How many tools the agent has called after `since` bytes, counted up to `enough`; None if nobody can tell."""
    count, speaks = 0, False
    seen: set[str] = set()
    for line in newest_first(path, since):
        speaks = speaks or _holds(line, AGENT)
        said = _said(line) if _holds(line, CALL) else None
        if said is None or not said.by_agent or (said.rewritten and said.message in seen):
            continue
        seen.add(said.message)
        count += said.calls
        if count >= enough:
            return count
    return count if speaks else None


def newest_first(path: str, since: int = 0) -> "Iterator[bytes]":
    """The lines after `since` bytes, the last one first, in bounded memory. A file that cannot be read has none."""
    try:
        file = open(path, "rb", buffering=0)  # noqa: SIM115 - closed below; a missing file is no error
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


def _said(line: bytes) -> Said | None:
    """What the line holds, or None if it is nobody's words."""
    try:
        row = table(line)
        return _READERS.get(row.get("type", "") or row.get("role", ""), _nobody)(row)
    except (ValueError, TypeError, AttributeError, KeyError):
        return None


def _nobody(row: "Row") -> None:
    return None


def _claude_or_qwen(row: "Row") -> Said | None:
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
    return Said(by_agent, message.get("id") or "", _joined(parts), calls)


def _gemini(row: "Row") -> Said:
    content = row.get("content") or ""
    text = content if isinstance(content, str) else _joined(content)
    return Said(True, row.get("id") or "", text, len(row.get("toolCalls") or ()), rewritten=True)


def _codex(row: "Row") -> Said | None:
    item = row["payload"]
    if item["type"] != "message":
        return Said(True, calls=1) if item["type"].endswith("_call") else None
    if item["role"] not in ("assistant", "user"):
        return None
    return Said(item["role"] == "assistant", "", _joined(item["content"]))


def _copilot(row: "Row") -> Said | None:
    data = row["data"]
    if data.get("parentToolCallId"):
        return None
    return Said(True, "", data.get("content") or "", len(data.get("toolRequests") or ()))


def _copilot_person(row: "Row") -> Said:
    return Said(False)


def _joined(parts: "list[Row]") -> str:
    return "\n".join(part["text"] for part in parts if part.get("text") and not part.get("thought"))


_READERS = {
    "assistant": _claude_or_qwen,
    "user": _claude_or_qwen,
    "gemini": _gemini,
    "response_item": _codex,
    "assistant.message": _copilot,
    "user.message": _copilot_person,
}


class HostTurn:
    """One turn, as far as a promise needs to know it. `path` is the transcript, `size` its length now, `since` how much
    of it was there before. Tools are counted only where a claim must be backed by them: `fresh` are those since."""

    def __init__(self, loop: Loop, event: "Event") -> None:
        facts = loop.facts
        self.path = _text(event.get("transcript_path")) or _text(event.get("transcriptPath")) or facts["transcript"]
        self.size = _size(self.path)
        is_known = facts["transcript"] in ("", self.path) and facts["offset"] <= self.size
        self.since: int = facts["offset"] if is_known else 0
        self.model = _text(event.get("model"))
        self.text = self._last_text(event)
        seen = promised(facts["promise"], self.text, facts["anywhere"])
        self.words, self.doubt = seen or ("", "")
        self.is_claim = seen is not None and (not self.doubt or facts["gated"])
        self.needed: int = facts["min_tool_calls"] if facts["on_promise_no_work"] != "accept" else 0
        self.before: int = facts["tool_calls"]
        self.fresh = self._count() if self.is_claim and self.needed else None
        if self.is_claim and self.is_idle and event.get("last_assistant_message"):
            self._count_again()

    @property
    def is_unclear(self) -> bool:
        """Whether a claim needs work behind it, and only the workspace can tell whether there was any."""
        return self.is_claim and self.needed > self.before and self.fresh is None

    @property
    def tool_calls(self) -> int:
        """Since the loop began; counted up to what is needed."""
        return self.before + (self.fresh or 0)

    @property
    def is_idle(self) -> bool:
        return self.tool_calls < self.needed

    def _count(self) -> int | None:
        return tool_calls(self.path, self.since, max(self.needed - self.before, 1)) if self.path else None

    def _count_again(self) -> None:
        """The host's word comes before the transcript does: what it has not written down yet may be the work."""
        if self.size and has_heard(self.path, self.text, self.since):
            self.size, self.fresh = _size(self.path), self._count()

    def _last_text(self, event: "Event") -> str:
        """The host's own word for the last message, if it has one: it is there before the transcript is."""
        text = _text(event.get("last_assistant_message"))
        if not text and self.path:
            asked = event.get("timestamp")
            if "stopReason" in event and isinstance(asked, int):
                has_caught_up(self.path, b'"timestamp":%d' % asked)
            text = last_text(self.path, self.since)
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
