"""The conversation with the model.

It only grows, so that the provider can cache its beginning. It is stored on disk, so that a session can be resumed.
When the context is nearly full, old tool output is shortened once; the next time, the agent writes a note for the next
turn.
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
HANDED_OVER = "The turn before this one ran out of context. It left this note on where the work stands:\n\n"


class Conversation:
    """The messages of a session. `context` is how many tokens the model can read."""

    def __init__(self, session: str, file: Path | None, context: int) -> None:
        self.session, self.context = session, context
        self.messages: list[ModelMessage] = []
        self.is_shortened = False
        self._file = file
        self._counted = 0  # tokens of the last request and its reply, by the server's count
        self._since = 0  # characters that were added after it
        self._asked: list[tuple[int, int]] = []  # per request: characters, and tokens by the server's count

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
        counted, size = reply.usage.input_tokens, _characters(self.messages)
        self._add(reply)
        if counted:
            self._asked.append((size, counted))
            self._counted, self._since = counted + reply.usage.output_tokens, 0

    def notice_cut(self) -> bool:
        """Return whether the server silently drops a part of the conversation, and set `context` to what it reads.

        That is so if the conversation grows, but the server's token count doesn't.
        """
        if len(self._asked) < 2:
            return False
        (size, before), (grown, now) = self._asked[-2:]
        highest = max(tokens for _, tokens in self._asked)
        is_stuck = grown - size > 2000 and now - before < (grown - size) // (_PER_TOKEN * 10)
        # Some servers count only tokens that weren't cached, so a low count says nothing.
        if not is_stuck or now < max(1000, highest // 2) or highest >= self.context:
            return False
        self.context = highest
        return True

    def shorten(self) -> None:
        """Shorten old tool output. This happens once per conversation."""
        self.is_shortened, before = True, _characters(self.messages)
        _shorten_old(self.messages)
        self._counted = max(self._counted - (before - _characters(self.messages)) // _PER_TOKEN, 0)
        self._write({"shortened": len(self.messages)})

    def hand_over(self, note: str) -> None:
        """Store that a resumed session continues from its first prompt and this note."""
        self._write({"handed_over": note})

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
        if "handed_over" in line:
            note = ModelRequest(parts=[UserPromptPart(content=HANDED_OVER + str(line["handed_over"]))])
            kept.messages, kept.is_shortened = [*kept.messages[:1], note], False
        elif "shortened" in line:
            _shorten_old(kept.messages)
            kept.is_shortened = True
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
    said = "interrupted: it may be half done"
    return [ToolReturnPart(call.tool_name, said, tool_call_id=call.tool_call_id) for call in calls]


def _shorten_old(messages: Sequence[ModelMessage]) -> None:
    """Shorten tool output in all but the last messages, always in the same way, so that the provider can cache it."""
    for message in messages[:-_RECENT]:
        for part in message.parts:
            if isinstance(part, ToolReturnPart) and isinstance(part.content, str) and len(part.content) > 2 * _SHORT:
                part.content = f"{part.content[:_SHORT]}\n[… shortened …]"


def take_note(home: Path, run: str) -> str:
    """Return and remove the note that the previous turn of this run left; "" if there is none."""
    file = home / "notes" / f"{run}.md"
    with suppress(OSError):
        note = file.read_text("utf-8", "replace")
        file.unlink()
        return note
    return ""


def leave_note(home: Path, run: str, note: str) -> None:
    """Leave a note for the next turn of this run, which starts with an empty context."""
    with suppress(OSError):
        (home / "notes").mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(home / "notes" / f"{run}.md", "w", encoding="utf-8", errors="replace", opener=_private) as file:
            file.write(note)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)
