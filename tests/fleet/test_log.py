"""The log that machines share: one order of events, one holder of each task, and reports that come too late.

The logs of several workers in one process, on a real PostgreSQL."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import psycopg
import pytest
from msgspec.structs import replace
from procrastinate import jobs
from procrastinate.schema import SchemaManager
from psycopg.types.json import Jsonb
from tests.fleet.machines import Machine, silence

from ralph.backlog.backlog_content import BacklogContent
from ralph.backlog.backlog_order import BacklogOrder
from ralph.backlog.backlog_source import BacklogSource
from ralph.backlog.ledger import JournalLedger
from ralph.backlog.task_requests import TaskRequest
from ralph.core import backlog_events
from ralph.core.backlog import BacklogTask, GateVerdict
from ralph.core.backlog_events import GATE, BacklogState
from ralph.core.secrets import Redactor
from ralph.errors import UserError
from ralph.fleet import log as fleet_log
from ralph.fleet.database import BEGIN, ONE_SHOT, Database, fetch_all, migrate
from ralph.fleet.log import (
    JOB,
    TASKS,
    TICK,
    BacklogLog,
    add_backlog,
    check_backlog,
    delete_stalled_jobs,
    list_backlogs,
    list_workers,
    register_worker,
)
from ralph.git.remote import Remote
from ralph.settings import Settings
from ralph.store.folder import RunFolder

KEYS = ("T1", "T2", "T3")
HERE = "0" * 20  # the repository
T = TypeVar("T")


def order(workspace: Path, name: str = "abcd") -> BacklogOrder:
    return BacklogOrder(
        id=f"20260101-000000-{name}",
        name=name,
        workspace=str(workspace),
        source=BacklogSource(name="TASKS.md", paths=("TASKS.md",)),
        settings=Settings(),
        target="",
        base="0" * 40,
        remote=Remote("origin", "main"),
    )


CONTENT = BacklogContent(tuple(BacklogTask(key=key, title=key) for key in KEYS))


class SharedWork:
    """A backlog run in the database whose target has passed its checks, and what workers do with it."""

    def __init__(self, database: Database, url: str, made: BacklogOrder) -> None:
        self.database, self.url, self.order = database, url, made

    def log(self) -> BacklogLog:
        return BacklogLog(self.database, self.order.id)

    async def worker(self, name: str, slots: int = 2) -> int:
        return await self.database.transact(register_worker, name, slots, HERE)

    async def start(self, key: str, by: str, run: str = "") -> BacklogState:
        """Start a task, as its job does on a worker."""

        def decide(state: BacklogState) -> list[backlog_events.BacklogEvent]:
            is_free = state.board.jobs[key].state == "queued"
            return [backlog_events.TaskStarted(key, 1, run or by, by.partition("/")[0])] if is_free else []

        return await self.log().append(by, decide)

    async def ready(self, key: str, by: str) -> BacklogState:
        event = backlog_events.TaskReady(key=key, tip="f" * 40, files=("a",), run=by, cost_usd=2.0)
        return await self.log().append(by, lambda state: [event] if state.holders.get(key) == by else [])

    async def tick(self) -> None:
        await delete_stalled_jobs(self.database, ())
        await check_backlog(self.database, self.log())

    async def claim(self, by: str, key: str) -> str:
        """Take the next job and start this task in it, as a worker does. Return the holder."""
        manager = self.database.app.job_manager
        job = await manager.fetch_job(queues=[f"{TASKS}.{HERE}"], worker_id=await manager.register_worker())
        assert job is not None
        await self.start(key, f"{by}/{job.id}")
        return f"{by}/{job.id}"

    def freeze(self) -> None:
        """Make every worker of the engine look as if it had sent no heartbeat for a minute."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(
                "UPDATE ralph_engine.procrastinate_workers SET last_heartbeat = now() - interval '1 minute'"
            )

    async def waiting(self) -> list[str]:
        found = await self.database.app.job_manager.list_jobs_async(task=JOB, queue=f"{TASKS}.{HERE}", status="todo")
        return [str(job.task_kwargs["key"]) for job in found]


