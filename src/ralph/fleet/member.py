"""How does one worker take part in a work that many machines share? As on one machine, with the same decisions; but it
hears what the others say, takes over from those that have fallen silent, and ends what is no longer its own."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from shutil import which

from ralph.backlog import task_worktrees
from ralph.backlog.backlog_content import BacklogContent
from ralph.backlog.backlog_source import BacklogWatch, read_list_at
from ralph.backlog.children import TaskProcess
from ralph.backlog.coordinator import TICK, Coordinator
from ralph.backlog.work_order import WorkOrder
from ralph.core import work_events
from ralph.core.backlog import FINISHED_STATES, BacklogTask, Board, GateVerdict, is_over, next_batch, next_starts
from ralph.core.model import Outcome
from ralph.errors import UserError
from ralph.fleet.database import Database, GaveUp
from ralph.fleet.shared_ledger import SharedLedger
from ralph.fleet.steering import Pause
from ralph.process.signals import Interrupt
from ralph.store.folder import RunFolder

OFTEN = 0.1  # seconds: so often news are heard at most
LOOK = 2.0  # seconds between two looks at who has fallen silent


class Member(Coordinator):
    """`renew` says that all is known that the others did. Who `brings` the list reads it again when it changes, and
    stays until the work is over; others leave when there is nothing to do for them and `is_wanted_elsewhere`. When
    whoever keeps the list is gone, another stands in: it goes by the list on the target, or asks the list's keeper."""

    ledger: SharedLedger

    def __init__(
        self,
        order: WorkOrder,
        folder: RunFolder,
        ledger: SharedLedger,
        interrupt: Interrupt,
        database: Database,
        *,
        name: str,
        env: Mapping[str, str],
        tick: Callable[[], None] = lambda: None,
        renew: Callable[[], None] = lambda: None,
        brings: bool = False,
        is_wanted_elsewhere: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__(order, folder, ledger, interrupt, tick=tick, env=env)
        self._worker, self._database, self._brings = name, database, brings
        self._list = BacklogWatch(order.source, order.workspace, is_here=brings)
        self._renew, self._is_wanted_elsewhere = renew, is_wanted_elsewhere
        self._runs: dict[str, str] = {}  # of the children here, by key
        self._to_clear: dict[str, str] = {}  # tasks that have merged, with their tips
        self._was_held = False
        self._pause = Pause(self._mailbox)
        self._heard = self._watched = 0.0

    @property
    def elapsed(self) -> float:
        return self.ledger.age

    def _begin(self, reading: BacklogContent | None) -> None:
        self._pause.begin()
        self.ledger.hear()
        if reading is not None:
            self._list.begin()
            self._take(reading)
        self._mind_the_others()

    def _rest(self) -> None:
        self._clear()
        since = time.monotonic() - self._heard
        wakers = (self._database.fileno(),) if since > OFTEN else ()
        self._children.wait(TICK if wakers else OFTEN, self._interrupt.fileno(), *wakers)

    def _is_over(self) -> bool:
        if list(self._children):
            return False
        if self._end or self.ledger.finished:
            return True
        if self.ledger.has_gate():
            return self._is_idle() or (self._is_open and is_over(self.ledger.board))
        has_to_wait = not next_starts(self.ledger.board) and not next_batch(self.ledger.board)
        return not self._brings and has_to_wait and self._is_wanted_elsewhere()

    def _start(self, key: str, words: tuple[str, ...], log: str) -> TaskProcess:
        if job := self.ledger.board.jobs.get(key):
            self._runs[key] = job.run
        return super()._start(key, words, log)

    def _hear(self) -> None:
        if time.monotonic() - self._heard > OFTEN or not self._database.is_listening:
            self.ledger.hear()
            self._heard = time.monotonic()
            self._mind_the_others()
        super()._hear()

    def _mind_the_others(self) -> None:
        """What follows from what the others did."""
        if not self._database.is_listening:
            with suppress(Exception):  # behind a pooler, or gone again: the next look has to do
                self._database.listen("ralph")
        if time.monotonic() - self._watched > LOOK:
            self._watched = time.monotonic()
            self.ledger.take_over()
        if (merge := self._children.find("")) and not self.ledger.has_gate():
            self._is_open, self._batch = False, ()
            merge.request_stop(2)
        if self.ledger.takes_gate():  # whoever had it may have been at a merge: git says what came of it
            self._is_open = self._was_opened()
            if self.ledger.board.trying:
                self.ledger.tell(work_events.GateFinished(GateVerdict()))
        if self._can_keep_list() and self.ledger.takes_list(by_right=self._brings):
            self._list.hurry()
        if not self.ledger.has_gate():
            self._is_open = bool(self.ledger.opened)
        for child in list(self._children):
            if child.key in self._runs and not self.ledger.is_mine(child.key):
                self._claim_back(child)
        self._follow(self.ledger.heard)
        self.ledger.heard = []
        self._renew()

    def _claim_back(self, child: TaskProcess) -> None:
        """We were taken for dead. If nobody has begun with the task since, it is ours again; else its loop ends."""
        key, run = child.key, self._runs[child.key]
        job = self.ledger.board.jobs.get(key)
        is_free = job is not None and job.state == "queued" and job.run == run
        if (
            job is not None
            and is_free
            and not child.stop_level
            and not self.ledger.finished
            and self.ledger.claims(key)
        ):
            self.ledger.tell(work_events.TaskStarted(key, job.attempts, run, self._worker))
        if not self.ledger.is_mine(key):
            child.request_stop(2 if job is None or job.state != "withdrawn" else 1)

    def _follow(self, heard: Sequence[object]) -> None:
        board, merged = self.ledger.board, dict[str, str]()
        if board.is_paused != self._was_held:
            self._was_held = board.is_paused
            self._hold_loops(board.is_paused)
        for event in heard:
            match event:
                case work_events.TaskWarned():
                    self._tell_agent(event.key, event.files)
                case work_events.TaskMerged():
                    merged[event.key] = event.tip or board.jobs[event.key].tip
        if merged:
            if not self.ledger.has_gate():  # whose merges clear up by themselves
                self._to_clear |= merged
            self._list.hurry()  # the target has changed, and the list on it with it
            self._tick_on_disk()
        if self.ledger.finished:
            self._children.request_stop(1)

    def _clear(self) -> None:
        """What is left here of tasks that have merged: once all that can begin has begun, for it takes its time."""
        merged, self._to_clear = self._to_clear, {}
        here = {key: tip for key, tip in merged.items() if Path(self.order.worktree_of(self._home, key).path).exists()}
        with suppress(UserError):
            task_worktrees.clear(self.order, self._home, here)

    def _obey(self) -> None:
        """What people want on this machine; what they want elsewhere is in the ledger."""
        is_paused = None if self._end else self._pause.settle(self.ledger.board.is_paused)
        if is_paused is not None:
            self.ledger.tell(work_events.WorkPaused(is_paused))
        self._grant_wishes()

    def _can_keep_list(self) -> bool:
        """Whether the list can be read here: it lies here, or is in git, or a host shows it to everybody."""
        source = self.order.source
        return self._brings or bool(source.paths) or (source.program == "github" and bool(which("gh")))

    def _take(self, reading: BacklogContent) -> None:
        if not self._brings and self.order.source.is_in_files:
            before = read_list_at(self.order.base, self.order.source, self._home)
            reading = BacklogContent(changed_since(before.tasks, reading.tasks, self.ledger.board))
        super()._take(reading)

    def _tick_on_disk(self) -> None:
        if self._brings:
            super()._tick_on_disk()

    def _stop(self, end: str, reason: str, level: int) -> None:
        """A person, or something that is wrong here, ends this worker; time and money end the work."""
        if end in (Outcome.TIMEOUT.value, Outcome.BUDGET.value) and not self.ledger.finished:
            self.ledger.tell(self._summary(end, reason, 1))
        super()._stop(end, reason, level)

    def _leave(self) -> None:
        try:
            super()._leave()
        except GaveUp:  # the database is away, and nobody wants to wait: the others will take over
            self._children.request_stop(2)
            while list(self._children):
                self._children.wait(TICK, self._interrupt.fileno())
                self._interrupt.acknowledge()
                self._children.reap()

    def _finish(self) -> int:
        """Tells of the end of the work where we have the gate, or where nothing could ever begin for whoever brought
        it (the target fails its checks), and gives back what we have."""
        if not self._end and not self.ledger.finished and self.ledger.has_gate():
            super()._finish()
        is_hopeless = self._end == Outcome.FATAL.value and self._brings and not self.ledger.opened
        if is_hopeless and not self.ledger.finished:  # else every worker would come, and end by it as this one does
            self.ledger.tell(self._summary(self._end, self._reason, 2))
        self._tidy()
        with suppress(GaveUp):
            self.ledger.leave()
        if self._end == Outcome.FATAL.value:
            what = "start again" if is_hopeless else "start this worker again: its tasks go on elsewhere"
            raise UserError(self._reason, f"mend it, then {what}")
        if self._end == Outcome.INTERRUPTED.value:
            return 130
        return self.ledger.finished.exit_code if self.ledger.finished else 0


def changed_since(then: Sequence[BacklogTask], tasks: Sequence[BacklogTask], board: Board) -> tuple[BacklogTask, ...]:
    """What is known, with all that has changed on the target since the work began: whoever brought the list may have
    had one that nobody else sees. A tick is the gate's own doing, unless its task is queued."""
    before, now = ({task.key: task for task in listed} for listed in (then, tasks))
    jobs = {key: job for key, job in board.jobs.items() if job.state not in FINISHED_STATES}
    known = {key: job.task for key, job in jobs.items() if key in now or key not in before}
    changed = {key: task for key, task in now.items() if before.get(key) != task}
    ticked = {key for key, task in changed.items() if task.done and key in jobs and jobs[key].state != "queued"}
    return tuple({**known, **{key: task for key, task in changed.items() if key not in ticked}}.values())
