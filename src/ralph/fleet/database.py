"""What do the machines of a fleet share, beside the remote? A database: works, what happened in each, who is there;
and Procrastinate's jobs, whose claims end with the heartbeat of whoever made them. Its tables are made where there are
none; older ones are brought up to date only when a person says so, for workers of that version may be at work.

No lock outlives a transaction, and nothing depends on which session runs a statement: so it works behind a pooler.
"""

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent import futures
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from importlib import resources
from typing import Any, TypeVar

import psycopg
from msgspec import Struct
from procrastinate import connector, exceptions
from procrastinate.manager import JobManager
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from ralph.core.text import one_line
from ralph.errors import UserError
from ralph.files import read_given
from ralph.process.signals import Interrupt

logging.getLogger("psycopg").setLevel(logging.CRITICAL)  # what goes wrong is said in one line, by us
VARIABLE = "RALPH_DB"
OLDEST = 13  # of PostgreSQL
FIRST_PATIENCE, LONGEST_PATIENCE = 0.2, 2.0  # seconds between two tries to reach the server
STALLED = 9.0  # seconds that a worker may be silent before others take over what it has
ANSWER = 6  # seconds for a connection, or for a statement
LAST_ANSWER = 1.0  # seconds for a statement once a person wants an end
GLANCE = 0.05  # seconds between two looks at whether there is a connection
BEGIN = "BEGIN; SET LOCAL idle_in_transaction_session_timeout = '3s'; SET LOCAL lock_timeout = '5s'"
"""A worker may be stopped in the middle of a transaction: nobody waits for its locks for long."""
AWAY = (
    *("connection refused", "timeout expired", "the database system is", "closed the connection", "connection timeout"),
    *("unreachable", "no route", "could not translate", "name or service", "name resolution", "reset by peer"),
    *("too many clients", "connection slots", "no such file or directory", "terminating connection", "is lost"),
    *("broken pipe", "not currently accepting", "ssl syscall", "eof detected", "bad connection"),
)
"""What an answer says where the server is away for a while, and the question can be asked again."""

LAYOUT = 2
"""Of the tables, of orders and of events. A worker takes nothing of a layout that it does not know."""
LOCK = 0x72616C7068  # for this transaction alone: two that make the tables at once would be in each other's way

TABLES = """
CREATE TABLE ralph_fleet (layout int NOT NULL, procrastinate text NOT NULL);
CREATE TABLE ralph_works (
    id text PRIMARY KEY, name text NOT NULL UNIQUE, layout int NOT NULL, version text NOT NULL, backlog text NOT NULL,
    target text NOT NULL, work_order text NOT NULL, is_open bool NOT NULL DEFAULT true, last int NOT NULL DEFAULT 0
);
CREATE TABLE ralph_events (
    work text NOT NULL REFERENCES ralph_works(id) ON DELETE CASCADE, seq int NOT NULL, line text NOT NULL,
    PRIMARY KEY (work, seq)
);
CREATE TABLE ralph_workers (
    id bigint PRIMARY KEY REFERENCES procrastinate_workers(id) ON DELETE CASCADE, name text NOT NULL,
    host text NOT NULL, slots int NOT NULL, version text NOT NULL, work text NOT NULL DEFAULT '',
    brings bool NOT NULL DEFAULT false, spending float8 NOT NULL DEFAULT 0
);
"""
STEPS = (
    "ALTER TABLE ralph_workers ADD COLUMN brings bool NOT NULL DEFAULT false, "
    "ADD COLUMN spending float8 NOT NULL DEFAULT 0",
)
"""What makes layout 2 of layout 1, and so on."""

REFUSALS = (psycopg.OperationalError, psycopg.InterfaceError, psycopg.errors.InsufficientPrivilege)

Given = TypeVar("Given")


class GaveUp(Exception):
    """A person wants us to end, while the database is away."""


class ImpatientConnection(psycopg.Connection[Any]):
    """One on which a statement that gets no answer is given up. Something between us and the server may hold a
    connection open that leads nowhere, and no timeout of the network's notices that."""

    interrupt: Interrupt | None = None

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        return super().wait(self._watched(gen), interval, ANSWER if timeout is None else timeout)

    def _watched(self, gen: Any) -> Generator[Any, Any, Any]:
        """The same, broken off for a person who wants an end: on a KeyboardInterrupt psycopg would wait for more."""
        began, sent = time.monotonic(), None
        while True:
            try:
                asked = gen.send(sent)
            except StopIteration as end:
                return end.value
            sent = yield asked
            if self.interrupt and self.interrupt.level and time.monotonic() - began > LAST_ANSWER:
                raise GaveUp


