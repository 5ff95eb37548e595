"""See and steer the backlog runs of a fleet from any machine.

A request becomes an event in the log, so it needs neither a clone nor a running worker. A copy of a backlog run is an
ordinary journal, so `ralph ps`, `show`, `report`, the TUI and the web UI work as if the run took place here.
"""

import asyncio
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

from msgspec import Struct
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
from ralph.fleet.database import LAYOUT, ONE_SHOT, POLL, Database, Transaction
from ralph.fleet.log import Decide, WorkerRow, WorkLog, WorkRow, list_workers, list_works, summarize
from ralph.history.work_history import WorkHistory, fold_work
from ralph.store.folder import RunFolder, prepare
from ralph.store.journal import decode_entry
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


def decide_task_request(request: TaskRequest, state: WorkState) -> list[WorkTold]:
    """Return the events for a request about a task. A retry reopens a backlog run that is over."""
    job = find_task(state.board, request.key, state.started.name if state.started else "")
    events = events_for_request(state.board, replace(request, key=job.task.key))
    if not events:
        raise explain_no_effect(job, request)
    return [*_reopen(state), *events] if request.kind == "retry" else [*events]


def decide_pause(is_paused: bool, state: WorkState) -> list[WorkTold]:
    if state.finished:
        raise UserError("this backlog run is over", "`ralph work resume` continues it")
    return [work_events.WorkPaused(is_paused)] if state.board.is_paused != is_paused else []


def decide_resume(state: WorkState) -> list[WorkTold]:
    return _reopen(state) if state.finished else decide_pause(False, state)


def decide_stop(state: WorkState) -> list[WorkTold]:
    """Return the events that end a backlog run: each loop after its turn. It can be resumed."""
    if state.finished:
        raise UserError("this backlog run is over", "nothing is left to stop")
    return [summarize(state, "interrupted", "stopped by a person", 130)]


def _reopen(state: WorkState) -> list[WorkTold]:
    return [replace(state.started, resumed=True, pid=os.getpid())] if state.finished and state.started else []


async def steer(database: Database, action: str, work: str, key: str = "", note: str = "") -> str:
    """Write a request about a backlog run, or about a task in it, to the log; return a message for the user."""
    decisions: dict[str, Decide] = {
        "retry": partial(decide_task_request, TaskRequest("retry", key, note)),
        "withdraw": partial(decide_task_request, TaskRequest("withdraw", key)),
        "pause": partial(decide_pause, True),
        "resume": decide_resume,
        "stop": decide_stop,
    }
    row = await database.transact(_find_work, work)
    state = await WorkLog(database, row.id).append("", decisions[action])
    known = find_task(state.board, key, row.name).task.key if key else ""
    return DONE[action].format(work=row.name, key=known)


class WorkView(Struct, frozen=True):
    """A backlog run as it is now, and the workers of its repository."""

    row: WorkRow
    history: WorkHistory
    workers: tuple[WorkerRow, ...]

    @property
    def board(self) -> Board:
        return self.history.board


async def load_view(database: Database, name: str = "") -> WorkView:
    """Return the named backlog run, or the one that is open, or the last one."""
    row = await database.transact(_find_work, name)
    log = WorkLog(database, row.id)
    state = await log.refresh()
    history = fold_work(row.id, filter(None, (decode_entry(line) for _, line in log.new_lines)))
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


def tasks_of(worker: WorkerRow, boards: Iterable[Board]) -> list[str]:
    """Return the keys of the tasks that a worker runs."""
    return [job.task.key for board in boards for job in board.of("working") if job.worker == worker.name]


def describe_workers(workers: Iterable[WorkerRow], boards: Iterable[Board]) -> Iterator[str]:
    """Yield a line for each worker: where it is, which tasks it runs, and when it last sent a heartbeat."""
    boards = [*boards]
    for worker in workers:
        doing = one_line(f"{worker.name} on {worker.host}: {', '.join(tasks_of(worker, boards)) or 'waits'}", 500)
        silence = max(worker.silence, 0.0)
        heard = f"heard {silence:.0f} s ago" if worker.is_present else f"silent for {silence:.0f} s"
        if silence >= 120:
            heard = f"silent for {silence / 60:.0f} min"
        yield f" {doing} ({worker.slots} at a time, {heard})"


class WorkCopy:
    """The folder of a backlog run on this machine, with a copy of its events."""

    def __init__(self, database: Database, order: WorkOrder, folder: RunFolder, sinks: Sequence[LineSink] = ()) -> None:
        self.order, self.folder = order, folder
        self.log = WorkLog(database, order.id)
        self.ledger = JournalLedger(folder, sinks, Redactor(secret_values(os.environ)))
        self.registration: WorkRegistration
        self._mailbox = Mailbox(folder.path)
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

    async def pass_requests(self, by: str = "", takes: Callable[[TaskRequest], bool] = lambda request: False) -> None:
        """Write the requests that people made on this machine to the log, except those that `takes` has handled."""
        self.compare_pauses()
        requests = [one for one in self._mailbox.take(TASK_REQUEST, TaskRequest) if not takes(one)]
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
        self._copies: dict[str, WorkCopy] = {}
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
        states = [copy.ledger.state for copy in self._copies.values()]
        return [*describe_workers(self.workers, [state.board for state in states if state.finished is None])]

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
            copy = self._copies.get(row.id) or self._open(database, row)
            state = await copy.log.refresh()
            copy.copy_events()
            copy.registration.began(state.began)
            copy.registration.tick()
            await copy.pass_requests()

    def _open(self, database: Database, row: WorkRow) -> WorkCopy:
        place = Path(state_folder(self._env, "fleet"), row.name)
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        order = replace(decode_order(row.work_order), workspace=str(place))
        copy = WorkCopy(database, order, RunFolder(prepare(place), row.id))
        copy.open()
        copy.registration = WorkRegistration(copy.folder, order, ignores_signals=True)
        copy.registration.watch(copy.ledger)
        copy.registration.begin()
        copy.registration(*filter(None, (copy.ledger.state.finished,)))
        # The mailbox follows the log first: otherwise a pause that is displayed could not be ended at once.
        copy.ledger.listen((copy.compare_pauses, copy.registration))
        self._copies[row.id] = copy
        enlist(copy.folder, self._env)
        self._stack.callback(self._close, copy)
        return copy

    def _close(self, copy: WorkCopy) -> None:
        Path(state_folder(self._env, "runs"), copy.order.id).unlink(missing_ok=True)
        if copy.ledger.state.finished is None:
            copy.registration.leave()
        copy.ledger.close()
