"""What a run writes while it runs: events as journal lines, without keys and within limits, and its summary.

The summary is in a file of the run's folder; a link in ralph's state folder leads to it.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import repeat
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
from msgspec.structs import replace

from ralph.core import events
from ralph.core.secrets import Redactor
from ralph.core.state import Activity, BacklogSummary, RunSummary, after
from ralph.core.text import escaped
from ralph.files import replace_file, state_folder
from ralph.process.descendants import own_start
from ralph.process.machine import machine_id
from ralph.store.folder import RunFolder, report_write_errors
from ralph.store.journal import StoredRun, read_entries
from ralph.store.register import JOURNAL, STATE, read_summary, summarize

LineSink = Callable[[bytes], None]
TEXT_LIMIT = 65536  # characters of one event; the turn's log has all of it
KEY_LENGTH = 16384  # characters that a private key may have


class Writer:
    """Encodes each event once, without keys, and passes the lines to every sink.

    Only the first `most` bytes of the agent's output in a turn are written. The rest goes only to listeners, while
    `is_read()` returns True; otherwise it is only counted.
    """

    def __init__(
        self,
        run_id: str,
        sinks: Sequence[LineSink],
        *,
        seq: int = 0,
        redact: Redactor | None = None,
        most: int = 32 << 20,
        is_read: Callable[[], bool] = lambda: True,
        names: Mapping[type, str] = events.NAMES,
    ) -> None:
        self._run, self._names = run_id, names
        self._sinks = sinks
        self._seq = seq
        self._redact = redact or Redactor()
        self._most = self._room = most
        self._is_read = is_read
        self._left_out = 0
        self._key_left = 0  # characters that may still belong to a key that has begun
        self._encoder = msgspec.json.Encoder()

    def __call__(self, *happened: events.Event) -> list[events.Event]:
        """Write the events with one call; return them without keys, including those beyond the limit."""
        kinds = set(map(type, happened))
        if events.AgentFinished in kinds:
            left_out, self._left_out, self._room, self._key_left = self._left_out, 0, self._most, 0
            if left_out:
                self(events.Notice(f"{left_out} events of this turn were left out: the agent said too much"))
        if self._room < 0 and kinds <= events.TALK and not self._is_read():
            self._left_out += len(happened)
            for event in happened:
                self._hide_key(event)
            return []
        records, lines = self._encode_safely(happened)
        accepted = records
        if not kinds.isdisjoint(events.TALK):
            if len(lines) > self._room:
                each = lines.split(b"\n") if self._room >= 0 else repeat(b"")
                accepted = [
                    record for record, line in zip(records, each, strict=False) if self._take_room(record, line)
                ]
                lines = self._encode(self._number([record.data for record in accepted]))
            else:
                self._room -= len(lines)
        self._seq += len(accepted)
        for sink in self._sinks if accepted else ():
            sink(lines)
        return [record.data for record in records]

    def _encode_safely(self, happened: Sequence[events.Event]) -> tuple[list[events.Told], bytes]:
        """Return the events without keys, and their lines. To be fast, first search all lines at once for keys."""
        if not self._key_left and not [event for event in happened if _is_long(event)]:
            records = self._number(happened)
            lines = self._encode_if_safe(records)
            if lines is not None:
                return records, lines
        short = [self._shorten(self._hide_key(event)) for event in happened]
        records = [self._redact_event(record) for record in self._number(short)]
        return records, self._encode(records)

    def _shorten(self, event: events.Event) -> events.Event:
        """Cut the middle out of a long text. Keys are redacted first, because half a key would not be recognised."""
        if not isinstance(event, events.AgentText) or not _is_long(event):
            return event
        text, half = self._redact.text(event.text), TEXT_LIMIT // 2
        return events.AgentText(text if len(text) <= TEXT_LIMIT else f"{text[:half]}\n… [cut] …\n{text[-half:]}")

    def _encode(self, records: Sequence[events.Told]) -> bytes:
        """Return one line per event. Escape other characters at which some programs break lines."""
        return escaped(self._encoder.encode_lines(records))

    def _number(self, happened: Sequence[events.Event]) -> list[events.Told]:
        """Return the events that the journal has a name for, with time and number."""
        seconds, millis = divmod(int(time.time() * 1000), 1000)
        stamp, run, names = f"{_second(seconds)}.{millis:03d}Z", self._run, self._names
        named = [event for event in happened if type(event) in names]
        return [events.Told(names[type(event)], stamp, run, at, event) for at, event in enumerate(named, self._seq + 1)]

    def _hide_key(self, event: events.Event) -> events.Event:
        """Remove a private key that is printed line by line, each line in its own event."""
        if type(event) is not events.AgentText:
            return event
        text = event.text
        if self._key_left:
            self._key_left = 0 if "-----END " in text else max(self._key_left - len(text), 0)
            return events.AgentText(text.rpartition("-----")[2] if not self._key_left else "")
        if "V" in text and "PRIVATE KEY" in text and _begins_a_key(text):
            self._key_left = KEY_LENGTH
        return event

    def _take_room(self, record: events.Told, line: bytes) -> bool:
        """Count the agent's output against the limit; return whether this line is written."""
        if type(record.data) not in events.TALK:
            return True
        self._room -= len(line)
        if self._room < 0:
            self._left_out += 1
        return self._room >= 0

    def _encode_if_safe(self, records: Sequence[events.Told]) -> bytes | None:
        """Return the lines of the events; None if a text in them may have to be changed first."""
        try:
            lines = self._encode(records)
        except UnicodeEncodeError:
            return None
        return lines if self._redact.finds_nothing(lines) else None

    def _redact_event(self, record: events.Told) -> events.Told:
        """Return the event with texts that have no keys and are valid Unicode, unlike some file names.

        The texts are changed one by one: a change across two of them would break the line.
        """

        def changed(value: Any) -> Any:
            if isinstance(value, str):
                return self._redact.text(value).encode("utf-8", "replace").decode()
            if isinstance(value, dict):
                return {key: changed(item) for key, item in value.items()}
            return [changed(item) for item in value] if isinstance(value, list | tuple) else value

        if self._encode_if_safe([record]) is not None:
            return record
        return replace(record, data=msgspec.convert(changed(msgspec.to_builtins(record.data)), type(record.data)))


