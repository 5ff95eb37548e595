"""The coordinator of a backlog run: it starts the loops of tasks and the merge gate, and reacts to how they end.

Once a second it handles exited children, people's requests and edits of the backlog, and starts what can start. Its
decisions depend only on the results that the children print. To resume it needs only the journal and git.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from ralph.backlog import task_worktrees
from ralph.backlog.backlog_content import BacklogContent
from ralph.backlog.backlog_order import BacklogOrder, assign_task, make_target
from ralph.backlog.backlog_source import BacklogWatch, differences
from ralph.backlog.children import TaskProcess, TaskProcesses
from ralph.backlog.gate import MergeRequest, merge_request
from ralph.backlog.ledger import JournalLedger, LedgerEvent, running_costs
from ralph.backlog.task_requests import TASK_REQUEST, TaskRequest, events_for_request
from ralph.core import backlog_events, events
from ralph.core.backlog import GateVerdict, exceeded_limit, fits, is_complete, next_batch, next_starts, outcome
from ralph.core.backlog_events import GATE, BacklogFinished, after_merge, end_of_backlog
from ralph.core.model import Outcome
from ralph.errors import UserError
from ralph.git.client import Git, require_git
from ralph.git.remote import GitSettings, push_settings, read_settings
from ralph.process.ralph_child import StopLevel
from ralph.process.signals import Deadline, Interrupt
from ralph.store.folder import RunFolder
from ralph.store.mailbox import Mailbox

TICK = 1.0


class Coordinator:
    """Runs a backlog to its end. `ticks` are called about once a second."""

    def __init__(
        self,
        order: BacklogOrder,
        folder: RunFolder,
        ledger: JournalLedger,
        interrupt: Interrupt,
        *,
        ticks: Sequence[Callable[[], object]] = (),
        env: Mapping[str, str] = os.environ,
    ) -> None:
        self.order, self.ledger = order, ledger
        self._folder, self._interrupt, self._ticks = folder, interrupt, ticks
        self._deadline = Deadline(interrupt, order.id, order.settings.grace)
        self._repository: Git
        self._push_settings: GitSettings | None = None
        self._children = TaskProcesses(folder, env)
        self._mailbox = Mailbox(folder.path)
        self._began = time.monotonic() - ledger.state.elapsed
        self._watch = BacklogWatch(order.source, order.workspace)
        self._is_open = False  # whether the target has passed its checks, so that tasks may start
        self._is_examining = False
        self._end, self._reason = "", ""  # the outcome and its reason, once nothing new may start

    def run(self, content: BacklogContent) -> BacklogFinished:
        """Run until every task is merged or parked, or until a person or a limit ends it. Return its last event."""
        self._repository = require_git(self._folder.path.parents[2], self._deadline)
        if self.order.remote:
            self._push_settings = push_settings(read_settings(self._repository))
        try:
            self._begin(content)
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
        self._children.start_gate(MergeRequest(examines=True))
        while self._children.running:
            self._tick()
            self._wait()
            self._handle_events()

    def _begin(self, content: BacklogContent) -> None:
        self._watch.begin()
        if not self.ledger.state.opened:
            make_target(self.order, self._repository)
        self._apply_edits(differences(self.ledger.board, content))
        self._tick_on_disk()
        self._read_mailbox()
        self._is_open = self._is_target_green()

    def _tick(self) -> None:
        for tick in self._ticks:
            tick()

    def _wait(self) -> None:
        self._children.wait(TICK, self._interrupt.fileno())

    def _is_target_green(self) -> bool:
        """Return whether the target is still at the commit that last passed its checks."""
        now = self._repository.resolve(self.order.target_ref)
        return bool(now) and now == self.ledger.state.opened

    def _is_over(self) -> bool:
        if self._children.running:
            return False
        return bool(self._end) or is_complete(self.ledger.board, self._is_open)

    def _start_next(self) -> None:
        """Start the gate and the loops that can start now. An interrupted loop resumes the same run."""
        if self._end or self.ledger.state.finished:
            return
        batch = next_batch(self.ledger.board) if self._is_open else ()
        if (batch or not self._is_open) and GATE not in self._children.running and not self.ledger.board.is_paused:
            if batch:
                self.ledger.tell(backlog_events.GateStarted(batch))
            self._children.start_gate(merge_request(self.order, self.ledger.state, self._push_settings))
        for key in next_starts(self.ledger.board) if self._is_open else ():
            started = assign_task(self.order, self._folder, self.ledger.board, key, push_settings=self._push_settings)
            self.ledger.tell(started)
            self._children.start_task(key)

    def _handle_events(self) -> None:
        """Handle everything that has happened since the last call."""
        self._interrupt.acknowledge()
        for child in self._children.reap():
            self._on_child_exit(child)
        if self._interrupt.level:
            urgency = StopLevel.AT_ONCE if self._interrupt.is_repeated else min(self._interrupt.level, StopLevel.NOW)
            self._stop(Outcome.INTERRUPTED.value, f"stopped by {self._mailbox.read().stopped_by or 'you'}", urgency)
        self._read_mailbox()
        self._reread_backlog()
        self._watch_limits()

    def _on_child_exit(self, child: TaskProcess) -> None:
        if child.key == GATE:
            self._on_gate_exit(child)
        elif self.ledger.board.is_working(child.key):  # otherwise it was withdrawn in the meantime: its branch stays
            event, fatal = self._children.task_event(child)
            self.ledger.tell(event)
            if fatal:
                self._stop(Outcome.FATAL.value, fatal)

    def _on_gate_exit(self, child: TaskProcess) -> None:
        """Record the gate's verdict and what follows from it."""
        verdict = self._children.gate_verdict(child)
        if not self.ledger.board.trying:
            self._on_target_checked(verdict)
            return
        self.ledger.tell(*after_merge(self.ledger.board, verdict, time.monotonic() - child.started_at))
        self._tick_on_disk()

    def _on_target_checked(self, result: GateVerdict) -> None:
        """Let tasks start if the target passes its checks. If the exams at the end refuse it, record that."""
        if self._is_examining and (result.stuck or not result.commit):
            self._stop(Outcome.BLOCKED.value, result.stuck or "the exams of the backlog were not run to their end")
        elif result.stuck:
            self._stop(Outcome.FATAL.value, result.stuck)
        elif result.commit:
            self._is_open = True
            self.ledger.tell(backlog_events.GateOpened(result.commit, result.allowed))

    def _stop(self, end: str, reason: str, level: int = StopLevel.AFTER_TURN) -> None:
        """Start nothing new, and ask the running children to stop."""
        if not self._end:
            self._end, self._reason = end, reason
        self._children.request_stop(level)

    def _read_mailbox(self) -> None:
        """Handle pauses and requests of people."""
        is_paused = self._mailbox.read().is_paused
        if is_paused != self.ledger.board.is_paused and not self._end:
            self.ledger.tell(backlog_events.BacklogPaused(is_paused))
            self._children.pause(self.ledger.board, is_paused)
        for request in self._mailbox.take(TASK_REQUEST, TaskRequest):
            if request.note and self.ledger.board.is_working(request.key):  # it has just started
                self._children.tell(self.ledger.board, request.key, request.note)
            elif happened := events_for_request(self.ledger.board, request):
                self.ledger.tell(*happened)
        self._children.stop_withdrawn(self.ledger.board)

    def _reread_backlog(self) -> None:
        """Apply edits of the backlog."""
        if not self._end and (changes := self._watch.changes()):
            self._apply_edits(changes(self.ledger.board))
            self._tick_on_disk()

    def _apply_edits(self, happened: Sequence[LedgerEvent]) -> None:
        if happened:
            self.ledger.tell(*happened)
            self._children.stop_withdrawn(self.ledger.board)

    def _watch_limits(self) -> None:
        """Stop when the time or the budget of the backlog run is used up."""
        if self._end or self.ledger.state.finished:
            return
        spending = 0.0
        if self.order.max_cost is not None:
            spending = sum(running_costs(self._folder, self.ledger.board).values())
        end, reason = exceeded_limit(self.ledger.board, self.order.max_time, self.elapsed, spending)
        if end:
            self._stop(end, reason)

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._began

    def _tick_on_disk(self) -> None:
        for problem in self._watch.tick(self.ledger.board, self._repository, self._deadline):
            self.ledger.tell(events.Notice(problem))

    def _stop_children(self) -> None:
        """Stop all children and wait for them."""
        self._children.request_stop(StopLevel.NOW)
        while self._children.running:
            self._children.wait(TICK, self._interrupt.fileno())
            self._interrupt.acknowledge()
            if self._interrupt.is_repeated:
                self._children.request_stop(StopLevel.AT_ONCE)
            for child in self._children.reap():
                self._on_child_exit(child)

    def _finish(self) -> BacklogFinished:
        self._tick_on_disk()  # the user may have edited the list after the last merge
        board = self.ledger.board
        end, code = outcome(board)
        with suppress(UserError):  # the remote is away: the branches are merged, and may stay
            task_worktrees.clear_remote(self.order, self._repository)
        with suppress(UserError):
            task_worktrees.clear_leftovers(self.order, self._repository, board)
        if self._end and not (code == 0 and self._end in (Outcome.TIMEOUT.value, Outcome.BUDGET.value)):
            end, code = self._end, {"fatal": 2, "interrupted": 130}.get(self._end, 1)
        reason = self._reason or board.stuck or ("" if fits(board, 0) else "its budget is spent")
        if self.ledger.state.opened and not self.order.remote and not self._is_target_green():
            moved = f"{self.order.target} is not where the gate left it, at {self.ledger.state.opened[:12]}"
            end, code, reason = "stuck" if code < 2 else end, code or 1, f"{reason}; {moved}".removeprefix("; ")
        finished = end_of_backlog(board, end, reason, code, self.elapsed)
        self.ledger.tell(finished)
        return finished
