"""A backlog run on this machine: the tasks that run here, its merges, its screen and its list.

Procrastinate brings the jobs: run a task, and merge what is ready.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial

from msgspec import Struct

from ralph.backlog import task_worktrees
from ralph.backlog.backlog_order import BacklogOrder, assign_task
from ralph.backlog.backlog_play import BacklogFollower, OpenBacklog, OpenSink, open_backlog
from ralph.backlog.backlog_source import BacklogWatch
from ralph.backlog.children import TaskProcess, TaskProcesses
from ralph.backlog.gate import merge_request
from ralph.backlog.ledger import LedgerEvent, running_costs
from ralph.backlog.task_requests import TASK_REQUEST, TaskRequest
from ralph.core import backlog_events
from ralph.core.backlog import GateVerdict, fits, is_complete, next_batch, outcome
from ralph.core.backlog_events import GATE, BacklogState, after_merge, due_jobs
from ralph.core.model import Outcome
from ralph.errors import UserError
from ralph.fleet.database import Database
from ralph.fleet.log import BacklogLog, decide_letter, decide_pause, summarize
from ralph.git.client import Git
from ralph.git.remote import GitSettings, push_settings, read_settings
from ralph.process.ralph_child import StopLevel
from ralph.store.folder import RunFolder
from ralph.store.mailbox import Mailbox

CHILD_POLL = 0.1  # seconds between two looks at a child process


class Clone(Struct, frozen=True, kw_only=True):
    """What the backlog runs of a worker share: its name, its repository, and whether it is stopping."""

    name: str
    database: Database
    repository: Git
    env: Mapping[str, str]
    stopping: asyncio.Event


class LocalBacklog:
    """A backlog run on this machine, with a copy of its events, so that `ralph ps`, `show`, `report`, the TUI and the
    web UI work without the database. With `brings` the list is watched here."""

    def __init__(
        self,
        clone: Clone,
        order: BacklogOrder,
        folder: RunFolder,
        *,
        brings: bool,
        followers: Sequence[BacklogFollower] = (),
        sinks: Sequence[OpenSink] = (),
        ticks: Sequence[Callable[[], object]] = (),
    ) -> None:
        self.order, self.folder, self.clone, self.brings = order, folder, clone, brings
        self.log = BacklogLog(clone.database, order.id)
        self.children = TaskProcesses(folder, clone.env)
        self._followers, self._sinks, self._ticks = followers, sinks, ticks
        self._opened: OpenBacklog
        self._mailbox = Mailbox(folder.path)
        self._push_settings: GitSettings
        self._is_paused = False  # in the mailbox
        self._stack = ExitStack()
        self._watch = BacklogWatch(order.source, order.workspace)

    async def begin(self) -> None:
        """Make the folder, and read what has happened so far."""
        self._opened = open_backlog(self.order, self.folder, self._stack, followers=self._followers, sinks=self._sinks)
        self._is_paused = self._mailbox.read().is_paused
        self._push_settings = push_settings(read_settings(self.clone.repository))
        self._watch.begin()
        await self.log.refresh()

    @property
    def spending(self) -> dict[str, float]:
        """The cost so far of the loops that run here, by their runs."""
        return running_costs(self.folder, self.log.state.board)

    async def update(self) -> BacklogState:
        """Read what other machines wrote, and react: stop children, copy events, pass on requests."""
        state = await self.log.refresh()
        self._stop_children(state)
        if not state.finished:
            await self._pass_requests()
        lines, self.log.new_lines = self.log.new_lines, []
        happened = await asyncio.to_thread(self._opened.ledger.copy_lines, lines)
        if any(isinstance(event, backlog_events.TaskMerged) for event in happened):
            await asyncio.to_thread(self._clean_up)
        if self.brings and not state.finished and (changes := await asyncio.to_thread(self._watch.changes)):
            await self.log.append(self.clone.name, lambda state: changes(state.board))
        await asyncio.to_thread(self._tick)
        return state

    def _tick(self) -> None:
        for tick in (self._opened.registration.tick, *self._ticks):
            tick()

    def _stop_children(self, state: BacklogState) -> None:
        """Stop children whose task is over, withdrawn or taken over."""
        for key, child in self.children.running.items():
            job = state.board.jobs.get(key)
            if state.finished or (job is not None and job.state == "withdrawn"):
                child.request_stop(StopLevel.AFTER_TURN)
            elif state.holders.get(key) != child.holder:
                child.request_stop(StopLevel.NOW)

    async def _pass_requests(self) -> None:
        """Write the requests that people made on this machine to the log. The mailbox and the loops here are paused if
        the log is, before anyone can see it in the copy of the events.
        """
        for request in self._mailbox.take(TASK_REQUEST, TaskRequest):
            with suppress(UserError):  # it is too late for that, as the display will show
                await self.log.append(self.clone.name, partial(decide_letter, request))
        state, requested = self.log.state, self._mailbox.read().is_paused
        if requested != self._is_paused:
            state = await self.log.append(self.clone.name, partial(decide_pause, requested))
        is_paused = state.board.is_paused
        if is_paused != requested:
            self._mailbox.pause() if is_paused else self._mailbox.unpause()
        if is_paused != self._is_paused:
            self._is_paused = is_paused
            self.children.pause(state.board, is_paused)

    def _clean_up(self) -> None:
        """Remove what merged tasks left here, and tick them in the list if it is here."""
        with suppress(UserError):
            task_worktrees.clear_leftovers(self.order, self.clone.repository, self.log.state.board)
        if self.brings:
            self._watch.tick(self.log.state.board)

    def close(self, say: Callable[[str], None]) -> None:
        """Leave the backlog run: stop copying its events, and remove what merged tasks left here."""
        if self.log.state.finished is None:
            self._opened.registration.leave()
            say(f"left {self.order.name}: the other workers continue (ralph work status {self.order.name} --db URL)")
        self._clean_up()
        self._stack.close()

    # Jobs. Each gets its own name in the log, and the key of a task.

    async def run_task(self, holder: str, key: str) -> None:
        """Run a task's loop, if it is still its turn."""

        def start(state: BacklogState) -> list[LedgerEvent]:
            if key in self.children.running or key not in due_jobs(state):  # one that was taken from us is about to end
                return []
            settings, worker = self._push_settings, self.clone.name
            return [assign_task(self.order, self.folder, state.board, key, push_settings=settings, worker=worker)]

        state = await self.log.append(holder, start)
        if state.holders.get(key) != holder:
            return
        child = await self._exit_of(self.children.start_task(key, holder))
        event, fatal = self.children.task_event(child)
        if fatal:
            self.clone.stopping.set()  # before the task is due again
        await self.log.append(holder, lambda state: [event] if state.holders.get(key) == holder else [])
        if fatal:
            raise UserError(fatal, "fix it, then start this worker again: its tasks continue elsewhere")

    async def merge(self, holder: str) -> None:
        """Merge what is ready until nothing is left, unless another job has the gate; check the target first."""

        def start(state: BacklogState) -> list[LedgerEvent]:
            if GATE in self.children.running or GATE not in due_jobs(state) or _finish(state):
                return []
            return [backlog_events.GateStarted(next_batch(state.board) if state.opened else ())]

        state = self.log.state
        while not self.clone.stopping.is_set():
            state = await self.log.append(holder, start)
            if state.holders.get(GATE) != holder:
                break
            request = merge_request(self.order, state, self._push_settings)
            child = await self._exit_of(self.children.start_gate(request, holder))
            verdict = self.children.gate_verdict(child)
            state = await self.log.append(
                holder, partial(_after_gate, holder, verdict, time.monotonic() - child.started_at)
            )
        if _finish(state):
            with suppress(UserError):  # the remote is away: the branches are merged, and may stay
                await asyncio.to_thread(task_worktrees.clear_remote, self.order, self.clone.repository)
            await self.log.append(holder, _finish)

    async def _exit_of(self, child: TaskProcess) -> TaskProcess:
        """Wait until the child exits, and return it."""
        while not child.poll_exit():
            await asyncio.sleep(CHILD_POLL)
        del self.children.running[child.key]
        return child


def _after_gate(holder: str, verdict: GateVerdict, duration: float, state: BacklogState) -> Sequence[LedgerEvent]:
    if state.holders.get(GATE) != holder:
        return []
    if state.board.trying:
        return after_merge(state.board, verdict, duration)
    if verdict.commit and not verdict.stuck:
        return [backlog_events.GateOpened(verdict.commit, verdict.allowed)]
    ended = [summarize(state, Outcome.FATAL.value, verdict.stuck, 2)] if verdict.stuck else []
    return [backlog_events.GateFinished(GateVerdict()), *ended]


def _finish(state: BacklogState) -> list[LedgerEvent]:
    """Return the event that ends a backlog run with nothing left to do."""
    if state.finished or GATE in state.holders or not is_complete(state.board, bool(state.opened)):
        return []
    end, code = outcome(state.board)
    reason = state.board.stuck or ("" if fits(state.board, 0) else "its budget is spent")
    return [summarize(state, end, reason, code)]
