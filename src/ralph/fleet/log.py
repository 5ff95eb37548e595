"""What happened in each backlog of a fleet, in one order for all machines, and the jobs that follow from it.

An event counts only if it still makes sense when it is written: the writer locks the backlog's row, reads what is new
and decides then. The jobs that follow are deferred in the same transaction. A job is only a hint: it looks at the log
before it does anything, so a job too many does no harm, and a missing one is deferred again.
"""

import asyncio
import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import count

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from procrastinate import exceptions
from psycopg.rows import class_row

from ralph import __version__
from ralph.backlog.backlog_content import BacklogContent
from ralph.backlog.ledger import NAMES, WorkTold
from ralph.backlog.work_order import WorkOrder
from ralph.core import work_events
from ralph.core.backlog import FINISHED_STATES, is_over, next_batch, next_starts
from ralph.core.secrets import Redactor, secret_values
from ralph.core.work_events import GATE, WorkState, copy_state, next_state
from ralph.errors import UserError
from ralph.fleet.database import LAYOUT, LOCK, STALLED, Database, Transaction, fetch_all
from ralph.store.journal import decode_entry
from ralph.store.register import host
from ralph.store.writer import Writer

TASK, MERGE, READ_LIST, TICK = "ralph.task", "ralph.merge", "ralph.read_list", "ralph.tick"  # the engine's tasks
FORGET_WORKER = "7 days"  # after which a silent worker is deleted


def queue_name(task: str, repository: str = "") -> str:
    """Return the queue of an engine's task in clones of this repository, with a ralph that knows this layout."""
    return f"{task}.{LAYOUT}.{repository}"


class WorkRow(Struct, frozen=True, kw_only=True):
    """A backlog run in the database. `layout` is that of its order and events; `last`, the number of its last event."""

    id: str
    name: str
    layout: int
    version: str
    backlog: str
    target: str
    repository: str
    work_order: str
    is_open: bool
    last: int


class WorkerRow(Struct, frozen=True, kw_only=True):
    """A worker. `brings` is the backlog run that it was started with, `silence` the seconds since its last heartbeat.

    By backlog run, `spending` is the cost of each loop that ran here at that heartbeat, by the loop's run.
    """

    id: int
    name: str
    host: str
    slots: int
    version: str
    repository: str
    brings: str
    spending: dict[str, dict[str, float]]
    silence: float

    @property
    def is_present(self) -> bool:
        return self.silence < STALLED


async def list_works(connection: Transaction, where: str = "true", *values: object) -> list[WorkRow]:
    """Return the backlog runs, oldest first."""
    query = f"SELECT {', '.join(WorkRow.__struct_fields__)} FROM ralph_works WHERE {where} ORDER BY id"
    cursor = connection.cursor(row_factory=class_row(WorkRow))
    return await (await cursor.execute(query, values)).fetchall()


async def list_workers(connection: Transaction) -> list[WorkerRow]:
    """Return every worker that has not left."""
    columns = ", ".join(WorkerRow.__struct_fields__[:-1])
    query = (
        f"SELECT {columns}, extract(epoch FROM now() - seen)::float8 AS silence FROM ralph_workers ORDER BY name, id"
    )
    cursor = connection.cursor(row_factory=class_row(WorkerRow))
    return await (await cursor.execute(query)).fetchall()


async def register_worker(connection: Transaction, name: str, slots: int, repository: str) -> tuple[int, str]:
    """Add a worker; return its id, and its name with a number if another present worker has the same one."""
    await fetch_all(connection, "SELECT pg_advisory_xact_lock(%s)", LOCK)
    await fetch_all(connection, f"DELETE FROM ralph_workers WHERE seen < now() - interval '{FORGET_WORKER}'")
    taken = {one.name for one in await list_workers(connection) if one.is_present}
    if name in taken:
        name = next(f"{name}-{number}" for number in count(2) if f"{name}-{number}" not in taken)
    ((number,),) = await fetch_all(
        connection,
        "INSERT INTO ralph_workers (name, host, slots, version, repository) VALUES (%s, %s, %s, %s, %s) RETURNING id",
        *(name, host(), slots, __version__, repository),
    )
    return number, name


Decide = Callable[[WorkState], Sequence[WorkTold]]