@pytest.fixture
def on_shared_work(database: str, anywhere: Machine) -> Callable[[Callable[[SharedWork], Awaitable[None]]], None]:
    """Run an async test on a new backlog run."""

    def run(story: Callable[[SharedWork], Awaitable[None]]) -> None:
        async def opened() -> None:
            made = order(anywhere.folder)
            async with Database(database, ONE_SHOT).connect() as shared:
                await shared.transact(add_backlog, BacklogLog(shared, made.id), 0, made, HERE, CONTENT)
                shared_work = SharedWork(shared, database, made)
                await shared_work.log().append("", lambda state: [backlog_events.GateOpened("e" * 40)])
                await story(shared_work)

        asyncio.run(opened())

    return run


OnSharedWork = Callable[[Callable[[SharedWork], Awaitable[None]]], None]


def test_every_log_of_a_backlog_reads_the_same_events(on_shared_work: OnSharedWork) -> None:
    async def story(shared_work: SharedWork) -> None:
        one, two = shared_work.log(), shared_work.log()
        await shared_work.start("T1", "one/1")
        assert (await one.refresh()).board.jobs == (await two.refresh()).board.jobs
        assert [job.state for job in two.state.board.jobs.values()] == ["working", "queued", "queued"]
        assert one.new_lines == two.new_lines
        assert one.state.holders == {"T1": "one/1"}

    on_shared_work(story)


def test_as_many_jobs_are_deferred_as_there_are_slots_of_present_workers(on_shared_work: OnSharedWork) -> None:
    async def story(shared_work: SharedWork) -> None:
        await shared_work.log().append("", lambda state: [])
        assert await shared_work.waiting() == ["T1"], "at least one"
        await shared_work.worker("one", slots=2)
        state = await shared_work.log().append(TICK, lambda state: [])
        assert state.board.slots == 2
        assert await shared_work.waiting() == ["T1", "T2"], "none is deferred twice"
        await shared_work.worker("two", slots=5)
        silence(shared_work.url, "two")
        assert (await shared_work.log().append("", lambda state: [])).board.slots == 2

    on_shared_work(story)


def test_only_one_of_several_jobs_starts_a_task(on_shared_work: OnSharedWork) -> None:
    async def story(shared_work: SharedWork) -> None:
        started = await asyncio.gather(*(shared_work.start("T1", f"w/{number}") for number in range(5)))
        assert len({state.holders["T1"] for state in started}) == 1
        (event,) = [line for _, line in (await read(shared_work)) if b'"task_started"' in line]
        assert started[0].holders["T1"].encode() in event

    on_shared_work(story)


async def read(shared_work: SharedWork) -> list[tuple[int, bytes]]:
    log = shared_work.log()
    await log.refresh()
    return log.new_lines


def test_the_tasks_of_a_lost_worker_are_queued_and_its_later_reports_are_ignored(on_shared_work: OnSharedWork) -> None:
    async def story(shared_work: SharedWork) -> None:
        await shared_work.start("T1", "one/77")
        await shared_work.log().append("one/78", lambda state: [backlog_events.GateStarted(("T2",))])
        await shared_work.tick()
        state = await shared_work.log().refresh()
        assert (state.board.jobs["T1"].state, state.board.jobs["T1"].reason) == ("queued", "worker one is gone")
        assert GATE not in state.holders
        assert state.board.trying == ()
        await shared_work.start("T1", "two/99")
        state = await shared_work.ready("T1", "one/77")
        assert (state.board.jobs["T1"].state, state.holders["T1"]) == ("working", "two/99")

    on_shared_work(story)


def test_a_running_job_is_not_mistaken_for_a_lost_one(on_shared_work: OnSharedWork) -> None:
    async def story(shared_work: SharedWork) -> None:
        await shared_work.log().append("", lambda state: [])
        holder = await shared_work.claim("one", "T1")
        await shared_work.tick()
        assert (await shared_work.log().refresh()).holders == {"T1": holder}

    on_shared_work(story)


