"""The fleet's database: its URL, its tables, and the Procrastinate app that brings jobs to workers.

The engine's tables have their own schema and contain nothing that the events don't say, so to migrate them means to
drop and create them. No lock outlives a transaction and no statement depends on its session, so a transaction pooler
such as PgBouncer may stand in between.
"""

import asyncio
import hashlib
import logging
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Concatenate, ParamSpec, TypeVar

import psycopg
from procrastinate import App, PsycopgConnector, exceptions
from procrastinate import worker as engine_worker
from procrastinate.schema import SchemaManager
from psycopg_pool import AsyncConnectionPool

from ralph.core.text import one_line
from ralph.errors import UserError
from ralph.files import read_given

VARIABLE = "RALPH_DB"
HEARTBEAT = 2.0  # seconds between two heartbeats of a worker
STALLED = 8.0  # seconds without a heartbeat after which others take over
FORGET = 7 * 86400.0  # seconds without a heartbeat after which a worker is deleted
POLL = 1.0  # seconds between two looks for jobs and events: no notification passes through a pooler
STATEMENT_TIMEOUT = 6.0  # seconds: a dead connection may stay open
ONE_SHOT = 2.0  # seconds that a single command waits for a database that is away
FIRST_TIMEOUT = 30.0  # seconds that every process waits for a database that it has never reached
QUIT_TIMEOUT = 3.0  # seconds that a stopping worker waits for a database that is away

LAYOUT = 6  # the version of our tables, of the orders and of the events in them
SCHEMA = "ralph_engine"
LOCK = 0x72616C7068  # the advisory lock for making tables, and for adding workers and backlogs
# A worker may be suspended in the middle of a transaction: the server must soon release its locks.
BEGIN = (
    f"SET LOCAL search_path = {SCHEMA}, public; SET LOCAL lock_timeout = '5s'; "
    "SET LOCAL idle_in_transaction_session_timeout = '3s'"
)
TABLES = """
CREATE TABLE IF NOT EXISTS public.ralph_fleet (layout int NOT NULL, engine text NOT NULL);
CREATE TABLE IF NOT EXISTS public.ralph_works (
    id text PRIMARY KEY, name text NOT NULL UNIQUE, backlog text NOT NULL, target text NOT NULL,
    repository text NOT NULL, work_order text NOT NULL, is_open bool NOT NULL DEFAULT true
);
CREATE TABLE IF NOT EXISTS public.ralph_events (
    work text NOT NULL REFERENCES public.ralph_works(id) ON DELETE CASCADE, seq int NOT NULL,
    by text NOT NULL DEFAULT '', line text NOT NULL, PRIMARY KEY (work, seq)
);
CREATE TABLE IF NOT EXISTS public.ralph_workers (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text NOT NULL, slots int NOT NULL,
    repository text NOT NULL, brings text NOT NULL DEFAULT '', spending jsonb NOT NULL DEFAULT '{}',
    seen timestamptz NOT NULL DEFAULT now()
);
"""

REFUSALS = ("authentication", "password", "does not exist", "pg_hba", "permission denied", "not permitted", "ssl")
LOST = (psycopg.OperationalError, psycopg.InternalError)  # the latter: the server ended an idle transaction
HINT = "check the URL, PGPASSWORD or the password file, and the rights of the role (docs/guides/fleet.md)"

for name in ("asyncio", "psycopg", "procrastinate"):  # what they say about lost connections
    logging.getLogger(name).setLevel(logging.CRITICAL)

P = ParamSpec("P")
T = TypeVar("T")
Transaction = psycopg.AsyncConnection[Any]


class DatabaseAway(UserError):
    """The database has been away for longer than this process waits."""


class ImpatientConnection(psycopg.AsyncConnection[Any]):
    """A connection that is lost if the server doesn't answer in time."""

    async def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        if timeout is None and not self.autocommit:  # the connection that listens is an autocommit one
            timeout = STATEMENT_TIMEOUT
        return await super().wait(gen, interval, timeout)


def _retry(method: Any) -> Any:
    """Retry a query of the engine when the connection is lost; otherwise the engine's worker would
    stop, with its jobs."""

    async def query(self: "Database", *args: Any, **kwargs: Any) -> Any:
        try:
            return await self.retry(lambda: method(self, *args, **kwargs))
        except exceptions.ConnectorException as error:
            if isinstance(error.__cause__, psycopg.errors.RaiseException):
                return None  # our job had stalled, and another worker has deleted it: nothing is left to finish
            raise

    return query