class OneConnection(connector.BaseConnector):
    """Procrastinate on a connection of ours: what it does is part of our transactions. Nothing in it ever waits for an
    event loop, so there need not be one."""

    def __init__(self, connection: "psycopg.Connection[Any]") -> None:
        self._connection = connection

    async def execute_query_async(self, query: Any, **arguments: Any) -> None:
        self._execute(query, arguments)

    async def execute_query_one_async(self, query: Any, **arguments: Any) -> dict[str, Any]:
        row: dict[str, Any] | None = self._execute(query, arguments).fetchone()
        if row is None:
            raise exceptions.NoResult
        return row

    async def execute_query_all_async(self, query: Any, **arguments: Any) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self._execute(query, arguments).fetchall()
        return rows

    def _execute(self, query: Any, arguments: Mapping[str, Any]) -> "psycopg.Cursor[Any]":
        cursor = self._connection.cursor(row_factory=dict_row)
        return cursor.execute(query, {name: _wrapped(value) for name, value in arguments.items()} or None)


def _wrapped(value: Any) -> Any:
    """Dictionaries are JSON to PostgreSQL, wherever they stand."""
    if isinstance(value, dict):
        return Jsonb(value)
    if isinstance(value, tuple):
        return tuple(_wrapped(part) for part in value)
    return [_wrapped(part) for part in value] if isinstance(value, list) else value


