"""What happened in each backlog of a fleet, in one order for all machines, and what follows from it.

An event counts only if it still makes sense when it is written: the writer locks the backlog, reads what is new and
decides then. The jobs that follow are deferred in the same transaction. A job is only a hint: it looks at the log
before it does anything, so a job too many does no harm, and a missing one is deferred again.
"""

import asyncio
import os
from collections.abc import Callable, Iterable, Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from procrastinate import exceptions

from ralph import __version__
from ralph.backlog.backlog_content import BacklogContent
from ralph.backlog.ledger import NAMES, WorkTold
from ralph.backlog.work_order import WorkOrder
from ralph.core import work_events
from ralph.core.backlog import FINISHED_STATES, Board, is_over, next_batch, next_starts
from ralph.core.secrets import Redactor, secret_values
from ralph.errors import UserError
from ralph.fleet.database import LAYOUT, LOCK, STALLED, Database, Transaction, fetch_all
from ralph.store.journal import decode_entry
from ralph.store.register import host
from ralph.store.writer import Writer

GATE = ""  # the key under which the gate's holder is known
TASK, MERGE, READ_LIST, TICK = "ralph.task", "ralph.merge", "ralph.read_list", "ralph.tick"  # the engine's tasks
FORGET_WORKER = "7 days"  # after which a silent worker is deleted


def task_queue(repository: str) -> str:
    """Jobs of this queue run tasks, in a clone of this repository, with a ralph that knows this layout."""
    return f"tasks.{LAYOUT}.{repository}"


def gate_queue(repository: str) -> str:
    return f"gate.{LAYOUT}.{repository}"


class WorkRow(Struct, frozen=True, kw_only=True):
    """A backlog in the database. `layout` is that of its order and events; `last` is the number of its last event."""

    id: str
    name: str
    layout: int
    version: str
    backlog: str
    target: str
    repository: str
    order: str
    is_open: bool
    last: int


class WorkerRow(Struct, frozen=True, kw_only=True):
    """A worker. `brings` is the backlog that it was started with; `spending` is what its running loops have cost so
    far, by backlog; `silence` is the seconds since its last heartbeat."""

    id: int
    name: str
    host: str
    slots: int
    version: str
    repository: str
    brings: str
    spending: dict[str, float]
    silence: float

    @property
    def is_present(self) -> bool:
        return self.silence < STALLED


async def list_works(connection: Transaction, where: str = "true") -> list[WorkRow]:
    """Return the backlogs, oldest first."""
    columns = "id, name, layout, version, backlog, target, repository, work_order, is_open, last"
    rows = await fetch_all(connection, f"SELECT {columns} FROM ralph_works WHERE {where} ORDER BY id")
    return [WorkRow(**dict(zip(WorkRow.__struct_fields__, row, strict=True))) for row in rows]


async def list_workers(connection: Transaction) -> list[WorkerRow]:
    """Return every worker that has not left, with the time since its last heartbeat."""
    silence = "extract(epoch FROM now() - seen)::float8"
    columns = f"id, name, host, slots, version, repository, brings, spending, {silence}"
    rows = await fetch_all(connection, f"SELECT {columns} FROM ralph_workers ORDER BY name, id")
    return [WorkerRow(**dict(zip(WorkerRow.__struct_fields__, row, strict=True))) for row in rows]


async def register_worker(connection: Transaction, name: str, slots: int, repository: str, brings: str) -> WorkerRow:
    """Add a worker; its name gets a number if another present worker has it."""
    await fetch_all(connection, "SELECT pg_advisory_xact_lock(%s)", LOCK)
    await fetch_all(connection, f"DELETE FROM ralph_workers WHERE seen < now() - interval '{FORGET_WORKER}'")
    taken = {one.name for one in await list_workers(connection) if one.is_present}
    ((number,),) = await fetch_all(
        connection,
        "INSERT INTO ralph_workers (name, host, slots, version, repository, brings) VALUES (%s, %s, %s, %s, %s, %s) "
        "RETURNING id",
        *(name, host(), slots, __version__, repository, brings),
    )
    if name in taken:
        await fetch_all(connection, "UPDATE ralph_workers SET name = name || '-' || id WHERE id = %s", number)
    return next(one for one in await list_workers(connection) if one.id == number)


class WorkState(Struct, frozen=True, kw_only=True):
    """What the events of a backlog add up to. `holders` names the job that runs each task, and the gate's."""

    board: Board = msgspec.field(default_factory=Board)
    holders: dict[str, str] = msgspec.field(default_factory=dict)
    opened: str = ""  # the commit at which the target last passed its checks
    started: work_events.WorkStarted | None = None
    finished: work_events.WorkFinished | None = None
    began: float = 0.0

    def copy(self) -> "WorkState":
        return replace(self, board=work_events.copy_board(self.board), holders={**self.holders})


def apply_event(state: WorkState, event: object, by: str, at: float) -> WorkState:
    """Return the state after `event`; changes the dictionaries in place."""
    slots, holders = state.board.slots, state.holders
    try:
        board = work_events.apply_event(state.board, event, at)
    except KeyError:  # about a task that no event listed
        return state
    state = replace(state, board=replace(board, slots=slots))
    match event:
        case work_events.WorkStarted():
            holders.clear()
            return replace(state, started=event, finished=None, began=state.began or at)
        case work_events.WorkFinished():
            return replace(state, finished=event)
        case work_events.TaskStarted():
            holders[event.key] = by
        case work_events.GateStarted():
            holders[GATE] = by
        case work_events.GateFinished():
            holders.pop(GATE, None)
        case work_events.GateOpened():
            return replace(state, opened=event.commit)
        case work_events.TaskMerged() if event.commit:
            state = replace(state, opened=event.commit)
    if (key := getattr(event, "key", None)) and key not in state.board.working:
        holders.pop(key, None)
    return state


