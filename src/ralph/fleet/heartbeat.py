"""Who works in the fleet, and is it still there? Each worker says so every two seconds; who was silent for too long is
taken for dead, and knows by its own clock before that that it is in charge no longer."""

import os
import threading
import time
from contextlib import suppress

import psycopg
from msgspec import Struct

from ralph import __version__
from ralph.backlog.item_worktrees import Charge
from ralph.errors import UserError
from ralph.fleet.database import Database, Transaction, connected, finished
from ralph.records.register import host

BEAT = 2.0  # seconds between two signs of life
STALLED = 9.0  # so long a worker may be silent before others take over what it has
IN_CHARGE = 7.0  # so long after a sign of life nobody can have taken anything over, with room for a push under way
FORGOTTEN = 7 * 24 * 3600.0  # seconds after which nobody wants to know of a silent worker


class Registered(Struct, frozen=True):
    """A worker, as the others know it."""

    id: int
    name: str
    slots: int


def register(database: Database, name: str, slots: int, brings: bool = False) -> Registered:
    """Enters the worker; its name is made unique."""
    chosen = name or f"{host()}-{os.getpid()}"

    def enter(transaction: Transaction) -> Registered:
        finished(transaction.jobs.prune_stalled_workers(FORGOTTEN))
        number = int(finished(transaction.jobs.register_worker()))
        taken = {one.name for one in transaction.present() if one.silence < STALLED}
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
