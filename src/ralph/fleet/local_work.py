"""A backlog run on one machine of a fleet: its folder, its child processes, and a copy of its events.

The copy is an ordinary journal, so `ralph ps`, `show`, `report` and the TUI work on every machine that takes part.
"""

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

from msgspec import Struct

from ralph.backlog import task_worktrees
from ralph.backlog.backlog_source import BacklogWatch, differences
from ralph.backlog.children import ChildExits, StopLevel, TaskProcess
from ralph.backlog.ledger import Audience, JournalLedger, WorkTold
from ralph.backlog.task_requests import TASK_REQUEST, TaskRequest, events_for_request
from ralph.backlog.work_order import TASKS, WorkOrder, put_order
from ralph.core import events, work_events
from ralph.core.backlog import outcome
from ralph.core.secrets import Redactor, secret_values
from ralph.errors import UserError
from ralph.fleet.database import Database
from ralph.fleet.log import WorkLog, WorkState
from ralph.git.client import Git
from ralph.git.configuration import GitSettings, push_settings, read_settings
from ralph.process.signals import Interrupt
from ralph.show.outlet import Ndjson
from ralph.store.folder import RunFolder, prepare
from ralph.store.mailbox import Mailbox
from ralph.store.register import read_summary
from ralph.store.writer import enlist


class Show(Struct, frozen=True):
    """What the person at this machine wants to see."""

    events: bool = False
    is_quiet: bool = False


class PauseFile:
    """Keeps the pause in a mailbox and the one in the log equal: the one that changed last wins."""

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox, self._was = mailbox, False

    def open(self) -> None:
        """Take what is in the mailbox as unchanged."""
        self._was = self._mailbox.read().is_paused

    def compare(self, is_paused: bool) -> bool | None:
        """Return what a person here wants if they changed it; otherwise make the mailbox follow the log."""
        was, self._was = self._was, self._mailbox.read().is_paused
        if self._was == is_paused:
            return None
        if self._was != was:
            return self._was
        self._mailbox.pause() if is_paused else self._mailbox.unpause()
        self._was = is_paused
        return None


