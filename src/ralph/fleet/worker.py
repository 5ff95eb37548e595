"""What does a worker do all day? It looks for a work of its repository that is open, takes part in it, and looks again.
`ralph work --db` is one that brings a work of its own, and stays until that is over."""

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import msgspec
import psycopg
from msgspec import Struct
from msgspec.structs import replace

from ralph import __version__
from ralph.backlog.backlog_content import BacklogContent
from ralph.backlog.children import TaskProcesses
from ralph.backlog.ledger import Audience, WorkRegistration, WorkTold
from ralph.backlog.task_worktrees import Charge
from ralph.backlog.work_order import WorkOrder, home_of, order_in, put_order
from ralph.core.secrets import Redactor, secret_values
from ralph.core.text import one_line
from ralph.core.work_events import TaskListed
from ralph.errors import UserError
from ralph.fleet.database import (
    LAYOUT,
    LOCK,
    VARIABLE,
    Database,
    GaveUp,
    Registered,
    Transaction,
    WorkRow,
    connected,
    finished,
    ready,
)
from ralph.fleet.member import Member
from ralph.fleet.shared_ledger import POSTS, SharedLedger, encoded, keep_list, queue_up
from ralph.git.client import require_git
from ralph.process.signals import Interrupt
from ralph.show.outlet import Ndjson
from ralph.store.folder import RunFolder, prepare
from ralph.store.register import host
from ralph.store.writer import enlist

LOOK = 2.0  # seconds between two looks for a work
SECRET = (VARIABLE, "PGPASSWORD", "PGPASSFILE", "PGSERVICEFILE")
"""What loops and checks have no business to know."""
BEAT = 2.0  # seconds between two signs of life
IN_CHARGE = 7.0  # so long after a sign of life nobody can have taken anything over, with room for a push under way
FORGOTTEN = 7 * 24 * 3600.0  # seconds after which nobody wants to know of a silent worker


class Spectator(Struct, frozen=True):
    """What a person wants to see."""

    events: bool = False
    is_quiet: bool = False


