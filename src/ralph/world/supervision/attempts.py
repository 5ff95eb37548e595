"""Where does an attempt at a task keep its things? In a folder of `runs/`, whose `run-info.yaml` says how it stands."""

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from ralph.core import supervision
from ralph.core.model import Turn
from ralph.core.rules import WAIT_EXIT_CODE
from ralph.errors import UserError
from ralph.world.records.folder import RunFolder, TurnFolder
from ralph.world.supervision import runinfo
from ralph.world.supervision.herald import Herald
from ralph.world.supervision.runinfo import RunInfo, Status
from ralph.world.supervision.taskfolder import task_environment

Timeouts = Mapping[str, float | None]


class Attempts(RunFolder):
    """The folder of a supervisor's own run, and a folder in the task for each time that it starts the agent.

    `timeouts` are the limits by the name under which a turn says what ended it.
    """

    def __init__(self, ralph: Path, run_id: str, herald: Herald, cap: int, timeouts: Timeouts) -> None:
        super().__init__(ralph, run_id)
        self.last: Attempt | None = None
        self._herald, self._cap, self._timeouts = herald, cap, timeouts
        earlier = [run for run in runinfo.every(herald.task) if run.attempt]
        self._previous = earlier[-1].run_id if earlier else ""

    @property
    def env(self) -> Mapping[str, str]:
        """What the agent of the latest attempt finds in its environment."""
        return self.last.env if self.last else {}

    def turn(self, number: int, purpose: str = "work", agent: str = "") -> TurnFolder:
        if purpose != "work":
            folder = super().turn(number, purpose)
            folder.env = self.env
            return folder
        self.close()
        info = runinfo.create(self._herald.task, agent, time.time(), attempt=number, previous=self._previous)
        self.last = Attempt(info, self._herald, self._timeouts)
        self._previous = info.run_id
        self._herald.say(supervision.starting(number, self._cap))
        return self.last

    def announce(self) -> None:
        """Another attempt follows the last one, if there was one."""
        if self.last and self.last.turn:
            self._herald.say(supervision.restarting(self.last.number, self._cap, self.last.turn))

    def close(self, status: Status | None = None) -> None:
        """No attempt follows the last one."""
        if self.last:
            self.last.close(status)


class Job(RunFolder):
    """The folder of a child run: all that it has stands in the task's `runs/`."""

    def __init__(self, info: RunInfo, herald: Herald, timeouts: Timeouts) -> None:
        super().__init__(herald.task.path, info.run_id)
        self.last = Attempt(info, herald, timeouts)

    def turn(self, number: int, purpose: str = "work", agent: str = "") -> TurnFolder:
        self.last.is_run_by(agent)
        return self.last

    def close(self, status: Status | None = None) -> None:
        self.last.close(status)


class Attempt(TurnFolder):
    """One run of the agent. What it wrote into `output.md` itself stays."""

    stdout_name = "agent-stdout.txt"
    stderr_name = "agent-stderr.txt"

    def __init__(self, info: RunInfo, herald: Herald, timeouts: Timeouts) -> None:
        env = task_environment(herald.task, info.run_id, info.parent_run_id)
        super().__init__(str(herald.task.runs / info.run_id), env)
        self.number = info.attempt
        self.turn: Turn | None = None
        self._what = f"attempt {info.attempt}" if info.attempt else "job"
        self._agent, self._herald, self._timeouts = info.agent, herald, timeouts
        self._herald.run = info.run_id

    @property
    def is_complete(self) -> bool:
        return self.turn is not None and _status(self.turn) == "completed"

    def is_run_by(self, agent: str) -> None:
        self._agent = agent
        self.note(runinfo.update, agent=agent)

    def started(self, pid: int) -> None:
        # The keeper starts every process in a session, and so in a group, of its own.
        self.note(runinfo.started, pid, pid)
        self._herald.say(supervision.run_started(self._what, self._agent, pid))

    def ended(self, turn: Turn, answer: bytes) -> None:
        self.turn = turn
        if os.path.isdir(self.path) and not os.path.exists(self.output):
            super().ended(turn, answer)
        summary = supervision.how_ended(turn) if supervision.has_failed(turn) else ""
        self.note(runinfo.ended, turn.ended_at or time.time(), _status(turn), turn.exit_code, summary)
        self._herald.say(supervision.run_stopped(self._what, turn))
        if self.number:
            self._herald.say(supervision.troubles(self.number, turn, self._timeouts.get(turn.ended_by)))

    def close(self, status: Status | None = None) -> None:
        """Nobody looks after this run any more. `status`: what became of it, where its own end does not tell."""
        if self.turn is None:
            self.note(runinfo.ended, time.time(), "failed", None, "ralph did not see its end")
        if status:
            self.note(runinfo.update, status=status)
        self.note(runinfo.release)

    def note(self, change: Callable[..., RunInfo], *values: object, **fields: object) -> None:
        """Writes down how the run stands. An agent that took its folder away has not spoilt its work."""
        try:
            change(Path(self.path), *values, **fields)
        except UserError as error:
            self._herald.trouble(error.message)


def _status(turn: Turn) -> Status:
    if turn.exit_code == WAIT_EXIT_CODE or turn.ended_by == "interrupt":
        return "stopped"
    return "failed" if supervision.has_failed(turn) else "completed"
