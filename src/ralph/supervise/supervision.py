"""How is a task supervised? As every run, by the same loop; what is special is where it keeps its things, what it looks
at, what it says on the task's bus, and that it waits for the children of its agent."""

import math
import select
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from ralph.core.limits import IDLE
from ralph.core.model import Check, Note, Outcome, Run, Snapshot, Stop, Wait, WaitRequest
from ralph.core.text import one_line
from ralph.errors import UserError
from ralph.files import make_folder, unusable
from ralph.loop import Parts, Workspace
from ralph.processes.descendants import sweep_marked
from ralph.processes.interrupt import Interrupt
from ralph.processes.keeper import GLANCE, Ended, Keeper, KeeperLost
from ralph.processes.process import without_keeper
from ralph.processes.program import seconds_left
from ralph.records.folder import RunFolder
from ralph.records.journal import recall
from ralph.records.register import Listed, recorded_in
from ralph.run.agents import CliAgent
from ralph.run.context import Context, Place, Tick
from ralph.run.order import Order
from ralph.settings import Settings
from ralph.steering.mailbox import Mailbox
from ralph.supervise import bus, remarks
from ralph.supervise.bus import BusReader
from ralph.supervise.remarks import WAIT_TYPE, Announcer
from ralph.supervise.run_info import (
    Attempts,
    ChildProcesses,
    Iterations,
    JobFolder,
    RunInfo,
    Supervised,
    Timeouts,
    active_children,
    bury,
)
from ralph.supervise.task_folder import TaskFolder, folder_at, mark_waiting, reopen, workspace_as_task
from ralph.supervise.task_list import tell_project, unmet

TO_END = 5.0  # seconds that children get from TERM to KILL


class SupervisedPlace(Place):
    """Where an agent is started again until it has left its mark, told of on the bus, its children waited for."""

    def __init__(self, order: Order, task: TaskFolder, home: Path | None = None) -> None:
        super().__init__(Path(order.workspace), home, in_worktree=order.settings.worktree and home is None)
        self._settings = order.settings
        self._announcer = Announcer(task)
        self._attempts: Attempts | None = None
        self._awaited: tuple[str, ...] = ()
        self._blocked: tuple[str, ...] = ()

    @property
    def task(self) -> TaskFolder:
        return self._announcer.task

    @property
    def attempts(self) -> int:
        """How often the agent was started."""
        return self._attempts.last.number if self._attempts and self._attempts.last else 0

    def refuse_box(self) -> None:
        if active_children(self.task):
            raise UserError("a task with child runs at work cannot be put into a box", "wait for them, or stop them")

    def _keep_attempts(self, kind: type[Attempts], ralph: Path, run_id: str, stack: ExitStack) -> Attempts:
        """The folder of the run, which closes what it knows of the last attempt."""
        cap = self._settings.maximum_iterations
        made = self._attempts = kind(ralph, run_id, self._announcer, cap, timeouts(self._settings))
        stack.callback(made.close)
        return made

    def equip(self, parts: Parts, context: Context) -> None:
        speaks = any(not claim.startswith("file:") for claim in self._settings.until)
        parts.workspace = TaskSpace(parts.workspace, self.task, speaks)
        parts.wait = self._vigil(parts.wait, context)
        if isinstance(parts.agent, CliAgent) and parts.agent.is_known:
            files = [claim.removeprefix("file:") for claim in self._settings.until if claim.startswith("file:")]
            parts.compose = _telling(parts.compose, self.task, files[0] if files else "")

    def _vigil(self, sleep: Callable[[Wait, Run], None], context: Context) -> Callable[[Wait, Run], None]:
        """While it waits, the supervisor says for whom, and notices who has died: the keeper of them, too."""
        keeper = context.keeper

        def wait(asked: Wait, run: Run) -> None:
            if run.seen.waits_for and run.seen.waits_for != self._blocked:
                self._announcer.say(remarks.blocked(run.seen.waits_for))
            self._blocked = run.seen.waits_for
            if run.seen.children and not self._awaited:
                self._announcer.say(remarks.awaiting(run.seen.children))
            self._awaited = run.seen.children or self._awaited
            sleep(asked, run)
            if keeper.is_lost:
                raise without_keeper(keeper.replace())
            if self._awaited:
                self._bury_the_dead()

        return wait

    def _spare_children(self, context: Context) -> None:
        """They outlive the turn that they came of, but not the wish that all of it ends now."""
        wants_end, keeps = context.interrupt.wants_end, self._settings.keep_children
        context.keeper.spare = ChildProcesses(self.task, lambda: keeps or not wants_end())

    def _bury_the_dead(self) -> None:
        for run in bury(self.task):
            self._announcer.say(remarks.child_died(run.run_id, run.error_summary))

    def end(self, run: Run, stop: Stop, context: Context) -> None:
        if stop.outcome is Outcome.DONE and run.seen.children:
            self._announcer.say(remarks.not_awaited(run.seen.children, self._settings.wait_timeout))
        if not self._settings.keep_children and active_children(self.task):
            end_all(context.keeper, context.interrupt)
        self._bury_the_dead()
        self._announcer.say(self._last_words(run, stop))
        if self._attempts:
            self._attempts.close("stopped" if stop.outcome is Outcome.STOPPED else None)

    def _last_words(self, run: Run, stop: Stop) -> Iterator[remarks.Remark]:
        match stop.outcome:
            case Outcome.DONE:
                if (last := self._attempts.last if self._attempts else None) and last.is_complete:
                    yield remarks.succeeded(last.number)
                alone = remarks.DONE_TOGETHER if self._awaited else remarks.DONE_ALONE
                yield remarks.DONE_AHEAD if run.seen.children else alone
            case Outcome.STOPPED:
                yield remarks.waiting_requested(stop.reason)
            case Outcome.EXHAUSTED:
                yield from remarks.exhausted(self._settings.maximum_iterations, run.seen.done_file)
            case Outcome.FATAL:
                yield remarks.fatal(stop.reason)
            case Outcome.INTERRUPTED:
                yield remarks.cancelled(stop.reason)
            case _:
                yield remarks.unfinished(stop.outcome.value, stop.reason)


