"""Hostile rows in the database are printed as harmless text, or skipped."""

import psycopg
import pytest
from tests.fleet.machines import Fleet
from tests.fuzz import shown
from tests.hostile_text import COMMANDS_A_TERMINAL, EVIL

pytestmark = pytest.mark.timeout(240)


def test_no_row_in_the_database_controls_a_terminal_or_ends_a_worker(fleet: Fleet) -> None:
    home = fleet.machine("a")
    assert home.work().wait(120) == 0, home.said
    lines = [
        *(lines_of(shown.Filling(f"{EVIL}\nforged", flag=False))),
        *(lines_of(shown.Filling("x", number=10**400))),
        *("", "null", "[" * 100_000, "{" * 1000, "\\u0000", EVIL, '{"type":"task_listed"}', "9" * 5000),
    ]
    with psycopg.connect(fleet.url, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO ralph_events (work, seq, line) SELECT id, 1000 + number, line FROM ralph_works, "
            "unnest(%s::text[]) WITH ORDINALITY AS given (line, number)",
            [lines],
        )
        connection.execute("UPDATE ralph_works SET backlog = %s, target = %s", [f"{EVIL}\nforged", EVIL])
    for look in ("work status", "work status --json", "worker --once"):
        words = look.split()
        done = home.ralph(*words, "--db", fleet.url)
        said = done.stdout + done.stderr
        assert done.returncode == 0, said
        assert not COMMANDS_A_TERMINAL.search(said), words
        assert "\nforged" not in said, words
    with psycopg.connect(fleet.url, autocommit=True) as connection:
        connection.execute("UPDATE ralph_works SET is_open = true, work_order = %s", ["[" * 100_000])
    home.worker("--once")
    fleet.wait(lambda: "cannot parse its order" in home.said, "the message")
    assert not COMMANDS_A_TERMINAL.search(home.said)


def test_a_notification_that_cannot_be_parsed_does_not_stop_a_worker(fleet: Fleet) -> None:
    home = fleet.machine("a")
    fleet.hold("T1")
    home.work()
    fleet.wait(lambda: fleet.has_begun("T1"), "the first task")
    with psycopg.connect(fleet.url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_notify('procrastinate_queue_v1#' || task || '.' || repository, '{') "
            "FROM ralph_works, unnest(ARRAY['ralph.task', 'ralph.merge']) AS task"
        )
    fleet.let_go()
    assert home.process is not None
    assert home.process.wait(60) == 0, home.said


def lines_of(what: shown.Filling) -> list[str]:
    return [
        f'{{"type":"{entry.type}","timestamp":"{entry.timestamp}","run":"r","seq":9,"data":{bytes(entry.data).decode()}}}'
        for _, entry in shown.happened(what)
    ]
