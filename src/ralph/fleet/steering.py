"""See and steer the backlogs of a fleet from any machine.

A request is an event in the log, so it needs neither a clone nor a listener. For the TUI and the web UI each backlog
run has a folder here with a copy of its events and a mailbox; requests in the mailbox are passed on to the log.
"""

import asyncio
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from ralph.backlog.ledger import JournalLedger, WorkRegistration, WorkTold
from ralph.backlog.task_requests import TASK_REQUEST, TaskRequest, events_for_request, explain_no_effect, find_task
from ralph.backlog.work_order import decode_order, put_order
from ralph.core import work_events
from ralph.core.backlog import Board
from ralph.core.secrets import Redactor
from ralph.core.text import one_line
from ralph.core.work_events import work_summary
from ralph.errors import UserError
from ralph.files import state_folder
from ralph.fleet.database import LAYOUT, ONE_SHOT, POLL, Database, Transaction
from ralph.fleet.local_work import PauseFile
from ralph.fleet.log import WorkerRow, WorkLog, WorkRow, WorkState, list_workers, list_works
from ralph.history.work_history import WorkHistory, fold_work
from ralph.store.folder import RunFolder, prepare
from ralph.store.journal import decode_entry
from ralph.store.mailbox import Mailbox
from ralph.store.writer import enlist

MAX_COPIES = 50  # backlog runs; older ones are not copied


class WorkView(Struct, frozen=True):
    """A backlog run as it is now, and the workers of its repository."""

    row: WorkRow
    history: WorkHistory
    workers: tuple[WorkerRow, ...]

    @property
    def board(self) -> Board:
        return self.history.board


async def see(database: Database, name: str = "") -> WorkView:
    """Return the named backlog run, or the one that is open, or the last one."""
    row = await database.transact(lambda connection: _find_work(connection, name))
    log = WorkLog(database, row.id)
    state = await log.refresh()
    history = fold_work(row.id, filter(None, (decode_entry(line) for _, _, line in log.new_lines)))
    history.state = state.finished.outcome if state.finished else "running"
    workers = await database.transact(list_workers)
    return WorkView(row, history, tuple(one for one in workers if one.repository == row.repository))


async def _find_work(connection: Transaction, name: str) -> WorkRow:
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


def tasks_of(worker: WorkerRow, board: Board) -> list[str]:
    """Return the keys of the tasks that a worker runs."""
    return [job.task.key for job in board.of("working") if job.worker == worker.name]


def describe_workers(workers: Iterable[WorkerRow], board: Board) -> Iterator[str]:
    """Yield a line for each worker: where it is, which tasks it runs, and when it was last heard."""
    for worker in workers:
        doing = one_line(f"{worker.name} on {worker.host}: {', '.join(tasks_of(worker, board)) or 'waits'}", 500)
        silence = max(worker.silence, 0.0)
        heard = f"heard {silence:.0f} s ago" if worker.is_present else f"silent for {silence:.0f} s"
        if silence >= 120:
            heard = f"silent for {silence / 60:.0f} min"
        yield f" {doing} ({worker.slots} at a time, {heard})"


RequestDecision = Callable[[WorkRow, WorkState], Sequence[WorkTold]]


async def _write(
    database: Database, name: str, decide: RequestDecision, *, reopens: bool = False
) -> tuple[WorkRow, WorkState]:
    """Write what follows from a request, from any machine."""
    row = await database.transact(lambda connection: _find_work(connection, name))
    return row, await WorkLog(database, row.id).append("", lambda state: decide(row, state), reopens=reopens)


async def _request(database: Database, name: str, request: TaskRequest, *, reopens: bool) -> str:
    def decide(row: WorkRow, state: WorkState) -> Sequence[WorkTold]:
        job = find_task(state.board, request.key, row.name)
        if events := events_for_request(state.board, replace(request, key=job.task.key)):
            return events
        raise explain_no_effect(job, request)

    row, state = await _write(database, name, decide, reopens=reopens)
    return find_task(state.board, request.key, row.name).task.key


async def retry(database: Database, work: str, key: str, note: str) -> str:
    return f"{await _request(database, work, TaskRequest('retry', key, note), reopens=True)} is tried again"


async def withdraw(database: Database, work: str, key: str) -> str:
    name = await _request(database, work, TaskRequest("withdraw", key), reopens=False)
    return f"{name} is withdrawn; its branch stays"