Decide = Callable[[WorkState], Sequence[WorkTold]]


class WorkLog:
    """The events of one backlog. `new_lines` are those that nobody on this machine has copied yet."""

    def __init__(self, database: Database, work: str) -> None:
        self.work, self.state = work, WorkState()
        self.new_lines: list[tuple[int, str, bytes]] = []
        self._database, self._seq = database, 0
        self._redact = Redactor(secret_values(os.environ))
        self._lock = asyncio.Lock()

    async def append(self, by: str, decide: Decide, *, reopens: bool = False, defers_all: bool = False) -> WorkState:
        """Write the events that `decide` returns for the current state; return the state after them.

        `decide` is called again if the connection is lost, so it must recognise what it has already written. The jobs
        that become due are deferred; with `defers_all` those that were due before, in case one is missing.
        """

        async def write(connection: Transaction) -> WorkState:
            return await self._append(connection, by, decide, reopens=reopens, defers_all=defers_all)

        async with self._lock:
            return await self._database.transact(write)

    async def refresh(self) -> WorkState:
        """Read what others have written."""
        async with self._lock:
            await self._database.transact(self._read)
        return self.state

    async def _read(self, connection: Transaction) -> None:
        query = "SELECT seq, by, line FROM ralph_events WHERE work = %s AND seq > %s ORDER BY seq"
        for seq, by, text in await fetch_all(connection, query, self.work, self._seq):
            self._seq, line = seq, text.encode()
            self.new_lines.append((seq, by, line))
            if (entry := decode_entry(line)) and (event := entry.event()) is not None:
                self.state = apply_event(self.state, event, by, entry.at)

    async def _append(
        self, connection: Transaction, by: str, decide: Decide, *, reopens: bool, defers_all: bool
    ) -> WorkState:
        rows = await fetch_all(
            connection,
            "SELECT w.repository, w.is_open, (SELECT coalesce(sum(slots), 0) FROM ralph_workers p "
            f"WHERE p.repository = w.repository AND p.seen > now() - interval '{STALLED} seconds')::int "
            "FROM ralph_works w WHERE id = %s FOR UPDATE OF w",
            self.work,
        )
        if not rows:
            raise UserError(f"backlog run {self.work} is no longer in the database", "was it deleted by hand?")
        ((repository, is_open, slots),) = rows
        await self._read(connection)
        self.state = replace(self.state, board=replace(self.state.board, slots=max(slots, 1)))
        events = list(decide(self.state))
        if reopens and not is_open and self.state.started:
            events = [replace(self.state.started, resumed=True, pid=os.getpid()), *events]
        state, lines = self.state.copy(), encode_events(self.work, self._seq, events, self._redact)
        for line in lines:
            entry = decode_entry(line)
            assert entry is not None
            state = apply_event(state, entry.event(), by, entry.at)
        if lines:
            await write_lines(connection, self.work, self._seq + 1, by, lines, is_open=state.finished is None)
        before = () if defers_all else due_jobs(self.state)
        for key in due_jobs(state) if lines or defers_all else ():
            if key == GATE and key not in before:
                await self.defer(connection, MERGE, gate_queue(repository), f"{self.work}/.gate")
            elif key not in before:
                await self.defer(connection, TASK, task_queue(repository), f"{self.work}/{key}", key=key)
        return state

    async def defer(
        self, connection: Transaction, task: str, queue: str, lock: str, after: int = 0, **more: str
    ) -> None:
        deferrer = self._database.app.configure_task(
            task, queue=queue, queueing_lock=lock, connection=connection, schedule_in={"seconds": after}
        )
        try:
            async with connection.transaction():
                await deferrer.defer_async(work=self.work, **more)
        except exceptions.AlreadyEnqueued:
            pass


def due_jobs(state: WorkState) -> tuple[str, ...]:
    """Return the keys of the tasks that can start, and `GATE` if there is something to merge."""
    if state.finished or state.board.is_paused:
        return ()
    starts = next_starts(state.board) if state.opened else ()
    return (GATE, *starts) if GATE not in state.holders and needs_gate(state) else tuple(starts)


def needs_gate(state: WorkState) -> bool:
    """Whether the gate has to check the target, merge something, or end the backlog run."""
    return not state.opened or bool(next_batch(state.board)) or is_complete(state)


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
    connection: Transaction, order: WorkOrder, prefix: str, repository: str, content: BacklogContent
) -> WorkRow:
    """Add a backlog with all its tasks, and return it.

    A backlog is worked off once at a time: one that is already open is returned instead, if the machine that brought it
    is gone. `prefix` is the workspace's path inside the repository.
    """
    stored = replace(order, is_shared=True, workspace=prefix, settings=replace(order.settings, notify=()))
    await fetch_all(connection, "SELECT pg_advisory_xact_lock(%s)", LOCK)
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
    return next(row for row in await list_works(connection) if row.id == order.id)
