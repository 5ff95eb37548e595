"""What machines tell each other through the database: one order of events, tasks that one worker holds, words that come
too late. Logs of several workers in one process, on a real PostgreSQL."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import psycopg
import pytest
from msgspec.structs import replace
from procrastinate import jobs
from procrastinate.schema import SchemaManager
from tests.fleet.machines import Machine, silence

from ralph.backlog.backlog_content import BacklogContent
from ralph.backlog.backlog_source import BacklogSource
from ralph.backlog.ledger import JournalLedger
from ralph.backlog.task_requests import TASK_REQUEST, TaskRequest
from ralph.backlog.work_order import WorkOrder
from ralph.core import work_events
from ralph.core.backlog import BacklogTask, Board, GateVerdict, Job
from ralph.core.secrets import Redactor
from ralph.errors import UserError
from ralph.fleet import steering
from ralph.fleet.database import BEGIN, ONE_SHOT, Database, fetch_all, migrate
from ralph.fleet.log import (
    GATE,
    TASK,
    WorkLog,
    WorkState,
    add_work,
    list_workers,
    list_works,
    register_worker,
    task_queue,
)
from ralph.fleet.tasks import FleetTasks, changed_since
from ralph.fleet.work_copies import Mirror
from ralph.git.remote import Remote
from ralph.history.work_history import work_history
from ralph.run import control
from ralph.settings import Settings
from ralph.store.folder import RunFolder
from ralph.store.mailbox import Mailbox
from ralph.store.register import runs

KEYS = ("T1", "T2", "T3")
HERE = "0" * 20  # the repository
T = TypeVar("T")


def order(workspace: Path, name: str = "abcd") -> WorkOrder:
    return WorkOrder(
        id=f"20260101-000000-{name}",
        name=name,
        workspace=str(workspace),
        source=BacklogSource(word="TASKS.md", name="TASKS.md", paths=("TASKS.md",)),
        settings=Settings(),
        target="",
        base="0" * 40,
        remote=Remote("origin", "main"),
    )


CONTENT = BacklogContent(tuple(BacklogTask(key=key, title=key) for key in KEYS))


class Table:
    """A backlog in a database whose gate is open, and what workers do with it."""

    def __init__(self, database: Database, url: str, made: WorkOrder) -> None:
        self.database, self.url, self.order = database, url, made

    def log(self) -> WorkLog:
        return WorkLog(self.database, self.order.id)

    async def worker(self, name: str, slots: int = 2) -> int:
        number, _ = await self.database.transact(register_worker, name, slots, HERE)
        return number

    async def start(self, key: str, by: str, run: str = "") -> WorkState:
        """Start a task, as a job does that was brought to a worker."""

        def decide(state: WorkState) -> list[work_events.WorkEvent]:
            is_free = state.board.jobs[key].state == "queued"
            return [work_events.TaskStarted(key, 1, run or by, by.partition("/")[0])] if is_free else []

        return await self.log().append(by, decide)

    async def ready(self, key: str, by: str) -> WorkState:
        event = work_events.TaskReady(key=key, tip="f" * 40, files=("a",), run=by, cost_usd=2.0)
        return await self.log().append(by, lambda state: [event] if state.holders.get(key) == by else [])

    async def tick(self) -> None:
        async def never(work: str) -> None:
            return None

        await FleetTasks(self.database, "ticker", {}, never, lambda message: None).tick(0)

    async def waiting(self) -> list[str]:
        found = await self.database.app.job_manager.list_jobs_async(task=TASK, status="todo")
        return [str(job.task_kwargs["key"]) for job in found]


@pytest.fixture
def play(database: str, anywhere: Machine) -> Callable[[Callable[[Table], Awaitable[None]]], None]:
    """Run a story at a table."""

    def run(story: Callable[[Table], Awaitable[None]]) -> None:
        async def opened() -> None:
            made = order(anywhere.folder)
            async with Database(database, ONE_SHOT).open() as shared:
                await shared.transact(add_work, 0, made, "", HERE, CONTENT)
                table = Table(shared, database, made)
                await table.log().append("", lambda state: [work_events.GateOpened("e" * 40)])
                await story(table)

        asyncio.run(opened())

    return run


Play = Callable[[Callable[[Table], Awaitable[None]]], None]


def test_all_read_the_same(play: Play) -> None:
    async def story(table: Table) -> None:
        one, two = table.log(), table.log()
        await table.start("T1", "one/1")
        assert (await one.refresh()).board.jobs == (await two.refresh()).board.jobs
        assert [job.state for job in two.state.board.jobs.values()] == ["working", "queued", "queued"]
        assert one.new_lines == two.new_lines
        assert one.state.holders == {"T1": "one/1"}

    play(story)


def test_as_many_jobs_are_deferred_as_there_are_slots_of_present_workers(play: Play) -> None:
    async def story(table: Table) -> None:
        await table.log().append("", lambda state: [])
        assert await table.waiting() == ["T1"], "one at least"
        await table.worker("one", slots=2)
        state = await table.log().append("", lambda state: [], defers_all=True)
        assert state.board.slots == 2
        assert await table.waiting() == ["T1", "T2"], "none is deferred twice"
        await table.worker("two", slots=5)
        silence(table.url, "two")
        assert (await table.log().append("", lambda state: [])).board.slots == 2

    play(story)


def test_a_task_is_started_by_one_job_alone(play: Play) -> None:
    async def story(table: Table) -> None:
        started = await asyncio.gather(*(table.start("T1", f"w/{number}") for number in range(5)))
        assert len({state.holders["T1"] for state in started}) == 1
        (event,) = [line for _, _, line in (await read(table)) if b'"task_started"' in line]
        assert started[0].holders["T1"].encode() in event

    play(story)


async def read(table: Table) -> list[tuple[int, str, bytes]]:
    log = table.log()
    await log.refresh()
    return log.new_lines


def test_what_a_lost_worker_held_is_queued_and_its_word_counts_no_more(play: Play) -> None:
    async def story(table: Table) -> None:
        await table.start("T1", "one/77")
        await table.log().append("one/78", lambda state: [work_events.GateStarted(("T2",))])
        await table.tick()
        state = await table.log().refresh()
        assert (state.board.jobs["T1"].state, state.board.jobs["T1"].reason) == ("queued", "worker one is gone")
        assert GATE not in state.holders
        assert state.board.trying == ()
        await table.start("T1", "two/99")
        state = await table.ready("T1", "one/77")
        assert (state.board.jobs["T1"].state, state.holders["T1"]) == ("working", "two/99")

    play(story)


def test_a_job_that_runs_is_not_taken_for_lost(play: Play) -> None:
    async def story(table: Table) -> None:
        manager = table.database.app.job_manager
        worker = await manager.register_worker()
        await table.log().append("", lambda state: [])
        job = await manager.fetch_job(queues=[task_queue(HERE)], worker_id=worker)
        assert job is not None
        await table.start("T1", f"one/{job.id}")
        await table.tick()
        assert (await table.log().refresh()).holders == {"T1": f"one/{job.id}"}

    play(story)


def test_a_claim_whose_answer_was_lost_keeps_no_task_from_starting(play: Play) -> None:
    """The engine then takes the job for a running one, and its worker knows nothing of it."""

    async def story(table: Table) -> None:
        manager = table.database.app.job_manager
        worker = await manager.register_worker()
        await table.log().append("", lambda state: [])
        lost = await manager.fetch_job(queues=[task_queue(HERE)], worker_id=worker)
        assert lost is not None
        assert await table.waiting() == []
        await table.tick()
        again = await manager.fetch_job(queues=[task_queue(HERE)], worker_id=worker)
        assert again is not None
        assert again.task_kwargs == lost.task_kwargs

    play(story)


def test_a_word_that_is_told_twice_counts_once(play: Play) -> None:
    async def story(table: Table) -> None:
        await table.start("T1", "one/1")
        for _ in range(2):
            state = await table.ready("T1", "one/1")
        assert state.board.spent == 2.0

    play(story)


def test_a_worker_that_is_stopped_in_the_middle_of_a_transaction_holds_nobody_up(play: Play) -> None:
    async def story(table: Table) -> None:
        stopped = psycopg.connect(table.url)
        stopped.execute(BEGIN)
        stopped.execute("SELECT last FROM ralph_works FOR UPDATE")  # and here it is stopped
        began = time.monotonic()
        state = await WorkLog(table.database, table.order.id).append("", lambda state: [work_events.WorkPaused(True)])
        assert state.board.is_paused
        assert time.monotonic() - began < 15
        with pytest.raises(psycopg.Error):
            stopped.execute("SELECT 1")
        stopped.close()

    play(story)


def test_a_torn_copy_is_continued(play: Play, tmp_path: Path) -> None:
    async def story(table: Table) -> None:
        await table.start("T1", "one/1")
        folder = RunFolder(tmp_path, table.order.id)
        folder.make()

        def copied(lines: list[tuple[int, bytes]]) -> JournalLedger:
            ledger = JournalLedger(folder, [], Redactor())
            ledger.open()
            ledger.copy_lines(lines)
            ledger.close()
            return ledger

        lines = [(seq, line) for seq, _, line in await read(table)]
        copied(lines)
        whole = folder.journal.read_bytes()
        folder.journal.write_bytes(whole[:-20])
        assert copied(lines).board.jobs["T1"].state == "working"
        assert len(folder.journal.read_bytes().splitlines()) == len(whole.splitlines()) + 1, (
            "the torn line, and it again"
        )

    play(story)


def test_a_list_is_worked_off_once_at_a_time_and_continued_if_its_machine_is_gone(play: Play) -> None:
    async def story(table: Table) -> None:
        home = await table.worker("home")
        again = replace(table.order, id="x", name="x")

        async def add(order: WorkOrder) -> str:
            return (await table.database.transact(add_work, home, order, "", HERE, CONTENT)).id

        assert await add(table.order) == table.order.id, "the connection was lost after it was written"
        with pytest.raises(UserError, match="is already running on origin/main as abcd"):
            await add(again)
        silence(table.url, "home")
        assert await add(again) == table.order.id

    play(story)


def task(key: str, title: str = "", done: bool = False) -> BacklogTask:
    return BacklogTask(key=key, title=title or key, done=done)


def test_another_machine_goes_by_what_has_changed_on_the_target_since_the_start() -> None:
    """The list of the machine that brought it had M, which is not on the target, and another title for B."""
    states = {"A": "queued", "B": "parked", "M": "queued", "L": "merged", "W": "working", "X": "withdrawn"}
    known_jobs = {key: Job(task=task(key, f"{key} as brought"), state=state) for key, state in states.items()}  # type: ignore[arg-type]
    same = [task(key) for key in ("A", "B", "L", "W", "X")]

    def seen(*now: BacklogTask) -> dict[str, str]:
        return {one.key: one.title for one in changed_since(same, now, Board(jobs=known_jobs))}

    known = {key: f"{key} as brought" for key in ("A", "B", "M", "W")}
    assert seen(*same) == known
    assert seen(*same, task("N")) == {**known, "N": "N"}, "a new one"
    assert seen(*(one for one in same if one.key != "A")) == {key: known[key] for key in ("B", "M", "W")}, "one less"
    assert seen(*same[:1], task("B", "anew"), *same[2:])["B"] == "anew", "one that was edited"
    assert seen(*same[:3], task("W", done=True), *same[4:]) == known, "one that the gate has ticked"
    assert seen(task("A", done=True), *same[1:])["A"] == "A", "one that a person has ticked"


def test_money_and_time_end_a_backlog_wherever_they_were_spent(play: Play) -> None:
    async def story(table: Table) -> None:
        limited = work_events.WorkStarted(name="x", backlog="b", workspace="", target="main", max_cost=3.0)
        await table.log().append("", lambda state: [limited])
        for name in ("one", "two"):
            await table.worker(name)
        spending = f'{{"{table.order.id}": 1.5}}'
        await table.database.transact(fetch_all, "UPDATE ralph_workers SET spending = %s WHERE name = 'one'", spending)
        await table.tick()
        assert (await table.log().refresh()).finished is None
        await table.database.transact(fetch_all, "UPDATE ralph_workers SET spending = %s", spending)
        silence(table.url, "two")  # what a dead one has spent is spent
        await table.tick()
        finished = (await table.log().refresh()).finished
        assert finished is not None
        assert (finished.outcome, finished.exit_code) == ("budget", 1)
        assert not (await table.database.transact(list_works))[0].is_open

    play(story)


def test_people_steer_from_anywhere(play: Play) -> None:
    async def story(table: Table) -> None:
        shared, log = table.database, table.log()
        await table.start("T1", "one/1")
        assert "pauses" in await steering.steer(shared, "pause", "")
        assert (await log.refresh()).board.is_paused
        await steering.steer(shared, "resume", "")
        await steering.steer(shared, "withdraw", "abcd", "t2")
        state = await log.refresh()
        assert not state.board.is_paused
        assert state.board.jobs["T2"].state == "withdrawn"
        with pytest.raises(UserError, match="T1 is working"):
            await steering.steer(shared, "retry", "", "T1")
        with pytest.raises(UserError, match="has no task T9"):
            await steering.steer(shared, "withdraw", "", "T9")
        with pytest.raises(UserError, match="no backlog run nope"):
            await steering.load_view(shared, "nope")
        await steering.steer(shared, "retry", "", "T2", "a word")
        state = await log.refresh()
        assert (state.board.jobs["T2"].state, state.board.jobs["T2"].note) == ("queued", "a word")
        await steering.steer(shared, "stop", "")
        finished = (await log.refresh()).finished
        assert finished is not None
        assert finished.exit_code == 130
        with pytest.raises(UserError, match="is over"):
            await steering.steer(shared, "pause", "")
        assert await steering.steer(shared, "resume", "") == "abcd continues"
        state = await log.refresh()
        assert state.finished is None
        assert state.board.jobs["T1"].state == "queued"

    play(story)


def test_a_machine_that_takes_no_part_sees_and_steers_as_if_it_did(play: Play, tmp_path: Path) -> None:
    env = {"XDG_STATE_HOME": str(tmp_path / "state")}

    async def story(table: Table) -> None:
        await table.start("T1", "one/1")
        log, shared = table.log(), table.database

        async def until(fact: Callable[[], object]) -> None:
            deadline = time.monotonic() + 60
            while not fact():
                assert time.monotonic() < deadline
                await asyncio.sleep(0.05)
                await log.refresh()

        with Mirror(table.url, follows=True, env=env):
            (run,) = runs(env)
            assert (run.id, run.state, run.facts.kind) == (table.order.id, "running", "work")
            assert [job.state for job in work_history(run).board.jobs.values()] == ["working", "queued", "queued"]
            control.pause(run)
            await until(lambda: log.state.board.is_paused)
            await until(lambda: runs(env)[0].state == "paused")
            await steering.steer(shared, "resume", "")
            await until(lambda: runs(env)[0].state == "running")
            await steering.steer(shared, "pause", "")
            await until(lambda: runs(env)[0].state == "paused")
            control.unpause(run)
            await until(lambda: not log.state.board.is_paused)
            Mailbox(run.place).leave(TASK_REQUEST, TaskRequest("withdraw", "T2"))
            await until(lambda: log.state.board.jobs["T2"].state == "withdrawn")
            control.stop(run)
            await until(lambda: log.state.finished)
            await until(lambda: runs(env)[0].state == "interrupted")
        assert runs(env) == []

    play(story)


async def opened(url: str) -> None:
    async with Database(url, ONE_SHOT).open():
        pass


def test_tables_of_another_version_are_refused(database: str) -> None:
    asyncio.run(opened(database))
    assert asyncio.run(migrate(database)) == "up to date"
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("UPDATE ralph_fleet SET layout = 99")
        for act in (opened, migrate):
            with pytest.raises(UserError, match="belongs to a newer ralph"):
                asyncio.run(act(database))  # type: ignore[operator]
        connection.execute("UPDATE ralph_fleet SET layout = 2")
        with pytest.raises(UserError, match="belong to an older ralph"):
            asyncio.run(opened(database))
        assert asyncio.run(migrate(database)).startswith("migrated")
    asyncio.run(opened(database))


def test_tables_of_another_engine_are_made_again_and_the_log_brings_the_jobs_back(
    play: Play, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(table: Table) -> None:
        await table.start("T1", "one/1")
        await table.log().append("", lambda state: [])

    play(story)
    other = SchemaManager.get_schema() + "-- a newer release\n"
    monkeypatch.setattr(SchemaManager, "get_schema", staticmethod(lambda: other))
    with pytest.raises(UserError, match="another version of Procrastinate"):
        asyncio.run(opened(database))
    assert asyncio.run(migrate(database)) == "migrated"

    async def after() -> None:
        async with Database(database, ONE_SHOT).open() as shared:
            table = Table(shared, database, order(Path("/"), "abcd"))
            assert await table.waiting() == []
            await table.tick()
            assert await table.waiting() == ["T1"], "what the dead held is queued, and deferred again"
            state = await table.log().refresh()
            assert state.board.jobs["T1"].reason == "worker one is gone"

    asyncio.run(after())


def test_silent_workers_are_forgotten_after_a_week(play: Play) -> None:
    async def story(table: Table) -> None:
        await table.worker("one")
        await table.worker("one")
        assert [one.name.partition("-")[0] for one in await table.database.transact(list_workers)] == ["one", "one"]
        await table.database.transact(fetch_all, "UPDATE ralph_workers SET seen = now() - interval '8 days'")
        await table.worker("two")
        assert [one.name for one in await table.database.transact(list_workers)] == ["two"]

    play(story)


def test_the_verdict_of_a_gate_that_was_lost_counts_no_more(play: Play) -> None:
    async def story(table: Table) -> None:
        await table.log().append("one/5", lambda state: [work_events.GateStarted(("T1",))])
        await table.tick()
        stuck = work_events.GateFinished(GateVerdict(stuck="of an old holder"))
        state = await table.log().append("one/5", lambda now: [stuck] if now.holders.get(GATE) == "one/5" else [])
        assert state.board.stuck == ""

    play(story)


def test_jobs_are_deleted_when_they_are_finished() -> None:
    assert Database("postgresql://nowhere/x").app.worker_defaults["delete_jobs"] == jobs.DeleteJobCondition.ALWAYS.value
