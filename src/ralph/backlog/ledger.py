"""Where are claims and verdicts kept? On one machine in the work's journal: the last word about each item counts."""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from ralph.core import events, work_events
from ralph.core.backlog import Board
from ralph.core.secrets import Redactor
from ralph.records.folder import RunFolder
from ralph.records.journal import Journal, read
from ralph.records.writer import Sink, Writer

Told = work_events.WorkEvent | events.Notice
Listener = Callable[..., None]
NAMES = {**work_events.NAMES, events.Notice: events.NAMES[events.Notice]}


class Ledger(Protocol):
    """What the coordinator knows and says. Another one may be kept where many machines can reach it: then `claims` says
    whether an item may be worked on here, and `has_gate` whether landings are ours to make; what was told counts only
    where nobody else was faster, so the board is to be looked at again."""

    board: Board
    opened: str
    """The commit of the target that was last seen green, or landed."""
    elapsed: float

    def tell(self, *happened: Told) -> None:
        """Writes down what happened, then knows it."""
        ...

    def claims(self, key: str) -> bool: ...

    def has_gate(self) -> bool: ...


class JournalLedger:
    """One machine, one coordinator: every item is ours, and so is the gate."""

    def __init__(self, folder: RunFolder, sinks: Sequence[Sink], redact: Redactor) -> None:
        self.board, self.opened, self.elapsed = Board(), "", 0.0
        self.is_resumed = False
        self._folder, self._redact = folder, redact
        self._seq = 0
        self._journal = Journal(folder.journal)
        self._listeners: tuple[Listener, ...] = ()
        self._sinks: tuple[Sink, ...] = (self._journal, *sinks)
        self._writer: Writer

    def open(self) -> None:
        """Knows what the journal says, and goes on with it."""
        self._recall()
        self.is_resumed = self._seq > 0
        self._journal.open()
        self._writer = Writer(self._folder.id, self._sinks, seq=self._seq, redact=self._redact, names=NAMES)

    def tell(self, *happened: Told) -> None:
        self._writer(*happened)  # type: ignore[arg-type]
        now = time.time()
        for event in happened:
            self._know(event, now)
        for listener in self._listeners:
            listener(*happened)

    def listen(self, listeners: Sequence[Listener]) -> None:
        self._listeners = tuple(listeners)

    def claims(self, key: str) -> bool:
        return True

    def has_gate(self) -> bool:
        return True

    def close(self) -> None:
        self._journal.close()

    def _know(self, event: object, at: float) -> None:
        with suppress(KeyError):  # about an item that a torn line had named
            self.board = work_events.after(self.board, event, at)
        match event:
            case work_events.GateOpened():
                self.opened = event.commit
            case work_events.ItemLanded() if event.commit:
                self.opened = event.commit
            case work_events.WorkFinished():
                self.elapsed = event.duration_s

    def _recall(self) -> None:
        if os.path.exists(self._folder.journal):
            for entry in read(self._folder.journal):
                self._seq = max(self._seq, entry.seq)
                self._know(entry.event(), entry.at)