async def _begin(connection: Transaction) -> None:
    await connection.execute(BEGIN)


class Database(PsycopgConnector):
    """The tables that all machines share, and Procrastinate's connection to them. It may be away for a while.

    It reports once that the database is away, and once that it is back; after `timeout` seconds it raises
    `DatabaseAway` instead (None: never, once it was reached). If the answer to a claim is lost, the job stays claimed
    until its worker ends. That does no harm: no job has a lock, and a task that nobody has started is deferred again.
    """

    def __init__(self, url: str, timeout: float | None = None) -> None:
        super().__init__(
            conninfo=url,
            # The pool's check of a connection begins a transaction with our settings.
            pool_factory=lambda **options: AsyncConnectionPool(**{**options, "check": _begin}),
            connection_class=ImpatientConnection,
            kwargs={"prepare_threshold": None, "connect_timeout": int(STATEMENT_TIMEOUT), "application_name": "ralph"},
            min_size=1,
            max_size=8,
            timeout=STATEMENT_TIMEOUT,
            reconnect_timeout=STATEMENT_TIMEOUT,
        )
        self.app = App(connector=self)
        self.timeout = timeout
        self.was_away = 0.0  # when the database was last away, in monotonic seconds
        self._url, self._away_since, self._was_reached = url, 0.0, False

    async def retry(self, action: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `action`; call it again while it fails because of the connection."""
        while True:
            began = time.monotonic()
            try:
                result = await action()
            except (*LOST, exceptions.ConnectorException) as error:
                cause = error.__cause__ if isinstance(error, exceptions.ConnectorException) else error
                if not isinstance(cause, LOST):
                    raise
                await self._wait(one_line(str(cause), 300), began)
            else:
                if self._away_since:
                    self._away_since, self.was_away = 0.0, time.monotonic()
                    self._report("PostgreSQL is back")
                return result

    async def _wait(self, why: str, began: float) -> None:
        if not self._away_since:
            self._away_since = began
            self._report(f"waiting for PostgreSQL: {why}")
        timeout = self.timeout if self._was_reached else min(FIRST_TIMEOUT, self.timeout or FIRST_TIMEOUT)
        if timeout is not None and time.monotonic() - self._away_since >= timeout:
            where = _parse_url(self._url)
            hint = f"is it running there? pg_isready -h {where.get('host', 'localhost')} -p {where.get('port', 5432)}"
            raise DatabaseAway(f"PostgreSQL is away: {why}", hint) from None
        await asyncio.sleep(0.5)

    def _report(self, text: str) -> None:
        if self.timeout is None:
            print(f"ralph: {text}", file=sys.stderr, flush=True)

    execute_query_async = _retry(PsycopgConnector.execute_query_async)
    execute_query_one_async = _retry(PsycopgConnector.execute_query_one_async)
    execute_query_all_async = _retry(PsycopgConnector.execute_query_all_async)
    listen_notify = _retry(PsycopgConnector.listen_notify)

    async def transact(
        self, action: Callable[Concatenate[Transaction, P], Awaitable[T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run `action` in one transaction, and again if the connection is lost: it must look at
        what is already there."""

        async def attempt() -> T:
            async with self.pool.connection() as connection:
                return await action(connection, *args, **kwargs)

        return await self.retry(attempt)

    def make_engine(self, queue: str, concurrency: int) -> engine_worker.Worker:
        """Return an engine worker. End it with `stop`, because `wait_for` of Python 3.11 may lose a cancellation."""
        return engine_worker.Worker(
            self.app,
            [queue],
            concurrency=concurrency,
            update_heartbeat_interval=HEARTBEAT,
            stalled_worker_timeout=FORGET,
            fetch_job_polling_interval=POLL,
            delete_jobs="always",
            install_signal_handlers=False,
        )

    @asynccontextmanager
    async def connect(self, migrates: bool = False) -> AsyncIterator["Database"]:
        """Connect, and create the tables if there are none; refuse those of another version or, with `migrates`,
        recreate them."""
        await self.retry(self._try_to_connect)
        self._was_reached = True
        async with self.app.open_async():
            try:
                await self.transact(_prepare_tables, migrates)
            except psycopg.Error as error:
                raise _refusal(error) from None
            yield self

    async def _try_to_connect(self) -> None:
        """Connect without the pool, which can't tell an unreachable server from one that refuses us."""
        try:
            connection = await psycopg.AsyncConnection.connect(self._url, connect_timeout=int(STATEMENT_TIMEOUT))
        except psycopg.OperationalError as error:
            message = str(error).lower()
            if any(word in message for word in REFUSALS) and "no such file" not in message:
                raise _refusal(error) from None
            raise
        await connection.close()


def _refusal(error: psycopg.Error) -> UserError:
    return UserError(f"PostgreSQL refuses: {one_line(error.diag.message_primary or str(error), 300)}", HINT)


async def fetch_all(connection: Transaction, query: str, *values: object) -> list[tuple[Any, ...]]:
    cursor = await connection.execute(query, values or None)
    return await cursor.fetchall() if cursor.description else []


def _engine_version() -> str:
    """Return a hash of the engine's schema: releases that don't change it are compatible."""
    return hashlib.sha256(SchemaManager.get_schema().encode()).hexdigest()[:16]


async def _prepare_tables(connection: Transaction, migrates: bool) -> None:
    """Create the tables if there are none; refuse those of another version or, with `migrates`, recreate them."""
    await fetch_all(connection, "SELECT pg_advisory_xact_lock(%s)", LOCK)
    exists = "SELECT 1 FROM pg_tables WHERE schemaname = 'public' AND tablename = 'ralph_fleet'"
    if await fetch_all(connection, exists):
        ((layout, engine),) = await fetch_all(connection, "SELECT layout, engine FROM ralph_fleet")
        if (layout, engine) == (LAYOUT, _engine_version()):
            return
        if layout > LAYOUT:
            raise UserError("this database belongs to a newer ralph", "upgrade ralph on this machine")
        if not migrates:
            hint = "stop all workers, then run: ralph worker --migrate"
            raise UserError("the tables of this database belong to another ralph or Procrastinate", hint)
        if layout < LAYOUT and await fetch_all(connection, "SELECT 1 FROM ralph_works WHERE is_open"):
            hint = "finish it with the ralph that started it, then run: ralph worker --migrate"
            raise UserError("a backlog is still open in this database", hint)
        if layout < LAYOUT:
            await connection.execute("DROP TABLE ralph_fleet, ralph_events, ralph_works, ralph_workers CASCADE")
    await connection.execute(TABLES)
    await connection.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE; CREATE SCHEMA {SCHEMA}")
    await connection.execute(SchemaManager.get_schema())
    await fetch_all(connection, "DELETE FROM ralph_fleet")
    await fetch_all(connection, "INSERT INTO ralph_fleet VALUES (%s, %s)", LAYOUT, _engine_version())


async def migrate(url: str) -> None:
    """Recreate tables of an older version. Workers defer the jobs again from the events."""
    async with Database(url, ONE_SHOT).connect(migrates=True):
        pass


def resolve_url(address: str | None) -> str:
    """Return the URL from --db or from $RALPH_DB, which may name a file with `@`. --db must not contain a password."""
    if address is not None and "password" in _parse_url(address):
        hint = f"keep it in PGPASSWORD, in a password file, or the whole URL in {VARIABLE}"
        raise UserError("a password in --db is visible to everyone on this machine", hint)
    url = os.environ.get(VARIABLE, "") if address is None else address
    if address is None and url.startswith("@"):
        try:
            url = read_given(url[1:], 1 << 16).decode("utf-8", "replace").strip()
        except OSError as error:
            raise UserError(f"cannot read {url[1:]}: {error.strerror}", f"{VARIABLE}=@FILE names a file") from None
    if not url:
        raise UserError("no database given", f"name one with --db postgresql://HOST/NAME, or in {VARIABLE}")
    _parse_url(url)
    return url


def _parse_url(url: str) -> Mapping[str, Any]:
    try:
        return psycopg.conninfo.conninfo_to_dict(url)
    except (psycopg.ProgrammingError, UnicodeEncodeError) as error:
        message = f"cannot parse the URL of the database: {one_line(str(error), 200)}"
        raise UserError(message, "write postgresql://HOST/NAME") from None