def test_the_job_of_a_silent_worker_is_deleted_and_its_task_queued(on_shared_work: OnSharedWork) -> None:
    async def story(shared_work: SharedWork) -> None:
        await shared_work.log().append("", lambda state: [])
        await shared_work.claim("one", "T1")
        shared_work.freeze()
        await shared_work.tick()
        assert (await shared_work.log().refresh()).board.jobs["T1"].reason == "worker one is gone"
        assert not [*await shared_work.database.app.job_manager.list_jobs_async(status="doing")]

    on_shared_work(story)


def test_no_task_is_taken_from_a_worker_when_the_database_was_away_for_all(on_shared_work: OnSharedWork) -> None:
    async def story(shared_work: SharedWork) -> None:
        await shared_work.log().append("", lambda state: [])
        holder = await shared_work.claim("one", "T1")
        shared_work.freeze()
        shared_work.database.was_away = time.monotonic()
        await shared_work.tick()
        assert (await shared_work.log().refresh()).holders == {"T1": holder}

    on_shared_work(story)


def test_a_task_can_start_although_the_answer_to_a_claim_was_lost(on_shared_work: OnSharedWork) -> None:
    """The engine then considers the job running, but no worker runs it."""

    async def story(shared_work: SharedWork) -> None:
        manager = shared_work.database.app.job_manager
        worker = await manager.register_worker()
        await shared_work.log().append("", lambda state: [])
        lost = await manager.fetch_job(queues=[f"{TASKS}.{HERE}"], worker_id=worker)
        assert lost is not None
        assert await shared_work.waiting() == []
        await shared_work.tick()
        again = await manager.fetch_job(queues=[f"{TASKS}.{HERE}"], worker_id=worker)
        assert again is not None
        assert again.task_kwargs == lost.task_kwargs

    on_shared_work(story)


def test_a_result_that_is_reported_twice_counts_once(on_shared_work: OnSharedWork) -> None:
    async def story(shared_work: SharedWork) -> None:
        await shared_work.start("T1", "one/1")
        for _ in range(2):
            state = await shared_work.ready("T1", "one/1")
        assert state.board.spent == 2.0

    on_shared_work(story)


def test_a_worker_that_is_suspended_in_a_transaction_does_not_block_the_others_for_long(
    on_shared_work: OnSharedWork,
) -> None:
    async def story(shared_work: SharedWork) -> None:
        stopped = psycopg.connect(shared_work.url)
        stopped.execute(BEGIN)
        stopped.execute("SELECT id FROM ralph_works FOR UPDATE")  # here it is suspended
        began = time.monotonic()
        state = await BacklogLog(shared_work.database, shared_work.order.id).append(
            "", lambda state: [backlog_events.BacklogPaused(True)]
        )
        assert state.board.is_paused
        assert time.monotonic() - began < 15
        with pytest.raises(psycopg.Error):
            stopped.execute("SELECT 1")
        stopped.close()

    on_shared_work(story)


def test_a_copy_with_a_torn_line_is_completed(on_shared_work: OnSharedWork, tmp_path: Path) -> None:
    async def story(shared_work: SharedWork) -> None:
        await shared_work.start("T1", "one/1")
        folder = RunFolder(tmp_path, shared_work.order.id)
        folder.make()

        def copied(lines: list[tuple[int, bytes]]) -> JournalLedger:
            ledger = JournalLedger(folder, Redactor())
            ledger.open()
            ledger.copy_lines(lines)
            ledger.close()
            return ledger

        lines = await read(shared_work)
        copied(lines)
        whole = folder.journal.read_bytes()
        folder.journal.write_bytes(whole[:-20])
        assert copied(lines).board.jobs["T1"].state == "working"
        assert len(folder.journal.read_bytes().splitlines()) == len(whole.splitlines()) + 1, (
            "the torn line, and the same line again"
        )

    on_shared_work(story)


