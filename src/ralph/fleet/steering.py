"""See and steer the backlog runs of a fleet from any machine.

A request becomes an event in the log, so it needs neither a clone nor a running worker. A copy of a backlog run is an
ordinary journal, so `ralph ps`, `show`, `report`, the TUI and the web UI work as if the run took place here.
"""

import asyncio
import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from ralph.backlog.ledger import JournalLedger, WorkRegistration, WorkTold
from ralph.backlog.task_requests import TASK_REQUEST, TaskRequest, events_for_request, explain_no_effect, find_task
from ralph.backlog.work_order import WorkOrder, decode_order, put_order
from ralph.core import work_events
from ralph.core.backlog import Board
from ralph.core.secrets import Redactor, secret_values
from ralph.core.text import one_line
from ralph.core.work_events import WorkState
from ralph.errors import UserError
from ralph.files import state_folder
from ralph.fleet.database import ONE_SHOT, POLL, Database, Transaction
from ralph.fleet.log import Decide, WorkerRow, WorkLog, WorkRow, list_workers, list_works, summarize
from ralph.store.folder import RunFolder, prepare
from ralph.store.mailbox import Mailbox
from ralph.store.writer import LineSink, enlist

MAX_COPIES = 50  # backlog runs that a mirror copies; older ones are left out
DONE = {
    "retry": "{key} is tried again",
    "withdraw": "{key} is withdrawn; its branch stays",
    "pause": "{work} pauses: each loop stops before its next turn",
    "resume": "{work} continues",
    "stop": "{work} ends: each loop after its turn",
}


def decide_request(request: TaskRequest, state: WorkState) -> list[WorkTold]:
    """Return the events for a request about a task. A retry reopens a backlog run that is over."""
    job = find_task(state.board, request.key, state.started.name if state.started else "")
    events = events_for_request(state.board, replace(request, key=job.task.key))
    if not events:
        raise explain_no_effect(job, request)
    return [*_reopen(state), *events] if request.kind == "retry" else [*events]


def decide_action(action: str, state: WorkState) -> list[WorkTold]:
    """Return the events that pause, resume or stop a backlog run. One that is over can be resumed."""
    if state.finished and action != "resume":
        raise UserError("this backlog run is over", "`ralph work resume` continues it")
    if action == "stop":
        return [summarize(state, "interrupted", "stopped by a person", 130)]
    if state.finished or state.board.is_paused == (action == "pause"):
        return _reopen(state)
    return [work_events.WorkPaused(action == "pause")]


def _reopen(state: WorkState) -> list[WorkTold]:
    return [replace(state.started, resumed=True, pid=os.getpid())] if state.finished and state.started else []


async def steer(database: Database, action: str, work: str, key: str = "", note: str = "") -> str:
    """Write a request about a backlog run, or about a task in it, to the log; return a message for the user."""
    decide: Decide = partial(decide_action, action)
    if action in ("retry", "withdraw"):
        decide = partial(decide_request, TaskRequest("retry" if action == "retry" else "withdraw", key, note))
    row = await database.transact(find_work, work)
    state = await WorkLog(database, row.id).append("", decide)
    known = find_task(state.board, key, row.name).task.key if key else ""
    return DONE[action].format(work=row.name, key=known)


async def find_work(connection: Transaction, name: str) -> WorkRow:
    """Return the named backlog run, or the one that is open, or the last one."""
    known = await list_works(connection)
    if not known:
        raise UserError("no backlog in this database", "start one: ralph work BACKLOG --db URL --push --check CMD")
    if name:
        found = [row for row in known if name in (row.name, row.id)]
        if not found:
            names = ", ".join(row.name for row in known[-10:])
            raise UserError(f"no backlog run {name} in this database", f"known: {names}")
        return found[-1]
    opened = [row for row in known if row.is_open]
    if len(opened) > 1:
        names = ", ".join(f"{row.name} ({row.backlog})" for row in opened)
        raise UserError(f"several backlogs are open: {names}", "name one of them")
    return (opened or known)[-1]


async def load_work(database: Database, name: str) -> tuple[WorkRow, WorkState, list[WorkerRow]]:
    """Return a backlog run as it is now, and the workers of its repository."""
    row = await database.transact(find_work, name)
    state = await WorkLog(database, row.id).refresh()
    workers = await database.transact(list_workers)
    return row, state, [one for one in workers if one.repository == row.repository]


