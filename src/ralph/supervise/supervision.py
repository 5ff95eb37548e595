"""Supervise a task. The loop is the same as for every run; this module adds the folder of the task, its bus, and the
wait for child runs."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from ralph.core import events
from ralph.core.model import Outcome, Run, Snapshot, Stop, Usage, Wait
from ralph.core.text import one_line, plural
from ralph.errors import UserError
from ralph.loop import Parts, Workspace
from ralph.process.descendants import MARK, is_living, kill_run
from ralph.process.keeper import Keeper
from ralph.process.kept_process import KeptProcess, Limits
from ralph.process.program import Command
from ralph.process.signals import Interrupt
from ralph.run.agents import CliAgent
from ralph.run.plan import Place
from ralph.run.request import RunRequest
from ralph.store.folder import RunFolder
from ralph.store.journal import load_run
from ralph.store.mailbox import Mailbox
from ralph.store.register import Listed, runs_in
from ralph.supervise.attempts import Announcer, AttemptFolders, JobFolder, go_duration
from ralph.supervise.bus import BusReader, timestamp
from ralph.supervise.task import RunInfo, TaskFolder, task_at
from ralph.verdict.context import Context

WAIT_TYPE = "wait_without_restart"
CHILD_GRACE = 5.0  # seconds that child runs get from TERM to KILL


def supervise_task(request: RunRequest, reopens: bool = False) -> Place:
    """Return the place of a run that supervises the task `request.task`. `reopens`: remove earlier markers first."""
    return SupervisedRun(request, task_at(request.task), reopens=reopens).place


class SupervisedRun:
    """A run that restarts its agent until the agent has left its marker and the child runs have ended.

    `reopens`: remove earlier markers first.
    """

    def __init__(self, request: RunRequest, task: TaskFolder, *, reopens: bool = False) -> None:
        self.task = task
        self._request, self._settings, self._reopens = request, request.settings, reopens
        self._announcer = Announcer(task)
        self._folder: AttemptFolders | None = None
        self._earlier: list[Listed] = []
        self._awaited: tuple[str, ...] = ()

    @property
    def place(self) -> Place:
        path = self.task.path
        return Place(
            home=path,
            task=path,
            writable=(str(path),),
            open=self._open,
            adapt=self._adapt,
            end=self._end,
        )

    @property
    def attempts(self) -> int:
        """How often the agent was started."""
        return self._folder.last.number if self._folder and self._folder.last else 0

    def _open(self, ralph: Path, run_id: str) -> RunFolder:
        self._earlier = runs_in(ralph)
        if self._earlier and not self._earlier[-1].facts.outcome and not self._settings.keep_children:
            kill_run(self._earlier[-1].id)  # its supervisor was killed, and its agents may still be writing
        if self._reopens:
            self.task.remove_markers()
        self.task.bus.create()
        self.task.fail_dead_runs()
        if self._settings.sandbox.enabled and self.task.active_children():
            raise UserError("a task with running child runs can't be sandboxed", "wait for them, or stop them")
        self._folder = AttemptFolders(ralph, run_id, self._announcer, self._settings)
        return self._folder

    def _adapt(self, parts: Parts, context: Context) -> Parts:
        for run in self._earlier:
            Mailbox(context.folder.path).inherit(Mailbox(run.place), partial(_recorded_run, run))
        self._announcer.tell = context.tell
        # Child runs outlive the turn that started them, unless everything has to end now.
        wants_end, keeps = context.interrupt.must_end, self._settings.keep_children
        context.keeper.spared = ChildProcesses(self.task, lambda: keeps or not wants_end())
        files = [claim.removeprefix("file:") for claim in self._settings.until if claim.startswith("file:")]
        if isinstance(parts.agent, CliAgent) and parts.agent.is_known:
            compose, marker = parts.compose, files[0] if files else ""
            parts = replace(parts, compose=lambda run, notes: _explain(self.task, compose(run, notes), marker))
        has_other_claims = len(files) < len(self._settings.until)
        workspace = TaskWorkspace(parts.workspace, self.task, context.tell, has_other_claims)
        return replace(parts, workspace=workspace, wait=self._wait_for_others(parts.wait))

    def _wait_for_others(self, sleep: Callable[[Wait, Run], None]) -> Callable[[Wait, Run], None]:
        """Wrap `sleep`: report which child runs the task waits for, and notice when one of them dies."""

        def wait(requested: Wait, run: Run) -> None:
            children = run.seen.children
            if children and not self._awaited:
                count = plural(len(children), "child run")
                self._announcer.post("INFO", f"waiting for {count} to complete: {', '.join(children)}")
            self._awaited = children or self._awaited
            sleep(requested, run)
            if self._awaited:
                self._fail_dead_runs()

        return wait

    def _fail_dead_runs(self) -> None:
        for run in self.task.fail_dead_runs():
            body = f"child run {run.run_id} marked as failed: {one_line(run.error_summary)}"
            self._announcer.post("WARNING", body, "warning")

    def _end(self, run: Run, stop: Stop, context: Context | None) -> None:
        if context is not None:
            if stop.outcome is Outcome.DONE and run.seen.children:
                timeout = go_duration(self._settings.wait_timeout)
                body = f"timeout waiting for children after {timeout}: {', '.join(run.seen.children)}"
                self._announcer.post("WARNING", body, "warning")
            if not self._settings.keep_children and self.task.active_children():
                end_children(context.keeper, context.interrupt, context.folder.id)
            self._fail_dead_runs()
        self._announce_end(run, stop)
        if context is not None and self._folder:
            self._folder.close("stopped" if stop.outcome is Outcome.STOPPED else None)
        if stop.outcome is Outcome.STOPPED:
            self.task.mark_waiting(run.seen.wait_requested or stop.reason)

    def _announce_end(self, run: Run, stop: Stop) -> None:
        post, reason = self._announcer.post, one_line(stop.reason, 1000)
        match stop.outcome:
            case Outcome.DONE:
                if (last := self._folder.last if self._folder else None) and last.is_complete:
                    post("INFO", f"Attempt {last.number}: Agent succeeded", "info")
                how = "all children finished" if self._awaited else "DONE marker present, no active children"
                how = "DONE marker present, children not finished" if run.seen.children else how
                post("INFO", f"task completed ({how})")
                try:
                    post_completion(self.task, self._announcer.run, len(run.iterations))
                except (OSError, UserError) as error:
                    body = f"could not post the completion on the project's bus: {one_line(str(error))}"
                    post("WARNING", body, "warning")
            case Outcome.STOPPED:
                post("INFO", f"Wait-without-restart signal detected: {reason}")
            case Outcome.EXHAUSTED:
                cap = self._settings.maximum_iterations
                attempt = f"Attempt {cap}: " if cap else ""
                self._announcer.log(f"{attempt}Max restarts exceeded, stopping", "warning")
                why = "the DONE marker is not accepted" if run.seen.done_file else "no DONE marker"
                post("ERROR", f"max restarts exceeded, stopping: {why} after {plural(cap, 'attempt')}")
            case Outcome.FATAL:
                post("ERROR", f"Fatal error: {reason}")
            case Outcome.INTERRUPTED:
                post("INFO", f"task cancelled: {reason}")
            case _:
                post("ERROR", f"task not completed ({stop.outcome.value}): {reason}")


class ChildRun:
    """A run of an agent as a child of a task: one turn. It takes no questions, because no second prompt could carry the
    answer."""

    def __init__(self, request: RunRequest, task: TaskFolder, info: RunInfo) -> None:
        self._request, self._announcer = request, Announcer(task)
        self._folder = JobFolder(info, self._announcer, request.settings)
        self._interrupt: Interrupt | None = None
        self._supervisor = next((owner for owner in reversed(self._owners()) if is_living(*owner)), None)

    @property
    def place(self) -> Place:
        return Place(
            home=None,
            run_id=self._folder.id,
            task=self._folder.path,
            writable=(str(self._announcer.task.path),),
            takes_questions=False,
            open=self._open,
            adapt=self._adapt,
            end=self._end,
        )

    def watch_supervisor(self) -> bool:
        """End the run if its supervisor was killed; return whether the run has a supervisor."""
        owner = self._supervisor
        # A supervisor that ended normally is no longer the owner of its attempts, and may have kept its child runs.
        if owner and self._interrupt and not is_living(*owner) and owner in self._owners():
            self._interrupt.raise_to(2, "a report that its supervisor is gone")
        return owner is not None

    def _owners(self) -> list[tuple[int, str]]:
        return [(run.owner_pid, run.owner_start) for run in self._announcer.task.attempts()]

    def _open(self, ralph: Path, run_id: str) -> RunFolder:
        if self._request.settings.sandbox.enabled:
            hint = "take `sandbox` out of the settings for supervised tasks"
            raise UserError("child runs can't be sandboxed", hint)
        return self._folder

    def _adapt(self, parts: Parts, context: Context) -> Parts:
        self._announcer.tell, self._interrupt = context.tell, context.interrupt
        return replace(parts, followups=())

    def _end(self, run: Run, stop: Stop, context: Context | None) -> None:
        # An interrupt may reach the agent before this process, and then looks like a failure.
        last = self._folder.last
        is_interrupted = stop.outcome is Outcome.INTERRUPTED and not last.is_complete
        if context is not None:
            last.close("stopped" if stop.outcome is Outcome.STOPPED or is_interrupted else None)


class TaskWorkspace:
    """A workspace for the supervisor of a task, with requests to wait, active child runs, and their cost.

    Requests and child runs from before this run don't count. `has_other_claims`: the agent may also claim in words, so
    child runs matter even without a done file.
    """

    def __init__(self, inner: Workspace, task: TaskFolder, tell: events.TellAll, has_other_claims: bool) -> None:
        self._inner, self._task, self._tell, self._has_other_claims = inner, task, tell, has_other_claims
        self.guard, self.restore, self.check, self.tree = inner.guard, inner.restore, inner.check, inner.tree
        self._requests = BusReader(task.bus.path, [WAIT_TYPE])
        self._requests.skip()
        self._request = ""
        self._claimed: tuple[object, float] = (None, 0.0)  # what was claimed, and when that was first seen
        self._paid = {child.run_id for child in task.children() if child.status != "running"}

    def look(self, run: Run) -> Snapshot:
        snapshot = self._inner.look(run)
        for message in self._requests.messages():
            self._request = one_line(message.body) or message.type
        claim = (len(run.iterations), len(run.retries), snapshot.done_file)
        if self._claimed[0] != claim:
            self._claimed = claim, time.monotonic()
        children = self._task.children()
        awaited = children if snapshot.done_file or self._has_other_claims else ()
        return replace(
            snapshot,
            wait_requested=snapshot.wait_requested or self._request,
            done_for=time.monotonic() - self._claimed[1],
            children=tuple(child.run_id for child in awaited if child.is_active()),
            spent=self._costs_of(children, len(run.iterations)),
        )

    def _costs_of(self, children: Sequence[RunInfo], iteration: int) -> Usage:
        """Return the cost of the child runs that have ended since the last look."""
        ended = [child for child in children if child.status != "running" and child.run_id not in self._paid]
        self._paid.update(child.run_id for child in ended)
        total = Usage()
        for child in ended:
            total = total.plus(child.usage)
        if total != Usage():
            self._tell(events.Spent(iteration, "child runs", total))
        return total


class ChildProcesses:
    """The processes of a task's child runs, for the keeper, which doesn't kill them while `are_spared` is true."""

    def __init__(self, task: TaskFolder, are_spared: Callable[[], bool]) -> None:
        self._task, self._are_spared = task, are_spared

    def pids(self) -> list[int]:
        children = self._task.active_children() if self._are_spared() else ()
        return [pid for run in children for pid in (run.owner_pid, run.pid) if pid]

    def expects(self, pid: int) -> bool:
        """Whether this process is a `ralph job`: it may not have created its run yet."""
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as cmdline:
                words = [word.rpartition(b"/")[2] for word in cmdline.read().split(b"\0")]
        except OSError:
            return False
        return any(words[at : at + 2] == [b"ralph", b"job"] for at in range(len(words)))


def post_completion(task: TaskFolder, run_id: str, attempts: int) -> None:
    """Post a FACT about the task's completion on the project's bus, unless it was posted before."""
    done_at = timestamp(task.done.stat().st_mtime)
    facts = task.project_bus.read(["FACT"])
    if not any(fact.task == task.task and f"DONE at {done_at}," in fact.body for fact in facts):
        last = f", last run {run_id}" if run_id else ""
        body = f"task {task.name} completed: DONE at {done_at}, {plural(attempts, 'attempt')}{last}"
        task.project_bus.post("FACT", body, project=task.project, task=task.task, run=run_id)


def end_children(keeper: Keeper, interrupt: Interrupt, run_id: str) -> None:
    """End the child runs that are still active; a second interrupt shortens their grace period."""
    keeper.spared = None
    nothing = Command(argv=("/bin/sh", "-c", ":"), env={MARK: run_id}, cwd="/")
    limits = Limits(leftovers=CHILD_GRACE)
    with suppress(UserError):  # their keeper was killed: what it had started is dead
        KeptProcess(nothing, keeper=keeper, limits=limits, interrupt=interrupt).capture(head=0, tail=0)


def _explain(task: TaskFolder, prompt: str, marker: str) -> str:
    """Add the sentences about the task that are missing in the prompt. `done` is the file to create at the end, if any.

    Paths are written out, because an agent may not be allowed to expand variables.
    """
    more = ""
    if marker and marker in prompt and str(task.path) not in prompt:
        more += f"\n\nThe folder of the task, $TASK_FOLDER, is {task.path}: write its name out."
    if marker and marker not in prompt:
        more += f"\n\nWhen all of it is done, create the file {task.path / marker}; "
        more += "until it is there, you are started again."
    if "bus" not in prompt.lower():
        more += "\n\nThe task has a message bus: `ralph bus read`, `ralph bus post --type FACT --body TEXT`."
    if "ralph job" not in prompt:
        more += (
            "\n\n`ralph job --prompt TEXT` has another agent do a part of it, with & in parallel; DONE waits for it."
        )
    return prompt + more


def _recorded_run(listed: Listed) -> Run:
    """Return an earlier run from its journal; an empty run if the journal was removed."""
    try:
        return load_run(listed.folder.journal).run
    except UserError:
        return Run(id=listed.id)
