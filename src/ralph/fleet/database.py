"""The fleet's database: its URL, its tables, and the Procrastinate app that brings jobs to machines.

The engine's tables have a schema of their own and hold nothing that the events don't say, so migrating means to drop
and create them. No lock outlives a transaction and no statement depends on its session: a transaction pooler such as
PgBouncer may stand in between.
"""

import asyncio
import hashlib
import logging
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import psycopg
from procrastinate import App, PsycopgConnector, exceptions
from procrastinate.schema import SchemaManager
from psycopg_pool import AsyncConnectionPool

from ralph.core.text import one_line
from ralph.errors import UserError
from ralph.files import read_given

VARIABLE = "RALPH_DB"
OLDEST_SERVER = 13
HEARTBEAT = 2.0  # seconds between two heartbeats of a worker
STALLED = 8.0  # seconds without a heartbeat after which others take over
POLL = 1.0  # seconds between two looks for jobs and events: behind a pooler no notification arrives
STATEMENT_TIMEOUT = 6.0  # seconds: a dead connection may stay open
ONE_SHOT = 2.0  # seconds that a single command waits for a database that is away
QUIT_TIMEOUT = 3.0  # seconds that a worker which is to stop waits for a database that is away

LAYOUT = 3  # of our tables, orders and events
SCHEMA = "ralph_engine"
LOCK = 0x72616C7068  # held while tables are made or a backlog is added
# A worker may be stopped in the middle of a transaction: its locks must not outlive it for long.
BEGIN = (
    f"SET LOCAL search_path = {SCHEMA}, public; SET LOCAL lock_timeout = '5s'; "
    "SET LOCAL idle_in_transaction_session_timeout = '3s'"
)
TABLES = """
CREATE TABLE public.ralph_fleet (layout int NOT NULL, engine text NOT NULL);
CREATE TABLE public.ralph_works (
    id text PRIMARY KEY, name text NOT NULL UNIQUE, layout int NOT NULL, version text NOT NULL, backlog text NOT NULL,
    target text NOT NULL, repository text NOT NULL, work_order text NOT NULL, is_open bool NOT NULL DEFAULT true,
    last int NOT NULL DEFAULT 0
);
CREATE TABLE public.ralph_events (
    work text NOT NULL REFERENCES public.ralph_works(id) ON DELETE CASCADE, seq int NOT NULL,
    by text NOT NULL DEFAULT '', line text NOT NULL, PRIMARY KEY (work, seq)
);
CREATE TABLE public.ralph_workers (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text NOT NULL, host text NOT NULL, slots int NOT NULL,
    version text NOT NULL, repository text NOT NULL, brings text NOT NULL DEFAULT '',
    spending jsonb NOT NULL DEFAULT '{}', seen timestamptz NOT NULL DEFAULT now()
);
"""
OLD_TABLES = "DROP TABLE ralph_fleet, ralph_events, ralph_works, ralph_workers CASCADE"

REFUSALS = ("authentication", "password", "does not exist", "pg_hba", "permission denied", "not permitted", "ssl")
LOST = (psycopg.OperationalError, psycopg.InternalError)  # the latter: the server ended an idle transaction
HINT = "check the URL, PGPASSWORD or the password file, and the rights of the role (docs/guides/fleet.md)"

logging.getLogger("psycopg").setLevel(logging.CRITICAL)
logging.getLogger("procrastinate").setLevel(logging.CRITICAL)

T = TypeVar("T")
Transaction = psycopg.AsyncConnection[Any]


class GaveUp(Exception):
    """The database is away, and this process is to stop."""


class ImpatientConnection(psycopg.AsyncConnection[Any]):
    """A connection that is lost if the server doesn't answer in time."""

    async def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        if timeout is None and not self.autocommit:  # the connection that listens is an autocommit one
            timeout = STATEMENT_TIMEOUT
        return await super().wait(gen, interval, timeout)


class Outage:
    """Says once that the database is away and once that it is back. `patience`: seconds until it raises instead."""

    def __init__(self, url: str, patience: float | None) -> None:
        self._url, self._patience = url, patience
        self._since = 0.0
        self.ended = 0.0  # when the last outage ended, in monotonic seconds
        self.is_stopping = False

    async def wait(self, error: BaseException) -> None:
        """Wait before the next attempt; raise `error` again if it isn't about the connection."""
        cause = error.__cause__ if isinstance(error, exceptions.ConnectorException) else error
        if not isinstance(cause, LOST):
            raise error
        now, message = time.monotonic(), one_line(str(cause), 300)
        if not self._since:
            self._since = now
            if self._patience is None:
                print(f"ralph: waiting for PostgreSQL at {location(self._url)}: {message}", file=sys.stderr, flush=True)
        if self._patience is not None and now - self._since >= self._patience:
            raise UserError(f"PostgreSQL at {location(self._url)} is away: {message}", "is it running?") from None
        if self.is_stopping and now - self._since >= QUIT_TIMEOUT:
            raise GaveUp from None
        await asyncio.sleep(0.5)

    def end(self) -> None:
        if self._since:
            self._since, self.ended = 0.0, time.monotonic()
            if self._patience is None:
                print("ralph: PostgreSQL is back", file=sys.stderr, flush=True)


