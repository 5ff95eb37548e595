"""What happened in each backlog of a fleet, in one order for all machines, and the jobs that follow from it.

An event counts only if it still makes sense when it is written: the writer locks the backlog's row, reads what is new
and decides then. The jobs that follow are deferred in the same transaction. A job is only a hint: it looks at the log
before it does anything, so a job too many does no harm, and a missing one is deferred again.
"""

import asyncio
import os
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from procrastinate import exceptions
from procrastinate.jobs import Status
from psycopg.rows import class_row

from ralph.backlog.backlog_content import BacklogContent
from ralph.backlog.backlog_order import BacklogOrder
from ralph.backlog.ledger import NAMES, LedgerEvent
from ralph.backlog.task_requests import TaskRequest, events_for_request, explain_no_effect, find_task
from ralph.core import backlog_events
from ralph.core.backlog import Board, GateVerdict, exceeded_limit
from ralph.core.backlog_events import GATE, BacklogState, copy_state, due_jobs, end_of_backlog, next_state
from ralph.core.secrets import Redactor, secret_values
from ralph.core.text import one_line
from ralph.errors import UserError
from ralph.fleet.database import FORGET, LOCK, STALLED, Database, Transaction, fetch_all
from ralph.store.journal import decode_entry
from ralph.store.writer import Writer

JOB, TICK = "ralph.job", "ralph.tick"  # the engine's tasks
TASKS, MERGES = "ralph.task", "ralph.merge"  # its queues, each followed by the repository
Row = TypeVar("Row")
DONE = {
    "retry": "{key} is tried again",
    "withdraw": "{key} is withdrawn; its branch stays",
    "pause": "{work} pauses: each loop stops before its next turn",
    "resume": "{work} continues",
    "stop": "{work} ends: each loop after its turn",
}


class BacklogRow(Struct, frozen=True, kw_only=True):
    """A backlog run in the database."""

    id: str
    name: str
    backlog: str
    target: str
    repository: str
    work_order: str
    is_open: bool


class WorkerRow(Struct, frozen=True, kw_only=True):
    """A worker. `brings` is the backlog run that it was started with, `silence` the seconds since its last heartbeat.

    By backlog run, `spending` is the cost of each loop that ran here at that heartbeat, by the loop's run.
    """

    name: str
    slots: int
    repository: str
    brings: str
    spending: dict[str, dict[str, float]]
    silence: float

    @property
    def is_present(self) -> bool:
        return self.silence < STALLED


async def load_rows(connection: Transaction, kind: type[Row], query: str, *values: object) -> list[Row]:
    cursor = connection.cursor(row_factory=class_row(kind))
    return await (await cursor.execute(query, values)).fetchall()


async def list_backlogs(connection: Transaction, where: str = "true", *values: object) -> list[BacklogRow]:
    """Return the backlog runs, oldest first."""
    columns = ", ".join(BacklogRow.__struct_fields__)
    return await load_rows(
        connection, BacklogRow, f"SELECT {columns} FROM ralph_works WHERE {where} ORDER BY id", *values
    )


async def list_workers(connection: Transaction) -> list[WorkerRow]:
    """Return every worker that has not left."""
    columns = "name, slots, repository, brings, spending, extract(epoch FROM now() - seen)::float8 AS silence"
    return await load_rows(connection, WorkerRow, f"SELECT {columns} FROM ralph_workers ORDER BY name, id")


async def register_worker(connection: Transaction, name: str, slots: int, repository: str) -> int:
    """Add a worker, and return its id. Forget those that have been silent for a week."""
    await fetch_all(connection, f"DELETE FROM ralph_workers WHERE seen < now() - interval '{FORGET} seconds'")
    query = "INSERT INTO ralph_workers (name, slots, repository) VALUES (%s, %s, %s) RETURNING id"
    ((number,),) = await fetch_all(connection, query, name, slots, repository)
    return int(number)


Decide = Callable[[BacklogState], Sequence[LedgerEvent]]