def finished(coroutine: Any) -> Any:
    """What a coroutine gives that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits")


class Database:
    """The connection to it, made again whenever it is lost. `do` asks until there is an answer, and says once that it
    has to wait; without `patience` it gives up after that many seconds instead."""

    def __init__(self, url: str, interrupt: Interrupt | None = None, patience: float | None = None) -> None:
        self.url, self._interrupt, self._patience = url, interrupt, patience
        self._connection: psycopg.Connection[Any] | None = None
        self._is_told = False
        self.is_listening = False
        self.is_given_up = False

    def do(self, what: "Callable[[Transaction], Given]", is_question: bool = False) -> Given:
        """Carries out one transaction, whole or not at all. Its end may be lost on the way: then it is asked again, so
        it must look before it does anything twice. GaveUp from then on, once a person wanted an end meanwhile. A single
        question needs no transaction around it."""
        began, pause = time.monotonic(), FIRST_PATIENCE
        while not self.is_given_up:
            try:
                connection = self._connected()
                if not is_question:
                    connection.execute(BEGIN)
                answer = what(Transaction(connection))
                if not is_question:
                    connection.execute("COMMIT")
                if self._is_told:
                    self._is_told = False
                    print("ralph: PostgreSQL is back", file=sys.stderr, flush=True)
                return answer
            except psycopg.Error as error:
                self.close()
                if not isinstance(error, REFUSALS) and not is_away(error):
                    raise
                self._refuse_unless_away(error, time.monotonic() - began)
                if self._interrupt is None:
                    time.sleep(pause)
                else:
                    self.is_given_up = self._interrupt.wait(pause)
            except GaveUp:
                self.close()
                self.is_given_up = True
            except BaseException:
                self.close()  # which takes back all that was not committed
                raise
            pause = min(pause * 1.5, LONGEST_PATIENCE)
        raise GaveUp

    def listen(self, channel: str) -> None:
        """Is woken by what others write; where a pooler stands between, the next look has to do."""
        connection = self._connected()
        connection.add_notify_handler(lambda notify: None)
        connection.execute(f'LISTEN "{channel}"')
        self.is_listening = True

    def fileno(self) -> int:
        """Readable when there may be news."""
        try:
            return self._connection.fileno() if self._connection and self.is_listening else -1
        except psycopg.OperationalError:
            return -1

    def close(self) -> None:
        self.is_listening = False
        if self._connection is not None:
            with suppress(psycopg.Error):
                self._connection.close()
            self._connection = None

    def _connected(self) -> "psycopg.Connection[Any]":
        if self._connection is None or self._connection.closed:
            self.is_listening = False
            self._connection = self._connect()
        return self._connection

    def _connect(self) -> "psycopg.Connection[Any]":
        """In a thread, where a person may want an end meanwhile: they do not wait for a server that does not answer."""
        if self._interrupt is None:
            return connected(self.url)
        answer: Future[ImpatientConnection] = Future()
        threading.Thread(target=_answered, args=(answer, self.url), name="connect", daemon=True).start()
        while not futures.wait((answer,), GLANCE).done:
            if self._interrupt.level and answer.cancel():
                raise GaveUp
        made = answer.result()
        made.interrupt = self._interrupt
        return made

    def _refuse_unless_away(self, error: psycopg.Error, waited: float) -> None:
        said = one_line(str(error), 300)
        if not is_away(error):
            raise UserError(f"PostgreSQL refuses: {said}", HINT) from None
        if self._patience is not None and waited >= self._patience:
            raise UserError(f"PostgreSQL at {shown(self.url)} is away: {said}", "is it running?") from None
        if not self._is_told and self._patience is None:
            self._is_told = True
            print(f"ralph: waiting for PostgreSQL at {shown(self.url)}: {said}", file=sys.stderr, flush=True)


HINT = "see the guide on many machines: the URL, PGPASSWORD or a password file, and what the role may do"


def is_away(error: psycopg.Error) -> bool:
    """Whether it is the way to the server that failed, or the server that is just not there."""
    state = error.sqlstate or ""
    if state:
        return state[:2] in ("08", "57", "53", "40", "25") or state == "55P03"
    said = str(error).lower()
    return any(word in said for word in AWAY) and "authentication failed" not in said


def connected(url: str) -> ImpatientConnection:
    """Statements are not prepared, for a pooler gives every transaction another session; a way that is cut off is
    noticed within seconds, not hours."""
    keepalive: dict[str, Any] = {"keepalives_idle": 5, "keepalives_interval": 2, "keepalives_count": 3}
    try:
        made = ImpatientConnection.connect(
            url,
            autocommit=True,
            prepare_threshold=None,
            connect_timeout=ANSWER,
            tcp_user_timeout=ANSWER * 1000,
            application_name="ralph",
            **keepalive,
        )
    except psycopg.ProgrammingError as error:
        raise UserError(f"cannot understand the URL of the database: {one_line(str(error), 200)}", HINT) from None
    version = made.info.server_version // 10000
    if version < OLDEST:
        made.close()
        raise UserError(f"PostgreSQL {version} is too old: the fleet needs {OLDEST} or newer", "upgrade the server")
    return made


def _answered(answer: "Future[ImpatientConnection]", url: str) -> None:
    try:
        made = connected(url)
    except BaseException as error:  # noqa: BLE001 - it is raised where the answer is waited for
        with suppress(futures.InvalidStateError):
            answer.set_exception(error)
        return
    try:
        answer.set_result(made)
    except futures.InvalidStateError:  # nobody waits for it any more
        made.close()


def shown(url: str) -> str:
    """Where the server is, without the password."""
    try:
        parts = psycopg.conninfo.conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        return "the database"
    host, name = parts.get("host") or os.environ.get("PGHOST") or "localhost", parts.get("dbname") or ""
    return f"{host}{':' + str(parts['port']) if parts.get('port') else ''}{'/' + str(name) if name else ''}"


class WorkRow(Struct, frozen=True, kw_only=True):
    """A work as the database lists it. `layout` is that of its order and events; `last` numbers its last event."""

    id: str
    name: str
    layout: int
    version: str
    backlog: str
    target: str
    order: str
    is_open: bool
    last: int


class Present(Struct, frozen=True, kw_only=True):
    """A worker. `brings` where it has brought the list of its work; `spending` is what its loops at work have cost so
    far; `silence` is how long ago it was last heard, in seconds."""

    id: int
    name: str
    host: str
    slots: int
    version: str
    work: str
    brings: bool
    spending: float
    silence: float

    @property
    def is_there(self) -> bool:
        return self.silence < STALLED


WHO_IS_PRESENT = (
    "SELECT w.id, w.name, w.host, w.slots, w.version, w.work, w.brings, w.spending, "
    "extract(epoch FROM now() - p.last_heartbeat)::float8 AS silence "
    "FROM ralph_workers w JOIN procrastinate_workers p ON p.id = w.id ORDER BY w.name, w.id"
)


class FleetNews(Struct, frozen=True):
    """What was told of a work since, who is present, and who has which claim: queue, worker and status."""

    lines: list[tuple[int, bytes]]
    present: list[Present]
    claims: list[tuple[str, int | None, str]]


class Registered(Struct, frozen=True):
    """A worker, as the others know it."""

    id: int
    name: str
    slots: int


class Transaction:
    """What can be asked and written in one transaction."""

    def __init__(self, connection: "psycopg.Connection[Any]") -> None:
        self.connection = connection
        self.jobs = JobManager(OneConnection(connection))

    def ask(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        cursor = self.connection.execute(query, values)
        return cursor.fetchall() if cursor.description else []

    def works(self, is_open: bool | None = None) -> list[WorkRow]:
        """Those on record, the oldest first."""
        columns = "id, name, layout, version, backlog, target, work_order, is_open, last"
        where = "" if is_open is None else f" WHERE is_open = {is_open}"
        rows = self.ask(f"SELECT {columns} FROM ralph_works{where} ORDER BY id")
        return [WorkRow(**dict(zip(WorkRow.__struct_fields__, row, strict=True))) for row in rows]

    def lock_work(self, work: str) -> int:
        """While the transaction lasts nobody else writes about this work. The number of its last event."""
        ((last,),) = self.ask("SELECT last FROM ralph_works WHERE id = %s FOR UPDATE", work) or [(-1,)]
        return int(last)

    def lines_after(self, work: str, seq: int) -> list[tuple[int, bytes]]:
        rows = self.ask("SELECT seq, line FROM ralph_events WHERE work = %s AND seq > %s ORDER BY seq", work, seq)
        return [(int(number), line.encode()) for number, line in rows]

    def write(self, work: str, first: int, lines: Sequence[bytes]) -> None:
        """In one statement: each takes its way to the server and back."""
        self.ask(
            "WITH told AS (INSERT INTO ralph_events (work, seq, line) "
            "SELECT %s, %s + number::int, line FROM unnest(%s::text[]) WITH ORDINALITY AS given (line, number)), "
            "kept AS (UPDATE ralph_works SET last = %s WHERE id = %s) SELECT pg_notify('ralph', %s)",
            *(work, first - 1, [line.decode() for line in lines], first - 1 + len(lines), work, work),
        )

    def present(self) -> list[Present]:
        """Every worker that has not taken its leave, with when it was last heard."""
        return [Present(**dict(zip(Present.__struct_fields__, row, strict=True))) for row in self.ask(WHO_IS_PRESENT)]

    def news(self, work: str, seq: int, queues: Sequence[str]) -> FleetNews:
        """What workers ask for all day, by one statement: each takes its way to the server and back."""
        ((lines, present, claims),) = self.ask(
            "SELECT (SELECT json_agg(json_build_array(seq, line) ORDER BY seq) FROM ralph_events "
            "WHERE work = %s AND seq > %s), "
            f"(SELECT json_agg(present) FROM ({WHO_IS_PRESENT}) AS present), "
            "(SELECT json_agg(json_build_array(queue_name, worker_id, status::text)) FROM procrastinate_jobs "
            "WHERE queue_name = ANY(%s))",
            *(work, seq, [*queues]),
        )
        return FleetNews(
            [(number, line.encode()) for number, line in lines or ()],
            [Present(**row) for row in present or ()],
            [tuple(row) for row in claims or ()],
        )


def ready(database: Database) -> None:
    """Makes the tables where there are none; raises where they are not ours to use."""

    def prepare(transaction: Transaction) -> None:
        found = _found(transaction)
        if found is None:
            transaction.ask("SELECT pg_advisory_xact_lock(%s)", LOCK)
            found = _found(transaction) or _make(transaction)
        layout, last = found
        if layout > LAYOUT:
            raise UserError("this database is of a newer ralph", "upgrade ralph on this machine")
        if layout < LAYOUT or _behind(last):
            raise UserError("this database is of an older ralph", "stop its workers, then run: ralph worker --migrate")

    database.do(prepare)


def migrate(database: Database) -> str:
    """Brings an older database up to date; says what was done. Each step is a transaction of its own, since some of
    Procrastinate's cannot be used in the one that makes them; whoever is killed between two of them goes on there."""
    found = database.do(_found)
    if found is None:
        ready(database)
        return "the tables are made"
    layout, last = found
    if layout > LAYOUT:
        raise UserError("this database is of a newer ralph", "upgrade ralph on this machine")
    steps = [(name, text, layout) for name, text in _behind(last)]
    steps += [(_newest(), text, number) for number, text in enumerate(STEPS[layout - 1 :], layout + 1)]
    for name, text, number in steps:
        database.do(lambda transaction, step=(name, text, number): _take_step(transaction, *step))  # type: ignore[misc]
    return "it is up to date" if steps else "it was up to date"


