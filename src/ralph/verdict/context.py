"""`Context`: what every turn and every check of a run share, such as folders, settings, keeper, clock and sandbox."""

import math
import os
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from msgspec import Struct, field

from ralph.core import events
from ralph.core.secrets import Redactor, secret_values
from ralph.files import StrPath
from ralph.process.descendants import KEPT_MARK, MARK
from ralph.process.keeper import Keeper
from ralph.process.kept_process import KeptProcess, Limits
from ralph.process.program import Command
from ralph.process.signals import Deadline, Interrupt
from ralph.process.streams import LogFile
from ralph.sandbox.sandbox import Sandbox
from ralph.settings import Settings
from ralph.store.folder import RunFolder, is_ignored, order_folder, prepare
from ralph.store.mailbox import QUESTION_FILE, QUESTION_FILE_VARIABLE
from ralph.verdict.canary import Canary
from ralph.verdict.in_place import Namespace

Tick = Callable[[], bool | None]
"""Called from time to time while nothing happens; returns True to be called again in a second."""


class Clock:
    """The time that a run takes, by a monotonic clock. `before`: the seconds before it was resumed."""

    def __init__(self, max_time: float | None = None, before: float = 0.0) -> None:
        self.max_time = max_time
        self._began = time.monotonic() - before

    def elapsed(self) -> float:
        return time.monotonic() - self._began

    def exclude(self, seconds: float) -> None:
        """Leave out this time, because the run was paused."""
        self._began += seconds

    def time_left(self) -> float:
        """Return how many seconds of its time limit the run has left."""
        return math.inf if self.max_time is None else max(0.0, self.max_time - self.elapsed())


class Context(Struct, frozen=True, kw_only=True):
    """What the parts of a run share."""

    root: Path
    """The folder where the agent works: `workspace` or a worktree of it."""
    workspace: str
    """The user's folder."""
    settings: Settings
    folder: RunFolder
    keeper: Keeper
    deadline: Deadline
    """Ends git when the run is interrupted or out of time."""
    tell: events.TellAll = lambda *happened: None
    env: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    leading: Mapping[str, str] = {}
    """Variables by which commands find the copy at `root` if it is at its own path. Those of a copy of it differ."""
    redact: Redactor = field(default_factory=lambda: Redactor(secret_values(os.environ)))
    tick: Callable[[], bool] | None = None
    clock: Clock = field(default_factory=Clock)
    task: Path | None = None
    """The folder of the task that the run is part of."""
    sandbox: Sandbox | None = None
    """Agents run in it, and checks as well if the settings ask for that."""
    namespace: Namespace | None = None
    """If there is one, commands see the copy at `root` in place of the user's tree."""
    canary: Canary | None = None
    """Asks whether checks test the copy."""
    writable: tuple[str, ...] = ()
    """Folders outside of `root` where the agent may write."""
    looks_only: bool = False
    """Only the agent's answer counts, and its changes are undone."""

    @property
    def interrupt(self) -> Interrupt:
        return self.deadline.interrupt

    @property
    def home(self) -> Path:
        """The folder with the run's markers, progress and logs of checks: the task's, else the workspace."""
        return self.task or self.root

    @property
    def order_folder(self) -> str:
        """The run's folder in the state folder, for files that decide what it does: `git clean` can't remove them."""
        return order_folder(self.folder.id, self.env)

    @property
    def sandboxes_checks(self) -> bool:
        return self.sandbox is not None and self.settings.sandbox.checks

    def restore_home(self) -> None:
        """Create the `.ralph/` folder of the home again if an agent has removed it."""
        if not is_ignored(f"{self.home}/.ralph"):
            prepare(self.home)

    def process(
        self,
        command: Command,
        *,
        timeout: float | None = None,
        idle: float | None = None,
        on_start: Callable[[int], None] = lambda _: None,
        is_idle: Callable[[], bool] = lambda: True,
    ) -> KeptProcess:
        """Return a process that is ended when the run is interrupted or its time is over."""
        left = None if self.clock.max_time is None else self.clock.time_left()
        return KeptProcess(
            self.entered(command),
            keeper=self.keeper,
            limits=Limits(turn=timeout or None, idle=idle or None, total=left, grace=self.settings.grace),
            interrupt=self.interrupt,
            on_start=on_start,
            tick=self.tick,
            is_idle=is_idle,
            keep_children=self.settings.keep_children,
        )

    def wait(self, seconds: float) -> bool:
        """Wait, and call `tick` now and then; return True if the run is interrupted."""
        tick = self.tick
        return self.interrupt.wait(seconds, (lambda _: tick()) if tick else None)

    def log(self, path: StrPath) -> LogFile:
        return LogFile(os.fspath(path), self.settings.max_log or 1 << 62, self.redact)

    def report_problems(self, *logs: LogFile) -> None:
        """Report problems with the process that has just ended: with its logs, its leftovers, or its sandbox."""
        for log in logs:
            if log.trouble:
                self.tell(events.Notice(log.trouble))
        if left := self.keeper.survivors:
            self.tell(events.Notice(f"could not kill: process {', '.join(map(str, left))}"))
        for text in self.sandbox.settle() if self.sandbox else ():
            self.tell(events.Notice(text))

    def sandboxed(self, command: Command, scratch: str = "") -> Command:
        """Return the command as it is started in the sandbox, if there is one."""
        return self.sandbox.command(command, scratch) if self.sandbox else command

    def entered(self, command: Command) -> Command:
        """Return the command as it is started in the copy's namespace, if there is one."""
        return self.namespace.enter(command) if self.namespace else command

    def child_env(self, number: int, hidden: Collection[str] = ()) -> dict[str, str]:
        """Return the environment of a process that the run starts in iteration `number`, without `hidden` variables."""
        own = {MARK: self.folder.id, "RALPH_ITERATION": str(number), "RALPH_RUN_FOLDER": str(self.folder.path)}
        own[KEPT_MARK] = "1" if self.settings.keep_children else ""
        if self.sandbox and not self.task:  # a sandboxed agent cannot write into the run's folder
            own[QUESTION_FILE_VARIABLE] = f"{self.root}/.ralph/{QUESTION_FILE}"
        env = {**self.env, **self.leading, **own}
        return {name: value for name, value in env.items() if name not in hidden}
