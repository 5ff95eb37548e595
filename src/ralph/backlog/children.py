"""Child processes of a backlog run: one per running task, and one for the merge gate.

A child prints its result as one JSON line when it finishes; its stderr goes to a log file. It gets SIGHUP when its
parent dies. The coordinator waits for all children with a single `poll`.
"""

import os
import select
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

import msgspec

from ralph.backlog.backlog_order import REQUEST, TASKS, put
from ralph.backlog.gate import MergeRequest
from ralph.backlog.retries import MAX_CHILD_DEATHS
from ralph.core.backlog import Board, GateVerdict, TaskResult
from ralph.core.backlog_events import GATE, BacklogEvent, TaskParked, TaskQueued, after_loop
from ralph.core.model import Outcome
from ralph.core.text import one_line, tail
from ralph.errors import UNREADABLE, UserError
from ralph.files import open_own
from ralph.process.ralph_child import RalphChild, StopLevel
from ralph.store.folder import RunFolder
from ralph.store.mailbox import Mailbox

T = TypeVar("T")

MAX_OUTPUT = 8 << 20  # bytes kept of a child's stdout; only the last line matters


class TaskProcess(RalphChild):
    """A running task, or the merge gate if `key` is empty. `holder` is the name of its job in a fleet's log."""

    def __init__(self, key: str, log_path: str, holder: str = "") -> None:
        super().__init__()
        self.key, self.log_path, self.holder = key, log_path, holder
        self.started_at = time.monotonic()
        self.output = b""
        self.error_message = ""

    def launch(self, words: Sequence[str], env: Mapping[str, str]) -> None:
        """Start it with a pipe for its result."""
        self._stdout, stdout = os.pipe()
        os.set_blocking(self._stdout, False)
        try:
            self.start(words, env, stdout, open_own(self.log_path, os.O_RDWR | os.O_TRUNC))
        finally:
            os.close(stdout)

    def fileno(self) -> int:
        """Readable when it has printed something, or has exited."""
        return self._stdout

    def _read_output(self) -> None:
        with suppress(BlockingIOError):
            while piece := os.read(self._stdout, 1 << 16):
                self.output = (self.output + piece)[-MAX_OUTPUT:]

    def poll_exit(self) -> bool:
        """Read pending output; return True once the child has exited."""
        self._read_output()
        if self.exit_code is None:
            return False
        self._read_output()
        os.close(self._stdout)
        message, hint = self.complaint()
        self.error_message = one_line(tail(f"{message} · hint: {hint}" if hint else message, 2000), 500)
        self.close()
        return True

    def result(self, type_: type[T]) -> T | None:
        """Decode the last line of output; None if there is none or it is malformed."""
        last_line = self.output.strip().rsplit(b"\n", 1)[-1]
        try:
            return msgspec.json.decode(last_line, type=type_) if last_line else None
        except UNREADABLE:
            return None


class TaskProcesses:
    """The child processes of a backlog run on this machine: those that are running, by key, and what follows from their
    exits."""

    def __init__(self, folder: RunFolder, env: Mapping[str, str]) -> None:
        self.running: dict[str, TaskProcess] = {}
        self._folder, self._env = folder, env
        self._deaths: dict[str, int] = {}  # how often in a row each died without a result

    def start_task(self, key: str, holder: str = "") -> TaskProcess:
        return self._start(key, f"{TASKS}/{key}.log", holder, ("run-task", str(self._folder.path), key))

    def start_gate(self, request: MergeRequest, holder: str = "") -> TaskProcess:
        put(self._folder, REQUEST, request)
        return self._start(GATE, "gate.log", holder, ("run-gate", str(self._folder.path)))

    def _start(self, key: str, log: str, holder: str, words: Sequence[str]) -> TaskProcess:
        child = TaskProcess(key, str(self._folder.path / log), holder)
        child.launch(words, self._env)
        self.running[key] = child
        return child

    def wait(self, timeout: float, *fds: int) -> None:
        """Block until a child prints or exits, one of `fds` is readable, or `timeout` seconds have passed."""
        poll = select.poll()
        for fd in (*fds, *(child.fileno() for child in self.running.values())):
            poll.register(fd, select.POLLIN)
        poll.poll(timeout * 1000)

    def reap(self) -> list[TaskProcess]:
        """Remove and return the children that have exited."""
        exited = [child for child in self.running.values() if child.poll_exit()]
        for child in exited:
            del self.running[child.key]
        return exited

    def request_stop(self, level: int) -> None:
        for child in self.running.values():
            child.request_stop(level)

    def stop_withdrawn(self, board: Board) -> None:
        """Stop the loops of withdrawn tasks after their turn."""
        for key, child in self.running.items():
            if key in board.jobs and board.jobs[key].state == "withdrawn":
                child.request_stop(StopLevel.AFTER_TURN)

    def pause(self, board: Board, is_paused: bool) -> None:
        """Pause the loops, or let them continue."""
        for key in self.running:
            if board.is_working(key):
                with suppress(UserError):
                    mailbox = self._mailbox_of(board, key)
                    mailbox.pause() if is_paused else mailbox.unpause()

    def tell(self, board: Board, key: str, note: str) -> None:
        """Pass a note on to the agent of a running task."""
        with suppress(UserError):
            self._mailbox_of(board, key).tell(note)

    def _mailbox_of(self, board: Board, key: str) -> Mailbox:
        return Mailbox(self._folder.path.parent / board.jobs[key].run)

    def task_event(self, child: TaskProcess) -> tuple[BacklogEvent, str]:
        """Return the event for the task, and the reason to end the whole backlog run ("" if there is none)."""
        key, result = child.key, child.result(TaskResult)
        if result is not None:
            self._deaths.pop(key, None)
            is_fatal = result.outcome == Outcome.FATAL.value
            return after_loop(key, result, bool(child.stop_level)), f"{key}: {result.reason}" if is_fatal else ""
        message = child.error_message
        if child.exit_code == 2 and not child.stop_level:
            return TaskQueued(key, message), f"{key}: {message}"
        if self._is_last_death(child):
            reason = f"its process died {MAX_CHILD_DEATHS} times: {message or child.exit_code}"
            return TaskParked(key, reason), ""
        return TaskQueued(key, "its process died"), ""

    def gate_verdict(self, child: TaskProcess) -> GateVerdict:
        """Return the gate's verdict; an empty one if its process died and should be started again."""
        verdict = child.result(GateVerdict)
        if verdict is not None:
            self._deaths.pop(child.key, None)
            return verdict
        if child.exit_code == 2:
            return GateVerdict(stuck=child.error_message)
        if self._is_last_death(child):
            return GateVerdict(stuck=f"the gate's process died {MAX_CHILD_DEATHS} times; see gate.log")
        return GateVerdict()

    def _is_last_death(self, child: TaskProcess) -> bool:
        """Count a death, unless the child was asked to stop. Return whether to give up; the count
        then restarts at 0."""
        deaths = self._deaths.get(child.key, 0) + (not child.stop_level)
        self._deaths[child.key] = 0 if deaths == MAX_CHILD_DEATHS else deaths
        return deaths == MAX_CHILD_DEATHS
