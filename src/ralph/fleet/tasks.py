"""The jobs that Procrastinate brings to a worker: run a task, merge what is ready, read the list again, and tick."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from shutil import which

from procrastinate import JobContext, exceptions
from procrastinate.jobs import Job, Status

from ralph.backlog import task_worktrees
from ralph.backlog.backlog_content import BacklogContent
from ralph.backlog.backlog_source import differences, read_list_at
from ralph.backlog.children import TaskProcess
from ralph.backlog.gate import MergeRequest, merge_request
from ralph.backlog.ledger import WorkTold
from ralph.backlog.work_order import REQUEST, TASKS, assign_task, decode_order, put
from ralph.core import events, work_events
from ralph.core.backlog import (
    FINISHED_STATES,
    BacklogTask,
    Board,
    GateVerdict,
    exceeded_limit,
    fits,
    next_batch,
    next_starts,
    outcome,
)
from ralph.core.model import Outcome
from ralph.core.work_events import GATE, WorkState, after_merge, work_summary
from ralph.errors import UserError
from ralph.fleet.database import LAYOUT, STALLED, Database
from ralph.fleet.local_work import LocalWork
from ralph.fleet.log import (
    READ_LIST,
    WorkerRow,
    WorkLog,
    WorkRow,
    is_complete,
    list_workers,
    list_works,
)

LIST_KEY = ".list"  # no task's key begins with a dot
LIST_INTERVAL = 30  # seconds between two looks at a list whose machine is gone
MAX_WAIT = 2.0  # seconds between two looks at a child process, if the system doesn't report its exit


class FleetTasks:
    """The jobs of one worker process. `join` returns a backlog run that this machine takes part in, None if it can't.
    `running` are the engine's workers of the jobs that have a child process here, by job."""

    def __init__(
        self,
        database: Database,
        name: str,
        env: Mapping[str, str],
        join: Callable[[str], Awaitable[LocalWork | None]],
        stopping: asyncio.Event,
    ) -> None:
        self._database, self._name, self._env = database, name, env
        self._join, self._stopping = join, stopping
        self._logs: dict[str, WorkLog] = {}
        self.running: dict[int | None, int] = {}

    async def run_task(self, context: JobContext, work: str, key: str) -> None:
        """Run a task's loop, if it is still its turn."""
        local, holder = await self._join(work), self._holder(context.job)
        if local is None or self._stopping.is_set():
            return
        while key in local.children:  # it was taken from us, and its process is about to end
            await asyncio.sleep(0.1)

        def start(state: WorkState) -> list[WorkTold]:
            job = state.board.jobs.get(key)
            if job is None or state.finished or key not in next_starts(state.board):
                return []
            run, attempt = assign_task(
                local.order,
                local.folder,
                job,
                push_settings=local.push_settings,
                red=state.board.red,
                worker=self._name,
            )
            return [work_events.TaskStarted(key, attempt, run, self._name)]

        state = await local.log.append(holder, start)
        if state.holders.get(key) != holder:
            return
        words = ("run-task", str(local.folder.path), key)
        child = await self.run_child(local, key, context.job, words, f"{TASKS}/{key}.log")
        event, fatal = local.exits.task_event(child)
        if fatal:
            self._stopping.set()  # before the task is due again
        await local.log.append(holder, lambda state: [event] if state.holders.get(key) == holder else [])
        if fatal:
            raise UserError(fatal, "fix it, then start this worker again: its tasks continue elsewhere")

    async def merge(self, context: JobContext, work: str, key: str) -> None:
        """Merge what is ready until nothing is left, unless another job has the gate; check the target first."""
        local, holder = await self._join(work), self._holder(context.job)
        if local is None:
            return

        def start(state: WorkState) -> list[WorkTold]:
            if state.holders.get(GATE, holder) != holder or state.finished or state.board.is_paused:
                return []
            batch = next_batch(state.board) if state.opened else ()
            return [work_events.GateStarted(batch)] if batch or not (state.opened or is_complete(state)) else []

        state = local.log.state
        while not self._stopping.is_set():
            state = await local.log.append(holder, start)
            if state.holders.get(GATE) != holder:
                break
            after_gate = partial(self._after_gate, local, holder, *await self._run_gate(local, context, state))
            state = await local.log.append(holder, after_gate)
        if is_complete(state) and not state.finished and GATE not in state.holders:
            await self._finish(local, holder)

    async def _run_gate(self, local: LocalWork, context: JobContext, state: WorkState) -> tuple[GateVerdict, float]:
        """Run the gate's process; return its verdict and how long it took."""
        batch, began = state.board.trying, time.monotonic()
        request = merge_request(local.order, state.board, batch, state.opened, local.push_settings)
        put(local.folder, REQUEST, request if batch else MergeRequest())
        child = await self.run_child(local, GATE, context.job, ("run-gate", str(local.folder.path)), "gate.log")
        return local.exits.gate_verdict(child), time.monotonic() - began

    def _after_gate(
        self, local: LocalWork, holder: str, verdict: GateVerdict, duration: float, state: WorkState
    ) -> Sequence[WorkTold]:
        if state.holders.get(GATE) != holder:
            return []
        if state.board.trying:
            return after_merge(state.board, verdict, duration)
        closed = work_events.GateFinished(GateVerdict(), duration)
        if verdict.stuck:
            return [closed, work_summary(state.board, Outcome.FATAL.value, verdict.stuck, 2, local.age)]
        return [closed, work_events.GateOpened(verdict.commit, verdict.allowed)] if verdict.commit else [closed]

    async def _finish(self, local: LocalWork, holder: str) -> None:
        """Remove the branches that are left on the remote, and end the backlog run."""
        with suppress(UserError):  # the remote is away: the branches are merged, and may stay
            await asyncio.to_thread(task_worktrees.clear_remote, local.order, local.home)

        def finish(state: WorkState) -> list[WorkTold]:
            if state.finished or not is_complete(state):
                return []
            end, code = outcome(state.board)
            reason = state.board.stuck or ("" if fits(state.board, 0) else "its budget is spent")
            return [work_summary(state.board, end, reason, code, local.age)]

        await local.log.append(holder, finish)

    async def read_list(self, context: JobContext, work: str, key: str) -> None:
        """Read a list whose machine is gone: as it is on the target, or from its tracker."""
        local = await self._join(work)
        if local is not None and LIST_KEY not in local.children:
            await self.reread(local, context.job)

    async def reread(self, local: LocalWork, job: Job | None = None) -> None:
        """Have a child process read the list, and write what changed."""
        source, before = local.order.source, tuple[BacklogTask, ...]()
        if source.program == "github" and not which("gh"):
            return
        child = await self.run_child(local, LIST_KEY, job, ("read-backlog", str(local.folder.path)), "list.log")
        content = child.result(BacklogContent)
        if content is None:
            if not child.stop_level:
                notice = events.Notice(
                    f"cannot read the backlog again, so ralph keeps the last version: {child.error_message()}"
                )
                await local.log.append(self._name, lambda state: [notice])
            return
        if source.is_in_files:
            before = (await asyncio.to_thread(read_list_at, local.order.base, source, local.home)).tasks

        def change(state: WorkState) -> Sequence[WorkTold]:
            tasks = changed_since(before, content.tasks, state.board) if source.is_in_files else content.tasks
            return differences(state.board, BacklogContent(tasks))

        await local.log.append(self._name, change)

    async def tick(self, timestamp: int) -> None:
        """Delete the jobs of silent workers, then look at each open backlog run, in case anything is missing."""
        manager = self._database.app.job_manager
        if time.monotonic() - self._database.outage.ended > STALLED:  # otherwise every heartbeat is old
            for job in await manager.get_stalled_jobs(seconds_since_heartbeat=STALLED):
                if job.id not in self.running:
                    with suppress(exceptions.ConnectorException):  # another worker was faster
                        await manager.finish_job(job, Status.FAILED, delete_job=True)
        rows = await self._database.transact(list_works, f"is_open AND layout <= {LAYOUT}")
        workers = await self._database.transact(list_workers)
        self._logs = {row.id: self._logs.get(row.id) or WorkLog(self._database, row.id) for row in rows}
        for row in rows:
            await self._check_work(row, self._logs[row.id], workers)

    async def _check_work(self, row: WorkRow, log: WorkLog, workers: Sequence[WorkerRow]) -> None:
        held = dict((await log.refresh()).holders)
        log.new_lines.clear()
        running = await self._database.app.job_manager.list_jobs_async(status="doing")
        alive = {str(job.id) for job in running}
        lost = {key for key, by in held.items() if by.rpartition("/")[2] not in alive}
        costs = [cost for one in workers for cost in one.spending.get(row.id, {}).items()]

        def check(state: WorkState) -> list[WorkTold]:
            gone = {key: held[key] for key in lost if state.holders.get(key) == held[key]}
            tasks = [(key, by.partition("/")[0]) for key, by in gone.items() if key != GATE]
            queued = [work_events.TaskQueued(key, f"worker {worker} is gone") for key, worker in tasks]
            closed = [work_events.GateFinished(GateVerdict())] if GATE in gone else []
            return [*queued, *closed, *_check_limits(state, costs)]

        await log.append("tick", check, defers_all=True)
        if not any(one.brings == row.id and one.is_present for one in workers) and _can_anyone_read(row):
            await self._database.transact(log.defer, READ_LIST, row.repository, delay=LIST_INTERVAL)

    async def run_child(
        self, local: LocalWork, key: str, job: Job | None, words: tuple[str, ...], log_name: str
    ) -> TaskProcess:
        """Run `ralph` with these words to its end."""
        holder = self._holder(job) if job and key != LIST_KEY else ""  # the log doesn't name who reads the list
        child = TaskProcess(key, str(local.folder.path / log_name), holder)
        child.start(words, self._env)
        local.children[key] = child
        if job is not None:
            self.running[job.id] = job.worker_id or 0
        try:
            await _wait_for_exit(child)
        finally:
            del local.children[key]
            if job is not None:
                del self.running[job.id]
        return child

    def _holder(self, job: Job) -> str:
        """Return the name in the log for one of our jobs."""
        return f"{self._name}/{job.id}"


