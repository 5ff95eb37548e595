"""Copies of a fleet's backlog runs on this machine.

A copy is an ordinary journal, so `ralph ps`, `show`, `report`, the TUI and the web UI work as if the run took place
here. Requests in its mailbox are passed on to the log.
"""

import asyncio
import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from ralph.backlog.ledger import JournalLedger, WorkRegistration, WorkTold
from ralph.backlog.task_requests import TASK_REQUEST, TaskRequest
from ralph.backlog.work_order import WorkOrder, decode_order, put_order
from ralph.core.secrets import Redactor, secret_values
from ralph.errors import UserError
from ralph.files import state_folder
from ralph.fleet.database import LAYOUT, ONE_SHOT, POLL, Database
from ralph.fleet.log import Decide, WorkerRow, WorkLog, WorkRow, list_workers, list_works
from ralph.fleet.steering import decide_pause, decide_stop, decide_task_request, describe_workers
from ralph.store.folder import RunFolder, prepare
from ralph.store.mailbox import Mailbox
from ralph.store.writer import LineSink, enlist

MAX_COPIES = 50  # backlog runs that a mirror copies; older ones are left out


class WorkCopy:
    """The folder of a backlog run on this machine, with a copy of its events."""

    def __init__(self, database: Database, order: WorkOrder, folder: RunFolder, sinks: Sequence[LineSink] = ()) -> None:
        self.order, self.folder = order, folder
        self.log = WorkLog(database, order.id)
        self.ledger = JournalLedger(self.folder, sinks, Redactor(secret_values(os.environ)))
        self._mailbox = Mailbox(self.folder.path)
        self._was_paused = False
        self._wants_pause: bool | None = None

    def open(self) -> None:
        self.folder.make()
        put_order(self.folder, self.order)
        self.ledger.open()
        self._was_paused = self._mailbox.read().is_paused

    def copy_events(self) -> list[WorkTold]:
        """Copy what `log.refresh` has read; return the new events."""
        lines, self.log.new_lines = self.log.new_lines, []
        return self.ledger.copy_lines(lines)

    def compare_pauses(self, *_: object) -> None:
        """Compare the pause in the mailbox with the one in the log; if one of them changed, update the other."""
        is_paused, was = self.ledger.board.is_paused, self._was_paused
        self._was_paused = self._mailbox.read().is_paused
        if self._was_paused != was and self._was_paused != is_paused:
            self._wants_pause = self._was_paused
        elif self._was_paused != is_paused:
            self._mailbox.pause() if is_paused else self._mailbox.unpause()
            self._was_paused = is_paused

    def take_requests(self) -> list[TaskRequest]:
        return self._mailbox.take(TASK_REQUEST, TaskRequest)

    async def pass_on(self, by: str, requests: Sequence[TaskRequest]) -> None:
        """Write the requests that people made on this machine to the log."""
        self.compare_pauses()
        decisions: list[Decide] = [partial(decide_task_request, request) for request in requests]
        if self._wants_pause is not None:
            decisions.append(partial(decide_pause, self._wants_pause))
            self._wants_pause = None
        if self._mailbox.take_stop(now=True) or self._mailbox.take_stop():
            decisions.append(decide_stop)
        for decide in decisions:
            with suppress(UserError):  # it is too late for that, as the display will show
                await self.log.append(by, decide)


class Mirror:
    """While entered, the backlog runs in a database are listed on this machine as if they ran here.

    With `follows` they are kept up to date, and requests from their mailboxes are passed on.
    """

    def __init__(self, url: str, *, follows: bool, env: Mapping[str, str] = os.environ) -> None:
        self._url, self._follows, self._env = url, follows, env
        self._stack, self._stop = ExitStack(), threading.Event()
        self._copies: dict[str, tuple[WorkCopy, WorkRegistration]] = {}
        self._first: Future[None] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="mirror", daemon=True)
        self.workers: list[WorkerRow] = []

    def __enter__(self) -> "Mirror":
        self._thread.start()
        try:
            self._first.result()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=2 * POLL)
        self._stack.close()

    def __contains__(self, run: str) -> bool:
        return run in self._copies

    def describe_workers(self) -> list[str]:
        ledgers = [copy.ledger for copy, _ in self._copies.values()]
        return [*describe_workers(self.workers, [one.board for one in ledgers if one.state.finished is None])]

    async def _run(self) -> None:
        try:
            async with Database(self._url, ONE_SHOT).open() as database:
                await self._update(database)
                self._first.set_result(None)
                while self._follows and not self._stop.is_set():
                    await asyncio.sleep(POLL)
                    with suppress(UserError):  # the database is away: the last known state stays on display
                        await self._update(database)
        except BaseException as error:  # noqa: BLE001 (raised by `__enter__`)
            if not self._first.done():
                self._first.set_exception(error)

    async def _update(self, database: Database) -> None:
        rows = await database.transact(list_works)
        self.workers = await database.transact(list_workers)
        for row in rows[-MAX_COPIES:]:
            if row.layout > LAYOUT:
                continue
            if row.id not in self._copies:
                self._open(database, row)
            copy, registration = self._copies[row.id]
            state = await copy.log.refresh()
            copy.copy_events()
            registration.began(state.began)
            registration.tick()
            await copy.pass_on("", copy.take_requests())

    def _open(self, database: Database, row: WorkRow) -> None:
        place = Path(state_folder(self._env, "fleet"), row.name)
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        order = replace(decode_order(row.work_order), workspace=str(place))
        copy = WorkCopy(database, order, RunFolder(prepare(place), row.id))
        copy.open()
        registration = WorkRegistration(copy.folder, copy.order, ignores_signals=True)
        registration.watch(copy.ledger)
        registration.begin()
        registration(*filter(None, (copy.ledger.state.finished,)))
        # The mailbox follows the log first: otherwise a pause that is displayed could not be ended at once.
        copy.ledger.listen((copy.compare_pauses, registration))
        self._copies[row.id] = copy, registration
        enlist(copy.folder, self._env)
        self._stack.callback(self._close, row.id)

    def _close(self, work: str) -> None:
        copy, registration = self._copies[work]
        Path(state_folder(self._env, "runs"), work).unlink(missing_ok=True)
        if copy.ledger.state.finished is None:
            registration.leave()
        copy.ledger.close()