class BacklogLog:
    """The events of one backlog run. `new_lines` are those that are not copied to this machine yet."""

    def __init__(self, database: Database, work: str) -> None:
        self.work, self.state = work, BacklogState()
        self.new_lines: list[tuple[int, bytes]] = []
        self._database, self._seq = database, 0
        self._redact = Redactor(secret_values(os.environ))
        self._lock = asyncio.Lock()

    async def append(self, by: str, decide: Decide) -> BacklogState:
        """Write the events that `decide` returns for the current state; return the state after them.

        `decide` is called again if the connection is lost, so it must recognise what it has already written. The jobs
        that become due are deferred; by the tick also those that were due before, in case one is missing.
        """
        async with self._lock:
            return await self._database.transact(self.write, by, decide)

    async def refresh(self) -> BacklogState:
        """Read what others have written."""
        async with self._lock:
            await self._database.transact(self._read)
        return self.state

    async def _read(self, connection: Transaction) -> None:
        query = "SELECT seq, by, line FROM ralph_events WHERE work = %s AND seq > %s ORDER BY seq"
        for seq, by, text in await fetch_all(connection, query, self.work, self._seq):
            self._seq, line = seq, text.encode()
            self.new_lines.append((seq, line))
            if (entry := decode_entry(line)) and (event := entry.event()) is not None:
                self.state = next_state(self.state, event, entry.at, by)

    async def write(self, connection: Transaction, by: str, decide: Decide) -> BacklogState:
        """Like `append`, as a part of a transaction."""
        ((repository, slots),) = await fetch_all(
            connection,
            "SELECT w.repository, (SELECT coalesce(sum(slots), 0) FROM ralph_workers p "
            f"WHERE p.repository = w.repository AND p.seen > now() - interval '{STALLED} seconds')::int "
            "FROM ralph_works w WHERE id = %s FOR UPDATE OF w",
            self.work,
        )
        await self._read(connection)
        before = after = self.state = replace(self.state, board=replace(self.state.board, slots=max(slots, 1)))
        if events := decide(before):
            after = copy_state(before)  # the transaction may fail
            for event in events:
                after = next_state(after, event, time.time(), by)
            await self._insert(connection, by, events, is_open=after.finished is None)
        due = () if by == TICK else due_jobs(before)
        for key in due_jobs(after):
            if key not in due:
                await self._defer(connection, key, f"{MERGES if key == GATE else TASKS}.{repository}")
        return after

    async def _insert(self, connection: Transaction, by: str, events: Sequence[LedgerEvent], *, is_open: bool) -> None:
        """Insert the events without secrets. The next `_read` reads them as well."""
        lines: list[str] = []
        sinks = [lambda data: lines.extend(line.decode() for line in data.splitlines(keepends=True))]
        Writer(self.work, sinks, seq=self._seq, redact=self._redact, names=NAMES)(*events)  # type: ignore[arg-type]
        await fetch_all(
            connection,
            "WITH new AS (INSERT INTO ralph_events (work, seq, by, line) "
            "SELECT %s, %s + number::int, %s, line FROM unnest(%s::text[]) WITH ORDINALITY AS given (line, number)) "
            "UPDATE ralph_works SET is_open = %s WHERE id = %s",
            *(self.work, self._seq, by, lines, is_open, self.work),
        )

    async def _defer(self, connection: Transaction, key: str, queue: str) -> None:
        """Defer the job of a task, or of the gate, unless it is waiting."""
        lock = f"{self.work}/{key}"
        deferrer = self._database.app.configure_task(JOB, queue=queue, queueing_lock=lock, connection=connection)
        with suppress(exceptions.AlreadyEnqueued):
            async with connection.transaction():
                await deferrer.defer_async(work=self.work, key=key)


def age(state: BacklogState) -> float:
    """Return the seconds since the backlog run started."""
    return max(time.time() - state.began, 0.0) if state.began else 0.0


def summarize(state: BacklogState, end: str, reason: str, exit_code: int) -> LedgerEvent:
    """Return the event that ends a backlog run now."""
    return end_of_backlog(state.board, end, reason, exit_code, age(state))


