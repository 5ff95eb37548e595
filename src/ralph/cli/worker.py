"""`ralph worker`, `ralph work … --db URL`: how does a machine lend a hand with the works of a fleet, and how is a
backlog that many machines work off seen and steered from any of them?"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ralph.backlog.backlog_content import BacklogContent
from ralph.backlog.work_order import WorkOrder
from ralph.cli.table import Values, command, folder_of, no_words
from ralph.errors import UserError, to_install
from ralph.run.options import Option

if TYPE_CHECKING:  # the fleet is an optional extra
    from ralph.fleet.steering import Mirror, Seen


@command(
    Option("--db URL", "The database: postgresql://HOST/NAME (default: $RALPH_DB)."),
    Option("-j --jobs N", "How many tasks run at once (default: 2)."),
    Option("--name NAME", "The name that other machines see (default: HOST-PID)."),
    Option("--once", "Exit when no backlog is open."),
    Option("--migrate", "Update the database of an older ralph, and exit."),
    Option("-C --directory DIR", "The clone (default: the current folder)."),
    Option("--quiet", "Print only errors."),
    examples=(
        "ralph worker --db postgresql://db.example/ralph -j 4",
        "RALPH_DB=@/etc/ralph/db ralph worker --name build-7",
    ),
)
def worker(values: Values, words: list[str]) -> int:
    """Work on the tasks of the backlogs in a database, in this clone, until stopped.

    One worker at a time merges what is ready; if a worker goes silent, another one takes over within seconds. Keep the
    password in PGPASSWORD or a password file, or the whole URL in RALPH_DB (RALPH_DB=@FILE: in a file). A worker runs
    the checks and agents that the backlogs in the database name: write access to the database means shell access to
    this machine."""
    no_words(words, "the works are in the database: name it with --db")
    database = engine()
    url = database.url_of(values.get("db"))
    if values.get("migrate"):
        with database.opened(url) as opened:
            print(f"{database.shown(url)}: {database.migrate(opened)}")
        return 0
    jobs = values.get("jobs", 2)
    if jobs < 1:
        raise UserError(f"-j {jobs} is too little", "give a number above 0")
    from ralph.fleet.worker import Spectator, Worker
    from ralph.store.folder import prepare, work_lock

    workspace = folder_of(values)
    spectator = Spectator(is_quiet=bool(values.get("quiet")))
    made = Worker(url, workspace, slots=jobs, name=values.get("name", ""), spectator=spectator)
    with work_lock(prepare(workspace), "worker"):
        return made.run(once=bool(values.get("once")))


def engine() -> ModuleType:
    """The fleet's own module for the database, if what it needs is installed."""
    hint = to_install("fleet")
    try:
        from ralph.fleet import database
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] in ("psycopg", "procrastinate"):
            raise UserError(f"a fleet needs {error.name}, which is not installed", hint) from None
        raise
    except ImportError as error:  # psycopg without libpq
        raise UserError(f"a fleet needs psycopg: {error}", hint) from None
    return database


def mirrored(db: str, *, follows: bool = False) -> Mirror:
    """The works of a fleet, to be looked at as if they were at work here."""
    url = engine().url_of(db or None)
    from ralph.fleet.steering import Mirror

    return Mirror(url, follows=follows)


def play_shared(db: str, order: WorkOrder, reading: BacklogContent, notice: str, *, json: bool, quiet: bool) -> int:
    """Brings a work to the fleet, and takes part in it until it is over."""
    from ralph.store.folder import prepare, work_lock

    url = engine().url_of(db or None)
    from ralph.fleet.worker import Spectator, Worker

    spectator = Spectator(json, quiet)
    workspace = Path(order.workspace)
    worker = Worker(url, workspace, slots=order.slots, spectator=spectator)
    with work_lock(prepare(workspace), order.id):
        return worker.work_off(order, reading, notice)


def act_on_shared(action: str, values: dict[str, Any], words: list[str]) -> Seen | None:
    """Tells all who work on a work of the fleet what a person wants; or how it stands, for whoever only looks."""
    database = engine()
    from ralph.core.text import clean
    from ralph.fleet import steering

    with database.opened(database.url_of(values.get("db"))) as opened:
        database.ready(opened)
        name = words[0] if words else ""
        if action in ("retry", "withdraw"):
            if not name:
                raise UserError(f"no task to {action}", f"name one: ralph work {action} KEY")
            work, key = name.split("/", 1) if "/" in name else ("", name)  # of several works: WORK/KEY
            done = steering.retry(opened, work, key, " ".join(words[1:])) if action == "retry" else ""
            print(clean(done or steering.withdraw(opened, work, key)))
        elif action in ("pause", "resume", "stop"):
            acts = {"pause": lambda: steering.hold(opened, name, True), "stop": lambda: steering.stop(opened, name)}
            print(clean(acts.get(action, lambda: steering.resume(opened, name))()))
        else:
            seen: Seen = steering.see(opened, name)
            return seen
    return None
