"""What is written down while a run goes on? Each event becomes a line: numbered, dated, without keys, and no more of
them than a person would read. Where the run stands is kept in a file of its own folder, to which a link leads."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import repeat
from typing import Any

import msgspec
from msgspec.structs import replace

from ralph.core import events
from ralph.core.secrets import Redactor
from ralph.core.state import Activity, RunSummary, after
from ralph.core.text import escaped
from ralph.files import open_own, state_folder
from ralph.process.descendants import own_start
from ralph.store.folder import RunFolder, cannot_write
from ralph.store.journal import read_entries
from ralph.store.register import JOURNAL, STATE, facts_in, host, summarize
from ralph.store.stored_run import StoredRun

LineSink = Callable[[bytes], None]
TEXT_LIMIT = 65536
KEY_LENGTH = 16384
_WORDY = (events.AgentText, events.ToolFinished)


class Writer:
    """Encodes each event once, and gives the lines to every sink. What looks like a key, or is known to be one, reaches
    nobody; and of what an agent says in one turn, `most` bytes are written, and its last plan: it may talk without end.
    Of what comes beyond that, the words are told only while somebody reads them."""

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
        self._plan: list[events.TodoUpdated] = []  # the last one that was left out
        self._covered = 0  # so many characters may still belong to a key that has begun
        self._encoder = msgspec.json.Encoder()

    def __call__(self, *happened: events.Event) -> list[events.Event]:
        """The events as they were, or would have been, written down. What happened at once is written at once."""
        kinds = set(map(type, happened))
        if events.AgentFinished in kinds:
            self._end_turn()
        if self._room < 0 and kinds <= events.TALK and not self._is_read():
            return self._unheard(happened)
        told, lines = self._written(happened)
        kept = told
        if not kinds.isdisjoint(events.TALK):
            if len(lines) > self._room:
                each = lines.split(b"\n") if self._room >= 0 else repeat(b"")
                kept = [one for one, line in zip(told, each, strict=False) if self._take_room(one, line)]
                lines = self._encode(self._numbered([one.data for one in kept]))
            else:
                self._room -= len(lines)
        self._seq += len(kept)
        for sink in self._sinks if kept else ():
            sink(lines)
        return [one.data for one in told]

    def _written(self, happened: Sequence[events.Event]) -> tuple[list[events.Told], bytes]:
        """The events and their lines. In nearly all of them there is nothing that could be a key, and one look at all
        the lines says so; unless one has begun, or may begin where a text is cut."""
        if not self._covered and not [event for event in happened if _is_long(event)]:
            told = self._numbered(happened)
            lines = self._lines(told)
            if lines is not None:
                return told, lines
        short = [self._bounded(self._cover(event)) for event in happened]
        told = [self._writable(one) for one in self._numbered(short)]
        return told, self._encode(told)

    def _bounded(self, event: events.Event) -> events.Event:
        """No event may be larger than a person would read; all of it is in the turn's log. A key that is cut in two
        would look like none: so they go first."""
        if not isinstance(event, events.AgentText) or not _is_long(event):
            return event
        text, half = self._redact.text(event.text), TEXT_LIMIT // 2
        return events.AgentText(text if len(text) <= TEXT_LIMIT else f"{text[:half]}\n… [cut] …\n{text[-half:]}")

    def _unheard(self, happened: Sequence[events.Event]) -> list[events.Event]:
        """What is neither written nor read: texts and results are counted, the rest is short."""
        self._left_out += len(happened)
        safe = iter(self._written([event for event in happened if not isinstance(event, _WORDY)])[0])
        told: list[events.Event] = []
        number, ended = 0, []
        for event in happened:
            if isinstance(event, events.AgentText):
                self._cover(event)
            elif isinstance(event, events.ToolFinished):
                ended.append(event.id)
            else:
                if number:
                    told.append(events.Unheard(number, tuple(ended)))
                    number, ended = 0, []
                told.append(next(safe).data)
                self._remember(told[-1])
                continue
            number += 1
        return [*told, events.Unheard(number, tuple(ended))] if number else told

    def _encode(self, told: Sequence[events.Told]) -> bytes:
        """One line each, by everybody's idea of a line: some programs break them at these characters too."""
        return escaped(self._encoder.encode_lines(told))

    def _numbered(self, happened: Sequence[events.Event]) -> list[events.Told]:
        """Those that have a name, with their envelopes."""
        seconds, millis = divmod(int(time.time() * 1000), 1000)
        stamp, run, names = f"{_second(seconds)}.{millis:03d}Z", self._run, self._names
        named = [event for event in happened if type(event) in names]
        return [events.Told(names[type(one)], stamp, run, at, one) for at, one in enumerate(named, self._seq + 1)]

    def _cover(self, event: events.Event) -> events.Event:
        """A private key that is printed line by line: what is one text everywhere else comes as many events."""
        if type(event) is not events.AgentText:
            return event
        text = event.text
        if self._covered:
            self._covered = 0 if "-----END " in text else max(self._covered - len(text), 0)
            return events.AgentText(text.rpartition("-----")[2] if not self._covered else "")
        if "V" in text and "PRIVATE KEY" in text and _begins_a_key(text):
            self._covered = KEY_LENGTH
        return event

    def _take_room(self, told: events.Told, line: bytes) -> bool:
        """Whether the line is written: what an agent says takes of its share."""
        if type(told.data) not in events.TALK:
            return True
        self._room -= len(line)
        if self._room < 0:
            self._left_out += 1
            self._remember(told.data)
        return self._room >= 0

    def _remember(self, left_out: events.Event) -> None:
        if isinstance(left_out, events.TodoUpdated):
            self._plan = [left_out]

    def _end_turn(self) -> None:
        left_out, self._left_out, self._room, self._covered = self._left_out, 0, self._most, 0
        plan, self._plan = self._plan, []
        if left_out:
            notice = f"{left_out - len(plan)} events of this turn are left out here: the agent said too much"
            self(*plan, events.Notice(notice))

    def _lines(self, told: Sequence[events.Told]) -> bytes | None:
        """The lines of the events, unless a text in them may have to be changed first."""
        try:
            lines = self._encode(told)
        except UnicodeEncodeError:
            return None
        return lines if self._redact.finds_nothing(lines) else None

    def _writable(self, told: events.Told) -> events.Told:
        """Its texts without keys, and in valid Unicode: half a character may stand in a file's name or an argument.
        They are changed one by one, since a change that spans two would break the line."""

        def changed(value: Any) -> Any:
            if isinstance(value, str):
                return self._redact.text(value).encode("utf-8", "replace").decode()
            if isinstance(value, dict):
                return {key: changed(one) for key, one in value.items()}
            return [changed(one) for one in value] if isinstance(value, list | tuple) else value

        if self._lines([told]) is not None:
            return told
        return replace(told, data=msgspec.convert(changed(msgspec.to_builtins(told.data)), type(told.data)))