def _take_step(transaction: Transaction, name: str, text: str, layout: int) -> None:
    transaction.ask("SELECT pg_advisory_xact_lock(%s)", LOCK)
    if _found(transaction) != (layout, name):  # somebody else may have done it, or the answer was lost
        transaction.connection.execute(text)
        transaction.ask("UPDATE ralph_fleet SET layout = %s, procrastinate = %s", layout, name)


def _found(transaction: Transaction) -> tuple[int, str] | None:
    if not _has_table(transaction, "ralph_fleet"):
        return None
    rows = transaction.ask("SELECT layout, procrastinate FROM ralph_fleet")
    return (int(rows[0][0]), str(rows[0][1])) if rows else None


def _has_table(transaction: Transaction, name: str) -> bool:
    """Asked of the catalogue itself: a session remembers which names it did not find, also after it has waited for the
    one who made them."""
    return bool(transaction.ask("SELECT 1 FROM pg_class WHERE relname = %s AND pg_table_is_visible(oid)", name))


def _make(transaction: Transaction) -> tuple[int, str]:
    from procrastinate.schema import SchemaManager

    if not _has_table(transaction, "procrastinate_jobs"):
        transaction.connection.execute(SchemaManager.get_schema())
    transaction.connection.execute(TABLES)
    transaction.ask("INSERT INTO ralph_fleet (layout, procrastinate) VALUES (%s, %s)", LAYOUT, _newest())
    return LAYOUT, _newest()