class TaskPlace(SupervisedPlace):
    """The folder of a task: one attempt after the other until its DONE is there. `reopens`: earlier marks go first."""

    def __init__(self, order: Order, *, task: TaskFolder | None = None, reopens: bool = False) -> None:
        task = task or folder_at(order.task)
        super().__init__(order, task, task.path)
        self.lends = (str(task.path),)
        self._reopens = reopens
        self._earlier: list[Listed] = []

    def refuse(self, error: UserError) -> None:
        self._announcer.say(remarks.fatal(error.advice))

    def open(self, run_id: str, stack: ExitStack) -> RunFolder:
        ralph = super().open(run_id, stack).path.parents[1]
        self._earlier = recorded_in(ralph)
        if self._earlier and not self._earlier[-1].facts.outcome and not self._settings.keep_children:
            # Killed just now, it may have left agents that still write.
            sweep_marked(self._earlier[-1].id, left=seconds_left)
        if self._reopens:
            reopen(self.task)
        bus.prepare(self.task.bus)
        bury(self.task)
        return self._keep_attempts(Attempts, ralph, run_id, stack)

    def enter(self, context: Context) -> None:
        context.task, self._announcer.tell = self.task.path, context.tell
        context.lent = self.lends
        self._spare_children(context)
        for run in self._earlier:
            Mailbox(context.folder.path).inherit(Mailbox(run.place), partial(_so_far, run))

    def end(self, run: Run, stop: Stop, context: Context) -> None:
        super().end(run, stop, context)
        if stop.outcome is Outcome.STOPPED:
            asked = run.seen.wait_requested
            mark_waiting(self.task, asked.words if asked else stop.reason)

    def _last_words(self, run: Run, stop: Stop) -> Iterator[remarks.Remark]:
        yield from super()._last_words(run, stop)
        done = stop.outcome is Outcome.DONE
        if done and (trouble := tell_project(self.task, self._announcer.run, len(run.iterations))):
            yield remarks.not_told(trouble)


class WorkspaceTask(SupervisedPlace):
    """A workspace, or its worktree, that is the task itself: the agent leaves DONE there, and what a task has besides
    is among ralph's things."""

    def __init__(self, order: Order) -> None:
        super().__init__(order, workspace_as_task(Path(order.workspace), ""))

    def open(self, run_id: str, stack: ExitStack) -> RunFolder:
        return self._keep_attempts(Iterations, super().open(run_id, stack).path.parents[1], run_id, stack)

    def enter(self, context: Context) -> None:
        self._announcer.tell = context.tell

    def equip(self, parts: Parts, context: Context) -> None:
        task = self._announcer.task = workspace_as_task(context.root, context.folder.id)
        try:
            make_folder(str(task.runs))
        except OSError as error:
            raise unusable(task.runs, error) from None
        bus.prepare(task.bus)
        bury(task)
        self._spare_children(context)
        super().equip(parts, context)


