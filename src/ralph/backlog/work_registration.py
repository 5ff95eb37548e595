"""Where does a work stand, and each of its items? Kept where `ralph ps` finds it, and read back for whoever asks."""

import os
import time
from typing import Any

from msgspec.structs import replace

from ralph.backlog.ledger import Ledger
from ralph.backlog.work_order import WorkOrder
from ralph.core import work_events
from ralph.core.backlog import Board, shown
from ralph.core.model import RunFacts
from ralph.core.secrets import Redactor, secret_values
from ralph.records.folder import RunFolder
from ralph.records.register import facts_in
from ralph.records.writer import OFTEN_ENOUGH, Registration
from ralph.show.works import Row, counted, last_line, rows


class WorkRegistration(Registration):
    """A listener that keeps the work's own standing up to date."""

    def __init__(self, folder: RunFolder, order: WorkOrder, deaf: bool = False) -> None:
        super().__init__(folder, deaf=deaf)
        self._folder, self._order = folder, order
        self._ledger: Ledger | None = None
        self._is_behind = False
        known = {"kind": "work", "workspace": order.workspace, "goal": f"work off {order.source.name}"}
        self._facts = replace(self._facts, **known, branch=order.shown_target, version=order.version)

    def watch(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def __call__(self, *happened: Any) -> None:
        """Not at each of a thousand items: `tick` tells what is left to tell."""
        turns = [event for event in happened if isinstance(event, work_events.WorkStarted | work_events.WorkFinished)]
        self._is_behind = not turns and time.time() - self._written < OFTEN_ENOUGH
        if not self._is_behind:
            self._tell_all(*turns)

    def tick(self, is_stopping: bool = False) -> None:
        if self._is_behind:
            self._is_behind = False
            self._tell_all()

    def _tell_all(self, *happened: Any) -> None:
        board, now = self._ledger.board if self._ledger else Board(), time.time()
        states = [*shown(board).values()]
        counts = {state: states.count(state) for state in ("landed", "working", "ready", "parked", "blocked")}
        self._facts = replace(
            self._facts,
            changed=now,
            checks=len(states) - states.count("withdrawn"),
            passed=states.count("landed"),
            cost_usd=board.spent if board.costs else None,
            paused="paused by a person" if board.is_held else "",
            doing=counted(counts),
            since=now,
        )
        for event in happened:
            if isinstance(event, work_events.WorkStarted):
                self._facts = replace(self._facts, outcome="", reason="")
            elif isinstance(event, work_events.WorkFinished):
                self._facts = replace(
                    self._facts,
                    outcome=event.outcome,
                    reason=event.reason,
                    duration_s=event.duration_s,
                    exit_code=event.exit_code,
                )
        self._write_now()

    def began(self, at: float) -> None:
        """It was begun elsewhere, and before."""
        if at and at != self._facts.began:
            self._facts = replace(self._facts, began=at)
            self._write_now()

    def leave(self) -> None:
        """The work goes on, but not here."""
        self._facts = replace(self._facts, outcome="interrupted", reason="it goes on elsewhere", exit_code=130)
        self._write_now()

    def rows(self) -> list[Row]:
        """Every item, with where its loop stands."""
        board = self._ledger.board if self._ledger else Board()
        return rows(board, item_facts(self._folder, board))


def item_facts(folder: RunFolder, board: Board) -> dict[str, RunFacts | None]:
    """Where the loops stand that are at work."""
    return {job.item.key: facts_in(str(folder.path.parent / job.run)) for job in board.of("working") if job.run}


def notifier(order: WorkOrder, folder: RunFolder) -> Any:
    """Tells somebody who is elsewhere of items that stand aside, and of the end."""
    from pathlib import Path
    from types import SimpleNamespace

    from ralph.run.notify import Notification, Notifier

    def about(event: object) -> Notification | None:
        match event:
            case work_events.ItemParked():
                return Notification("failed", f"{event.key} is parked: {event.reason}")
            case work_events.WorkFinished() if event.outcome != "interrupted":
                text = last_line(event, order.shown_target, order.remote is not None)
                return Notification("done" if event.exit_code == 0 else "failed", text.removeprefix("ralph: "))
        return None

    env = dict(os.environ)
    context: Any = SimpleNamespace(folder=folder, env=env, tell=lambda *_: None, redact=Redactor(secret_values(env)))
    return Notifier(order.settings.notify, context, Path(order.workspace), about)