async def add_backlog(
    connection: Transaction, log: BacklogLog, worker: int, order: BacklogOrder, repository: str, content: BacklogContent
) -> BacklogRow:
    """Add the backlog that a worker brings, with all its tasks, and return it.

    A backlog can be open only once. If it already is, and the machine that brought it is gone, the open one is
    returned.
    """
    await fetch_all(connection, "SELECT pg_advisory_xact_lock(%s)", LOCK)
    row = await _find_same(connection, order)
    if row is None:
        await fetch_all(
            connection,
            "INSERT INTO ralph_works (id, name, backlog, target, repository, work_order) "
            "VALUES (%s, %s, %s, %s, %s, %s)",
            *(order.id, order.name, order.source.name, order.shown_target, repository),
            msgspec.json.encode(order).decode(),
        )
        listed = [backlog_events.TaskListed(task) for task in content.tasks if not task.done]
        await log.write(connection, "", lambda state: [order.started(), *listed])
        (row,) = await list_backlogs(connection, "id = %s", order.id)
    await fetch_all(connection, "UPDATE ralph_workers SET brings = %s WHERE id = %s", row.id, worker)
    return row


async def _find_same(connection: Transaction, order: BacklogOrder) -> BacklogRow | None:
    """Return the open run of the same backlog, unless the machine that brought it is still there."""
    brought = {worker.brings for worker in await list_workers(connection) if worker.is_present}
    same = "is_open AND backlog = %s AND target = %s"
    for row in await list_backlogs(connection, same, order.source.name, order.shown_target):
        if row.id in brought and row.id != order.id:  # ours may be there since the connection was lost
            hint = f"`ralph work status {row.name}` shows it, `ralph work stop {row.name}` ends it"
            raise UserError(f"{row.backlog} is already running on {row.target} as {row.name}", hint)
        return row
    return None


async def delete_stalled_jobs(database: Database, own: Collection[int | None]) -> None:
    """Delete the jobs of engine workers that send no heartbeats. `own` are those of this process."""
    if time.monotonic() - database.was_away <= STALLED:  # every heartbeat is old
        return
    for job in await database.app.job_manager.get_stalled_jobs(seconds_since_heartbeat=STALLED):
        if job.worker_id not in own:
            await database.app.job_manager.finish_job(job, Status.FAILED, delete_job=True)


async def check_backlog(database: Database, log: BacklogLog) -> None:
    """Queue the tasks whose job is gone, end the backlog run at its limits, and defer jobs that are missing."""
    holders = (await log.refresh()).holders.copy()  # before the look at the jobs: a later job may be too new for it
    alive = {str(job.id) for job in await database.app.job_manager.list_jobs_async(status="doing")}
    orphans = {key: by for key, by in holders.items() if by.rpartition("/")[2] not in alive}
    workers = await database.transact(list_workers)
    costs = [cost for worker in workers for cost in worker.spending.get(log.work, {}).items()]

    def check(state: BacklogState) -> list[LedgerEvent]:
        still_held = {key: by.rpartition("/")[0] for key, by in orphans.items() if state.holders.get(key) == by}
        closed = [backlog_events.GateFinished(GateVerdict())] if still_held.pop(GATE, None) else []
        queued = [backlog_events.TaskQueued(key, f"worker {name} is gone") for key, name in still_held.items()]
        return [*queued, *closed, *_check_limits(state, costs)]

    await log.append(TICK, check)


def _check_limits(state: BacklogState, costs: Sequence[tuple[str, float]]) -> list[LedgerEvent]:
    """End a backlog run whose money or time has run out. `costs` are the last known ones of runs."""
    if state.started is None or state.finished:
        return []
    counted = {job.run for job in state.board.of("ready", "merged", "parked")}
    spending = sum(cost for run, cost in costs if run not in counted)
    end, reason = exceeded_limit(state.board, state.started.max_time, age(state), spending)
    return [summarize(state, end, reason, 1)] if end else []