def retry_when_lost(method: Any) -> Any:
    """Repeat a query of the engine when the connection is lost: otherwise its worker stops, and its jobs with it."""

    async def repeat(self: "PatientConnector", *args: Any, **kwargs: Any) -> Any:
        while True:
            try:
                result = await method(self, *args, **kwargs)
            except exceptions.ConnectorException as error:
                if isinstance(error.__cause__, psycopg.errors.RaiseException):
                    return None  # our job was stalled, and another machine has deleted it: nothing is left to finish
                await self.outage.wait(error)
            else:
                self.outage.end()
                return result

    return repeat


class PatientConnector(PsycopgConnector):
    """Procrastinate's connector, for a database that may go away for a while.

    If the answer to a claim is lost, the job stays claimed until its worker ends. That does no harm: no job has a lock,
    and a task that nobody has started is deferred again.
    """

    outage: Outage

    execute_query_async = retry_when_lost(PsycopgConnector.execute_query_async)
    execute_query_one_async = retry_when_lost(PsycopgConnector.execute_query_one_async)
    execute_query_all_async = retry_when_lost(PsycopgConnector.execute_query_all_async)
    listen_notify = retry_when_lost(PsycopgConnector.listen_notify)


async def _begin(connection: Transaction) -> None:
    """Begin a transaction with our settings; the pool's check of a connection that it hands out."""
    await connection.execute(BEGIN)


def _make_pool(**kwargs: Any) -> "AsyncConnectionPool[Any]":
    return AsyncConnectionPool(**{**kwargs, "check": _begin})


