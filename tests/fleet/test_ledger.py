"""What machines tell each other through the database: one order of events, claims that only one has, words that come
too late. Ledgers of several workers, in one process, on a real PostgreSQL."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib import resources
from pathlib import Path
from threading import Timer

import psycopg
import pytest
from msgspec.structs import replace
from tests.fleet.machines import Machine, silence
from tests.fleet.postgres import Postgres, Relay

from ralph.backlog.backlog_content import BacklogContent
from ralph.backlog.backlog_source import BacklogSource
from ralph.backlog.task_requests import TASK_REQUEST, TaskRequest
from ralph.backlog.work_order import WorkOrder
from ralph.core import work_events
from ralph.core.backlog import BacklogTask, Board, GateVerdict, Job
from ralph.core.secrets import Redactor
from ralph.errors import UserError
from ralph.fleet import steering
from ralph.fleet.database import ANSWER, BEGIN, TABLES, Database, GaveUp, Registered, finished, is_away, migrate, ready
from ralph.fleet.member import changed_since
from ralph.fleet.shared_ledger import SharedLedger
from ralph.fleet.steering import Mirror
from ralph.fleet.worker import enter, register, serve, unregister
from ralph.git.remote import Remote
from ralph.history.work_history import work_history
from ralph.process.signals import Interrupt
from ralph.run import control
from ralph.settings import Settings
from ralph.store.folder import RunFolder
from ralph.store.mailbox import Mailbox
from ralph.store.register import runs

KEYS = ("T1", "T2", "T3")


class Table:
    """A work in the database, and workers around it."""

    def __init__(self, url: str, workspace: Path, folder: Path, name: str = "abcd") -> None:
        self.url, self.folder = url, folder
        self.databases: list[Database] = []
        self.order = WorkOrder(
            id=f"20260101-000000-{name}",
            name=name,
            workspace=str(workspace),
            source=BacklogSource(word="TASKS.md", name=f"{name}.md"),
            settings=Settings(),
            target="",
            base="0" * 40,
            remote=Remote("origin", "main"),
        )
        database = self.database()
        ready(database)
        self.home = register(database, "home", 0, brings=True)
        enter(database, self.order, BacklogContent(tuple(BacklogTask(key=key, title=key) for key in KEYS)), self.home)

    def database(self) -> Database:
        self.databases.append(Database(self.url, patience=0.0))
        return self.databases[-1]

    def worker(self, name: str, slots: int = 2) -> SharedLedger:
        database = self.database()
        folder = RunFolder(self.folder / name, self.order.id)
        folder.make()
        made = SharedLedger(folder, [], Redactor(), database, register(database, name, slots))
        made.open()
        made.hear()
        return made

    def close(self) -> None:
        for database in self.databases:
            database.close()

    def silence(self, name: str) -> None:
        """As if it had not been heard for a minute."""
        silence(self.url, name)


@pytest.fixture
def table(database: str, anywhere: Machine, tmp_path: Path) -> Iterator[Table]:
    made = Table(database, anywhere.folder, tmp_path)
    yield made
    made.close()


def begin(ledger: SharedLedger, key: str, run: str) -> bool:
    if not ledger.claims(key):
        return False
    ledger.tell(work_events.TaskStarted(key, 1, run, "somebody"))
    return ledger.is_mine(key)


def test_all_read_the_same_and_each_keeps_a_copy(table: Table) -> None:
    one, two = table.worker("one"), table.worker("two")
    assert begin(one, "T1", "r1")
    two.hear()
    assert one.board.jobs == two.board.jobs
    assert [job.state for job in two.board.jobs.values()] == ["working", "queued", "queued"]
    one.hear()
    journals = [
        (table.folder / name / "runs" / table.order.id / "journal.ndjson").read_bytes() for name in ("one", "two")
    ]
    assert journals[0] == journals[1]


def test_an_item_and_the_gate_are_claimed_by_one_alone(table: Table) -> None:
    one, two = table.worker("one"), table.worker("two")
    assert begin(one, "T1", "r1")
    assert not begin(two, "T1", "r2")
    assert [one.takes_gate(), two.takes_gate()] == [True, False]
    two.hear()
    assert not two.has_gate()


def test_nobody_takes_more_than_it_has_room_for(table: Table) -> None:
    one = table.worker("one", slots=1)
    assert begin(one, "T1", "r1")
    assert not one.claims("T2")


def test_the_room_of_all_who_are_heard_counts(table: Table) -> None:
    one = table.worker("one", slots=2)
    table.worker("two", slots=5)
    one.hear()
    assert one.board.slots == 7
    table.silence("two")
    one.hear()
    assert one.board.slots == 2


def test_who_falls_silent_is_taken_over_from_and_its_word_counts_no_more(table: Table) -> None:
    one, two = table.worker("one"), table.worker("two")
    assert begin(one, "T1", "r1")
    table.silence("one")
    two.take_over()
    assert two.board.jobs["T1"].state == "queued"
    assert two.board.jobs["T1"].reason.startswith("one was not heard for 60 seconds")
    assert begin(two, "T1", "r2")
    one.tell(work_events.TaskReady(key="T1", tip="f" * 40, files=("a",), run="r1"))
    assert one.board.jobs["T1"].state == "working"
    assert one.board.jobs["T1"].run == "r2"
    assert not one.is_mine("T1")
    one.tell(work_events.TaskQueued("T1", "its loop was stopped"))
    two.hear()
    assert two.board.jobs["T1"].state == "working"
    assert two.is_mine("T1")


def test_a_name_that_somebody_else_bears_by_now_makes_nothing_ours(table: Table) -> None:
    one = table.worker("one")
    assert begin(one, "T1", "r1")
    table.silence("one")
    again = table.worker("one")
    again.take_over()
    assert begin(again, "T1", "r2")
    one.hear()
    assert not one.is_mine("T1")


def test_a_word_that_is_told_twice_counts_once(table: Table) -> None:
    """The end of a transaction may be lost on its way: then it is told again."""
    one = table.worker("one")
    assert begin(one, "T1", "r1")
    ready = work_events.TaskReady(key="T1", tip="f" * 40, files=("a",), run="r1", cost_usd=2.0)
    one.tell(ready)
    one.tell(ready)
    one.hear()
    assert one.board.spent == 2.0
    two = table.worker("two")
    assert two.takes_gate()
    two.tell(work_events.TaskReturned("T1", "red"))
    assert begin(two, "T1", "r2"), "it can be claimed again"


def test_only_the_holder_of_the_gate_speaks_for_it(table: Table) -> None:
    one, two = table.worker("one"), table.worker("two")
    assert begin(one, "T1", "r1")
    one.tell(work_events.TaskReady(key="T1", tip="f" * 40, files=("a",), run="r1"))
    assert one.takes_gate()
    table.silence("one")
    two.hear()
    two.take_over()
    two.hear()
    assert two.takes_gate()
    one.tell(work_events.GateFinished(GateVerdict(stuck="of an old holder")), work_events.TaskReturned("T1", "red"))
    assert one.board.stuck == ""
    assert one.board.jobs["T1"].state == "ready"
    one.hear()
    assert not one.has_gate()


def test_who_takes_its_leave_frees_all_at_once(table: Table) -> None:
    one, two = table.worker("one"), table.worker("two")
    assert begin(one, "T1", "r1")
    assert one.takes_gate()
    me = one._me
    unregister(table.database(), Registered(me.id, me.name, me.slots))
    two.take_over()
    two.hear()
    assert two.board.jobs["T1"].reason == "its worker has left"
    assert two.takes_gate()


def test_who_is_stopped_in_the_middle_of_a_transaction_holds_nobody_up(table: Table) -> None:
    one, stopped = table.worker("one"), psycopg.connect(table.url, autocommit=True)
    with stopped.cursor() as cursor:
        cursor.execute(BEGIN)
        cursor.execute("SELECT last FROM ralph_works FOR UPDATE")  # and here it is stopped
        one._database._patience = None  # it waits, as a worker does
        began = time.monotonic()
        one.tell(work_events.WorkPaused(True))
        assert one.board.is_paused
        assert time.monotonic() - began < 15
    with pytest.raises(psycopg.errors.IdleInTransactionSessionTimeout) as told:
        stopped.execute("SELECT 1")
    assert is_away(told.value), "a worker that goes on then asks again"
    stopped.close()


def test_who_wants_an_end_does_not_wait_for_a_database_that_does_not_answer(
    database: str, postgres: Postgres, eventually: Callable[..., None]
) -> None:
    relay, stack = Relay(postgres.port), ExitStack()
    apart = database.replace(f":{postgres.port}/", f":{relay.port}/")
    for is_connected in (True, False):
        interrupt = stack.enter_context(Interrupt())
        opened = Database(apart, interrupt)
        if is_connected:
            opened.do(lambda transaction: transaction.ask("SELECT 1"))
        relay.cut()
        Timer(0.3, interrupt.raise_to, (1, "a person")).start()
        began = time.monotonic()
        for _ in range(2):
            with pytest.raises(GaveUp):
                opened.do(lambda transaction: transaction.ask("SELECT 1"))
        assert time.monotonic() - began < ANSWER, "it would be tried for as long as it takes"
        relay.mend()
    interrupt = stack.enter_context(Interrupt())
    interrupt.raise_to(1, "a person")

    def is_answered() -> bool:
        """One that answers is still asked; on a busy machine an answer may take longer than the second that it has."""
        opened = Database(apart, interrupt)
        try:
            return opened.do(lambda transaction: transaction.ask("SELECT 1")) == [(1,)]
        except GaveUp:
            return False
        finally:
            opened.close()

    eventually(is_answered)
    relay.close()
    stack.close()


def test_a_killed_copy_goes_on_where_it_was_torn(table: Table) -> None:
    one = table.worker("one")
    assert begin(one, "T1", "r1")
    journal = table.folder / "one" / "runs" / table.order.id / "journal.ndjson"
    whole = journal.read_bytes()
    journal.write_bytes(whole[:-20])
    again = table.worker("one")
    assert again.board.jobs["T1"].state == "working"
    assert len(journal.read_bytes().splitlines()) == len(whole.splitlines()) + 1, "the torn line, and it again"


def test_a_list_is_worked_off_once_at_a_time(table: Table) -> None:
    again = replace(table.order, id="x", name="x")
    with pytest.raises(UserError, match=r"work abcd works off abcd.md on origin/main already"):
        enter(table.database(), again, BacklogContent(()), register(table.database(), "other", 0, brings=True))


def test_a_list_whose_bringer_is_gone_is_kept_by_one_who_stands_in_until_somebody_brings_it_again(table: Table) -> None:
    one = table.worker("one")
    assert not one.takes_list(), "whoever brought it keeps it"
    table.silence("home")
    one.take_over()
    one.hear()
    assert one.takes_list()
    other = register(table.database(), "other", 1, brings=True)
    row = enter(table.database(), replace(table.order, id="x", name="x"), BacklogContent(()), other)
    assert row.id == table.order.id, "the same command goes on with it"
    one.hear()
    assert not one.has_list()


def task(key: str, title: str = "", done: bool = False) -> BacklogTask:
    return BacklogTask(key=key, title=title or key, done=done)


def test_who_stands_in_goes_by_what_has_changed_on_the_target_since_the_work_began() -> None:
    """The list of whoever brought it had M, which is not on the target, and another title for B."""
    states = {"A": "queued", "B": "parked", "M": "queued", "L": "merged", "W": "working", "X": "withdrawn"}
    jobs = {key: Job(task=task(key, f"{key} as brought"), state=state) for key, state in states.items()}  # type: ignore[arg-type]
    same = [task(key) for key in ("A", "B", "L", "W", "X")]

    def seen(*now: BacklogTask) -> dict[str, str]:
        return {one.key: one.title for one in changed_since(same, now, Board(jobs=jobs))}

    known = {key: f"{key} as brought" for key in ("A", "B", "M", "W")}
    assert seen(*same) == known
    assert seen(*same, task("N")) == {**known, "N": "N"}, "a new one"
    assert seen(*(one for one in same if one.key != "A")) == {key: known[key] for key in ("B", "M", "W")}, "one less"
    assert seen(*same[:1], task("B", "anew"), *same[2:])["B"] == "anew", "one that was edited"
    assert seen(*same[:3], task("W", done=True), *same[4:]) == known, "one that the gate has ticked"
    assert seen(task("A", done=True), *same[1:])["A"] == "A", "one that a person has ticked"


def test_what_loops_spend_is_known_to_all(table: Table) -> None:
    one, two = table.worker("one"), table.worker("two")
    for ledger in (one, two):
        serve(table.database(), ledger._me, table.order.id)
    one.report(1.5)
    two.report(0.25)
    one.hear()
    two.hear()
    assert (one.spent_elsewhere, two.spent_elsewhere) == (0.25, 1.5)
    table.silence("one")
    two.hear()
    assert two.spent_elsewhere == 1.5, "what a dead one has spent is spent"
    one.report(0.0)
    two.hear()
    assert two.spent_elsewhere == 0.0


def test_people_steer_from_anywhere(table: Table) -> None:
    one, database = table.worker("one"), table.database()
    assert begin(one, "T1", "r1")
    assert "paused" in steering.hold(database, "", True)
    one.hear()
    assert one.board.is_paused
    steering.resume(database, "")
    steering.withdraw(database, "abcd", "t2")
    one.hear()
    assert not one.board.is_paused
    assert one.board.jobs["T2"].state == "withdrawn"
    with pytest.raises(UserError, match="T1 is working"):
        steering.retry(database, "", "T1", "")
    with pytest.raises(UserError, match="has no task T9"):
        steering.withdraw(database, "", "T9")
    with pytest.raises(UserError, match="no work nope"):
        steering.see(database, "nope")
    steering.retry(database, "", "T2", "a word")
    one.hear()
    assert (one.board.jobs["T2"].state, one.board.jobs["T2"].note) == ("queued", "a word")
    steering.stop(database, "")
    one.hear()
    assert one.finished is not None
    assert one.finished.exit_code == 130
    with pytest.raises(UserError, match="is over"):
        steering.hold(database, "", True)
    assert steering.resume(database, "") == "work abcd goes on"
    one.hear()
    assert one.finished is None
    assert one.board.jobs["T1"].state == "queued"


def test_a_machine_that_takes_no_part_sees_and_steers_as_if_it_did(table: Table, tmp_path: Path) -> None:
    one, env = table.worker("one"), {"XDG_STATE_HOME": str(tmp_path / "state")}
    assert begin(one, "T1", "r1")

    def until(fact: Callable[[], object]) -> None:
        deadline = time.monotonic() + 60
        while not fact():
            assert time.monotonic() < deadline
            one.hear()

    with Mirror(table.url, follows=True, env=env):
        (run,) = runs(env)
        assert (run.id, run.state, run.facts.kind) == (table.order.id, "running", "work")
        assert [job.state for job in work_history(run).board.jobs.values()] == ["working", "queued", "queued"]
        control.pause(run)
        until(lambda: one.board.is_paused)
        until(lambda: runs(env)[0].state == "paused")
        steering.hold(table.database(), "", False)
        until(lambda: runs(env)[0].state == "running")
        steering.hold(table.database(), "", True)
        until(lambda: runs(env)[0].state == "paused")
        control.unpause(run)
        until(lambda: not one.board.is_paused)
        Mailbox(run.place).leave(TASK_REQUEST, TaskRequest("withdraw", "T2"))
        until(lambda: one.board.jobs["T2"].state == "withdrawn")
        control.stop(run)
        until(lambda: one.finished)
        until(lambda: runs(env)[0].state == "interrupted")
    assert runs(env) == []


def test_a_newer_database_is_refused(table: Table) -> None:
    database = table.database()
    database.do(lambda transaction: transaction.ask("UPDATE ralph_fleet SET layout = 99"))
    for act in (ready, migrate):
        with pytest.raises(UserError, match="newer ralph"):
            act(database)


def test_an_older_database_is_refused_until_a_person_brings_it_up(
    database: str, anywhere: Machine, tmp_path: Path
) -> None:
    """Its tables are made as they were then, by the steps that Procrastinate ships."""
    folder = resources.files("procrastinate.sql") / "migrations"
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".sql"))
    then = [name for name in names if name < "03.04"]
    assert then != names
    with psycopg.connect(database, autocommit=True) as connection:
        for name in then:
            connection.execute((folder / name).read_text())
        connection.execute(TABLES)
        connection.execute("ALTER TABLE ralph_workers DROP COLUMN brings, DROP COLUMN spending")  # as in layout 1
        connection.execute("INSERT INTO ralph_fleet VALUES (1, %s)", (then[-1],))
    opened = Database(database, patience=0.0)
    with pytest.raises(UserError, match="older ralph"):
        ready(opened)
    assert migrate(opened) == "it is up to date"
    assert migrate(opened) == "it was up to date"
    opened.close()
    table = Table(database, anywhere.folder, tmp_path)
    one = table.worker("one")
    assert begin(one, "T1", "r1")
    one.tell(work_events.TaskParked("T1", "why", "r1"))
    assert one.board.jobs["T1"].state == "parked"
    table.close()


def test_silent_workers_are_forgotten_after_a_week(table: Table) -> None:
    database = table.database()
    one = table.worker("one")
    table.silence("one")
    assert "one" in {worker.name for worker in steering.see(database).workers}
    database.do(lambda transaction: finished(transaction.jobs.prune_stalled_workers(30.0)))
    assert "one" not in {worker.name for worker in steering.see(database).workers}
    assert one.board.jobs["T1"].state == "queued"
