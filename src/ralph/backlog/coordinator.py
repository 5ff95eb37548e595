"""The coordinator of a backlog: it starts loops and merges and reacts to how they end.

Every second it looks at children that exited, at people's requests and at the list, decides what starts next, and
sleeps. All its decisions follow from the results that the children print; journal and git hold everything it needs to
resume.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from ralph.backlog import task_worktrees
from ralph.backlog.backlog_content import BacklogContent
from ralph.backlog.backlog_source import BacklogWatch, differences
from ralph.backlog.children import ChildExits, StopLevel, TaskProcess, TaskProcesses
from ralph.backlog.gate import MergeRequest, merge_request
from ralph.backlog.ledger import JournalLedger
from ralph.backlog.task_requests import TASK_REQUEST, TaskRequest, events_for_request
from ralph.backlog.task_worktrees import clear_remote
from ralph.backlog.work_order import (
    REQUEST,
    TASKS,
    WorkOrder,
    assign_task,
    make_target,
    put,
)
from ralph.core import events, work_events
from ralph.core.backlog import (
    FINISHED_STATES,
    GateVerdict,
    Job,
    fits,
    is_over,
    next_batch,
    next_starts,
    outcome,
)
from ralph.core.model import Outcome
from ralph.core.work_events import after_merge, work_summary
from ralph.errors import UserError
from ralph.git import merging
from ralph.git.client import Git, require_git
from ralph.git.configuration import GitSettings, push_settings, read_settings
from ralph.process.deadline import Deadline
from ralph.process.signals import Interrupt
from ralph.store.folder import RunFolder
from ralph.store.mailbox import Mailbox
from ralph.store.register import read_summary

TICK = 1.0
GATE, REREADER = "", "*"  # keys of children that are not tasks
SPENDING_INTERVAL = 2.0  # seconds between two looks at what the loops spend


class Coordinator:
    """Runs a backlog to its end. `tick` is called about once a second to update the screen."""

    def __init__(
        self,
        order: WorkOrder,
        folder: RunFolder,
        ledger: JournalLedger,
        interrupt: Interrupt,
        *,
        tick: Callable[[], None] = lambda: None,
        env: Mapping[str, str] = os.environ,
    ) -> None:
        self.order, self.ledger = order, ledger
        self._folder, self._interrupt, self._tick = folder, interrupt, tick
        self._deadline = Deadline(interrupt, order.id, order.settings.grace)
        self._home: Git
        self._push_settings: GitSettings | None = None
        self._children, self._env = TaskProcesses(), env
        self._mailbox = Mailbox(folder.path)
        self._began = time.monotonic() - ledger.elapsed
        self._list = BacklogWatch(order.source, order.workspace)
        self._looked = 0.0
        self._exits = ChildExits()
        self._is_open = self._is_examining = False
        self._end = ""  # why nothing new begins any more, in a word
        self._reason = ""

    def run(self, reading: BacklogContent | None) -> int:
        """Run until every task is merged or parked, or until a person or a limit ends it. Return the exit code."""
        self._home = require_git(self._folder.path.parents[2], self._deadline)
        if self.order.remote:
            self._push_settings = push_settings(read_settings(self._home))
        (self._folder.path / TASKS).mkdir(exist_ok=True)
        try:
            self._begin(reading)
            while not self._is_over():
                self._start_next()
                if self._is_over():
                    break
                self._tick()
                self._wait()
                self._handle_events()
            self._examine()
        finally:
            self._stop_children()
        return self._finish()

    def _examine(self) -> None:
        """Run the exams of the whole backlog once, when every task is merged."""
        board = self.ledger.board
        if self._end or not self.order.settings.exams or not board.of("merged") or outcome(board)[1]:
            return
        self._is_examining = True
        self._start_gate(MergeRequest(examines=True), ())
        while list(self._children):
            self._tick()
            self._wait()
            self._handle_events()

    def _begin(self, reading: BacklogContent | None) -> None:
        self._list.begin()
        if not self.ledger.opened:
            make_target(self.order, self._home)
        self._record_merged()
        if reading is not None:
            self._apply_list(reading)
        self._tick_on_disk()
        self._read_mailbox()
        self._is_open = self._was_opened()

    def _wait(self) -> None:
        self._children.wait(TICK, self._interrupt.fileno())

    def _was_opened(self) -> bool:
        """Return whether the target is where it was last seen green. Every merge is green."""
        now = self._home.resolve(self.order.target_ref)
        return bool(now) and now == self.ledger.opened

    def _is_over(self) -> bool:
        if list(self._children):
            return False
        return bool(self._end) or (self._is_open and is_over(self.ledger.board)) or self._is_idle()

    def _is_idle(self) -> bool:
        """Return whether no task is open, so that even the target need not be checked."""
        return all(job.state in FINISHED_STATES for job in self.ledger.board.jobs.values())

    def _start_next(self) -> None:
        """Start what can start: the gate first, because a merge may unblock other tasks."""
        if self._end or self.ledger.finished:
            return
        is_free = self._children.find(GATE) is None and not self.ledger.board.is_paused
        if is_free and not self._is_open:
            self._start_gate(MergeRequest(), ())
        elif is_free and (batch := next_batch(self.ledger.board)):
            request = merge_request(self.order, self.ledger.board, batch, self.ledger.opened, self._push_settings)
            self._start_gate(request, batch)
        for key in next_starts(self.ledger.board) if self._is_open else ():
            self._start_loop(self.ledger.board.jobs[key])

    def _start_gate(self, request: MergeRequest, batch: tuple[str, ...]) -> None:
        put(self._folder, REQUEST, request)
        if batch:
            self.ledger.tell(work_events.GateStarted(batch))
        self._start(GATE, ("run-gate", str(self._folder.path)), "gate.log")

    def _start_loop(self, job: Job) -> None:
        """Start the loop of a task. An interrupted loop resumes the same run."""
        key = job.task.key
        run, attempt = assign_task(
            self.order, self._folder, job, push_settings=self._push_settings, red=self.ledger.board.red
        )
        self.ledger.tell(work_events.TaskStarted(key, attempt, run))
        self._start(key, ("run-task", str(self._folder.path), key), f"{TASKS}/{key}.log")

    def _start(self, key: str, words: tuple[str, ...], log: str) -> TaskProcess:
        child = TaskProcess(key, str(self._folder.path / log))
        child.start(words, self._env)
        self._children.add(child)
        return child

    def _handle_events(self) -> None:
        """Handle everything that has happened since the last call."""
        self._interrupt.acknowledge()
        for child in self._children.reap():
            self._on_child_exit(child)
        if self._interrupt.level:
            urgency = StopLevel.AT_ONCE if self._interrupt.is_repeated else min(self._interrupt.level, 2)
            self._stop(Outcome.INTERRUPTED.value, f"stopped by {self._mailbox.read().stopped_by or 'you'}", urgency)
        self._read_mailbox()
        self._read_again()
        self._watch_limits()

    def _on_child_exit(self, child: TaskProcess) -> None:
        if child.key == REREADER:
            if reading := child.result(BacklogContent):
                self._apply_list(reading)
            elif not self._end and not child.stop_level:  # the keeper is away now, and may be there in a minute
                self._report_broken_list(child.error_message())
        elif child.key == GATE:
            self._on_gate_exit(child)
        else:
            self._on_loop_exit(child)

    def _on_loop_exit(self, child: TaskProcess) -> None:
        """Queue, park or pass on the task, depending on how its loop ended."""
        if self.ledger.board.jobs[child.key].state != "working":  # withdrawn in the meantime: its branch stays
            return
        event, fatal = self._exits.task_event(child)
        self.ledger.tell(event)
        if fatal:
            self._stop(Outcome.FATAL.value, fatal, StopLevel.AFTER_TURN)

    def _on_gate_exit(self, child: TaskProcess) -> None:
        """Record the gate's verdict and what follows from it."""
        verdict = self._exits.gate_verdict(child)
        if not self.ledger.board.trying:
            self._on_target_checked(verdict)
            return
        self.ledger.tell(*after_merge(self.ledger.board, verdict, time.monotonic() - child.started_at))
        for key, conflict in verdict.probed.items():  # running tasks that will conflict with the merge
            job = self.ledger.board.jobs.get(key)
            if job is not None and job.state == "working" and job.run:
                self._tell_agent(key, conflict.files)
                self.ledger.tell(work_events.TaskWarned(key, conflict.files))
        self._tick_on_disk()

    def _on_target_checked(self, result: GateVerdict) -> None:
        """Open the work if the target itself passes; no task starts before that. At the end, note a failed exam."""
        if self._is_examining and (result.stuck or not result.commit):
            self._stop(Outcome.BLOCKED.value, result.stuck or "the exams of the backlog were not run to their end", 1)
            return
        if red := result.red:
            hint = "fix it first, or merge what does not make it worse: --allow-red"
            failed = f"{red.check} fails on {self.order.shown_target} ({red.ending}) · hint: {hint}"
            self._stop(Outcome.FATAL.value, failed, 1)
        elif result.stuck:
            self._stop(Outcome.FATAL.value, result.stuck, 1)
        elif result.commit:
            self._is_open = True
            self.ledger.tell(work_events.GateOpened(result.commit, result.allowed))

    def _tell_agent(self, key: str, files: Sequence[str]) -> None:
        """Send the agent of a running task a note. Do nothing if its loop runs on another machine."""
        if self._children.find(key):
            text = f"Something else has merged that changes {', '.join(files[:20])}: keep your change there small."
            with suppress(UserError):
                Mailbox(str(self._folder.path.parent / self.ledger.board.jobs[key].run)).tell(text)

    def _stop(self, end: str, reason: str, level: int) -> None:
        """Start nothing new. Running children end after their turn (level 1) or now."""
        if not self._end:
            self._end, self._reason = end, reason
        self._children.request_stop(level)

    def _read_mailbox(self) -> None:
        """Read pauses and requests from the mailbox."""
        is_paused = self._mailbox.read().is_paused
        if is_paused != self.ledger.board.is_paused and not self._end:
            self.ledger.tell(work_events.WorkPaused(is_paused))
            self._hold_loops(is_paused)
        self._handle_requests()

    def _handle_requests(self) -> None:
        for request in self._mailbox.take(TASK_REQUEST, TaskRequest):
            job = self.ledger.board.jobs.get(request.key)
            if request.kind == "retry" and request.note and job and job.state == "working":
                Mailbox(str(self._folder.path.parent / job.run)).tell(request.note)
            elif told := events_for_request(self.ledger.board, request):
                self.ledger.tell(*told)
        self._end_withdrawn()

    def _end_withdrawn(self) -> None:
        """Stop loops of withdrawn tasks after their turn."""
        for child in self._children:
            job = self.ledger.board.jobs.get(child.key)
            if job is not None and job.state == "withdrawn":
                child.request_stop(1)

    def _hold_loops(self, is_paused: bool) -> None:
        for child in self._children:
            job = self.ledger.board.jobs.get(child.key)
            if job is not None and job.run:
                box = Mailbox(str(self._folder.path.parent / job.run))
                with suppress(UserError):
                    box.pause() if is_paused else box.unpause()

    def _read_again(self) -> None:
        """Reread the list if it was edited. A broken list changes nothing."""
        if self._end:
            return
        if self._list.take_due() and self._children.find(REREADER) is None:
            self._start(REREADER, ("read-backlog", str(self._folder.path)), "list.log")
        try:
            if reading := self._list.reread():
                self._apply_list(reading)
                self._tick_on_disk()
        except UserError as error:
            self._report_broken_list(error.message)

    def _report_broken_list(self, why: str) -> None:
        self.ledger.tell(events.Notice(f"the list is taken as it was before: {why}"))

    def _apply_list(self, reading: BacklogContent) -> None:
        if told := differences(self.ledger.board, reading):
            self.ledger.tell(*told)
            self._end_withdrawn()

    def _watch_limits(self) -> None:
        """Stop when the budget or the time is used up."""
        order, ledger = self.order, self.ledger
        if ledger.finished:
            return
        if order.is_overdue(self.elapsed) and not self._end:
            self._stop(Outcome.TIMEOUT.value, "its time is over", 1)
        if order.max_cost is None or time.monotonic() - self._looked < SPENDING_INTERVAL:
            return
        self._looked = time.monotonic()
        result = [read_summary(str(self._folder.path.parent / job.run)) for job in ledger.board.of("working")]
        spending = sum(standing.cost_usd or 0.0 for standing in result if standing)  # of the running loops so far
        if ledger.board.spent + spending >= order.max_cost and not self._end:
            self._stop(Outcome.BUDGET.value, "its budget is spent", 1)

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._began

    def _record_merged(self) -> None:
        """Ask git which ready tasks are merged already: a killed gate may not have reported it."""
        ready = {job.tip: key for key, job in self.ledger.board.jobs.items() if job.state == "ready" and job.tip}
        if not ready:
            return
        try:
            left = merging.unmerged(self._home, self.order.target_ref, [*ready])
        except UserError:
            return  # the gate will say what is wrong
        now = self._home.resolve(self.order.target_ref)
        for tip, key in ready.items():
            if tip not in left:
                self.ledger.tell(work_events.TaskMerged(key, tip, now))

    def _tick_on_disk(self) -> None:
        for problem in self._list.tick(self.ledger.board, self._home, self._deadline):
            self.ledger.tell(events.Notice(problem))

    def _stop_children(self) -> None:
        """Stop all children and wait for them."""
        self._children.request_stop(2)
        while list(self._children):
            self._children.wait(TICK, self._interrupt.fileno())
            self._interrupt.acknowledge()
            if self._interrupt.is_repeated:
                self._children.request_stop(StopLevel.AT_ONCE)
            for child in self._children.reap():
                self._on_child_exit(child)

    def _remove_leftovers(self) -> None:
        """Remove what killed merges have left behind; also the gate's worktree once everything is done."""
        board = self.ledger.board
        merged = {key: job.tip for key, job in board.jobs.items() if job.state == "merged"}
        with suppress(UserError):
            task_worktrees.clear_leftovers(self.order, self._home, merged, is_done=outcome(board)[1] == 0)

    def _finish(self) -> int:
        self._tick_on_disk()  # the user may have edited the list after the last merge
        with suppress(UserError):  # a remote that is away keeps them: they are in the target
            clear_remote(self.order, self._home)
        self._remove_leftovers()
        board = self.ledger.board
        end, code = outcome(board)
        if self._end and not (code == 0 and self._end in (Outcome.TIMEOUT.value, Outcome.BUDGET.value)):
            end, code = self._end, {"fatal": 2, "interrupted": 130}.get(self._end, 1)
        reason = self._reason or board.stuck or ("" if fits(board, 0) else "its budget is spent")
        if self.ledger.opened and not self.order.remote and not self._was_opened():
            left = f"{self.order.target} is not where the gate left it, at {self.ledger.opened[:12]}"
            end, code, reason = "stuck" if code < 2 else end, code or 1, f"{reason}; {left}".removeprefix("; ")
        self.ledger.tell(self._summary(end, reason, code))
        return code

    def _summary(self, end: str, reason: str, code: int) -> work_events.WorkFinished:
        return work_summary(self.ledger.board, end, reason, code, self.elapsed)