class ChildPlace(Place):
    """The folder of a child run: one agent, once, as part of a task. Questions that are left in the workspace are for
    the supervisor: no prompt of a child's could carry an answer."""

    takes_questions = False

    def __init__(self, order: Order, task: TaskFolder, info: RunInfo) -> None:
        super().__init__(Path(order.workspace))
        self.run_id = info.run_id
        self._announcer = Announcer(task)
        self.lends = (str(self._announcer.task.path),)
        self._job = JobFolder(info, self._announcer, timeouts(order.settings))

    def refuse_box(self) -> None:
        raise UserError("child runs have no box of their own", "take sandbox out of the settings for supervised tasks")

    def open(self, run_id: str, stack: ExitStack) -> RunFolder:
        stack.callback(self._job.close)
        return self._job

    def restore(self) -> None:
        """All that the run has lies in the task's own folder."""

    def enter(self, context: Context) -> None:
        context.task, self._announcer.tell = context.folder.path, context.tell
        context.lent = self.lends

    def ticks(self, context: Context) -> Sequence[Tick]:
        """The run ends when its supervisor was killed, and the keeper above both of them with it."""
        supervisor = Supervised(self._announcer.task)

        def watch() -> bool:
            if supervisor.was_killed():
                context.interrupt.raise_to(2, "word that its supervisor is gone")
            return supervisor.is_known

        return (watch,)

    def equip(self, parts: Parts, context: Context) -> None:
        parts.followups = ()

    def end(self, run: Run, stop: Stop, context: Context) -> None:
        # Whoever stops a job may reach its agent first: by itself its end looks like a failure. And who has seen that a
        # job is complete need not wait for its process: what was complete then stays so.
        is_stopped = stop.outcome is Outcome.STOPPED or (
            stop.outcome is Outcome.INTERRUPTED and not self._job.last.is_complete
        )
        self._job.close("stopped" if is_stopped else None)


def _telling(
    compose: Callable[[Run, tuple[Note, ...]], str], task: TaskFolder, done: str
) -> Callable[[Run, tuple[Note, ...]], str]:
    """The prompt with what its agent has to know about its task, unless the prompt says it."""

    def told(run: Run, notes: tuple[Note, ...]) -> str:
        prompt = compose(run, notes)
        return "\n".join((prompt, *remarks.about_the_task(task, prompt, done)))

    return told


def _so_far(run: Listed) -> Run:
    """What is recorded of an earlier run."""
    try:
        return recall(run.folder.journal).run
    except OSError:  # somebody took it away: nothing is known to have been told
        return Run(id=run.id)


def timeouts(settings: Settings) -> Timeouts:
    """The limits of a turn, by the name under which it says what ended it."""
    return {
        "turn-timeout": settings.turn_timeout,
        "idle-timeout": IDLE if settings.idle_timeout is None else settings.idle_timeout,
        "max-time": settings.max_time,
    }


def end_all(keeper: Keeper, interrupt: Interrupt) -> None:
    """Ends the children that outlived the turns they came of; at once where somebody asks for that a second time."""
    keeper.spare = None
    ready, patience = select.poll(), math.inf
    for one in (keeper, interrupt):
        ready.register(one, select.POLLIN)
    try:
        while True:
            if min(TO_END, interrupt.patience) < patience:
                patience = min(TO_END, interrupt.patience)
                keeper.end(patience)
            spoke = keeper.fileno() in dict(ready.poll(GLANCE))
            if spoke and isinstance(keeper.hear(waits=False), Ended):
                return
            interrupt.acknowledge()
            if keeper.is_stopped:
                raise KeeperLost
    except KeeperLost:
        keeper.replace()


class TaskSpace:
    """A workspace, seen by the supervisor of a task. Requests that were on the bus before it count no more.

    `speaks`: the agent may also say that it is done, so that children matter where no done file is.
    """

    def __init__(self, inner: Workspace, task: TaskFolder, speaks: bool = False) -> None:
        self._inner, self._task, self._speaks = inner, task, speaks
        self._requests = BusReader(task.bus, types=[WAIT_TYPE])
        self._requests.skip()
        self._request: WaitRequest | None = None
        self._claimed: tuple[object, float] = (None, 0.0)

    def look(self, run: Run) -> Snapshot:
        seen = self._inner.look(run)
        for message in self._requests.messages():
            self._request = WaitRequest(one_line(message.body) or message.type, by_message=True)
        claim = (len(run.iterations), len(run.retries), seen.done_file)
        if self._claimed[0] != claim:
            self._claimed = claim, time.monotonic()
        is_first = not run.iterations and not run.retries
        matter = seen.done_file or self._speaks
        return replace(
            seen,
            wait_requested=seen.wait_requested or self._request,
            done_for=time.monotonic() - self._claimed[1],
            children=tuple(child.run_id for child in active_children(self._task)) if matter else (),
            waits_for=tuple(unmet(self._task)) if is_first and not seen.done_file else (),
        )

    def guard(self) -> tuple[str, ...]:
        return self._inner.guard()

    def check(self, number: int) -> tuple[Check, ...] | None:
        return self._inner.check(number)

    def tree(self, number: int) -> str | None:
        return self._inner.tree(number)
