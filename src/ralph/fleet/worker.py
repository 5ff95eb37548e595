"""A worker process: two engine workers in one event loop, one for tasks and one for the gate and the tick.

`ralph work --db` is a worker that brings a backlog and stays until it is over.
"""

import asyncio
import os
import sys
from collections.abc import Awaitable
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace
from procrastinate import JobContext
from procrastinate import worker as engine_worker
from psycopg.types.json import Jsonb

from ralph.backlog.backlog_content import BacklogContent
from ralph.backlog.backlog_order import BacklogOrder, decode_order
from ralph.backlog.backlog_plan import find_repository
from ralph.core.backlog_events import GATE
from ralph.core.text import one_line
from ralph.errors import UserError
from ralph.fleet import database
from ralph.fleet.database import Database, DatabaseAway, fetch_all
from ralph.fleet.local_backlog import Clone, LocalBacklog
from ralph.fleet.log import (
    JOB,
    MERGES,
    TASKS,
    TICK,
    BacklogLog,
    BacklogRow,
    add_backlog,
    age,
    check_backlog,
    delete_stalled_jobs,
    list_backlogs,
    register_worker,
)
from ralph.git.client import Git
from ralph.process.ralph_child import StopLevel
from ralph.process.signals import Interrupt
from ralph.show.backlog_lines import BacklogScreen
from ralph.show.notify import notify_about_backlog
from ralph.show.outlet import Ndjson
from ralph.store.folder import RunFolder, prepare
from ralph.store.writer import enlist

SECRETS = (database.VARIABLE, "PGPASSWORD", "PGPASSFILE", "PGSERVICEFILE")  # not for loops and checks
GATE_JOBS = 20  # gates and ticks at once: they mostly wait
EVERY_3_SECONDS = "* * * * * */3"