class Worker:
    """One process of the fleet, with a clone. `slots` is how many loops it runs at once."""

    def __init__(self, url: str, workspace: Path, *, slots: int, name: str = "", spectator: Spectator) -> None:
        self._url, self._workspace, self._slots, self._name = url, workspace, slots, name
        self._home = home_of(workspace)
        self._spectator = spectator
        self._refused: dict[str, str] = {}
        self._last = ""

    def run(self, *, once: bool = False) -> int:
        """Until somebody ends it; `once`: until no work is open."""
        with ExitStack() as stack:
            equipment = self._enter(stack)
            self._say(f"worker {equipment.me.name} ({self._slots} at a time) looks for work")
            while not equipment.interrupt.level:
                if row := self._next(equipment):
                    self._last = row.id
                    self._take_part(equipment, row, self._local(row))
                elif once and not self._open(equipment):
                    return 0
                else:
                    self._wait(equipment)
        return 130

    def work_off(self, order: WorkOrder, reading: BacklogContent, notice: str = "") -> int:
        """Brings a work, and stays with it until it is over."""
        with ExitStack() as stack:
            equipment = self._enter(stack, brings=True)
            row = enter(equipment.database, order, reading, equipment.me)
            if notice:
                self._say(notice)
            if row.id != order.id:
                self._say(
                    f"work {row.name} goes on as it was begun; whoever brought its list is gone, so it is kept here"
                )
                return self._take_part(equipment, row, replace(self._local(row), source=order.source), reading)
            return self._take_part(equipment, row, replace(order, is_shared=True), reading)

    def _enter(self, stack: ExitStack, brings: bool = False) -> "Equipment":
        interrupt = stack.enter_context(Interrupt())
        database = Database(self._url, interrupt)
        stack.callback(database.close)
        try:
            ready(database)
            me = register(database, self._name, self._slots, brings)
        except GaveUp:
            raise KeyboardInterrupt from None
        stack.callback(_take_leave, database, me)
        return Equipment(interrupt, database, me, stack.enter_context(Heartbeat(self._url, me)))

    def _open(self, equipment: "Equipment") -> list[WorkRow]:
        return equipment.database.do(lambda transaction: transaction.works(is_open=True))

    def _next(self, equipment: "Equipment") -> WorkRow | None:
        """The next open work in turn that is for this clone and this version."""
        try:
            found = self._open(equipment)
        except GaveUp:
            return None
        for row in sorted(found, key=lambda row: (row.id <= self._last, row.id)):
            if not (why := self._objection(row)):
                return row
            if self._refused.get(row.id) != why:
                self._refused[row.id] = why
                self._say(f"takes nothing of work {row.name} ({row.backlog}): {why}")
        return None

    def _objection(self, row: WorkRow) -> str:
        if row.layout > LAYOUT:
            return f"it is of ralph {row.version}, and this one ({__version__}) does not understand it; upgrade ralph"
        try:
            order = self._local(row)
        except UserError as error:
            return error.message
        if order.remote is None:
            return "it has no remote"
        if order.remote.name not in self._home.run("remote").decode("utf-8", "replace").split():
            return f"this clone has no remote {order.remote.name}; add it: git remote add {order.remote.name} URL"
        if not self._home.resolve(order.base):
            try:
                order.remote.fetch(self._home)
            except UserError as error:
                return error.message
            if not self._home.resolve(order.base):
                return f"{self._home.root} is a clone of another repository: it lacks the commit {order.base[:12]}"
        return ""

    def _local(self, row: WorkRow) -> WorkOrder:
        """The order, as it is to be carried out in this clone."""
        order = order_in(row.order)
        return replace(order, workspace=os.path.join(self._home.root, order.workspace).rstrip("/"))

    def _wait(self, equipment: "Equipment") -> None:
        with suppress(GaveUp):
            if not equipment.database.is_listening:
                with suppress(Exception):  # behind a pooler the next look has to do
                    equipment.database.listen("ralph")
            TaskProcesses().wait(LOOK, equipment.interrupt.fileno(), equipment.database.fileno())
            equipment.interrupt.acknowledge()

    def _take_part(
        self, equipment: "Equipment", row: WorkRow, order: WorkOrder, reading: BacklogContent | None = None
    ) -> int:
        with ExitStack() as stack:
            ralph = prepare(Path(order.workspace))
            folder = RunFolder(ralph, order.id)
            folder.make()
            put_order(folder, order)
            equipment.heartbeat.charge(Charge(folder.path))
            stack.callback(equipment.heartbeat.charge, None)
            try:
                serve(equipment.database, equipment.me, order.id)
                member = self._member(equipment, order, folder, stack, brings=reading is not None)
                code = member.run(reading)
                serve(equipment.database, equipment.me, "")
            except GaveUp:
                return 130
            return code

    def _member(
        self, equipment: "Equipment", order: WorkOrder, folder: RunFolder, stack: ExitStack, brings: bool
    ) -> Member:
        env = {name: value for name, value in os.environ.items() if name not in SECRET}
        audience = Audience(order, folder, is_quiet=self._spectator.is_quiet, notifies=brings)
        audience.begin(stack)
        redact = Redactor(secret_values(os.environ))

        def is_late() -> bool:
            return equipment.interrupt.must_end() or order.is_overdue(ledger.age)

        sinks = [Ndjson(is_late)] if self._spectator.events else []
        ledger = SharedLedger(folder, sinks, redact, equipment.database, equipment.me)
        ledger.open()
        stack.callback(ledger.close)
        stack.callback(lambda: None if ledger.finished else self._left(order, audience.registration))
        audience.attend(ledger, stack)
        if problem := enlist(folder, os.environ):
            self._say(problem)
        return Member(
            order,
            folder,
            ledger,
            equipment.interrupt,
            equipment.database,
            name=equipment.me.name,
            env=env,
            tick=audience.tick,
            renew=equipment.heartbeat.renew,
            brings=brings,
            is_wanted_elsewhere=self._elsewhere(equipment, order.id),
        )

    def _left(self, order: WorkOrder, registration: WorkRegistration) -> None:
        registration.leave()
        self._say(
            f"left work {order.name}: it goes on with the other workers (ralph work status {order.name} --db URL)"
        )

    def _elsewhere(self, equipment: "Equipment", work: str) -> Callable[[], bool]:
        """Whether another work is open here; asked now and then."""
        asked = time.monotonic()

        def is_wanted() -> bool:
            nonlocal asked
            if time.monotonic() - asked < LOOK:
                return False
            asked = time.monotonic()
            return any(row.id != work and row.id not in self._refused for row in self._open(equipment))

        return is_wanted

    def _say(self, text: str) -> None:
        if not self._spectator.is_quiet:
            print(f"ralph: {one_line(text, 2000)}", file=sys.stderr, flush=True)  # much of it is from the database


class Equipment(Struct, frozen=True):
    """What is open while a worker is there."""

    interrupt: Interrupt
    database: Database
    me: Registered
    heartbeat: "Heartbeat"


def _take_leave(database: Database, me: Registered) -> None:
    """So that the others need not wait for our silence; where the database is away they will."""
    if not database.is_given_up:
        last = Database(database.url, patience=1.0)
        with suppress(UserError):
            unregister(last, me)
        last.close()