class LocalWork:
    """One backlog run. `children` are its processes here, by task, and `holders` their jobs' names in the log;
    `brings`: its list is watched here."""

    def __init__(self, database: Database, order: WorkOrder, home: Git, brings: bool) -> None:
        self.order, self.home, self.brings = order, home, brings
        self.log = WorkLog(database, order.id)
        self.folder: RunFolder
        self.children: dict[str, TaskProcess] = {}
        self.holders: dict[str, str] = {}
        self.exits = ChildExits()
        self.push_settings: GitSettings
        self._watch = BacklogWatch(order.source, order.workspace, is_here=brings)
        self._stack = ExitStack()
        self._was_paused = False
        self._ledger: JournalLedger
        self._audience: Audience

    def open(self, show: Show, interrupt: Interrupt) -> str:
        """Create the folder and begin to copy; return a notice for the person."""
        self.folder = RunFolder(prepare(Path(self.order.workspace)), self.order.id)
        self.folder.make()
        self.push_settings = push_settings(read_settings(self.home))
        put_order(self.folder, self.order)
        (self.folder.path / TASKS).mkdir(exist_ok=True)
        self._audience = Audience(self.order, self.folder, is_quiet=show.is_quiet, notifies=self.brings)
        self._audience.begin(self._stack)

        def is_late() -> bool:
            return interrupt.must_end() or self.log.state.finished is not None or self.order.is_overdue(self.age)

        sinks = [Ndjson(is_late)] if show.events else []
        self._ledger = JournalLedger(self.folder, sinks, Redactor(secret_values(os.environ)))
        self._ledger.open()
        self._stack.callback(self._ledger.close)
        self._audience.attend(self._ledger, self._stack)
        self._mailbox = Mailbox(self.folder.path)
        self._pause = PauseFile(self._mailbox)
        self._pause.open()
        self._watch.begin()
        return enlist(self.folder, os.environ) or ""

    @property
    def age(self) -> float:
        """Seconds since the backlog run started."""
        return max(time.time() - self.log.state.began, 0.0) if self.log.state.began else 0.0

    @property
    def spending(self) -> float:
        """What the running loops here have cost so far."""
        runs = (self.log.state.board.working.get(key) for key in self.children)
        return sum((facts.cost_usd or 0.0) for run in runs if run and (facts := read_summary(self.run_path(run))))

    def run_path(self, run: str) -> str:
        return str(self.folder.path.parent / run)

    async def update(self, name: str) -> WorkState:
        """Read what happened elsewhere, and act on it: stop children, copy events, pass on requests."""
        state = await self.log.refresh()
        self._steer_children(state)
        lines, self.log.new_lines = self.log.new_lines, []
        happened = await asyncio.to_thread(self._ledger.copy_lines, [(seq, line) for seq, _, line in lines])
        for event in happened:
            if isinstance(event, work_events.TaskWarned) and event.key in self.children:
                files = ", ".join(event.files[:20])
                self.tell_agent(event.key, f"Something else was merged that changes {files}: keep your change small.")
        await asyncio.to_thread(self._clean_up, name, [by for _, by, _ in lines], happened)
        await self._pass_requests(name, state)
        await asyncio.to_thread(self._audience.tick)
        return state

    def _steer_children(self, state: WorkState) -> None:
        """Stop what is over, withdrawn, or no longer ours; pause and continue the rest."""
        for key, child in self.children.items():
            job = state.board.jobs.get(key)
            if state.finished or (job is not None and job.state == "withdrawn"):
                child.request_stop(StopLevel.AFTER_TURN)
            elif key in self.holders and state.holders.get(key) != self.holders[key]:
                child.request_stop(StopLevel.NOW)
        if state.board.is_paused != self._was_paused:
            self._was_paused = state.board.is_paused
            for run in (state.board.working.get(key) for key in self.children):
                with suppress(UserError):
                    if run and self._was_paused:
                        Mailbox(self.run_path(run)).pause()
                    elif run:
                        Mailbox(self.run_path(run)).unpause()

    def tell_agent(self, key: str, text: str) -> None:
        with suppress(UserError):
            Mailbox(self.run_path(self.log.state.board.jobs[key].run)).tell(text)

    def _clean_up(self, name: str, authors: Sequence[str], happened: Sequence[WorkTold]) -> None:
        """Remove the worktrees of merged tasks (the gate did it on its own machine), and tick the list here."""
        merged = {event.key: event.tip for event in happened if isinstance(event, work_events.TaskMerged)}
        if not any(author.startswith(f"{name}/") for author in authors):
            self._remove_worktrees(merged)
        if merged and self.brings:
            self._watch.tick(self.log.state.board)

    def _remove_worktrees(self, merged: dict[str, str]) -> None:
        here = {key: tip for key, tip in merged.items() if Path(self.order.worktree_of(self.home, key).path).exists()}
        with suppress(UserError):
            task_worktrees.clear(self.order, self.home, here)

    async def _pass_requests(self, name: str, state: WorkState) -> None:
        """Write to the log what people asked for on this machine."""
        if state.finished:
            return
        wanted = self._pause.compare(state.board.is_paused)
        if wanted is not None:
            await self.log.append(name, lambda _: [work_events.WorkPaused(wanted)])
        for request in self._mailbox.take(TASK_REQUEST, TaskRequest):
            if request.kind == "retry" and request.note and request.key in self.children:
                self.tell_agent(request.key, request.note)
            else:
                await self.log.append(name, partial(_decide_request, request))
        if self.brings:
            await self._reread(name)

    async def _reread(self, name: str) -> None:
        try:
            content = await asyncio.to_thread(self._watch.reread)
        except UserError as error:
            message = f"the backlog is used as it was before: {error.message}"
            await self.log.append(name, lambda _: [events.Notice(message)])
            return
        if content is not None:
            await self.log.append(name, lambda state: differences(state.board, content))

    @property
    def is_list_due(self) -> bool:
        """Whether the list must be read by a program now; True once a minute."""
        return self.brings and self._watch.take_due()

    def close(self, say: Callable[[str], None]) -> None:
        """Stop copying, and remove what merged tasks left here."""
        state = self.log.state
        if state.finished is None:
            self._audience.registration.leave()
            say(f"left {self.order.name}: the other workers continue (ralph work status {self.order.name} --db URL)")
        merged = {key: job.tip for key, job in state.board.jobs.items() if job.state == "merged"}
        with suppress(UserError):
            is_done = outcome(state.board)[1] == 0
            task_worktrees.clear_leftovers(self.order, self.home, merged, is_done=is_done)
        self._stack.close()


def _decide_request(request: TaskRequest, state: WorkState) -> Sequence[WorkTold]:
    return events_for_request(state.board, request)