def _begins_a_key(text: str) -> bool:
    """Whether a private key begins in this text, and does not end in it."""
    _, begin, last = text.rpartition("-----BEGIN ")
    kind, dashes, rest = last.partition("-----")
    is_private = kind.endswith(("PRIVATE KEY", "PRIVATE KEY BLOCK"))
    return bool(begin and dashes) and is_private and "-----END " not in rest


@lru_cache(maxsize=1)
def _second(seconds: int) -> str:
    """In UTC. This is asked of every line, and made once in a second."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


def _is_long(event: events.Event) -> bool:
    return type(event) is events.AgentText and len(event.text) > TEXT_LIMIT


class Teller:
    """Tells everything that happens: it is written down, then every listener of the list hears it. What is noticed
    before the run has started is told right after that; of the kinds that are `unheard` nobody is told. That an
    iteration begins is written before its agent can do anything (who resumes would take its work for that of the last),
    and shown with what comes of it."""

    def __init__(self, writer: Writer, unheard: tuple[type, ...] = ()) -> None:
        self.writer, self._unheard = writer, unheard
        self._listeners: list[events.TellAll] = []
        self.has_begun = False
        self._early: list[events.Event] | None = []
        self._opening: list[events.Event] = []

    def subscribe(self, *listeners: events.TellAll) -> None:
        self._listeners += listeners

    def __call__(self, *happened: events.Event) -> None:
        heard = [event for event in happened if not isinstance(event, self._unheard)] if self._unheard else happened
        if self._early is not None:
            if not any(isinstance(event, events.RunStarted) for event in heard):
                self._early += heard
                return
            heard, self._early = [*heard, *self._early], None
        written = self._opening + self.writer(*heard)
        self.has_begun = True
        self._opening = written if written and isinstance(written[-1], events.IterationStarted) else []
        for listener in self._listeners if written and not self._opening else ():
            listener(*written)


MOST_LINKS = 1000
OFTEN_ENOUGH = 0.5  # seconds between two writes that say no more than what is done right now


class Registration:
    """A listener that keeps the run's own facts up to date while it goes on. `tick` tells what is left to tell. Whose
    part a run is must be known from its first moment on: who speaks of the whole does not mean it."""

    def __init__(
        self,
        folder: RunFolder,
        story: StoredRun | None = None,
        deaf: bool = False,
        *,
        work: str = "",
        backlog_task: str = "",
        kind: str = "",
    ) -> None:
        self._facts = RunSummary(
            run=folder.id, began=time.time(), work=work, backlog_task=backlog_task, kind=kind, deaf=deaf
        )
        self._story = story
        self._activity = Activity()
        self._encode = msgspec.json.Encoder().encode
        self._written = 0.0
        self._path = folder.path / STATE

    def begin(self) -> None:
        """From now on the run is known as what it is, before anything is told: it may be killed the next moment."""
        known = self._facts
        if self._story is not None:
            folder = self._path.parent
            known = facts_in(str(folder)) or summarize(folder.name, read_entries(folder / JOURNAL))
        me = {"pid": os.getpid(), "start": own_start(), "host": host(), "deaf": self._facts.deaf}
        self._facts = replace(known, **me, stopping=False, outcome="")
        try:
            self._open()
            self._write()
        except OSError as error:
            raise cannot_write(self._path, error) from None

    def __call__(self, *happened: events.Event) -> None:
        now = time.time()
        facts = self._facts
        for event in happened:
            self._activity(event, now)
            facts = after(facts, event, now)
        if facts is not self._facts or now - self._written > OFTEN_ENOUGH:
            self._facts = facts
            self._tell()

    def tick(self, is_stopping: bool = False) -> None:
        if is_stopping != self._facts.stopping or self._activity.since != self._facts.since:
            self._facts = replace(self._facts, stopping=is_stopping)
            self._tell()

    def _tell(self) -> None:
        self._facts = replace(self._facts, doing=self._activity.text, since=self._activity.since)
        self._write_now()

    def _write_now(self) -> None:
        with suppress(OSError):  # a full disk: the journal says so, and is the truth
            if os.fstat(removed := self._fd).st_nlink == 0:  # by an agent that cleans up
                self._open()
                os.close(removed)
            self._write()

    def _open(self) -> None:
        self._fd = open_own(self._path)
        self._size = os.fstat(self._fd).st_size

    def _write(self) -> None:
        """In place, with one call, and never shorter than before: a reader finds the old or the new."""
        self._written = time.time()
        data = self._encode(self._facts)
        self._size = max(self._size, len(data))
        os.pwrite(self._fd, data.ljust(self._size, b"\n"), 0)

    def close(self) -> None:
        os.close(self._fd)


def enlist(folder: RunFolder, env: Mapping[str, str]) -> str:
    """Makes the run known to `ralph ps`; what stands in the way, if anything."""
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
            _prune(links)
    except OSError as error:
        return f"`ralph ps` will not list this run: cannot write {links}: {error.strerror}"
    return ""


def _prune(links: str) -> None:
    """Forgets the links that lead nowhere, and the oldest others, once there are very many."""
    names = sorted(os.listdir(links))
    if len(names) > MOST_LINKS:
        leading = [name for name in names if os.path.exists(os.path.join(links, name))]
        for name in {*names} - {*leading[-MOST_LINKS // 2 :]}:
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(links, name))