def describe_worker(worker: WorkerRow, board: Board) -> str:
    """Return a line about a worker: which tasks it runs, and when it last sent a heartbeat."""
    tasks = [job.task.key for job in board.of("working") if job.worker == worker.name]
    heard = f"heard {max(worker.silence, 0.0):.0f} s ago" if worker.is_present else "silent"
    return " " + one_line(f"{worker.name}: {', '.join(tasks) or 'waits'} ({worker.slots} at a time, {heard})", 500)


class WorkCopy:
    """The folder of a backlog run on this machine, with a copy of its events."""

    def __init__(self, database: Database, order: WorkOrder, folder: RunFolder, sinks: Sequence[LineSink] = ()) -> None:
        self.order, self.folder = order, folder
        self.log = WorkLog(database, order.id)
        self.ledger = JournalLedger(folder, sinks, Redactor(secret_values(os.environ)))
        self.registration: WorkRegistration
        self._mailbox = Mailbox(folder.path)
        self._was_paused = False

    def open(self) -> None:
        self.folder.make()
        put_order(self.folder, self.order)
        self.ledger.open()
        self._was_paused = self._mailbox.read().is_paused

    def copy_events(self) -> list[WorkTold]:
        """Copy what `log.refresh` has read; return the new events."""
        lines, self.log.new_lines = self.log.new_lines, []
        return self.ledger.copy_lines(lines)

    async def pass_requests(self, by: str = "") -> None:
        """Write the requests that people made on this machine to the log, and copy the log's pause to the mailbox.

        Call this before `copy_events`: otherwise a pause that is displayed could not be ended at once.
        """
        decisions: list[Decide] = []
        for request in self._mailbox.take(TASK_REQUEST, TaskRequest):
            decisions.append(partial(decide_request, request))
        if self._mailbox.take_stop(now=True) or self._mailbox.take_stop():
            decisions.append(partial(decide_action, "stop"))
        is_paused, before = self.log.state.board.is_paused, self._was_paused
        self._was_paused = self._mailbox.read().is_paused
        if before != self._was_paused != is_paused:
            decisions.append(partial(decide_action, "pause" if self._was_paused else "resume"))
        elif self._was_paused != is_paused:
            self._mailbox.pause() if is_paused else self._mailbox.unpause()
            self._was_paused = is_paused
        for decide in decisions:
            with suppress(UserError):  # it is too late for that, as the display will show
                await self.log.append(by, decide)


class Mirror:
    """While entered, the backlog runs in a database are listed on this machine as if they ran here, and requests from
    their mailboxes are passed on."""

    def __init__(self, url: str, env: Mapping[str, str] = os.environ) -> None:
        self._url, self._env = url, env
        self._stop = threading.Event()
        self._copies: dict[str, WorkCopy] = {}
        self._first: Future[None] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="mirror", daemon=True)

    def __enter__(self) -> "Mirror":
        self._thread.start()
        try:
            self._first.result()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=2 * POLL)
        for copy in self._copies.values():
            self._close(copy)

    async def _run(self) -> None:
        try:
            async with Database(self._url, ONE_SHOT).open() as database:
                await self._update(database)
                self._first.set_result(None)
                while not self._stop.is_set():
                    await asyncio.sleep(POLL)
                    with suppress(UserError):  # the database is away: the last known state stays on display
                        await self._update(database)
        except BaseException as error:  # noqa: BLE001 (raised by `__enter__`)
            if not self._first.done():
                self._first.set_exception(error)

    async def _update(self, database: Database) -> None:
        rows = await database.transact(list_works)
        for row in rows[-MAX_COPIES:]:
            copy = self._copies.get(row.id) or self._open(database, row)
            await copy.log.refresh()
            await copy.pass_requests()
            copy.copy_events()
            copy.registration.tick()

    def _open(self, database: Database, row: WorkRow) -> WorkCopy:
        place = Path(state_folder(self._env, "fleet"), row.name)
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        order = replace(decode_order(row.work_order), workspace=str(place))
        copy = WorkCopy(database, order, RunFolder(prepare(place), row.id))
        copy.open()
        copy.registration = WorkRegistration(copy.folder, order, ignores_signals=True)
        copy.registration.watch(copy.ledger)
        copy.registration.begin()
        copy.ledger.listen((copy.registration,))
        self._copies[row.id] = copy
        enlist(copy.folder, self._env)
        return copy

    def _close(self, copy: WorkCopy) -> None:
        Path(state_folder(self._env, "runs"), copy.order.id).unlink(missing_ok=True)
        if copy.ledger.state.finished is None:
            copy.registration.leave()
        copy.ledger.close()