# Requests. Each becomes an event, from any machine: it needs neither a clone nor a running worker.


def decide_request(request: TaskRequest, state: BacklogState) -> list[LedgerEvent]:
    """Return the events for a request about a task. A retry reopens a backlog run that is over."""
    job = find_task(state.board, request.key, state.started.name if state.started else "")
    events = events_for_request(state.board, replace(request, key=job.task.key))
    if not events:
        raise explain_no_effect(job, request)
    return [*_reopen(state), *events] if request.kind == "retry" else [*events]


def decide_letter(request: TaskRequest, state: BacklogState) -> list[LedgerEvent]:
    """Like `decide_request`, for a request from a mailbox: its task may have started since. It then starts again, with
    the note."""
    if request.note and state.board.is_working(request.key):
        return [backlog_events.TaskQueued(request.key, "a person left a note", request.note)]
    return decide_request(request, state)


def decide_pause(is_paused: bool, state: BacklogState) -> list[LedgerEvent]:
    """Return the event that pauses a backlog run, or lets it continue."""
    return [] if state.finished or is_paused == state.board.is_paused else [backlog_events.BacklogPaused(is_paused)]


def decide_action(action: str, state: BacklogState) -> list[LedgerEvent]:
    """Return the events that pause, resume or stop a backlog run. One that is over can be resumed."""
    if state.finished and action == "resume":
        return _reopen(state)
    if state.finished:
        raise UserError("this backlog run is over", "`ralph work resume` continues it")
    if action == "stop":
        return [summarize(state, "interrupted", "stopped by a person", 130)]
    return decide_pause(action == "pause", state)


def _reopen(state: BacklogState) -> list[LedgerEvent]:
    return [replace(state.started, resumed=True, pid=os.getpid())] if state.finished and state.started else []


async def steer(database: Database, action: str, work: str, key: str = "", note: str = "") -> str:
    """Write a request about a backlog run, or about a task in it, to the log; return a message for the user."""
    decide: Decide = partial(decide_action, action)
    if action in ("retry", "withdraw"):
        decide = partial(decide_request, TaskRequest("retry" if action == "retry" else "withdraw", key, note))
    row = await database.transact(find_backlog, work)
    state = await BacklogLog(database, row.id).append("", decide)
    task_key = find_task(state.board, key, row.name).task.key if key else ""
    return DONE[action].format(work=row.name, key=task_key)


async def find_backlog(connection: Transaction, name: str) -> BacklogRow:
    """Return the named backlog run, or the one that is open, or the last one."""
    rows = await list_backlogs(connection)
    if not rows:
        raise UserError("no backlog in this database", "start one: ralph work BACKLOG --db URL --push --check CMD")
    matching = [row for row in rows if name in (row.name, row.id) or (not name and row.is_open)]
    if not (matching or name):
        return rows[-1]
    if len(matching) != 1:
        names = ", ".join(f"{row.name} ({row.backlog})" for row in matching or rows[-10:])
        message = f"no backlog run {name} in this database" if name else "several backlogs are open"
        raise UserError(message, f"name one of them: {names}")
    return matching[0]


async def load_shared_backlog(database: Database, name: str) -> tuple[BacklogRow, BacklogState, list[WorkerRow]]:
    """Return a backlog run as it is now, and the workers of its repository."""
    row = await database.transact(find_backlog, name)
    state = await BacklogLog(database, row.id).refresh()
    workers = await database.transact(list_workers)
    return row, state, [worker for worker in workers if worker.repository == row.repository]


def describe_worker(worker: WorkerRow, board: Board) -> str:
    """Return a line about a worker: which tasks it runs, and when it last sent a heartbeat."""
    tasks = [job.task.key for job in board.of("working") if job.worker == worker.name]
    heard = f"heard {max(worker.silence, 0.0):.0f} s ago" if worker.is_present else "silent"
    return " " + one_line(f"{worker.name}: {', '.join(tasks) or 'waits'} ({worker.slots} at a time, {heard})", 500)
