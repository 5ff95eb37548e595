"""Read what the agent said, did and spent from the end of its host's transcript.

A transcript is a file of JSON lines, in a different format for each host; the type of a line tells the format. Only the
agent's own words count, not those of sub-agents, tools and the user.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, Literal

from msgspec import Struct

from ralph.agents import wire
from ralph.core.model import Turn, Usage
from ralph.files import open_given
from ralph.hooks import loops
from ralph.hooks.loops import Loop, parse_object

TranscriptRow = dict[str, Any]

MAX_LINE = 2 << 20  # bytes; a longer line is a tool's output
WRITE_TIMEOUT = 1.5  # seconds to wait for what the host has not written yet
POLL_INTERVAL = 0.005  # seconds
MAX_CLAIMS = 20  # messages of one turn


class TranscriptEntry(Struct, frozen=True, kw_only=True):
    """The content of one line. Several lines may belong to the same `message`; if one `replaces` those before it, it
    repeats their text and tool calls. The usage of a message is always that of its latest line."""

    speaker: Literal["agent", "user", ""] = ""
    message: str = ""
    text: str = ""
    calls: int = 0
    replaces: bool = False
    usage: Usage | None = None


class Transcript:
    """The content of a transcript after its first `size` bytes.

    `claims` are the agent's latest messages that contain `marker`.
    """

    def __init__(self, path: str, size: int = 0, marker: str = "") -> None:
        self.path, self.size = path, size
        self.claims = deque[str](maxlen=MAX_CLAIMS)
        self._marker = marker
        self._texts, self._message = list[str](), ""  # of the last message
        self._calls: dict[str, int] = {}
        self._usage: dict[str, Usage] = {}
        self._has_agent = False

    def read(self) -> None:
        """Read what was added since the last call; nothing if the file can't be read."""
        try:
            file = open(open_given(self.path), "rb")  # noqa: SIM115 - closed below
        except (OSError, ValueError):
            return
        with file:
            file.seek(self.size)
            for line in complete_lines(file):
                if entry := read_entry(line):
                    self._add(entry)
                self.size = file.tell()

    def read_until(self, condition: Callable[[], bool]) -> None:
        """Read until the condition holds, for WRITE_TIMEOUT seconds at most."""
        deadline = time.monotonic() + WRITE_TIMEOUT
        self.read()
        while not condition() and time.monotonic() < deadline:
            time.sleep(POLL_INTERVAL)
            self.read()

    def contains(self, text: str) -> bool:
        """Whether the agent's last message equals this text, contains it, or is a part of it."""
        written = self.text.strip()
        return bool(written) and (written in text or text.strip() in written)

    def _add(self, entry: TranscriptEntry) -> None:
        key = entry.message or f"line {self.size}"
        if entry.usage:
            self._usage[key] = entry.usage
        if entry.speaker == "user":
            self._texts, self._message = [], ""
        if entry.speaker != "agent":
            return
        self._has_agent = True
        self._calls[key] = entry.calls + (0 if entry.replaces else self._calls.get(key, 0))
        if entry.text:
            if self._message != key or entry.replaces:
                self._texts, self._message = [], key
            self._texts.append(entry.text)
            if self._marker in entry.text:
                self.claims.append(entry.text)

    @property
    def text(self) -> str:
        """The agent's last message; empty if it has not answered the latest prompt yet."""
        return "\n".join(self._texts)

    @property
    def calls(self) -> int | None:
        """How many tools the agent has called; None if the transcript has no line of an agent."""
        return sum(self._calls.values()) if self._has_agent else None

    @property
    def usage(self) -> Usage:
        """The tokens of all messages."""
        total = Usage()
        for usage in self._usage.values():
            total = total.plus(usage)
        return total


