"""The conversation with the model.

It only grows, so that the provider can cache its beginning; only when the context is nearly full, old tool output is
shortened. It is stored on disk, so that a session can be resumed.
"""

import json
import os
import re
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from pydantic_ai import ModelMessage, ModelMessagesTypeAdapter, ModelRequest, ModelResponse
from pydantic_ai.messages import ToolCallPart, ToolReturnPart, UserPromptPart

from ralph.errors import UNREADABLE, UserError

FULL = 0.8  # of the context
_PER_TOKEN = 4  # characters, if the server counts no tokens
_KEPT_DAYS = 30
_RECENT = 4  # the last messages, whose tool output is not shortened
_SHORT = 400  # characters kept of older tool output
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}\Z")


class Conversation:
    """The messages of a session. `context` is how many tokens the model can read."""

    def __init__(self, session: str, file: Path | None, context: int) -> None:
        self.session, self.context = session, context
        self.messages: list[ModelMessage] = []
        self._file = file
        self._counted = 0  # tokens of the last request and its reply, by the server's count
        self._since = 0  # characters that were added after it

    @property
    def is_full(self) -> bool:
        """Whether the next request would probably be too long."""
        return self._counted + self._since // _PER_TOKEN >= FULL * self.context

    def add_prompt(self, text: str) -> None:
        self._add(ModelRequest(parts=[UserPromptPart(content=text)]))

    def add_results(self, results: Sequence[ToolReturnPart], aside: str = "") -> None:
        """Add the output of tools. `aside` is the output of calls that the model wrote as text."""
        self._add(ModelRequest(parts=[*results, *([UserPromptPart(content=aside)] if aside else [])]))

    def add_reply(self, reply: ModelResponse) -> None:
        self._add(reply)
        if counted := reply.usage.input_tokens:
            self._counted, self._since = counted + reply.usage.output_tokens, 0

    def shorten(self) -> bool:
        """Shorten old tool output; return whether there was any."""
        before = _characters(self.messages)
        _shorten_old(self.messages)
        saved = before - _characters(self.messages)
        self._counted = max(self._counted - saved // _PER_TOKEN, 0)
        self._write({"shortened": len(self.messages)})
        return saved > 0

    def clear(self) -> None:
        """Store that a resumed session starts with an empty conversation."""
        self._write({"cleared": len(self.messages)})

    def _add(self, message: ModelMessage) -> None:
        self.messages.append(message)
        self._since += _characters([message])
        self._write(ModelMessagesTypeAdapter.dump_python([message], mode="json")[0])

    def _write(self, line: dict[str, Any]) -> None:
        try:
            with open(self._file or os.devnull, "a", opener=_private) as file:
                file.write(json.dumps(line) + "\n")
        except OSError:
            self._file = None  # the turn continues without storing the session


def _characters(messages: Iterable[ModelMessage]) -> int:
    return sum(len(str(getattr(part, "content", ""))) for message in messages for part in message.parts)


def start_conversation(home: Path, context: int) -> Conversation:
    """Start a new session. If it can't be stored, it can't be resumed either."""
    session, folder = uuid4().hex, home / "sessions"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        oldest = time.time() - _KEPT_DAYS * 86400
        for old in folder.glob("*.jsonl"):
            if old.stat().st_mtime < oldest:
                old.unlink(missing_ok=True)
        open(file := folder / f"{session}.jsonl", "x", opener=_private).close()
    except OSError:
        return Conversation(session, None, context)
    return Conversation(session, file, context)


def resume_conversation(home: Path, session: str, context: int) -> Conversation:
    """Load a session, even if the agent was killed in the middle of a call."""
    file = home / "sessions" / f"{session}.jsonl"
    if not _NAME.match(session) or not file.is_file():
        raise UserError(f"no session found with the id {session!r}", "start a new one")
    kept = Conversation(session, file, context)
    for line in _lines(file):
        if "cleared" in line:
            kept.messages.clear()
        elif "shortened" in line:
            _shorten_old(kept.messages)
        else:
            kept.messages += ModelMessagesTypeAdapter.validate_python([line])
    if unanswered := _interrupted_results(kept.messages):
        kept.add_results(unanswered)
    kept._since = _characters(kept.messages)
    return kept


def _lines(file: Path) -> Iterable[dict[str, Any]]:
    """Yield the complete lines of a file; a kill may have cut off the last one."""
    for line in file.read_text("utf-8", "replace").split("\n")[:-1]:
        with suppress(*UNREADABLE):
            yield json.loads(line)


def _interrupted_results(messages: Sequence[ModelMessage]) -> list[ToolReturnPart]:
    """Return results for the calls that were running when the agent was killed."""
    last = messages[-1] if messages else None
    calls = [part for part in last.parts if isinstance(part, ToolCallPart)] if isinstance(last, ModelResponse) else []
    result = "interrupted: it may be half done"
    return [ToolReturnPart(call.tool_name, result, tool_call_id=call.tool_call_id) for call in calls]


def _shorten_old(messages: Sequence[ModelMessage]) -> None:
    """Shorten tool output in all but the last messages, always in the same way, so that the provider can cache it."""
    for message in messages[:-_RECENT]:
        for part in message.parts:
            if isinstance(part, ToolReturnPart) and isinstance(part.content, str) and len(part.content) > 2 * _SHORT:
                part.content = f"{part.content[:_SHORT]}\n[… shortened …]"


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)
