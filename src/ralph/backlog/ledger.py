"""The journal of a backlog run, the board that follows from its events, and the listeners that display them."""

import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ralph.backlog.work_order import WorkOrder
from ralph.core import events, work_events
from ralph.core.backlog import Board
from ralph.core.secrets import Redactor
from ralph.core.state import BacklogSummary, RunSummary, after_board
from ralph.core.work_events import WorkState, copy_state, next_state
from ralph.process.signals import Deadline
from ralph.show.notify import Notification, Notifier
from ralph.show.works import Row, WorkScreen, last_line, rows
from ralph.store.folder import RunFolder
from ralph.store.journal import Journal, decode_entry, read_entries
from ralph.store.register import read_summary
from ralph.store.writer import WRITE_INTERVAL, LineSink, SummaryFile, Writer

WorkTold = work_events.WorkEvent | events.Notice
Listener = Callable[..., None]
NAMES = {**work_events.NAMES, events.Notice: events.NAMES[events.Notice]}


class JournalLedger:
    """Writes the events of a backlog run to its journal, and keeps the state that follows from them."""

    def __init__(self, folder: RunFolder, sinks: Sequence[LineSink], redact: Redactor) -> None:
        self.state = WorkState()
        self.is_resumed = False
        self._folder, self._redact = folder, redact
        self._seq = 0
        self._journal = Journal(folder.journal)
        self._listeners: tuple[Listener, ...] = ()
        self._sinks: tuple[LineSink, ...] = (self._journal, *sinks)
        self._writer: Writer

    @property
    def board(self) -> Board:
        return self.state.board

    def open(self) -> None:
        """Read the journal and append to it from now on."""
        if os.path.exists(self._folder.journal):
            for entry in read_entries(self._folder.journal):
                self._seq = max(self._seq, entry.seq)
                self.state = next_state(self.state, entry.event(), entry.at)
        self.is_resumed = self._seq > 0
        self._journal.open()
        self._writer = Writer(self._folder.id, self._sinks, seq=self._seq, redact=self._redact, names=NAMES)

    def tell(self, *happened: WorkTold) -> None:
        self._writer(*happened)  # type: ignore[arg-type]
        now = time.time()
        self.state = copy_state(self.state)  # listeners may still use the old one
        for event in happened:
            self.state = next_state(self.state, event, now)
        for listener in self._listeners:
            listener(*happened)

    def listen(self, listeners: Sequence[Listener]) -> None:
        self._listeners = tuple(listeners)

    def copy_lines(self, lines: Sequence[tuple[int, bytes]]) -> list[WorkTold]:
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


class WorkRegistration(SummaryFile[BacklogSummary]):
    """A listener that keeps the summary of a backlog up to date for `ralph ps`."""

    def __init__(self, folder: RunFolder, order: WorkOrder) -> None:
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
        self._folder = folder
        self._ledger: JournalLedger
        self._is_behind = True

    def watch(self, ledger: JournalLedger) -> None:
        self._ledger = ledger

    def __call__(self, *happened: Any) -> None:
        """Write the summary, at most once per WRITE_INTERVAL; `tick` writes what was left out."""
        self._is_behind = True
        is_turn = any(isinstance(event, work_events.WorkStarted | work_events.WorkFinished) for event in happened)
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

    def rows(self) -> list[Row]:
        """Return every task with the state of its loop."""
        board = self._ledger.board
        return rows(board, running_summaries(self._folder, board))


def running_summaries(folder: RunFolder, board: Board) -> dict[str, RunSummary | None]:
    """Return the summaries of the runs of all running tasks."""
    return {job.task.key: read_summary(str(folder.path.parent / job.run)) for job in board.of("working") if job.run}


def running_costs(folder: RunFolder, board: Board) -> dict[str, float]:
    """Return the cost so far of the loops that run on this machine, by their runs."""
    known = running_summaries(folder, board).values()
    return {facts.run: facts.cost_usd for facts in known if facts and facts.cost_usd}


class Audience:
    """The listeners of a backlog run: its entry in `ralph ps`, the screen and, with `notifies`, notifications."""

    def __init__(self, order: WorkOrder, folder: RunFolder, *, is_quiet: bool, notifies: bool = True) -> None:
        color, emoji = (None if flag else False for flag in (order.settings.color, order.settings.emoji))
        self.screen = WorkScreen(sys.stderr, quiet=is_quiet, color=color, emoji=emoji, env=os.environ)
        self.registration = WorkRegistration(folder, order)
        self._notifier = _notifier(order, folder) if notifies and order.settings.notify else None

    def begin(self, stack: ExitStack) -> None:
        """Register the run; `stack` closes the screen."""
        stack.callback(self.screen.close)
        self.registration.begin()

    def attend(self, ledger: JournalLedger, stack: ExitStack, deadline: Deadline | None = None) -> None:
        """Subscribe to all events from now on."""
        self.registration.watch(ledger)
        self.screen.board, self.screen.look = (lambda: ledger.board), self.registration.rows
        if self._notifier:
            self._notifier.deadline = deadline
            stack.callback(self._notifier.close)
        ledger.listen([one for one in (self.registration, self.screen, self._notifier) if one])

    def tick(self) -> None:
        self.registration.tick()
        self.screen.tick()


def _notifier(order: WorkOrder, folder: RunFolder) -> "Notifier":
    """Return a notifier for parked tasks and for the end of the run."""

    def about(event: object) -> Notification | None:
        match event:
            case work_events.TaskParked():
                return Notification("failed", f"{event.key} is parked: {event.reason}")
            case work_events.WorkFinished() if event.outcome != "interrupted":
                text = last_line(event, order.shown_target, "" if order.remote else order.name)
                return Notification("done" if event.exit_code == 0 else "failed", text)
        return None

    place = Path(order.workspace)
    return Notifier(order.settings.notify, place, folder, env=os.environ, tell=lambda event: None, about=about)
