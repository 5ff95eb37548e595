"""`ralph worker` and `ralph work … --db URL`: work on the backlogs of a fleet, and steer them from any machine."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ralph.backlog.backlog_content import BacklogContent
from ralph.backlog.work_order import WorkOrder
from ralph.cli.table import Values, command, folder_of, no_words
from ralph.core.text import clean, one_line
from ralph.errors import UserError, to_install
from ralph.git.client import require_git
from ralph.run.options import Option
from ralph.store.folder import prepare, work_lock

if TYPE_CHECKING:  # the fleet is an optional extra
    from ralph.fleet.steering import WorkView
    from ralph.fleet.work_copies import Mirror


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
    no_words(words, "the backlogs are in the database: name it with --db")
    database = load_fleet()
    url = database.resolve_url(values.get("db"))
    if values.get("migrate"):
        print(f"{database.location(url)}: {asyncio.run(database.migrate(url))}")
        return 0
    jobs = values.get("jobs", 2)
    if jobs < 1:
        raise UserError(f"-j {jobs} is too small", "give a number above 0")
    from ralph.fleet.worker import Worker

    workspace = folder_of(values)
    require_git(workspace)  # before anything is written there
    made = Worker(url, workspace, slots=jobs, name=values.get("name", ""), is_quiet=bool(values.get("quiet")))
    with work_lock(prepare(workspace), "worker"):
        return made.run(once=bool(values.get("once")))


def load_fleet() -> ModuleType:
    """Import the fleet's database module, or say which extra is missing."""
    hint = to_install("fleet")
    try:
        from ralph.fleet import database
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] in ("psycopg", "psycopg_pool", "procrastinate"):
            raise UserError(f"a fleet needs {error.name}, which is not installed", hint) from None
        raise
    except ImportError as error:  # psycopg without libpq
        raise UserError(f"a fleet needs psycopg: {error}", hint) from None
    return database


def mirror_fleet(db: str, *, follows: bool = False) -> Mirror:
    """Return the backlogs of a fleet, to be listed as if they ran here."""
    url = load_fleet().resolve_url(db or None)
    from ralph.fleet.work_copies import Mirror

    return Mirror(url, follows=follows)


def play_shared(db: str, order: WorkOrder, content: BacklogContent, notice: str, *, json: bool, quiet: bool) -> int:
    """Bring a backlog to the fleet, and work on it until it is over."""
    url = load_fleet().resolve_url(db or None)
    from ralph.fleet.worker import Worker

    workspace = Path(order.workspace)
    worker = Worker(url, workspace, slots=order.slots, is_quiet=quiet, prints_events=json)
    if notice and not quiet:
        print(f"ralph: {one_line(notice, 2000)}", file=sys.stderr)
    with work_lock(prepare(workspace), order.id):
        return worker.run(order, content)


def act_on_shared(action: str, values: dict[str, Any], words: list[str]) -> WorkView | None:
    """Carry out a request about a backlog of the fleet, or return the backlog if it is only to be displayed."""
    return asyncio.run(_act(load_fleet(), action, values, words))


async def _act(database: ModuleType, action: str, values: dict[str, Any], words: list[str]) -> WorkView | None:
    from ralph.fleet import steering

    name, key, note = words[0] if words else "", "", " ".join(words[1:])
    if action in ("retry", "withdraw"):
        if not name:
            raise UserError(f"no task to {action}", f"name one: ralph work {action} KEY")
        name, key = name.split("/", 1) if "/" in name else ("", name)  # with several backlogs: WORK/KEY
    async with database.Database(database.resolve_url(values.get("db")), database.ONE_SHOT).open() as opened:
        if action in steering.DONE:
            print(clean(await steering.steer(opened, action, name, key, note)))
            return None
        return await steering.load_view(opened, name)
