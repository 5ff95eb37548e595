"""How does an event become a line? Numbered, dated, without keys, and no more of them than a person would read."""

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from ralph.core import events
from ralph.core.secrets import Redactor

Sink = Callable[[bytes], None]
TEXT_LIMIT = 65536
TALK = (events.AgentText, events.ToolStarted, events.ToolFinished, events.TodoUpdated, events.AgentProgress)


class Scribe:
    """Encodes each event once, and gives the line to every sink. What looks like a key, or is known to be one, reaches
    nobody; and of what an agent says in one turn, `most` bytes are written: it may talk without end."""

    def __init__(
        self, run_id: str, sinks: Sequence[Sink], seq: int = 0, redact: Redactor | None = None, most: int = 32 << 20
    ) -> None:
        self._run = run_id
        self._sinks = sinks
        self._seq = seq
        self._redact = redact or Redactor()
        self._most = self._room = most
        self._left_out = 0
        self._encode = msgspec.json.Encoder().encode

    def __call__(self, event: events.Event) -> events.Event:
        """The event as it was, or would have been, written down."""
        name = events.NAMES.get(type(event))
        if name is None:
            return event
        if isinstance(event, events.AgentFinished):
            self._end_turn()
        stamp = datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        told = events.Told(name, stamp, self._run, self._seq + 1, bounded(event))
        line = self._line(told)
        if line is None:
            told = msgspec.structs.replace(told, data=_changed(told.data, self._writable))
            line = self._encode(told)
        if not isinstance(event, TALK) or self._has_room_for(line):
            self._seq += 1
            for sink in self._sinks:
                sink(line + b"\n")
        return told.data

    def _has_room_for(self, line: bytes) -> bool:
        self._room -= len(line)
        self._left_out += self._room < 0
        return self._room >= 0

    def _end_turn(self) -> None:
        left_out, self._left_out, self._room = self._left_out, 0, self._most
        if left_out:
            self(events.Notice(f"{left_out} events of this turn are left out here: the agent said too much"))

    def _line(self, told: events.Told) -> bytes | None:
        """The event's line, unless a text in it must be changed first."""
        try:
            line = self._encode(told)
        except UnicodeEncodeError:
            return None
        return line if self._redact(line) == line else None

    def _writable(self, text: str) -> str:
        """Without keys, and in valid Unicode: half a character may stand in a file's name or an argument."""
        return self._redact.text(text).encode("utf-8", "replace").decode()


def _changed(event: events.Event, change: Callable[[str], str]) -> events.Event:
    """The event with every text in it changed; one by one, since a change that spans two would break the line."""

    def walk(value: Any) -> Any:
        if isinstance(value, str):
            return change(value)
        if isinstance(value, dict):
            return {key: walk(one) for key, one in value.items()}
        return [walk(one) for one in value] if isinstance(value, list | tuple) else value

    return msgspec.convert(walk(msgspec.to_builtins(event)), type(event))


def bounded(event: events.Event) -> events.Event:
    """No event may be larger than a person would read; all of it is in the turn's log."""
    if isinstance(event, events.AgentText) and len(event.text) > TEXT_LIMIT:
        half = TEXT_LIMIT // 2
        return events.AgentText(f"{event.text[:half]}\n… [cut] …\n{event.text[-half:]}")
    return event