class Worker:
    """One process of the fleet, in a clone. `slots` is how many tasks it runs at once."""

    def __init__(
        self,
        url: str,
        workspace: Path,
        *,
        slots: int,
        name: str = "",
        is_quiet: bool = False,
        prints_events: bool = False,
    ) -> None:
        self._slots, self._is_quiet, self._prints_events = slots, is_quiet, prints_events
        self._database, self._workspace = Database(url), workspace
        self._id, self._name, self._repository = 0, name or f"{os.uname().nodename}-{os.getpid()}", ""
        self._backlogs: dict[str, LocalBacklog] = {}
        self._refusals: set[str] = set()
        self._brought = ""  # the backlog run that this worker brings
        self._failure: Exception | None = None
        self._stopping, self._drained = asyncio.Event(), asyncio.Event()
        self._engines: tuple[engine_worker.Worker, ...] = ()
        self._git: Git
        self._clone: Clone
        self._interrupt: Interrupt

    def run(self, order: BacklogOrder | None = None, content: BacklogContent | None = None, once: bool = False) -> int:
        """Work until stopped; with an order, until its backlog run is over; with `once`, until none is open.

        Return the exit code.
        """
        self._git = find_repository(self._workspace)
        roots = self._git.run("rev-list", "--first-parent", "--max-parents=0", "HEAD")
        self._repository = roots.decode()[:20]  # enough for the name of a queue
        with Interrupt() as self._interrupt:
            try:
                return asyncio.run(self._run(order, content, once))
            except DatabaseAway:
                if not self._interrupt.level:
                    raise  # it was never reachable
                return 130

    async def _run(self, order: BacklogOrder | None, content: BacklogContent | None, once: bool) -> int:
        asyncio.get_running_loop().add_reader(self._interrupt.fileno(), self._on_signal)
        async with self._database.connect():
            self._id = await self._database.transact(register_worker, self._name, self._slots, self._repository)
            env = {name: value for name, value in os.environ.items() if name not in SECRETS}
            self._clone = Clone(
                name=self._name, database=self._database, repository=self._git, env=env, stopping=self._stopping
            )
            try:
                if order is not None and content is not None:
                    await self._bring(order, content)
                else:
                    self._say(f"worker {self._name} ({self._slots} at a time) looks for work")
                await self._work(once)
            finally:
                await self._leave()
        finished = self._backlogs[self._brought].log.state.finished if self._brought in self._backlogs else None
        if finished is None:
            return 130 if self._interrupt.level else 0
        if finished.exit_code == 2:
            raise UserError(finished.reason, "fix it, then start again")
        return finished.exit_code

    async def _bring(self, order: BacklogOrder, content: BacklogContent) -> None:
        own = replace(order.settings, notify=())  # commands of this machine
        stored = replace(order, is_shared=True, workspace=self._git.prefix, settings=own)
        log = BacklogLog(self._database, order.id)
        row = await self._database.transact(add_backlog, log, self._id, stored, self._repository, content)
        self._brought = row.id
        if row.id != order.id:
            self._say(f"{row.name} continues as it was started; its list is now watched here")
        local = self._localize(row)
        settings = replace(local.settings, notify=order.settings.notify)
        await self._open(replace(local, settings=settings, source=order.source))

    # The event loop

    async def _work(self, once: bool) -> None:
        """Run the engine's workers until there is a reason to stop, then let them finish their jobs."""
        app, tasks, merges = self._database.app, f"{TASKS}.{self._repository}", f"{MERGES}.{self._repository}"
        app.task(name=JOB, pass_context=True)(self._run_job)
        tick = app.task(name=TICK, queue=merges, queueing_lock=f"{TICK}.{self._repository}")(self._tick)
        app.periodic(cron=EVERY_3_SECONDS, periodic_id=self._repository)(tick)
        self._engines = (self._database.make_engine(tasks, self._slots), self._database.make_engine(merges, GATE_JOBS))
        serving = [asyncio.create_task(self._guard(self._serve(engine))) for engine in self._engines]
        watching = [asyncio.create_task(self._guard(part)) for part in (self._beat(), self._follow(once))]
        await self._stopping.wait()
        self._stop(StopLevel.AFTER_TURN)
        for engine in self._engines:  # they take no new jobs; the running ones end with their children
            engine.stop()  # type: ignore[no-untyped-call]
        await asyncio.wait(serving)
        self._drained.set()
        await asyncio.wait(watching)
        if self._failure:
            raise self._failure

    async def _guard(self, part: Awaitable[None]) -> None:
        """End this process if a part of it fails: the engine would only log an error in a job."""
        try:
            await part
        except DatabaseAway:
            pass
        except Exception as error:  # noqa: BLE001 (`_work` raises it)
            self._failure = self._failure or error
            self._stopping.set()

    async def _serve(self, engine: engine_worker.Worker) -> None:
        """Run an engine worker. It stops if one of its side tasks fails, for example because it cannot parse a
        notification: then run it again."""
        while not self._stopping.is_set():
            await engine.run()  # type: ignore[no-untyped-call]
            if not self._stopping.is_set():
                await asyncio.sleep(1.0)

    async def _run_job(self, context: JobContext, work: str, key: str) -> None:
        """Do a job of a backlog run that is open here. If it is not open yet, `tick` defers the job again."""
        if work in self._backlogs and not self._stopping.is_set():
            local, holder = self._backlogs[work], f"{self._name}/{context.job.id}"
            await self._guard(local.merge(holder) if key == GATE else local.run_task(holder, key))

    async def _tick(self, timestamp: int) -> None:
        """Look after the backlog runs of this repository, in case anything is missing."""
        await self._guard(delete_stalled_jobs(self._database, [engine.worker_id for engine in self._engines]))
        for local in [*self._backlogs.values()]:
            await self._guard(check_backlog(self._database, local.log))

    async def _beat(self) -> None:
        """Tell the others that this worker is there, and what its loops cost."""
        query = "UPDATE ralph_workers SET seen = now(), spending = %s WHERE id = %s"
        while not self._drained.is_set():
            spending = {work: local.spending for work, local in self._backlogs.items() if local.children.running}
            await self._database.transact(fetch_all, query, Jsonb(spending), self._id)
            for engine in self._engines:  # which sends no heartbeats while it waits for its last jobs
                if self._stopping.is_set() and engine.worker_id is not None:
                    await self._database.app.job_manager.update_heartbeat(engine.worker_id)
            await self._sleep(database.HEARTBEAT)

    async def _follow(self, once: bool) -> None:
        """Copy what happens, and join and leave backlog runs; stop when there is nothing left to wait for."""
        while not self._drained.is_set():
            rows = await self._database.transact(list_backlogs, "is_open")
            for row in rows:
                if row.id not in self._backlogs:
                    await self._join(row)
            for local in [*self._backlogs.values()]:
                state = await local.update()
                if state.finished and not local.brings and not local.children.running:
                    self._backlogs.pop(local.order.id).close(self._say)
            is_over = self._brought and self._backlogs[self._brought].log.state.finished
            if is_over or (once and not rows):
                self._stopping.set()
            await self._sleep(database.POLL)

    async def _sleep(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._drained.wait(), seconds)

    def _on_signal(self) -> None:
        self._interrupt.acknowledge()
        if self._interrupt.level:
            self._stop(StopLevel.AT_ONCE if self._interrupt.is_repeated else min(self._interrupt.level, StopLevel.NOW))

    def _stop(self, level: int) -> None:
        """Take no more jobs, stop the children, and stop waiting for a database that is away."""
        self._stopping.set()
        self._database.timeout = database.QUIT_TIMEOUT
        for local in self._backlogs.values():
            local.children.request_stop(level)

    async def _leave(self) -> None:
        """Copy the last events, and delete our row, unless the database is away."""
        with suppress(DatabaseAway):
            for local in self._backlogs.values():
                await local.update()
            await self._database.transact(fetch_all, "DELETE FROM ralph_workers WHERE id = %s", self._id)
        for local in sorted(self._backlogs.values(), key=lambda local: local.brings):  # its last line comes last
            local.close(self._say)

    # Backlog runs

    async def _join(self, row: BacklogRow) -> None:
        """Work on an open backlog run or, if this clone can't, say why once."""
        try:
            order = await asyncio.to_thread(self._localize, row)
        except UserError as error:
            refusal = f"takes no tasks of {row.name} ({row.backlog}): {error.advice}"
            if refusal not in self._refusals:
                self._refusals.add(refusal)
                self._say(refusal)
        else:
            await self._open(order)

    async def _open(self, order: BacklogOrder) -> None:
        def is_late() -> bool:
            state = local.log.state
            return self._interrupt.must_end() or state.finished is not None or order.is_overdue(age(state))

        brings = order.id == self._brought
        folder = RunFolder(prepare(Path(order.workspace)), order.id)
        is_quiet = self._is_quiet or (not brings and bool(self._backlogs))  # one table fits on a screen
        settings = order.settings
        screen = BacklogScreen(sys.stderr, quiet=is_quiet, color=settings.color, emoji=settings.emoji, env=os.environ)
        local = LocalBacklog(
            self._clone,
            order,
            folder,
            brings=brings,
            followers=[screen.follow, *([notify_about_backlog] if brings else [])],
            sinks=[lambda opened: Ndjson(is_late)] if brings and self._prints_events else [],
            ticks=[screen.tick],
        )
        await local.begin()
        if notice := enlist(folder, os.environ):
            self._say(notice)
        self._backlogs[order.id] = local

    def _localize(self, row: BacklogRow) -> BacklogOrder:
        """Return the order of a backlog run, with its workspace here; raise a UserError if this clone can't run it."""
        order = decode_order(row.work_order)
        name = order.remote.name if order.remote else ""
        if name not in self._git.run("remote").decode("utf-8", "replace").split():
            raise UserError(f"this clone has no remote {name}", f"git remote add {name} URL")
        if row.repository != self._repository:
            raise UserError(f"{self._git.root} is a clone of another repository, or a shallow one", "clone it again")
        return replace(order, workspace=os.path.join(self._git.root, order.workspace).rstrip("/"))

    def _say(self, text: str) -> None:
        if not self._is_quiet:
            print(f"ralph: {one_line(text, 2000)}", file=sys.stderr, flush=True)
