"""A backlog run that this machine works on: its copy here, its child processes, its screen and its list."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from ralph.backlog import task_worktrees
from ralph.backlog.backlog_source import BacklogWatch, differences
from ralph.backlog.children import ChildExits, StopLevel, TaskProcess
from ralph.backlog.ledger import Audience, WorkTold
from ralph.backlog.work_order import TASKS
from ralph.core import events, work_events
from ralph.core.backlog import outcome
from ralph.core.work_events import WorkState
from ralph.errors import UserError
from ralph.fleet.work_copies import WorkCopy
from ralph.git.client import Git
from ralph.git.configuration import GitSettings, push_settings, read_settings
from ralph.store.mailbox import Mailbox
from ralph.store.register import read_summary


class LocalWork:
    """A backlog run on this machine. `children` are its processes here, by task. With `brings` the list is watched
    here."""

    def __init__(self, copy: WorkCopy, home: Git, *, brings: bool) -> None:
        self.copy, self.home, self.brings = copy, home, brings
        self.order, self.folder, self.log = copy.order, copy.folder, copy.log
        self.children: dict[str, TaskProcess] = {}
        self.exits = ChildExits()
        self.push_settings: GitSettings
        self._was_paused = False
        self._stack = ExitStack()
        self._watch = BacklogWatch(copy.order.source, copy.order.workspace, is_here=brings)
        self._audience: Audience

    async def open(self, is_quiet: bool) -> None:
        """Make the folder, and read what has happened so far."""
        self.copy.open()
        self._stack.callback(self.copy.ledger.close)
        (self.folder.path / TASKS).mkdir(exist_ok=True)
        self.push_settings = push_settings(read_settings(self.home))
        self._audience = Audience(self.order, self.folder, is_quiet=is_quiet, notifies=self.brings)
        self._audience.begin(self._stack)
        self._audience.attend(self.copy.ledger, self._stack)
        self._watch.begin()
        await self.log.refresh()

    @property
    def age(self) -> float:
        """Seconds since the backlog run started."""
        return max(time.time() - self.log.state.began, 0.0) if self.log.state.began else 0.0

    @property
    def spending(self) -> dict[str, float]:
        """The cost so far of the loops that run here, by their runs."""
        runs = filter(None, map(self.log.state.board.working.get, self.children))
        known = {run: read_summary(self._run_path(run)) for run in runs}
        return {run: facts.cost_usd for run, facts in known.items() if facts and facts.cost_usd}

    def _run_path(self, run: str) -> str:
        return str(self.folder.path.parent / run)

    async def update(self, name: str) -> WorkState:
        """Read what other machines wrote, and react: stop children, copy events, pass on requests."""
        state = await self.log.refresh()
        self._steer_children(state)
        happened = await asyncio.to_thread(self.copy.copy_events)
        for event in happened:
            if isinstance(event, work_events.TaskWarned) and event.key in self.children:
                self._tell_agent(event.key, event.note)
        await asyncio.to_thread(self._clean_up, happened)
        if not state.finished:
            await self._pass_requests(name)
        await asyncio.to_thread(self._audience.tick)
        return state

    def _steer_children(self, state: WorkState) -> None:
        """Stop children whose task is over, withdrawn or taken over; pause and continue the others."""
        for key, child in self.children.items():
            job = state.board.jobs.get(key)
            if state.finished or (job is not None and job.state == "withdrawn"):
                child.request_stop(StopLevel.AFTER_TURN)
            elif child.holder and state.holders.get(key) != child.holder:
                child.request_stop(StopLevel.NOW)
        if state.board.is_paused != self._was_paused:
            self._was_paused = state.board.is_paused
            for run in filter(None, (state.board.working.get(key) for key in self.children)):
                with suppress(UserError):
                    mailbox = Mailbox(self._run_path(run))
                    mailbox.pause() if self._was_paused else mailbox.unpause()

    def _tell_agent(self, key: str, text: str) -> None:
        with suppress(UserError):
            Mailbox(self._run_path(self.log.state.board.jobs[key].run)).tell(text)

    def _clean_up(self, happened: Sequence[WorkTold]) -> None:
        """Remove the worktrees of merged tasks (the gate did it on its machine), and tick the list here."""
        merged = {event.key: event.tip for event in happened if isinstance(event, work_events.TaskMerged)}
        trees = {key: Path(self.order.worktree_of(self.home, key).path) for key in merged}
        if here := {key: tip for key, tip in merged.items() if trees[key].exists()}:
            with suppress(UserError):
                task_worktrees.clear(self.order, self.home, here)
        if merged and self.brings:
            self._watch.tick(self.log.state.board)

    async def _pass_requests(self, name: str) -> None:
        requests = self.copy.take_requests()
        notes = [one for one in requests if one.kind == "retry" and one.note and one.key in self.children]
        for note in notes:
            self._tell_agent(note.key, note.note)
        await self.copy.pass_on(name, [one for one in requests if one not in notes])
        if self.brings:
            await self._reread(name)

    async def _reread(self, name: str) -> None:
        try:
            content = await asyncio.to_thread(self._watch.reread)
        except UserError as error:
            notice = events.Notice(f"cannot read the backlog again, so ralph keeps the last version: {error.message}")
            await self.log.append(name, lambda _: [notice])
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