def test_a_backlog_is_open_once_and_another_machine_may_bring_it_when_the_first_is_gone(
    on_shared_work: OnSharedWork,
) -> None:
    async def story(shared_work: SharedWork) -> None:
        home = await shared_work.worker("home")
        again = replace(shared_work.order, id="x", name="x")

        async def add(order: BacklogOrder) -> str:
            log = BacklogLog(shared_work.database, order.id)
            return (await shared_work.database.transact(add_backlog, log, home, order, HERE, CONTENT)).id

        assert await add(shared_work.order) == shared_work.order.id, "the connection was lost after it was written"
        with pytest.raises(UserError, match="is already running on origin/main as abcd"):
            await add(again)
        silence(shared_work.url, "home")
        assert await add(again) == shared_work.order.id

    on_shared_work(story)


def test_the_budget_counts_the_spending_of_all_workers_dead_ones_included(on_shared_work: OnSharedWork) -> None:
    async def story(shared_work: SharedWork) -> None:
        limited = backlog_events.BacklogStarted(name="x", backlog="b", workspace="", target="main", max_cost=3.0)
        await shared_work.log().append("", lambda state: [limited])
        for name in ("one", "two"):
            await shared_work.worker(name)

        async def spend(name: str, run: str, cost: float) -> None:
            query = "UPDATE ralph_workers SET spending = %s WHERE name = %s"
            spending = Jsonb({shared_work.order.id: {run: cost}})
            await shared_work.database.transact(fetch_all, query, spending, name)

        await shared_work.start("T1", "one/1")
        await shared_work.ready("T1", "one/1")
        await spend("one", "one/1", 2.0)  # its last heartbeat was before the end of this loop, which cost $2
        await shared_work.tick()
        assert (await shared_work.log().refresh()).finished is None
        await spend("two", "two/1", 1.0)
        silence(shared_work.url, "two")  # the spending of a dead worker counts too
        await shared_work.tick()
        finished = (await shared_work.log().refresh()).finished
        assert finished is not None
        assert (finished.outcome, finished.exit_code) == ("budget", 1)
        assert not (await shared_work.database.transact(list_backlogs))[0].is_open

    on_shared_work(story)


def test_requests_are_written_to_the_log_or_refused_with_a_reason(on_shared_work: OnSharedWork) -> None:
    async def story(shared_work: SharedWork) -> None:
        shared, log = shared_work.database, shared_work.log()
        await shared_work.start("T1", "one/1")
        assert "pauses" in await fleet_log.steer(shared, "pause", "")
        assert (await log.refresh()).board.is_paused
        await fleet_log.steer(shared, "resume", "")
        await fleet_log.steer(shared, "withdraw", "abcd", "t2")
        state = await log.refresh()
        assert not state.board.is_paused
        assert state.board.jobs["T2"].state == "withdrawn"
        with pytest.raises(UserError, match="T1 is working"):
            await fleet_log.steer(shared, "retry", "", "T1")
        with pytest.raises(UserError, match="has no task T9"):
            await fleet_log.steer(shared, "withdraw", "", "T9")
        with pytest.raises(UserError, match="no backlog run nope"):
            await fleet_log.load_shared_backlog(shared, "nope")
        await fleet_log.steer(shared, "retry", "", "T2", "a word")
        state = await log.refresh()
        assert (state.board.jobs["T2"].state, state.board.jobs["T2"].note) == ("queued", "a word")
        await fleet_log.steer(shared, "stop", "")
        finished = (await log.refresh()).finished
        assert finished is not None
        assert finished.exit_code == 130
        with pytest.raises(UserError, match="is over"):
            await fleet_log.steer(shared, "pause", "")
        assert await fleet_log.steer(shared, "resume", "") == "abcd continues"
        state = await log.refresh()
        assert state.finished is None
        assert state.board.jobs["T1"].state == "queued"

    on_shared_work(story)


async def opened(url: str) -> None:
    async with Database(url, ONE_SHOT).connect():
        pass


