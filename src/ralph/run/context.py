"""Where and with what is the work done? `Context` is what every turn and every check of a run shares, `Place` where a
run lives: in a workspace, or in a task's folder (supervise/supervision.py)."""

import math
import os
import stat
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from msgspec import Struct, field

from ralph.core import events
from ralph.core.model import Run, Stop
from ralph.core.secrets import Redactor
from ralph.core.text import one_line
from ralph.errors import UserError
from ralph.files import StrPath, open_file
from ralph.git.client import require_git
from ralph.git.worktrees import Worktree, create, refuse_another, remove_unstarted, worktree_lock, worktree_of
from ralph.loop import Parts
from ralph.process.deadline import Deadline
from ralph.process.descendants import KEPT_MARK, MARK
from ralph.process.keeper import Keeper
from ralph.process.process import Limits
from ralph.process.program import Command
from ralph.process.signals import Interrupt
from ralph.process.streams import LogFile
from ralph.sandbox.sandbox import Sandbox
from ralph.store.folder import RunFolder, is_ignored, prepare, workspace_lock
from ralph.store.mailbox import QUESTION_FILE, QUESTION_FILE_VARIABLE
from ralph.store.orders import order_folder


class Context(Struct, kw_only=True):
    """`root` is the workspace, or the worktree that stands in for it. `before` are the seconds that the run had
    already taken when it was resumed. `task` is the folder of the task that the run is part of. `box` is where agents
    are started, and checks if it `boxes_checks`; `lent` are the folders outside the workspace where they may write.
    `looks_only`: the agent's answer is what is wanted, and whatever it changes is put back. `deadline` ends git when
    the run is interrupted or out of time."""

    root: Path
    folder: RunFolder
    keeper: Keeper
    interrupt: Interrupt
    tell: events.TellAll
    env: Mapping[str, str]
    redact: Redactor
    tick: Callable[[], bool] | None = None
    max_time: float | None = None
    max_log: int = 32 << 20
    grace: float = 30.0
    keep_children: bool = False
    began: float = field(default_factory=time.monotonic)
    before: float = 0.0
    task: Path | None = None
    box: "Sandbox | None" = None
    boxes_checks: bool = True
    lent: tuple[str, ...] = ()
    looks_only: bool = False
    deadline: Deadline | None = None

    @property
    def home(self) -> Path:
        """Where the run's markers, progress and logs of checks are: the task's folder, else the workspace."""
        return self.task or self.root

    @property
    def order_folder(self) -> str:
        """Where the run keeps what decides, out of reach of `git clean` in the workspace."""
        return order_folder(self.folder.id, self.env)

    def settle_in(self) -> None:
        """Makes the home's `.ralph/` anew where an agent that cleans up has removed it."""
        if not is_ignored(f"{self.home}/.ralph"):
            prepare(self.home)

    def elapsed(self) -> float:
        """Seconds of the run so far, by a clock that nobody can set."""
        return self.before + time.monotonic() - self.began

    def time_left(self) -> float:
        """Seconds until the run has taken all the time that it may take."""
        return math.inf if self.max_time is None else max(0.0, self.max_time - self.elapsed())

    def limits(self, turn: float | None = None, idle: float | None = None) -> Limits:
        """The time that one process gets, and what the run has left."""
        left = None if self.max_time is None else self.time_left()
        return Limits(turn=turn or None, idle=idle or None, total=left, grace=self.grace)

    def log(self, path: str | os.PathLike[str]) -> LogFile:
        return LogFile(os.fspath(path), self.max_log or 1 << 62, self.redact)

    def tell_troubles(self, *logs: LogFile, keeper: Keeper | None = None) -> None:
        """What went wrong around the process that has just ended, below the run's own keeper or another."""
        for log in logs:
            if log.trouble:
                self.tell(events.Notice(log.trouble))
        if left := (keeper or self.keeper).survivors:
            self.tell(events.Notice(f"nobody could end what was left: process {', '.join(map(str, left))}"))
        for news in self.box.settle() if self.box else ():
            self.tell(events.Notice(news))

    def boxed(self, command: Command, scratch: str = "") -> Command:
        """The command as it is started in the box, if there is one."""
        return self.box.command(command, scratch) if self.box else command

    def marked(self, number: int) -> dict[str, str]:
        """The environment of everything that the run starts."""
        own = {MARK: self.folder.id, "RALPH_ITERATION": str(number), "RALPH_RUN_FOLDER": str(self.folder.path)}
        own[KEPT_MARK] = "1" if self.keep_children else ""
        if self.box and not self.task:  # nobody in there can write into the run's folder
            own[QUESTION_FILE_VARIABLE] = f"{self.root}/.ralph/{QUESTION_FILE}"
        return {**self.env, **own}


