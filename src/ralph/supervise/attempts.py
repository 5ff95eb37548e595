"""The attempts of a supervised agent: their folders, and the messages that the supervisor posts about them."""

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from ralph.core import events
from ralph.core.limits import IDLE_TIMEOUT
from ralph.core.model import Turn
from ralph.core.rules import WAIT_EXIT_CODE
from ralph.core.text import one_line
from ralph.errors import UserError
from ralph.process.descendants import start_of
from ralph.settings import Settings
from ralph.store.folder import RunFolder, TurnFolder
from ralph.supervise.bus import timestamp
from ralph.supervise.task import RunInfo, RunStatus, TaskFolder


class Announcer:
    """Posts messages on the task's bus and in the run's log. `run`: the id of the run that they are about.

    If the bus can't be written, that is logged, and the task continues.
    """

    def __init__(self, task: TaskFolder) -> None:
        self.task, self.run = task, ""
        self.tell: events.Tell = lambda event: None
        self._last_warning = ""

    def post(self, type_: str, body: str, level: Literal["warning", "info", "debug"] = "debug") -> None:
        task = self.task
        try:
            task.bus.post(type_, body, project=task.project, task=task.task, run=self.run)
        except UserError as error:
            self.warn(error.message)
        self.log(body, level)

    def log(self, text: str, level: Literal["warning", "info", "debug"] = "info") -> None:
        self.tell(events.Notice(text, level))

    def warn(self, text: str) -> None:
        """Log a problem, unless it is the same as the last one."""
        if text != self._last_warning:
            self._last_warning = text
            self.log(text, "warning")


class AttemptFolders(RunFolder):
    """The folder of a supervisor's run. Prompt and output of each attempt are in a folder in the task's `runs/`."""

    def __init__(self, ralph: Path, run_id: str, announcer: Announcer, settings: Settings) -> None:
        super().__init__(ralph, run_id)
        self.last: Attempt | None = None
        self._announcer, self._settings, self._cap = announcer, settings, settings.maximum_iterations

    @property
    def env(self) -> Mapping[str, str]:
        return self.last.env if self.last else {}

    def turn(self, number: int, purpose: str = "work", agent: str = "") -> TurnFolder:
        if purpose != "work":
            folder = super().turn(number, purpose)
            folder.env = self.env
            return folder
        if self.last:
            self._announce_restart(self.last)
            self.last.close()
        info = self._announcer.task.create_run(agent, attempt=number)
        self.last = Attempt(info, self._announcer, self._settings)
        verb = "Starting" if number == 1 else "Restarting"
        self._announcer.post("INFO", f"{verb} agent (attempt {number}/{self._cap})")
        return self.last

    def _announce_restart(self, last: "Attempt") -> None:
        number, turn, post = last.number, last.turn, self._announcer.post
        if turn is None:
            return
        if not has_failed(turn):
            post("INFO", f"Attempt {number}: Agent succeeded, but there is no DONE marker, restarting...", "info")
            return
        code = turn.exit_code
        exit_code = "" if code is None else f" (exit {code})"
        self._announcer.log(f"Attempt {number}: Agent failed{exit_code}, restarting...")
        exit_code = "" if code is None else f" with exit code {code}"
        post("INFO", f"Agent failed{exit_code}, restarting (attempt {number + 1}/{self._cap})")

    def close(self, status: RunStatus | None = None) -> None:
        if self.last:
            self.last.close(status)


class JobFolder(RunFolder):
    """The folder of a child run, in the task's `runs/`."""

    def __init__(self, info: RunInfo, announcer: Announcer, settings: Settings) -> None:
        super().__init__(announcer.task.runs.parent, info.run_id)
        self.last = Attempt(info, announcer, settings)

    def close(self) -> None:
        self.last.close()

    def turn(self, number: int, purpose: str = "work", agent: str = "") -> TurnFolder:
        self.last.update(agent=agent)
        return self.last