def _newest() -> str:
    return _steps()[-1]


def _steps() -> list[str]:
    """Procrastinate's own, as it ships them, by name: they are in order."""
    names = (entry.name for entry in (resources.files("procrastinate.sql") / "migrations").iterdir())
    return sorted(name for name in names if name.endswith(".sql"))


def _behind(last: str) -> list[tuple[str, str]]:
    """Those since the one that was the newest when its tables were made."""
    folder = resources.files("procrastinate.sql") / "migrations"
    return [(name, (folder / name).read_text(encoding="utf-8")) for name in _steps() if name > last]


@contextmanager
def opened(url: str, patience: float | None = 2.0) -> Iterator[Database]:
    """For one question, or a few."""
    database = Database(url, patience=patience)
    try:
        yield database
    finally:
        database.close()


def url_of(given: str | None) -> str:
    """The database that is meant: the option's, else the environment's, which may also name a file with `@`. A password
    on a command line can be read by everybody on the machine."""
    if given is None:
        given = os.environ.get(VARIABLE, "")
        if given.startswith("@"):
            try:
                given = read_given(given[1:], 1 << 16).decode("utf-8", "replace").strip()
            except OSError as error:
                raise UserError(
                    f"cannot read {given[1:]}: {error.strerror}", f"{VARIABLE}=@FILE names a file"
                ) from None
    elif "password" in _parts(given):
        hint = f"keep it in PGPASSWORD, in a password file, or the whole URL in {VARIABLE}"
        raise UserError("a password in --db can be read by everybody on this machine", hint)
    if not given:
        raise UserError("no database", f"name one with --db postgresql://HOST/NAME, or in {VARIABLE}")
    _parts(given)
    return given


def _parts(url: str) -> Mapping[str, Any]:
    try:
        return psycopg.conninfo.conninfo_to_dict(url)
    except (psycopg.ProgrammingError, UnicodeEncodeError) as error:
        said = one_line(str(error), 200)
        raise UserError(f"cannot understand the URL of the database: {said}", "write postgresql://HOST/NAME") from None