async def _wait_for_exit(child: TaskProcess) -> None:
    loop, changed, fds = asyncio.get_running_loop(), asyncio.Event(), child.poll_fds()
    for fd in fds:
        loop.add_reader(fd, changed.set)
    try:
        while not child.poll_exit():
            with suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), MAX_WAIT)
            changed.clear()
    finally:
        for fd in fds:
            loop.remove_reader(fd)


def _check_limits(state: WorkState, costs: Sequence[tuple[str, float]]) -> list[WorkTold]:
    """End a backlog run whose money or time has run out. `costs` are the last known ones of runs."""
    if state.started is None or state.finished:
        return []
    counted = {job.run for job in state.board.of("ready", "merged", "parked")}
    spending = sum(cost for run, cost in costs if run not in counted)
    age = time.time() - state.began
    end, reason = exceeded_limit(state.board, state.started.max_time, age, spending)
    return [work_summary(state.board, end, reason, 1, age)] if end else []


def _can_anyone_read(row: WorkRow) -> bool:
    """Whether a list can be read by another machine than the one that brought it."""
    try:
        source = decode_order(row.work_order).source
    except UserError:
        return False
    return bool(source.paths) or source.program == "github"


def changed_since(then: Sequence[BacklogTask], now: Sequence[BacklogTask], board: Board) -> tuple[BacklogTask, ...]:
    """Return the known tasks with the changes on the target since the backlog run started.

    The machine that brought the list may have had tasks that are not on the target. Ticks come from the gate, unless
    the task is queued.
    """
    before, after = ({task.key: task for task in listed} for listed in (then, now))
    jobs = {key: job for key, job in board.jobs.items() if job.state not in FINISHED_STATES}
    known = {key: job.task for key, job in jobs.items() if key in after or key not in before}
    changed = {key: task for key, task in after.items() if before.get(key) != task}
    ticked = {key for key, task in changed.items() if task.done and key in jobs and jobs[key].state != "queued"}
    return tuple({**known, **{key: task for key, task in changed.items() if key not in ticked}}.values())
