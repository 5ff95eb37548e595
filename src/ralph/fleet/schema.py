"""How is the database of a fleet laid out, and of which version is it? Made where there is nothing yet; an older one is
brought up to date only when a person says so, for workers of the older version may be at work."""

from importlib import resources

from ralph.errors import UserError
from ralph.fleet.database import Database, Transaction

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
