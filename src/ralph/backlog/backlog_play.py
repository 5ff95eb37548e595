"""Play a backlog: open what its plan needs, run its tasks and merges, record how it ended. `play` lists these steps."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

from msgspec import Struct

from ralph.backlog.backlog_order import TASKS, BacklogOrder, put_order
from ralph.backlog.backlog_plan import BacklogPlan
from ralph.backlog.coordinator import Coordinator
from ralph.backlog.ledger import BacklogRegistration, JournalLedger, Listener, running_summaries
from ralph.core import events
from ralph.core.backlog import Board
from ralph.core.backlog_events import BacklogFinished
from ralph.core.secrets import Redactor, secret_values
from ralph.core.state import RunSummary
from ralph.process.signals import Deadline, Interrupt
from ralph.store.folder import RunFolder, backlog_lock, prepare
from ralph.store.writer import LineSink, enlist


class OpenBacklog(Struct, frozen=True, kw_only=True):
    """A backlog run on this machine: what its listeners may read."""

    order: BacklogOrder
    folder: RunFolder
    ledger: JournalLedger
    registration: BacklogRegistration
    deadline: Deadline | None
    is_late: Callable[[], bool]
    """Whether nothing may wait for a slow reader any more."""

    @property
    def workspace(self) -> str:
        return self.order.workspace

    @property
    def notify(self) -> Sequence[str]:
        return self.order.settings.notify

    @property
    def board(self) -> Board:
        return self.ledger.board

    @property
    def summaries(self) -> Mapping[str, RunSummary | None]:
        """The summaries of the runs of all running tasks."""
        return running_summaries(self.folder, self.ledger.board)


BacklogFollower = Callable[[OpenBacklog], AbstractContextManager[Listener]]
"""Opens a listener for the time of a backlog run."""
OpenSink = Callable[[OpenBacklog], LineSink]


def play(
    plan: BacklogPlan,
    *,
    followers: Sequence[BacklogFollower] = (),
    sinks: Sequence[OpenSink] = (),
    ticks: Sequence[Callable[[], object]] = (),
    interrupt: Interrupt | None = None,
) -> BacklogFinished:
    """Run a backlog to its end, or resume it.

    The listeners that `followers` open get every event, `sinks` every line of the journal. `ticks` are called about
    once a second.
    """
    order, began = plan.order, time.monotonic()
    with ExitStack() as stack:
        interrupt = interrupt or stack.enter_context(Interrupt())
        ralph = prepare(Path(order.workspace))
        stack.enter_context(backlog_lock(ralph, order.id))

        def is_late() -> bool:
            elapsed = opened.ledger.state.elapsed + time.monotonic() - began
            return interrupt.must_end() or order.is_overdue(elapsed)

        opened = open_backlog(
            order,
            RunFolder(ralph, order.id),
            stack,
            followers=followers,
            sinks=sinks,
            deadline=Deadline(interrupt, grace=order.settings.grace),
            is_late=is_late,
        )
        ledger = opened.ledger
        ledger.tell(order.started(resumed=ledger.is_resumed))
        for text in filter(None, (plan.notice, enlist(opened.folder, os.environ))):
            ledger.tell(events.Notice(text))
        every = (opened.registration.tick, *ticks)
        return Coordinator(order, opened.folder, ledger, interrupt, ticks=every).run(plan.content)


def open_backlog(
    order: BacklogOrder,
    folder: RunFolder,
    stack: ExitStack,
    *,
    followers: Sequence[BacklogFollower] = (),
    sinks: Sequence[OpenSink] = (),
    deadline: Deadline | None = None,
    is_late: Callable[[], bool] = lambda: False,
) -> OpenBacklog:
    """Make the folder of a backlog run, store its order, and register the run; open its journal and listeners until
    `stack` is closed."""
    folder.make()
    put_order(folder, order)
    (folder.path / TASKS).mkdir(exist_ok=True)
    ledger = JournalLedger(folder, Redactor(secret_values(os.environ)))
    registration = BacklogRegistration(folder, order, ledger)
    registration.begin()
    opened = OpenBacklog(
        order=order, folder=folder, ledger=ledger, registration=registration, deadline=deadline, is_late=is_late
    )
    ledger.open([sink(opened) for sink in sinks])
    stack.callback(ledger.close)
    ledger.listen([registration, *(stack.enter_context(follower(opened)) for follower in followers)])
    return opened