HOST_KEYS = frozenset({
    *("GH_TOKEN", "GITHUB_TOKEN", "GH_ENTERPRISE_TOKEN", "GITHUB_ENTERPRISE_TOKEN"),
    *("ACTIONS_RUNTIME_TOKEN", "ACTIONS_ID_TOKEN_REQUEST_TOKEN", "ACTIONS_ID_TOKEN_REQUEST_URL"),
    *("GITHUB_ENV", "GITHUB_PATH", "GITHUB_OUTPUT", "GITHUB_STATE", "GITHUB_STEP_SUMMARY"),
})  # fmt: skip
"""By these a program acts for the person at the host, or changes what a CI job does next."""


def without_tokens(env: Mapping[str, str], needed: Collection[str]) -> dict[str, str]:
    """The environment of a run whose goal somebody else wrote: neither its agent nor its checks act at the host."""
    return {name: value for name, value in env.items() if name not in HOST_KEYS or name in needed}


def marked(path: StrPath) -> tuple[bool, str]:
    """Whether the marker is there, and what is wrong with it. Only a missing file is a plain no."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return False, ""
    except OSError as error:
        return False, f"stat {os.path.basename(path)}: {error.strerror}"
    if stat.S_ISDIR(mode):
        return False, f"{os.path.basename(path)} is a directory"
    return (True, "") if stat.S_ISREG(mode) else (False, f"{os.path.basename(path)} is not a regular file")


def words_of(path: StrPath) -> str:
    """What was written into a marker that is there, in one line; its name where nothing was."""
    try:
        with open(open_file(path), "rb") as file:  # not through a link: a sandboxed agent could read any file by it
            return one_line(file.read(1000).decode("utf-8", "replace")) or os.path.basename(path)
    except OSError:
        return os.path.basename(path)


Tick = Callable[[], bool | None]
"""Called now and then while nothing happens; whether it wants to be called again soon."""


class Place:
    """A workspace in which no other run works; the run keeps its things in `home`. `takes_questions`: an agent may
    leave some in the workspace, as a file."""

    takes_questions = True
    run_id = ""  # where it is known before the run begins
    lends: tuple[str, ...] = ()  # folders outside the workspace where its agent is to write

    def __init__(self, workspace: Path, home: Path | None = None, in_worktree: bool = False) -> None:
        self.workspace, self.home, self._in_worktree = workspace, home or workspace, in_worktree
        self._occupied: list[tuple[Path, Callable[[], None]]] = []

    def open(self, run_id: str, stack: ExitStack) -> RunFolder:
        """The run's folder, in a place that is the run's alone; a run in a worktree occupies only that."""
        ralph = prepare(self.home)
        if not self._in_worktree:
            self.occupy(self.home, run_id, stack)
        return RunFolder(ralph, run_id)

    def occupy(self, folder: Path, run_id: str, stack: ExitStack) -> None:
        """No other run works in this folder until the stack is left."""
        self._occupied.append((folder, stack.enter_context(workspace_lock(prepare(folder), run_id))))

    def move_to_worktree(self, context: Context, resumed: Run | None, stack: ExitStack) -> "Worktree":
        """Moves the work into a worktree, and occupies it: any number of them may work beside one run in the tree
        itself. What cannot be isolated is refused."""

        home = require_git(context.root, context.deadline)
        made, notice = worktree_of(home, context.folder.id), ""
        is_there = resumed is not None and Path(made.workspace).is_dir()
        if resumed and resumed.iterations and not is_there:
            raise UserError(f"the run's worktree is gone: {made.path}", "start a new run")
        if is_there:
            refuse_another(made)
        with worktree_lock(home):
            if not is_there:
                remove_unstarted(home, context.folder.path.parent)
                notice = create(made)
            self.occupy(Path(made.workspace), context.folder.id, stack)
        if notice:
            context.tell(events.Notice(notice))
        context.root = Path(made.workspace)
        return made

    def restore(self) -> None:
        """Makes the place anew where an agent that cleans up has removed it."""
        prepare(self.home)
        for folder, lock_again in self._occupied:
            prepare(folder)
            lock_again()

    def enter(self, context: Context) -> None:
        """The run has all that it needs, and is about to begin."""

    def ticks(self, context: Context) -> Sequence[Tick]:
        """What else to look after while the run goes on."""
        return ()

    def equip(self, parts: "Parts", context: Context) -> None:
        """Gives the parts of the run what they need to know here."""

    def refuse_box(self) -> None:
        """Raises where runs of this kind cannot be put into a box."""

    def refuse(self, error: UserError) -> None:
        """Learns that the run cannot begin."""

    def end(self, run: Run, stop: Stop, context: Context) -> None:
        """Learns how the run ended, before anybody else is told."""
