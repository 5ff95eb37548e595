"""The journal of a backlog run, the board that follows from its events, and its entry in `ralph ps`."""

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from ralph.backlog.backlog_order import BacklogOrder
from ralph.core import backlog_events, events
from ralph.core.backlog import Board
from ralph.core.backlog_events import BacklogState, copy_state, next_state
from ralph.core.secrets import Redactor
from ralph.core.state import BacklogSummary, RunSummary, after_board
from ralph.store.folder import RunFolder
from ralph.store.journal import Journal, decode_entry, read_entries
from ralph.store.register import read_summary
from ralph.store.writer import WRITE_INTERVAL, LineSink, SummaryFile, Writer

LedgerEvent = backlog_events.BacklogEvent | events.Notice
Listener = Callable[..., None]
NAMES = {**backlog_events.NAMES, events.Notice: events.NAMES[events.Notice]}


class JournalLedger:
    """Writes the events of a backlog run to its journal, and keeps the state that follows from them."""

    def __init__(self, folder: RunFolder, redact: Redactor) -> None:
        self.state = BacklogState()
        self.is_resumed = False
        self._folder, self._redact = folder, redact
        self._seq = 0
        self._journal = Journal(folder.journal)
        self._listeners: tuple[Listener, ...] = ()
        self._sinks: tuple[LineSink, ...] = ()
        self._writer: Writer

    @property
    def board(self) -> Board:
        return self.state.board

    def open(self, sinks: Sequence[LineSink] = ()) -> None:
        """Read the journal and append to it from now on. `sinks` get every new line as well."""
        if os.path.exists(self._folder.journal):
            for entry in read_entries(self._folder.journal):
                self._seq = max(self._seq, entry.seq)
                self.state = next_state(self.state, entry.event(), entry.at)
        self.is_resumed = self._seq > 0
        self._journal.open()
        self._sinks = (self._journal, *sinks)
        self._writer = Writer(self._folder.id, self._sinks, seq=self._seq, redact=self._redact, names=NAMES)

    def tell(self, *happened: LedgerEvent) -> None:
        self._writer(*happened)  # type: ignore[arg-type]
        now = time.time()
        self.state = copy_state(self.state)  # listeners may still use the old one
        for event in happened:
            self.state = next_state(self.state, event, now)
        for listener in self._listeners:
            listener(*happened)

    def listen(self, listeners: Sequence[Listener]) -> None:
        self._listeners = tuple(listeners)

    def copy_lines(self, lines: Sequence[tuple[int, bytes]]) -> list[LedgerEvent]:
        """Append the numbered lines of another machine that are not here yet; return their events."""
        self.state = copy_state(self.state)
        happened: list[Any] = []
        for seq, line in lines:
            if seq <= self._seq:
                continue
            self._seq = seq
            for sink in self._sinks:
                sink(line if line.endswith(b"\n") else line + b"\n")
            entry = decode_entry(line)
            if entry and (event := entry.event()) is not None:  # otherwise a newer ralph wrote it
                self.state = next_state(self.state, event, entry.at)
                happened.append(event)
        for listener in self._listeners if happened else ():
            listener(*happened)
        return happened

    def close(self) -> None:
        self._journal.close()


class BacklogRegistration(SummaryFile[BacklogSummary]):
    """A listener that keeps the summary of a backlog up to date for `ralph ps`."""

    def __init__(self, folder: RunFolder, order: BacklogOrder, ledger: JournalLedger) -> None:
        summary = BacklogSummary(
            run=folder.id,
            began=time.time(),
            workspace=order.workspace,
            goal=f"backlog {order.source.name}",
            branch=order.shown_target,
            untouched=bool(order.remote),  # then nothing is left to accept
            version=order.version,
        )
        super().__init__(folder, summary)
        self._ledger = ledger
        self._is_behind = True

    def __call__(self, *happened: Any) -> None:
        """Write the summary, at most once per WRITE_INTERVAL; `tick` writes what was left out."""
        self._is_behind = True
        is_turn = any(
            isinstance(event, backlog_events.BacklogStarted | backlog_events.BacklogFinished) for event in happened
        )
        if is_turn or time.time() - self._written >= WRITE_INTERVAL:
            self.tick()

    def tick(self) -> None:
        if self._is_behind:
            self._is_behind = False
            self._facts = after_board(self._facts, self._ledger.state, time.time())
            self._try_write()

    def leave(self) -> None:
        """Record that the run continues on other machines only."""
        ended = {"outcome": "interrupted", "reason": "it continues on other machines", "exit_code": 130}
        self._facts = replace(self._facts, **ended)
        self._try_write()


def running_summaries(folder: RunFolder, board: Board) -> dict[str, RunSummary | None]:
    """Return the summaries of the runs of all running tasks."""
    return {job.task.key: read_summary(str(folder.path.parent / job.run)) for job in board.of("working") if job.run}


def running_costs(folder: RunFolder, board: Board) -> dict[str, float]:
    """Return the cost so far of the loops that run on this machine, by their runs."""
    summaries = running_summaries(folder, board).values()
    return {facts.run: facts.cost_usd for facts in summaries if facts and facts.cost_usd}