def test_tables_of_another_version_are_refused(database: str) -> None:
    asyncio.run(opened(database))
    asyncio.run(migrate(database))
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("UPDATE ralph_fleet SET layout = 99")
        for act in (opened, migrate):
            with pytest.raises(UserError, match="belongs to a newer ralph"):
                asyncio.run(act(database))  # type: ignore[operator]
        connection.execute("UPDATE ralph_fleet SET layout = 2")
        with pytest.raises(UserError, match="belong to another ralph"):
            asyncio.run(opened(database))
        asyncio.run(migrate(database))
    asyncio.run(opened(database))


def test_migrating_to_another_engine_keeps_the_events_and_defers_the_jobs_again(
    on_shared_work: OnSharedWork, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(shared_work: SharedWork) -> None:
        await shared_work.start("T1", "one/1")
        await shared_work.log().append("", lambda state: [])

    on_shared_work(story)
    other = SchemaManager.get_schema() + "-- a newer release\n"
    monkeypatch.setattr(SchemaManager, "get_schema", staticmethod(lambda: other))
    with pytest.raises(UserError, match="another ralph or Procrastinate"):
        asyncio.run(opened(database))
    asyncio.run(migrate(database))

    async def after() -> None:
        async with Database(database, ONE_SHOT).connect() as shared:
            shared_work = SharedWork(shared, database, order(Path("/"), "abcd"))
            assert await shared_work.waiting() == []
            await shared_work.tick()
            assert await shared_work.waiting() == ["T1"], "the task of the lost job is queued and deferred again"
            state = await shared_work.log().refresh()
            assert state.board.jobs["T1"].reason == "worker one is gone"

    asyncio.run(after())


def test_silent_workers_are_forgotten_after_a_week(on_shared_work: OnSharedWork) -> None:
    async def story(shared_work: SharedWork) -> None:
        await shared_work.worker("one")
        await shared_work.worker("one")
        assert [one.name for one in await shared_work.database.transact(list_workers)] == ["one", "one"]
        await shared_work.database.transact(fetch_all, "UPDATE ralph_workers SET seen = now() - interval '8 days'")
        await shared_work.worker("two")
        assert [one.name for one in await shared_work.database.transact(list_workers)] == ["two"]

    on_shared_work(story)


def test_the_verdict_of_a_lost_gate_is_ignored(on_shared_work: OnSharedWork) -> None:
    async def story(shared_work: SharedWork) -> None:
        await shared_work.log().append("one/5", lambda state: [backlog_events.GateStarted(("T1",))])
        await shared_work.tick()
        stuck = backlog_events.GateFinished(GateVerdict(stuck="of a lost gate"))
        state = await shared_work.log().append("one/5", lambda now: [stuck] if now.holders.get(GATE) == "one/5" else [])
        assert state.board.stuck == ""

    on_shared_work(story)


def test_a_letter_with_a_note_for_a_task_that_has_just_started_starts_it_again(on_shared_work: OnSharedWork) -> None:
    async def story(shared_work: SharedWork) -> None:
        await shared_work.start("T1", "one/1.1")
        letter = TaskRequest("retry", "T1", "be quick")
        state = await shared_work.log().append("two", partial(fleet_log.decide_letter, letter))
        assert (state.board.jobs["T1"].state, state.board.jobs["T1"].note) == ("queued", "be quick")
        assert state.holders == {}

    on_shared_work(story)


def test_a_pause_that_ends_here_does_not_reopen_a_backlog_run_that_has_just_ended(on_shared_work: OnSharedWork) -> None:
    async def story(shared_work: SharedWork) -> None:
        await fleet_log.steer(shared_work.database, "stop", "")
        state = await shared_work.log().append("one", partial(fleet_log.decide_pause, False))
        assert state.finished is not None

    on_shared_work(story)


def test_jobs_are_deleted_when_they_are_finished() -> None:
    engine = Database("postgresql://nowhere/x").make_engine("x", 1)
    assert engine.delete_jobs == jobs.DeleteJobCondition.ALWAYS


def test_the_engine_does_not_forget_a_worker_that_is_suspended_for_a_day() -> None:
    """It could take no more jobs when it wakes up: they refer to its row."""
    engine = Database("postgresql://nowhere/x").make_engine("x", 1)
    assert engine.stalled_worker_timeout > 24 * 60 * 60
