"""Mistakes and outages of a fleet are reported in one clear line, and lose nothing."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psycopg
import pytest
from tests.fleet.machines import Fleet, Machine
from tests.fleet.postgres import HERE, Postgres, Relay, free_port

pytestmark = pytest.mark.timeout(240)
HOST = "postgresql://ralph@127.0.0.1:1"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("work", "TASKS.md", "--db", f"{HOST}/x", "--check", "true"), "--db needs --push"),
        (
            ("work", "TASKS.md", "--db", f"{HOST}/x", "--push=origin/none", "--check", "true", "--agent", "true"),
            "origin has no branch none",
        ),
        (("worker",), "no database given"),
        (("worker", "--db", "postgresql://me:secret@host/x"), "a password in --db is visible to everyone"),
        (("worker", "--db", "postgresql://[x"), "cannot parse the URL of the database"),
        (("worker", "--db", "mysql://host/x"), "cannot parse the URL of the database"),
        (("worker", "--db", f"{HOST}/x", "-j", "0"), "-j 0 is too small"),
        (("worker", "--db", f"{HOST}/x", "more"), "too many words"),
        (("worker", "--db", f"{HOST}/x", "-C", "/"), "is not in a git repository"),
        (("work", "status", "--db", f"{HOST}/x"), "PostgreSQL is away: connection failed"),
        (("worker", "--migrate", "--db", f"{HOST}/x"), "PostgreSQL is away: connection failed"),
    ],
)
def test_a_bad_option_is_a_one_line_error_with_a_hint_and_exit_code_2(
    anywhere: Machine, words: tuple[str, ...], said: str
) -> None:
    done = anywhere.ralph(*words)
    assert_refused(done, said)
    assert "secret" not in done.stderr


def assert_refused(done: "subprocess.CompletedProcess[str]", said: str) -> None:
    assert done.returncode == 2, done.stderr
    first, second = done.stderr.splitlines()
    assert said in first
    assert second.startswith("hint: ")


def test_tables_of_another_version_are_refused_by_every_command(fleet: Fleet) -> None:
    home = fleet.machine("a")
    assert home.ralph("worker", "--once", "--db", fleet.url).returncode == 0
    commands = (("worker",), ("work", "status"), ("work", "pause"), ("worker", "--once"))
    for layout, said in ((99, "this database belongs to a newer ralph"), (2, "belong to another ralph")):
        with psycopg.connect(fleet.url, autocommit=True) as connection:
            connection.execute("UPDATE ralph_fleet SET layout = %s", [layout])
        for words in commands:
            assert_refused(home.ralph(*words, "--db", fleet.url), said)
    assert home.ralph("worker", "--migrate", "--db", fleet.url).returncode == 0
    assert home.ralph("worker", "--once", "--db", fleet.url).returncode == 0


def test_without_the_extra_the_error_names_the_package_to_install(anywhere: Machine, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['psycopg'] = None\n")
    done = anywhere.ralph("worker", "--db", anywhere.url, PYTHONPATH=str(tmp_path))
    assert done.returncode == 2
    assert "a fleet needs psycopg, which is not installed" in done.stderr
    assert "'psycopg[binary]" in done.stderr


def test_a_wrong_password_and_a_missing_database_are_refused_at_once(fleet: Fleet) -> None:
    with psycopg.connect(fleet.url, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS locked")
        connection.execute("CREATE ROLE locked LOGIN PASSWORD 'right'")
        connection.execute("GRANT ALL ON SCHEMA public TO locked")
    try:
        home, url = fleet.machine("a"), fleet.url.replace("ralph@", "locked@")
        done = home.ralph("work", "status", "--db", url, PGPASSWORD="wrong")
        assert_refused(done, "password authentication failed")
        done = home.ralph("worker", "--db", url, PGPASSWORD="right")
        assert_refused(done, "permission denied")  # the role cannot create a schema
        with psycopg.connect(fleet.url, autocommit=True) as connection:
            connection.execute(f"GRANT CREATE ON DATABASE {fleet.url.rpartition('/')[2]} TO locked")
        done = home.ralph("work", "status", "--db", url, PGPASSWORD="right")
        assert "no backlog in this database" in done.stderr
        whole = url.replace("locked@", "locked:right@")
        (home.home / "db").write_text(whole + "\n")
        for known in (whole, f"@{home.home}/db"):
            done = home.ralph("work", "status", RALPH_DB=known)
            assert "no backlog in this database" in done.stderr, "the URL may be in the environment, or in a file"
        assert_refused(home.ralph("worker", "--db", fleet.url + "missing"), "does not exist")
    finally:
        with psycopg.connect(fleet.url, autocommit=True) as connection:
            connection.execute("DROP OWNED BY locked")
            connection.execute("DROP ROLE locked")


@pytest.mark.slow
def test_a_worker_in_a_clone_of_another_repository_takes_no_tasks_and_says_so(fleet: Fleet) -> None:
    first, other = fleet.machine("a"), fleet.machine("b")
    shutil.rmtree(other.folder)
    strange = fleet.folder / "strange"
    strange.mkdir()
    fleet.git("init", "-q", "-b", "main", cwd=strange)
    fleet.git("commit", "-q", "--allow-empty", "-m", "else", cwd=strange)
    fleet.git("clone", "-q", str(strange), str(other.folder), cwd=fleet.folder)
    fleet.hold("T1")
    work = first.work()
    other.worker()
    fleet.wait(lambda: "is a clone of another repository" in other.said, "the message")
    fleet.git("remote", "rename", "origin", "upstream", cwd=other.folder)
    fleet.wait(lambda: "this clone has no remote origin" in other.said, "the message")
    fleet.let_go()
    assert work.wait(120) == 0
    assert {event["worker"] for event in fleet.all("task_started")}.isdisjoint({"b"})
    fleet.audit()


def test_a_push_that_the_remote_rejects_is_reported_and_loses_nothing(fleet: Fleet) -> None:
    hook = fleet.remote / "hooks" / "pre-receive"
    hook.write_text("#!/bin/sh\necho closed for the night >&2\nexit 1\n")
    hook.chmod(0o755)
    first = fleet.machine("a")
    assert first.work().wait(120) == 2, first.said
    assert "origin rejects ralph/" in first.said
    assert "closed for the night" in first.said
    hook.unlink()
    second = fleet.machine("b")
    second.worker("--once")
    fleet.wait_for("work_finished", exit_code=0)
    fleet.audit()


@pytest.mark.slow
def test_workers_wait_for_a_remote_that_is_away_for_a_moment(fleet: Fleet) -> None:
    away = fleet.remote.with_name("away.git")
    first = fleet.machine("a")
    first.work()
    fleet.wait_for("task_started")
    fleet.remote.rename(away)
    fleet.wait(lambda: list(first.processes("run-task")), "a task that starts")
    away.rename(fleet.remote)
    fleet.wait_for("work_finished", exit_code=0)
    fleet.audit()


def test_a_backlog_whose_target_fails_its_checks_ends_before_a_task_starts(fleet: Fleet) -> None:
    """If it stayed open, it would end every worker that joins it."""
    first, second = fleet.machine("a"), fleet.machine("b")
    done = first.ralph(*first.words("--check", "exit 3"))
    assert done.returncode == 2
    assert done.stderr.splitlines()[-2:] == [
        "ralph: exit 3 fails on origin/main (exit code 3); to merge what does not make it worse: --allow-red",
        "hint: fix it, then start again",
    ]
    assert fleet.all("work_finished")[0]["exit_code"] == 2
    assert second.ralph("worker", "--once", "--db", fleet.url).returncode == 0, "no backlog is open"
    assert first.work().wait(120) == 0, first.said
    fleet.audit()


def test_a_backlog_that_is_running_cannot_be_started_again(fleet: Fleet) -> None:
    fleet.hold(*fleet.keys)
    first, second = fleet.machine("a"), fleet.machine("b")
    first.work()
    fleet.wait_for("task_started")
    done = second.ralph(*second.words())
    assert done.returncode == 2
    assert "TASKS.md is already running on origin/main" in done.stderr.splitlines()[-2]
    done = first.ralph("worker", "--db", fleet.url)
    assert done.returncode == 2
    assert "another backlog is running in" in done.stderr


UNREACHABLE = """
import sys
from ralph.cli.main import run_cli
from ralph.fleet import database
database.FIRST_TIMEOUT = 0.1
sys.exit(run_cli(sys.argv[1:]))
"""
"""ralph with a server that it gives up after a tenth of a second instead of 30 seconds."""


@pytest.mark.parametrize(
    "command", [["worker"], ["work", "TASKS.md", "--check", "true", "--push=origin/main", "--agent", "true"]]
)
def test_a_command_whose_database_was_never_reachable_ends_with_exit_code_2(
    anywhere: Machine, command: list[str]
) -> None:
    argv = [sys.executable, "-c", UNREACHABLE, *command, "--db", f"postgresql://127.0.0.1:{free_port()}/ralph"]
    ended = subprocess.run(argv, cwd=anywhere.folder, env=anywhere.env, capture_output=True, text=True, check=False)
    assert ended.returncode == 2, ended.stderr
    assert "ralph: PostgreSQL is away: connection failed" in ended.stderr
    assert "hint: is it running there? pg_isready -h 127.0.0.1 -p " in ended.stderr


@pytest.mark.slow
def test_a_worker_waits_for_a_database_that_is_not_there_yet(fleet: Fleet) -> None:
    port = free_port()
    late = fleet.machine("late", url=fleet.url.replace(f":{fleet.postgres.port}/", f":{port}/"))
    process = late.worker()
    fleet.wait(lambda: "waiting for PostgreSQL" in late.said, "the message")
    relay = Relay(fleet.postgres.port, at=port)
    try:
        fleet.wait(lambda: "PostgreSQL is back" in late.said, "the worker continues")
        fleet.wait(lambda: "looks for work" in late.said, "the worker continues")
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        process = late.worker()
        fleet.wait(lambda: late.said.count("looks for work") == 2)
    finally:
        relay.close()
    process.terminate()
    assert process.wait(30) == 130


@pytest.mark.slow
def test_a_database_that_is_restarted_loses_nothing(tmp_path: Path, server: Postgres) -> None:
    fleet = Fleet(tmp_path, server, tasks=4)
    try:
        fleet.hold("T3", "T4")
        first = fleet.machine("a")
        work = first.work(slots=4)
        fleet.wait(lambda: len(fleet.merged()) == 2, "two merged tasks")
        server.stop(signal.SIGQUIT)
        fleet.let_go()
        fleet.wait(lambda: "waiting for PostgreSQL" in first.said, "the message")
        server.start()
        assert work.wait(120) == 0, first.said
        assert "PostgreSQL is back" in first.said
        fleet.audit()
    finally:
        fleet.close()


@pytest.mark.slow
def test_ctrl_c_ends_a_worker_whose_database_is_away(fleet: Fleet) -> None:
    relay = Relay(fleet.postgres.port)
    apart = fleet.machine("a", url=fleet.url.replace(f":{fleet.postgres.port}/", f":{relay.port}/"))
    fleet.hold(*fleet.keys)
    process = apart.work(slots=4)
    fleet.wait(lambda: all(map(fleet.has_begun, fleet.keys)))
    relay.cut()
    time.sleep(0.5)
    for number in (signal.SIGINT, signal.SIGTERM):  # two signals of one kind may arrive as one
        process.send_signal(number)
    assert process.wait(60) == 130
    relay.close()
    assert "Traceback" not in apart.said
    assert not list(apart.processes()), "processes survive"


def test_agents_do_not_see_the_url_and_password_of_the_database(fleet: Fleet) -> None:
    (fleet.waits / "seen").touch()
    fleet.agent.write_text(
        fleet.agent.read_text().replace("PROMPT=$(cat)", f"PROMPT=$(cat); env >> {fleet.waits}/seen")
    )
    home = fleet.machine("a")
    home.env |= {"RALPH_DB": fleet.url, "PGPASSWORD": "hush"}
    assert home.start(*home.words(db="")[:2], "--db=", *home.words()[4:]).wait(120) == 0, home.said
    seen = (fleet.waits / "seen").read_text()
    assert "RALPH_RUN_ID" in seen
    assert "hush" not in seen
    assert str(fleet.postgres.port) not in seen


@pytest.mark.slow
def test_a_fleet_works_through_pgbouncer_in_transaction_mode(fleet: Fleet, pgbouncer: str) -> None:
    """Each transaction gets another session there, which breaks session locks, prepared statements and LISTEN."""
    port, folder = free_port(), fleet.folder / "pooler"
    folder.mkdir()
    name = fleet.url.rpartition("/")[2]
    (folder / "ini").write_text(
        f"[databases]\n{name} = host={HERE} port={fleet.postgres.port} user=ralph\n"
        f"[pgbouncer]\nlisten_addr={HERE}\nlisten_port={port}\nauth_type=any\npool_mode=transaction\n"
        f"unix_socket_dir=\ndefault_pool_size=4\nlogfile=/dev/null\nignore_startup_parameters=extra_float_digits\n"
    )
    as_whom = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
    for place in (folder, *folder.parents[:-1]):
        if as_whom and not place.stat().st_mode & 0o001:
            place.chmod(place.stat().st_mode | 0o055)
    (folder / "ini").chmod(0o644)
    pooler = subprocess.Popen([pgbouncer, str(folder / "ini")], stderr=subprocess.DEVNULL, **as_whom)  # type: ignore[call-overload]
    try:
        url = f"postgresql://ralph@{HERE}:{port}/{name}"
        first, second = fleet.machine("a", url=url), fleet.machine("b", url=url)
        second.worker()
        assert first.work().wait(120) == 0, first.said
        fleet.audit()
    finally:
        pooler.kill()
        pooler.wait()