async def pause(database: Database, work: str, is_paused: bool = True) -> str:
    def decide(row: WorkRow, state: WorkState) -> list[WorkTold]:
        if state.finished:
            raise UserError(f"{row.name} is over", "`ralph work resume` continues it")
        return [work_events.WorkPaused(is_paused)] if state.board.is_paused != is_paused else []

    row, _ = await _write(database, work, decide)
    return f"{row.name} {'pauses: each loop stops before its next turn' if is_paused else 'continues'}"


async def stop(database: Database, work: str) -> str:
    """End a backlog run: each loop after its turn. It can be resumed."""

    def decide(row: WorkRow, state: WorkState) -> list[WorkTold]:
        if state.finished:
            raise UserError(f"{row.name} is over", "nothing is left to stop")
        return [work_summary(state.board, "interrupted", "stopped by a person", 130, time.time() - state.began)]

    row, _ = await _write(database, work, decide)
    return f"{row.name} ends: each loop after its turn"


async def resume(database: Database, work: str) -> str:
    row = await database.transact(lambda connection: _find_work(connection, work))
    if row.is_open:
        return await pause(database, row.id, is_paused=False)
    await _write(database, row.id, lambda row, state: [], reopens=True)
    return f"{row.name} continues"


class Mirror:
    """While entered, the backlogs in a database are listed on this machine as if they ran here.

    With `follows` they are kept up to date, and requests from their mailboxes are passed on.
    """

    def __init__(self, url: str, *, follows: bool, env: Mapping[str, str] = os.environ) -> None:
        self._url, self._follows, self._env = url, follows, env
        self._stack, self._stop = ExitStack(), threading.Event()
        self._copies: dict[str, Copy] = {}
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
        boards = [copy.board for copy in self._copies.values() if copy.is_open]
        together = Board(jobs={f"{n}/{key}": job for n, one in enumerate(boards) for key, job in one.jobs.items()})
        return [*describe_workers(self.workers, together)]

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
                self._copies[row.id] = self._open(database, row)
            await self._copies[row.id].update()

    def _open(self, database: Database, row: WorkRow) -> "Copy":
        place = Path(state_folder(self._env, "fleet"), row.name)
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        copy = Copy(database, row, RunFolder(prepare(place), row.id), str(place))
        copy.open()
        enlist(copy.folder, self._env)
        self._stack.callback(copy.close)
        self._stack.callback(Path(state_folder(self._env, "runs"), row.id).unlink, missing_ok=True)
        return copy


class Copy:
    """A backlog run that takes place elsewhere."""

    def __init__(self, database: Database, row: WorkRow, folder: RunFolder, workspace: str) -> None:
        self._database, self._work, self.folder = database, row.id, folder
        self._log = WorkLog(database, row.id)
        self._order = replace(decode_order(row.order), workspace=workspace)
        self._registration = WorkRegistration(folder, self._order, ignores_signals=True)
        self._ledger = JournalLedger(folder, (), Redactor())
        self._mailbox = Mailbox(folder.path)
        self._pause = PauseFile(self._mailbox)
        self._wanted: bool | None = None

    def open(self) -> None:
        self.folder.make()
        put_order(self.folder, self._order)
        self._registration.begin()
        self._ledger.open()
        self._pause.open()
        self._registration.watch(self._ledger)
        self._registration(*filter(None, (self._ledger.finished,)))
        self._ledger.listen((self._follow_pause, self._registration))

    @property
    def board(self) -> Board:
        return self._ledger.board

    @property
    def is_open(self) -> bool:
        return self._ledger.finished is None

    async def update(self) -> None:
        """Copy what is new, and pass on what people here ask for."""
        state = await self._log.refresh()
        lines, self._log.new_lines = self._log.new_lines, []
        self._ledger.copy_lines([(seq, line) for seq, _, line in lines])
        self._registration.began(state.began)
        self._registration.tick()
        for request in self._mailbox.take(TASK_REQUEST, TaskRequest):
            await self._ask(_request(self._database, self._work, request, reopens=request.kind == "retry"))
        self._follow_pause()
        if self._wanted is not None:
            wanted, self._wanted = self._wanted, None
            await self._ask(pause(self._database, self._work, wanted))
        if self._mailbox.take_stop(now=True) or self._mailbox.take_stop():
            await self._ask(stop(self._database, self._work))

    def _follow_pause(self, *_: object) -> None:
        """Bring the mailbox up to date before a pause is displayed: otherwise it could not be ended at once."""
        wanted = self._pause.compare(self._ledger.board.is_paused)
        self._wanted = self._wanted if wanted is None else wanted

    async def _ask(self, request: Awaitable[str]) -> None:
        with suppress(UserError):  # too late, as the display will show
            await request

    def close(self) -> None:
        if self._ledger.finished is None:
            self._registration.leave()
        self._ledger.close()