class WorkLog:
    """The events of one backlog run. `new_lines` are those that are not copied to this machine yet."""

    def __init__(self, database: Database, work: str) -> None:
        self.work, self.state = work, WorkState()
        self.new_lines: list[tuple[int, bytes]] = []
        self._database, self._seq = database, 0
        self._redact = Redactor(secret_values(os.environ))
        self._lock = asyncio.Lock()

    async def append(self, by: str, decide: Decide, *, defers_all: bool = False) -> WorkState:
        """Write the events that `decide` returns for the current state; return the state after them.

        `decide` is called again if the connection is lost, so it must recognise what it has already written. The jobs
        that become due are deferred; with `defers_all` those that were due before, in case one is missing.
        """
        async with self._lock:
            return await self._database.transact(self._append, by, decide, defers_all)

    async def refresh(self) -> WorkState:
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

    async def _append(self, connection: Transaction, by: str, decide: Decide, defers_all: bool) -> WorkState:
        rows = await fetch_all(
            connection,
            "SELECT w.repository, (SELECT coalesce(sum(slots), 0) FROM ralph_workers p "
            f"WHERE p.repository = w.repository AND p.seen > now() - interval '{STALLED} seconds')::int "
            "FROM ralph_works w WHERE id = %s FOR UPDATE OF w",
            self.work,
        )
        if not rows:
            raise UserError(f"backlog run {self.work} is no longer in the database", "was it deleted by hand?")
        ((repository, slots),) = rows
        await self._read(connection)
        before = self.state = replace(self.state, board=replace(self.state.board, slots=max(slots, 1)))
        events, after = decide(before), before
        if events:
            after = copy_state(before)  # the transaction may fail
            for event in events:
                after = next_state(after, event, time.time(), by)
            lines = encode_events(self.work, self._seq, events, self._redact)
            await write_lines(connection, self.work, self._seq + 1, by, lines, is_open=after.finished is None)
        if events or defers_all:
            old = () if defers_all else due_jobs(before)
            for key in due_jobs(after):
                if key not in old:
                    await self.defer(connection, MERGE if key == GATE else TASK, repository, key)
        return after

    async def defer(self, connection: Transaction, task: str, repository: str, key: str = "", delay: int = 0) -> None:
        """Defer a job of this backlog run by `delay` seconds, unless the same job is waiting."""
        deferrer = self._database.app.configure_task(
            task,
            queue=queue_name(task, repository),
            queueing_lock=f"{self.work}/{task}/{key}",
            connection=connection,
            schedule_in={"seconds": delay},
        )
        with suppress(exceptions.AlreadyEnqueued):
            async with connection.transaction():
                await deferrer.defer_async(work=self.work, key=key)


def due_jobs(state: WorkState) -> tuple[str, ...]:
    """Return the keys of the tasks that can start, and `GATE` if the gate has something to do."""
    if state.finished or state.board.is_paused:
        return ()
    starts = next_starts(state.board) if state.opened else ()
    needs_gate = not state.opened or bool(next_batch(state.board)) or is_complete(state)
    return (GATE, *starts) if needs_gate and GATE not in state.holders else tuple(starts)


def is_complete(state: WorkState) -> bool:
    """Whether nothing is left to do."""
    is_idle = all(job.state in FINISHED_STATES for job in state.board.jobs.values())
    return not state.board.is_paused and (is_idle or (bool(state.opened) and is_over(state.board)))


def encode_events(work: str, seq: int, events: Iterable[WorkTold], redact: Redactor) -> list[bytes]:
    """Return the lines of events that follow number `seq`, without secrets."""
    lines: list[bytes] = []
    sinks = [lambda data: lines.extend(data.splitlines(keepends=True))]
    Writer(work, sinks, seq=seq, redact=redact, names=NAMES)(*events)  # type: ignore[arg-type]
    return lines


async def write_lines(
    connection: Transaction, work: str, first: int, by: str, lines: Sequence[bytes], *, is_open: bool
) -> None:
    await fetch_all(
        connection,
        "WITH new AS (INSERT INTO ralph_events (work, seq, by, line) "
        "SELECT %s, %s + number::int, %s, line FROM unnest(%s::text[]) WITH ORDINALITY AS given (line, number)) "
        "UPDATE ralph_works SET last = %s, is_open = %s WHERE id = %s",
        *(work, first - 1, by, [line.decode() for line in lines], first - 1 + len(lines), is_open, work),
    )


async def add_work(
    connection: Transaction, worker: int, order: WorkOrder, prefix: str, repository: str, content: BacklogContent
) -> WorkRow:
    """Add the backlog that a worker brings, with all its tasks, and return it.

    A backlog can be open only once. If it already is, and the machine that brought it is gone, the open one is
    returned. `prefix` is the workspace's path inside the repository.
    """
    await fetch_all(connection, "SELECT pg_advisory_xact_lock(%s)", LOCK)
    row = await _find_same(connection, order)
    if row is None:
        stored = replace(order, is_shared=True, workspace=prefix, settings=replace(order.settings, notify=()))
        await fetch_all(
            connection,
            "INSERT INTO ralph_works (id, name, layout, version, backlog, target, repository, work_order) "
            "VALUES (%s, %s, %s, %s, %s, %s, %s, %s)",
            *(order.id, order.name, LAYOUT, __version__, order.source.name, order.shown_target, repository),
            msgspec.json.encode(stored).decode(),
        )
        listed = [work_events.TaskListed(task) for task in content.tasks if not task.done]
        lines = encode_events(order.id, 0, [stored.started(), *listed], Redactor(secret_values(os.environ)))
        await write_lines(connection, order.id, 1, "", lines, is_open=True)
        (row,) = await list_works(connection, "id = %s", order.id)
    await fetch_all(connection, "UPDATE ralph_workers SET brings = %s WHERE id = %s", row.id, worker)
    return row


async def _find_same(connection: Transaction, order: WorkOrder) -> WorkRow | None:
    """Return the open run of the same backlog, unless the machine that brought it is still there."""
    brought = {one.brings for one in await list_workers(connection) if one.is_present}
    for row in await list_works(connection):
        if row.id == order.id:  # written before the connection was lost
            return row
        if row.is_open and (row.backlog, row.target) == (order.source.name, order.shown_target):
            if row.id not in brought:
                return row
            hint = f"`ralph work status {row.name}` shows it, `ralph work stop {row.name}` ends it"
            raise UserError(f"{row.backlog} is already running on {row.target} as {row.name}", hint)
        if row.name == order.name:
            raise UserError(f"a backlog run named {order.name} already exists", "start again: it gets another name")
    return None