def _begins_a_key(text: str) -> bool:
    """Whether a private key begins in this text, and does not end in it."""
    _, begin, last = text.rpartition("-----BEGIN ")
    kind, dashes, rest = last.partition("-----")
    is_private = kind.endswith(("PRIVATE KEY", "PRIVATE KEY BLOCK"))
    return bool(begin and dashes) and is_private and "-----END " not in rest


@lru_cache(maxsize=1)
def _second(seconds: int) -> str:
    """Return a time in UTC. It is cached, because every line needs it."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


def _is_long(event: events.Event) -> bool:
    return type(event) is events.AgentText and len(event.text) > TEXT_LIMIT


class Teller:
    """Writes every event, then passes it on to the listeners, except the kinds in `dropped`.

    Notices that come before `RunStarted` are written right after it.
    """

    def __init__(self, writer: Writer, dropped: tuple[type, ...] = ()) -> None:
        self.writer, self._dropped = writer, dropped
        self._listeners: list[events.TellAll] = []
        self.has_begun = False
        self._early: list[events.Event] | None = []

    def subscribe(self, *listeners: events.TellAll) -> None:
        self._listeners += listeners

    def __call__(self, *happened: events.Event) -> None:
        heard = [event for event in happened if not isinstance(event, self._dropped)]
        if self._early is not None:
            if not any(isinstance(event, events.RunStarted) for event in heard):
                self._early += heard
                return
            heard, self._early = [*heard, *self._early], None
        written = self.writer(*heard)
        self.has_begun = True
        for listener in self._listeners if written else ():
            listener(*written)


MAX_LINKS = 1000
WRITE_INTERVAL = 0.5  # seconds between two writes of a summary in which only the current activity changed


Facts = TypeVar("Facts", RunSummary, BacklogSummary)


class SummaryFile(Generic[Facts]):
    """The summary of a run or backlog, and the file that keeps it for `ralph ps`."""

    def __init__(self, folder: RunFolder, facts: Facts) -> None:
        self._facts: Facts = facts
        self._written = 0.0
        self._path = folder.path / STATE

    def begin(self) -> None:
        """Write the summary before anything happens, because the process may be killed at any moment."""
        self._facts = replace(self._facts, pid=os.getpid(), start=own_start(), machine=machine_id(), outcome="")
        with report_write_errors(self._path):
            self._write()

    def _try_write(self) -> None:
        with suppress(OSError):  # a full disk: the journal reports it, and is the truth
            self._write()

    def _write(self) -> None:
        self._written = time.time()
        replace_file(self._path, msgspec.json.encode(self._facts), 0o600)


class Registration(SummaryFile[RunSummary]):
    """A listener that keeps the summary of a run up to date; `tick` writes pending changes.

    `facts` are known before the run starts. With `story` it is resumed.
    """

    def __init__(
        self, folder: RunFolder, story: StoredRun | None = None, ignores_signals: bool = False, **facts: str
    ) -> None:
        super().__init__(
            folder,
            RunSummary(run=folder.id, began=time.time(), ignores_signals=ignores_signals, **facts),  # type: ignore[arg-type]
        )
        self._story = story
        self._activity = Activity()

    def begin(self) -> None:
        if self._story is not None:
            folder = self._path.parent
            summary = read_summary(str(folder)) or summarize(folder.name, read_entries(folder / JOURNAL))
            self._facts = replace(summary, ignores_signals=self._facts.ignores_signals, stopping=False)
        super().begin()

    def __call__(self, *happened: events.Event) -> None:
        now = time.time()
        facts = self._facts
        for event in happened:
            self._activity(event, now)
            facts = after(facts, event, now)
        if facts is not self._facts or now - self._written > WRITE_INTERVAL:
            self._facts = facts
            self._write_activity()

    def tick(self, is_stopping: bool = False) -> None:
        if is_stopping != self._facts.stopping or self._activity.since != self._facts.since:
            self._facts = replace(self._facts, stopping=is_stopping)
            self._write_activity()

    def _write_activity(self) -> None:
        self._facts = replace(self._facts, doing=self._activity.text, since=self._activity.since)
        self._try_write()


def enlist(folder: RunFolder, env: Mapping[str, str]) -> str:
    """Add the run to the list of `ralph ps`; return a warning if that failed, else an empty text."""
    links = state_folder(env, "runs")
    try:
        os.makedirs(links, mode=0o700, exist_ok=True)
        link, place = os.path.join(links, folder.id), str(folder.path.absolute())
        try:
            os.symlink(place, link)
        except FileExistsError:
            if os.readlink(link) != place:  # the workspace was moved
                os.unlink(link)
                os.symlink(place, link)
        if folder.id[-1] in "ab":  # one run in sixteen tidies up
            _prune_links(links)
    except OSError as error:
        return f"`ralph ps` will not list this run: cannot write {links}: {error.strerror}"
    return ""


def _prune_links(links: str) -> None:
    """If there are more than `MAX_LINKS` links, remove the broken ones and then the oldest."""
    names = sorted(os.listdir(links))
    if len(names) > MAX_LINKS:
        leading = [name for name in names if os.path.exists(os.path.join(links, name))]
        for name in {*names} - {*leading[-MAX_LINKS // 2 :]}:
            Path(links, name).unlink(missing_ok=True)