class Database:
    """The tables that all machines share. `app` is Procrastinate's app on the same pool of connections."""

    def __init__(self, url: str, patience: float | None = None) -> None:
        self.url = url
        self.outage = Outage(url, patience)
        self._connector = PatientConnector(
            conninfo=url,
            pool_factory=_make_pool,
            connection_class=ImpatientConnection,
            kwargs={"prepare_threshold": None, "connect_timeout": int(STATEMENT_TIMEOUT), "application_name": "ralph"},
            min_size=1,
            max_size=8,
            timeout=STATEMENT_TIMEOUT,
            reconnect_timeout=STATEMENT_TIMEOUT,
        )
        self._connector.outage = self.outage
        self.app = App(
            connector=self._connector,
            worker_defaults={
                "update_heartbeat_interval": HEARTBEAT,
                "stalled_worker_timeout": 3 * STALLED,
                "fetch_job_polling_interval": POLL,
                "delete_jobs": "always",
                "install_signal_handlers": False,
            },
        )

    async def transact(self, action: Callable[[Transaction], Awaitable[T]]) -> T:
        """Run `action` in one transaction; again if the connection is lost, so it must check what is there already."""
        while True:
            try:
                async with self._connector.pool.connection() as connection:
                    result = await action(connection)
            except (*LOST, exceptions.ConnectorException) as error:
                await self.outage.wait(error)
            else:
                self.outage.end()
                return result

    async def fetch(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        async def ask(connection: Transaction) -> list[tuple[Any, ...]]:
            return await fetch_all(connection, query, *values)

        return await self.transact(ask)

    @asynccontextmanager
    async def open(self, migrates: bool = False) -> AsyncIterator["Database"]:
        """Connect, and create the tables if there are none; refuse those of another version."""
        await self._connect()
        async with self.app.open_async():
            try:
                found = await self.transact(_prepare)
            except psycopg.errors.InsufficientPrivilege as error:
                raise UserError(f"PostgreSQL refuses: {one_line(str(error), 300)}", HINT) from None
            if not migrates:
                _refuse_other_version(*found)
            yield self

    async def _connect(self) -> None:
        """Connect once, to tell a server that is away from one that refuses us."""
        while True:
            try:
                connection = await psycopg.AsyncConnection.connect(self.url, connect_timeout=int(STATEMENT_TIMEOUT))
            except psycopg.OperationalError as error:
                message = one_line(str(error), 300)
                if any(word in message.lower() for word in REFUSALS) and "no such file" not in message.lower():
                    raise UserError(f"PostgreSQL refuses: {message}", HINT) from None
                await self.outage.wait(error)
            else:
                break
        version = connection.info.server_version // 10000
        await connection.close()
        self.outage.end()
        if version < OLDEST_SERVER:
            message = f"PostgreSQL {version} is too old: the fleet needs {OLDEST_SERVER} or newer"
            raise UserError(message, "upgrade the server")


async def fetch_all(connection: Transaction, query: str, *values: object) -> list[tuple[Any, ...]]:
    cursor = await connection.execute(query, values or None)
    return await cursor.fetchall() if cursor.description else []


def _engine_version() -> str:
    """Identify the engine's tables: releases that don't change them are compatible."""
    return hashlib.sha256(SchemaManager.get_schema().encode()).hexdigest()[:16]


async def _prepare(connection: Transaction) -> tuple[int, str]:
    """Create the tables if there are none; return the layout and the engine's version."""
    exists = "SELECT 1 FROM pg_tables WHERE schemaname = 'public' AND tablename = 'ralph_fleet'"
    if not await fetch_all(connection, exists):
        await fetch_all(connection, "SELECT pg_advisory_xact_lock(%s)", LOCK)
        if not await fetch_all(connection, exists):
            await connection.execute(TABLES)
            await _create_engine(connection)
            await fetch_all(connection, "INSERT INTO ralph_fleet VALUES (%s, %s)", LAYOUT, _engine_version())
    ((layout, engine),) = await fetch_all(connection, "SELECT * FROM ralph_fleet")
    return int(layout), str(engine)


async def _create_engine(connection: Transaction) -> None:
    await connection.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE; CREATE SCHEMA {SCHEMA}")
    await connection.execute(SchemaManager.get_schema())


def _refuse_other_version(layout: int, engine: str) -> None:
    if layout > LAYOUT:
        raise UserError("this database belongs to a newer ralph", "upgrade ralph on this machine")
    if layout < LAYOUT or engine != _engine_version():
        other = "an older ralph" if layout < LAYOUT else "another version of Procrastinate"
        hint = "stop all workers, then run: ralph worker --migrate"
        raise UserError(f"the tables of this database belong to {other}", hint)


async def migrate(url: str) -> str:
    """Recreate the engine's tables for the installed version; jobs are deferred again from the events."""

    async def update(connection: Transaction) -> str:
        await fetch_all(connection, "SELECT pg_advisory_xact_lock(%s)", LOCK)
        ((layout, engine),) = await fetch_all(connection, "SELECT * FROM ralph_fleet")
        if layout > LAYOUT:
            _refuse_other_version(layout, engine)
        if (layout, engine) == (LAYOUT, _engine_version()):
            return "up to date"
        dropped = ""
        if layout < LAYOUT:
            ((count,),) = await fetch_all(connection, "SELECT count(*) FROM ralph_works WHERE is_open")
            if count:
                hint = "finish it with the ralph that started it, then run: ralph worker --migrate"
                raise UserError("a backlog is still open in this database", hint)
            await connection.execute(OLD_TABLES)
            await connection.execute(TABLES)
            dropped = "; finished backlogs of the older ralph were dropped"
        await _create_engine(connection)
        await fetch_all(connection, "DELETE FROM ralph_fleet")
        await fetch_all(connection, "INSERT INTO ralph_fleet VALUES (%s, %s)", LAYOUT, _engine_version())
        return f"migrated{dropped}"

    async with Database(url, ONE_SHOT).open(migrates=True) as database:
        return await database.transact(update)


async def refuse_migrated(database: Database) -> None:
    """Raise if another machine has migrated the tables since this process started."""
    ((layout, engine),) = await database.fetch("SELECT * FROM ralph_fleet")
    _refuse_other_version(layout, engine)


def location(url: str) -> str:
    """Return where the server is, without the password."""
    try:
        parts = psycopg.conninfo.conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        return "the database"
    host, name = parts.get("host") or os.environ.get("PGHOST") or "localhost", parts.get("dbname") or ""
    return f"{host}{':' + str(parts['port']) if parts.get('port') else ''}{'/' + str(name) if name else ''}"


def resolve_url(given: str | None) -> str:
    """Return the URL from --db or from $RALPH_DB, which may name a file with `@`. --db must not contain a password."""
    if given is None:
        given = os.environ.get(VARIABLE, "")
        if given.startswith("@"):
            try:
                given = read_given(given[1:], 1 << 16).decode("utf-8", "replace").strip()
            except OSError as error:
                raise UserError(
                    f"cannot read {given[1:]}: {error.strerror}", f"{VARIABLE}=@FILE names a file"
                ) from None
    elif "password" in _parse_url(given):
        hint = f"keep it in PGPASSWORD, in a password file, or the whole URL in {VARIABLE}"
        raise UserError("a password in --db is visible to everyone on this machine", hint)
    if not given:
        raise UserError("no database given", f"name one with --db postgresql://HOST/NAME, or in {VARIABLE}")
    _parse_url(given)
    return given


def _parse_url(url: str) -> Mapping[str, Any]:
    try:
        return psycopg.conninfo.conninfo_to_dict(url)
    except (psycopg.ProgrammingError, UnicodeEncodeError) as error:
        message = f"cannot parse the URL of the database: {one_line(str(error), 200)}"
        raise UserError(message, "write postgresql://HOST/NAME") from None