def complete_lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a file except those over MAX_LINE bytes, and the last line if it is still being written."""
    while line := file.readline(MAX_LINE):
        if line.endswith(b"\n") or (len(line) < MAX_LINE and read_entry(line)):
            yield line
        elif len(line) < MAX_LINE:
            return
        else:
            while line and not line.endswith(b"\n"):
                line = file.readline(MAX_LINE)


def host_turn(loop: Loop, event: loops.HookEvent, marker: str) -> tuple[Turn, Transcript]:
    """Return the turn that the host's agent has just taken, and the transcript that records it."""
    path = wire.text(event, "transcript_path") or loop.transcript
    is_known = loop.transcript in ("", path) and loop.offset <= _size(path)
    transcript = Transcript(path, loop.offset if is_known else 0, marker)
    text = wire.text(event, "last_assistant_message")
    if text and marker in text and _size(path):
        # The host may not have written the work behind this claim yet.
        transcript.read_until(lambda: transcript.contains(text))
    else:
        transcript.read()
    text = text or transcript.text
    if not text and not event.get("stop_hook_active"):
        # All texts since the prompt, joined: only useful while they can't contain a claim that was refused before.
        text = wire.text(event, "prompt_response")
    # Without a known offset the messages may be older than the loop.
    claims = transcript.claims if path == loop.transcript else ()
    turn = Turn(
        text=text,
        earlier=tuple(claim for claim in claims if claim.strip() not in text),
        tool_calls=transcript.calls,
        usage=transcript.usage,
        session=loop.session,
        ended_at=time.time(),
        agent=loop.agent,
    )
    return turn, transcript


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size if path else 0
    except (OSError, ValueError):
        return 0


def read_entry(line: bytes) -> TranscriptEntry | None:
    """Return the content of a line; None if its type is unknown, or if it is malformed."""
    try:
        row = parse_object(line)
        reader = _READERS.get(row.get("type", "") or row.get("role", ""))
        return reader(row) if reader else None
    except (ValueError, TypeError, AttributeError, KeyError):
        return None


def _claude(row: TranscriptRow) -> TranscriptEntry | None:
    """Read a line of Claude Code. Several lines may belong to one message."""
    message = row.get("message", row)
    content = message.get("content") or []
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if (row.get("type") or row.get("role")) != "assistant":
        is_result = any(part.get("type") == "tool_result" for part in parts)
        return None if is_result or row.get("isSidechain") else TranscriptEntry(speaker="user")
    names = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    return TranscriptEntry(
        speaker="" if row.get("isSidechain") else "agent",
        message=message.get("id") or row.get("uuid") or "",
        text=_join_text(parts),
        calls=sum(part.get("type") == "tool_use" for part in parts),
        usage=wire.usage(message["usage"], names) if message.get("usage") else None,
    )


def _gemini(row: TranscriptRow) -> TranscriptEntry:
    content, usage = row.get("content") or "", None
    if tokens := row.get("tokens"):
        usage = wire.usage(tokens, ("input", "output", "cached"), whole_input=True)
        usage = usage.plus(wire.usage(tokens, ("", "thoughts")))
    return TranscriptEntry(
        speaker="agent",
        message=row.get("id") or "",
        text=content if isinstance(content, str) else _join_text(content),
        calls=len(row.get("toolCalls") or ()),
        replaces=True,
        usage=usage,
    )


def _codex(row: TranscriptRow) -> TranscriptEntry | None:
    item = row["payload"]
    if item["type"] != "message":
        return TranscriptEntry(speaker="agent", calls=1) if item["type"].endswith("_call") else None
    if item["role"] not in ("assistant", "user"):
        return None
    return TranscriptEntry(speaker="agent" if item["role"] == "assistant" else "user", text=_join_text(item["content"]))


def _codex_usage(row: TranscriptRow) -> TranscriptEntry | None:
    if row["payload"]["type"] != "token_count" or not row["payload"].get("info"):
        return None
    names = ("input_tokens", "output_tokens", "cached_input_tokens")
    return TranscriptEntry(usage=wire.usage(row["payload"]["info"]["last_token_usage"], names, whole_input=True))


def _join_text(parts: list[TranscriptRow]) -> str:
    return "\n".join(part["text"] for part in parts if part.get("text") and not part.get("thought"))


_READERS: dict[str, Callable[[TranscriptRow], TranscriptEntry | None]] = {
    "assistant": _claude,
    "user": _claude,
    "gemini": _gemini,
    "response_item": _codex,
    "event_msg": _codex_usage,
}