class Attempt(TurnFolder):
    """The files of one run of the agent: of an attempt or a child run."""

    stdout_name, stderr_name = "agent-stdout.txt", "agent-stderr.txt"

    def __init__(self, info: RunInfo, announcer: Announcer, settings: Settings) -> None:
        task = announcer.task
        super().__init__(str(task.runs / info.run_id), task.environment(info.run_id, info.parent_run_id))
        self.id, self.number = info.run_id, info.attempt
        self.turn: Turn | None = None
        self._name = f"attempt {info.attempt}" if info.attempt else "job"
        self._agent, self._announcer, self._settings = info.agent, announcer, settings
        announcer.run = info.run_id

    def scratch(self) -> str:
        """Return the run's folder: agents may write their answer there."""
        return self.path

    @property
    def is_complete(self) -> bool:
        return self.turn is not None and run_status(self.turn) == "completed"

    def record_start(self, pid: int) -> None:
        self.update(pid=pid, pid_start=start_of(pid) or "")
        self._announcer.post("RUN_START", f"{self._name}: {self._agent} started as process {pid}")

    def record_end(self, turn: Turn, answer: bytes) -> None:
        self.turn = turn
        if os.path.isdir(self.path) and not os.path.exists(self.output):  # the agent may have written it
            super().record_end(turn, answer)
        self.update(
            status=run_status(turn),
            exit_code=turn.exit_code,
            error_summary=describe_end(turn) if has_failed(turn) else "",
            ended_at=timestamp(turn.ended_at or time.time()),
            usage=turn.usage,
        )
        took = go_duration(round(turn.duration, 3))
        self._announcer.post("RUN_STOP", f"{self._name}: {describe_end(turn)} after {took}")
        if self.number:
            for warning in failure_warnings(self.number, turn, timeout_of(turn, self._settings)):
                self._announcer.post("WARNING", warning, "warning" if warning.startswith("Agent timeout") else "debug")

    def close(self, status: RunStatus | None = None) -> None:
        """Record in the run's file that the ralph process that started it has ended. `status` replaces the status
        there."""
        if self.turn is None:
            self.update(status="failed", error_summary="ralph did not see its end", ended_at=timestamp())
        self.update(owner_pid=0, owner_start="", **({"status": status} if status else {}))

    def update(self, **fields: Any) -> None:
        """Update the run's file. If the agent has removed it, that is logged, and the task continues."""
        self._agent = fields.get("agent", self._agent)
        try:
            self._announcer.task.update_run(self.id, **fields)
        except UserError as error:
            self._announcer.warn(error.message)


def has_failed(turn: Turn) -> bool:
    if turn.exit_code == WAIT_EXIT_CODE:
        return False
    return turn.exit_code != 0 or bool(turn.ended_by) or turn.failure is not None


def run_status(turn: Turn) -> RunStatus:
    if turn.exit_code == WAIT_EXIT_CODE or turn.ended_by == "interrupt":
        return "stopped"
    return "failed" if has_failed(turn) else "completed"


def describe_end(turn: Turn) -> str:
    """Return `exit code 1`, with the reason if it is known."""
    code = f"exit code {turn.exit_code}" if turn.exit_code is not None else "no exit code"
    why = one_line(turn.ended_by or (turn.failure.reason if turn.failure else ""))
    return why if why.startswith(code) else f"{code} ({why})" if why else code


def timeout_of(turn: Turn, settings: Settings) -> float | None:
    """Return the time limit in seconds that ended a turn; None if none did."""
    idle_timeout = IDLE_TIMEOUT if settings.idle_timeout is None else settings.idle_timeout
    limits = {"turn-timeout": settings.turn_timeout, "idle-timeout": idle_timeout, "max-time": settings.max_time}
    return limits.get(turn.ended_by)


def failure_warnings(attempt: int, turn: Turn, timeout: float | None = None) -> Iterator[str]:
    """Yield messages about what went wrong in an attempt. `timeout`: the seconds after which ralph
    ended it, if it did."""
    if timeout is not None:
        yield f"Agent timeout after {go_duration(timeout)}, killing process group"
        yield "Process group killed, treating as failure"
    if has_failed(turn) and turn.ended_by != "interrupt":
        yield f"agent failed on restart #{attempt - 1}: {describe_end(turn)}"
    if turn.failure and turn.failure.kind == "transient":
        yield f"Transient error: {one_line(turn.failure.reason)}"


def go_duration(seconds: float) -> str:
    """Format a duration as Go does: `5m0s`, `1h0m0s`, `1.5s`, `500ms`."""
    if 0 < seconds < 1:
        return f"{seconds * 1000:.6g}ms"
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(int(minutes), 60)
    if hours:
        return f"{hours}h{minutes}m{rest:.9g}s"
    return f"{minutes}m{rest:.9g}s" if minutes else f"{rest:.9g}s"