def enter(database: Database, order: WorkOrder, reading: BacklogContent, me: Registered) -> WorkRow:
    """Puts a new work on record, with all its tasks: who sees it may begin. One list is worked off once at a time; one
    that is open, and whoever brought it is gone, is taken up again."""
    prefix = require_git(Path(order.workspace)).prefix
    stored = replace(order, is_shared=True, workspace=prefix, settings=replace(order.settings, notify=()))

    def write(transaction: Transaction) -> WorkRow:
        transaction.ask("SELECT pg_advisory_xact_lock(%s)", LOCK)
        for row in transaction.works():
            if row.id == order.id:  # the answer was lost
                return row
            if row.is_open and (row.backlog, row.target) == (order.source.name, order.shown_target):
                if keep_list(transaction, row.id, me):
                    return row
                hint = f"`ralph work status {row.name}` shows it; end it with `ralph work stop {row.name}`"
                raise UserError(f"work {row.name} works off {row.backlog} on {row.target} already", hint)
            if row.name == order.name:
                raise UserError(f"there is a work named {order.name} already", "start again: it gets another name")
        transaction.ask(
            "INSERT INTO ralph_works (id, name, layout, version, backlog, target, work_order) "
            "VALUES (%s, %s, %s, %s, %s, %s, %s)",
            *(
                order.id,
                order.name,
                LAYOUT,
                __version__,
                order.source.name,
                order.shown_target,
                msgspec.json.encode(stored).decode(),
            ),
        )
        listed = [task for task in reading.tasks if not task.done]
        queue_up(transaction, order.id, [*POSTS, *(task.key for task in listed)])
        keep_list(transaction, order.id, me)
        told: list[WorkTold] = [stored.started(), *map(TaskListed, listed)]
        transaction.write(order.id, 1, encoded(order.id, 0, told, Redactor(secret_values(os.environ))))
        return next(row for row in transaction.works() if row.id == order.id)

    return database.do(write)


def register(database: Database, name: str, slots: int, brings: bool = False) -> Registered:
    """Enters the worker; its name is made unique."""
    chosen = name or f"{host()}-{os.getpid()}"

    def enter(transaction: Transaction) -> Registered:
        finished(transaction.jobs.prune_stalled_workers(FORGOTTEN))
        number = int(finished(transaction.jobs.register_worker()))
        taken = {one.name for one in transaction.present() if one.is_there}
        own = chosen if chosen not in taken else f"{chosen}-{number}"
        transaction.ask(
            "INSERT INTO ralph_workers (id, name, host, slots, version, brings) VALUES (%s, %s, %s, %s, %s, %s)",
            *(number, own, host(), slots, __version__, brings),
        )
        return Registered(number, own, slots)

    return database.do(enter)


def unregister(database: Database, me: Registered) -> None:
    database.do(lambda transaction: finished(transaction.jobs.unregister_worker(me.id)))


class Heartbeat:
    """Signs of life, from a thread and over a connection of their own: whatever the worker waits for, they go on. Each
    extends the charge of the work at hand, but one that is over has to be renewed: by whoever has heard what happened
    meanwhile. `is_forgotten` once the others have struck the worker off."""

    def __init__(self, url: str, me: Registered) -> None:
        self._url, self._me = url, me
        self._charge: Charge | None = None
        self._last, self._until = time.monotonic(), 0.0
        self._stop = threading.Event()
        self._guard = threading.Lock()
        self.is_forgotten = False
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def __enter__(self) -> "Heartbeat":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self.charge(None)  # the thread may be waiting for an answer, and ends with the process

    def charge(self, charge: Charge | None) -> None:
        """Which work's charge is extended from now on, once it is renewed."""
        with self._guard:
            if self._charge is not None:
                self._charge.end()
            self._charge, self._until = charge, 0.0

    def renew(self) -> None:
        """All that others did is known here, and what is no longer ours was told to end."""
        if self.is_forgotten:
            raise UserError(f"worker {self._me.name} was struck off: it was not heard for a week", "start it again")
        with self._guard:
            if time.monotonic() > self._until:
                self._extend()

    def _extend(self) -> None:
        if self._charge is not None and not self.is_forgotten:
            self._until = self._last + IN_CHARGE
            with suppress(OSError):  # the work's folder is gone: nothing will be pushed
                self._charge.extend(self._until)

    def _run(self) -> None:
        connection: psycopg.Connection[object] | None = None
        while not self._stop.wait(BEAT):
            began = time.monotonic()
            try:
                connection = connection or connected(self._url)
                transaction = Transaction(connection)
                finished(transaction.jobs.update_heartbeat(self._me.id))
                is_known = transaction.ask("SELECT 1 FROM procrastinate_workers WHERE id = %s", self._me.id)
            except Exception:  # noqa: BLE001 - whatever it is: no sign of life, and the next try may succeed
                _close(connection)
                connection = None
                continue
            with self._guard:
                self._last, self.is_forgotten = began, not is_known
                if began < self._until:
                    self._extend()
        _close(connection)


def _close(connection: "psycopg.Connection[object] | None") -> None:
    if connection is not None:
        with suppress(psycopg.Error):
            connection.close()


def serve(database: Database, me: Registered, work: str) -> None:
    """Tells the others which work this worker is on; none where it looks for one."""
    query = "UPDATE ralph_workers SET work = %s, spending = 0 WHERE id = %s"
    database.do(lambda transaction: transaction.ask(query, work, me.id))
