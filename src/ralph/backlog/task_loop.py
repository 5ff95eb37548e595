"""Work on one task: an ordinary run in the task's own worktree.

Its result comes from the run's journal and from git, so a killed process can be started again.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ralph.actions.followers import FOLLOWERS
from ralph.backlog import task_worktrees
from ralph.backlog.backlog_order import ORDER, Assignment, BacklogOrder, assignment_of, folder_of, read
from ralph.backlog.task_worktrees import TAKEN, Publisher, Taken
from ralph.core import events
from ralph.core.backlog import FailedCheck, TaskResult
from ralph.core.check_counts import count_failures
from ralph.core.model import Check, Fingerprint, Iteration, Note, Outcome, Run, Snapshot, Stop
from ralph.errors import UserError
from ralph.git import merging, worktrees
from ralph.git.client import Git, require_git
from ralph.git.worktrees import Worktree, WrongWorktree, commit_all
from ralph.loop import Parts, Workspace
from ralph.process.descendants import kill_run
from ralph.process.keeper import Keeper
from ralph.process.signals import Deadline, Interrupt
from ralph.run.plan import Place
from ralph.run.plan import prepare as prepare_run
from ralph.run.play import play as play_plan
from ralph.run.request import RunRequest
from ralph.settings import Settings, override
from ralph.settings.schema import ExamCommand
from ralph.store.folder import RunFolder, prepare
from ralph.store.journal import load_run
from ralph.verdict.context import Context
from ralph.verdict.exam_commands import hide_exams

RETURNED = (
    "The merge gate refused the work on this task, for the reason below. Since then the target, with everything that "
    "was merged, has been merged into this folder. Make the task's work fit it."
)
CONFLICTED = " There are conflict markers (<<<<<<<, >>>>>>>) in: {files}. Resolve them, keeping what both sides want."
NOTE = "A note from the person about this task:\n"


class TaskRun:
    """The place of a task's run: it works in the task's worktree, and its files are in the workspace."""

    def __init__(self, work: BacklogOrder, assigned: Assignment, is_begun: bool) -> None:
        self._work, self._assigned, self._is_begun = work, assigned, is_begun
        self._conflicts: tuple[str, ...] = ()
        self.publisher: Publisher | None = None

    @property
    def place(self) -> Place:
        return Place(
            home=Path(self._work.workspace),
            run_id=self._assigned.run,
            check_out=self._check_out,
            adapt=self._adapt,
        )

    def _check_out(self, context: Context, lock: Callable[[Path], None]) -> Worktree:
        work, key = self._work, self._assigned.job.task.key
        repository = require_git(Path(work.workspace), context.deadline)
        if work.is_shared:
            self.publisher = _publisher(work, repository, self._assigned, context.interrupt)
        worktree = task_worktrees.open_worktree(work, repository, key, lock, context)
        if self._assigned.job.is_returned and not self._is_begun:
            reserved_names, target = work.reserved_names(repository), repository.resolve(work.target_ref)
            self._conflicts = worktrees.merge_target(
                worktree.git, target, (*reserved_names.lists, *reserved_names.settings)
            )
        if self.publisher:
            self.publisher.claim(self._assigned.worker)
        return worktree

    def _adapt(self, parts: Parts, context: Context) -> Parts:
        notes = list[Note]()
        if self._assigned.job.is_returned:
            conflicted = CONFLICTED.format(files=", ".join(self._conflicts[:50])) if self._conflicts else ""
            notes.append(Note(RETURNED + conflicted, "gate", output=self._assigned.job.note))
        elif self._assigned.job.note:
            notes.append(Note(f"{NOTE}{self._assigned.job.note}", "person"))
        if notes:
            parts = replace(parts, rules=(*parts.rules, lambda run: notes))
        if self._assigned.red:
            parts = replace(parts, workspace=RedWorkspace(parts.workspace, self._assigned.red))
        elif self._assigned.attempt == 1 and not self._assigned.job.task.checks:
            parts = replace(parts, check_start=self._gate_results)
        publisher = self.publisher
        if publisher is None:
            return parts

        def publish(run: Run, iteration: Iteration) -> None:
            try:
                publisher.push()
            except Taken:
                context.interrupt.raise_to(1, TAKEN)
            except UserError as error:
                context.tell(events.Notice(error.advice))

        return replace(parts, followups=(*parts.followups, publish))

    def _gate_results(self) -> tuple[Check, ...]:
        """Return the results of the checks that the gate ran on the target before the first task started."""
        return tuple(Check(name=command, passed=True) for command in self._work.checks)


class RedWorkspace:
    """A workspace for --allow-red: a check that failed on the target passes if it has no more failures than on the
    target."""

    def __init__(self, workspace: Workspace, red: Sequence[FailedCheck]) -> None:
        self._workspace, self._red = workspace, {check.check: check for check in red}

    def look(self, run: Run) -> Snapshot:
        return self._workspace.look(run)

    def guard(self) -> tuple[str, ...]:
        return self._workspace.guard()

    def tree(self, number: int) -> Fingerprint | None:
        return self._workspace.tree(number)

    def restore(self, iteration: Iteration) -> tuple[Fingerprint, str] | None:
        return self._workspace.restore(iteration)

    def check(self, number: int) -> tuple[Check, ...] | None:
        results = self._workspace.check(number)
        return None if results is None else tuple(map(self._allow, results))

    def _allow(self, check: Check) -> Check:
        failed = FailedCheck(check.name, count=count_failures(check.tail, check.tests))
        is_allowed = not check.passed and failed.is_no_worse_than(self._red.get(check.name))
        return replace(check, passed=True) if is_allowed else check


def play(path: str, key: str, keeper: Keeper, interrupt: Interrupt) -> TaskResult:
    """Play the run of a task, or resume it, and return its result."""
    folder = folder_of(path)
    work = read(folder, ORDER, BacklogOrder)
    assigned = read(folder, assignment_of(key), Assignment)
    request = RunRequest(
        settings=settings_for(work, assigned),
        workspace=work.workspace,
        goal_text=assigned.job.task.text or assigned.job.task.title,
        work=work.id,
        backlog_task=key,
    )
    own = RunFolder(prepare(Path(work.workspace)), assigned.run)
    story = load_run(own.journal) if os.path.exists(own.journal) else None
    if story and not story.started:
        story = None
    deadline = Deadline(interrupt, assigned.run, request.settings.grace)
    repository = require_git(Path(work.workspace), deadline)
    if story and story.finished and story.is_done:
        publisher = _publisher(work, repository, assigned, interrupt) if work.is_shared else None
        stop = Stop(Outcome.DONE, story.finished.reason)
        return _publish(publisher, _loop_result(work, repository, key, story.run, stop))
    if os.path.exists(own.path) and not request.settings.keep_children:  # its process was killed
        kill_run(assigned.run, time_left=deadline.remaining)
    task_run = TaskRun(work, assigned, is_begun=story is not None and bool(story.run.iterations))
    try:
        plan = prepare_run(request, place=task_run.place, story=story, deadline=deadline)
        played = play_plan(plan, followers=FOLLOWERS, keeper=keeper, interrupt=interrupt)
        run, stop = played.run, played.stop
    except WrongWorktree as error:
        run, stop = story.run if story else Run(id=assigned.run), Stop(Outcome.FAILED, error.advice)
    return _publish(task_run.publisher, _loop_result(work, repository, key, run, stop))


def _publisher(work: BacklogOrder, repository: Git, assigned: Assignment, interrupt: Interrupt) -> Publisher:
    publisher = Publisher(work, repository, assigned.job.task.key, interrupt, push_settings=assigned.push_settings)
    publisher.prepare()
    return publisher


def _publish(publisher: Publisher | None, result: TaskResult) -> TaskResult:
    """Push the work of a finished loop; return the result, or an interruption if another worker has the task now."""
    if publisher is None or result.outcome != Outcome.DONE.value or not result.files:
        return result
    with suppress(Taken):
        if publisher.push_all():
            return result
    stopped = Outcome.INTERRUPTED
    return replace(result, outcome=stopped.value, reason=TAKEN, exit_code=stopped.exit_code)


def settings_for(work: BacklogOrder, assigned: Assignment) -> Settings:
    """Return the settings of the backlog run's loops, with the task's own on top."""
    task, own = assigned.job.task, dict[str, Any]()
    if task.agent:
        own["agent"] = {"command": task.agent}
    if task.model:
        own.setdefault("agent", {})["model"] = task.model
    if task.max_cost:
        own["maxCost"] = task.max_cost
    if task.checks:
        checks = [{"command": check.command, "hint": check.hint} for check in work.settings.checks]
        own["checks"] = [*checks, *({"command": command} for command in task.checks)]
    settings = override(work.settings, own) if own else work.settings
    settings = hide_exams(settings, work.workspace)  # the exams of the whole backlog run at its end
    return replace(settings, worktree=True, scm=None, baseline=False, exams=tuple(map(ExamCommand, task.exams)))


def _loop_result(work: BacklogOrder, repository: Git, key: str, run: Run, stop: Stop) -> TaskResult:
    result = TaskResult(
        outcome=stop.outcome.value,
        reason=stop.reason,
        exit_code=stop.outcome.exit_code,
        run=run.id,
        verified=stop.outcome is Outcome.DONE,
        cost_usd=run.usage.cost_usd,
    )
    if stop.outcome is not Outcome.DONE:
        return result
    try:
        tip, files = _work_on(work, repository, key)
    except WrongWorktree as error:
        failed = Outcome.FAILED
        return replace(result, outcome=failed.value, exit_code=failed.exit_code, reason=error.advice, verified=False)
    return replace(result, tip=tip, files=files)


def _work_on(work: BacklogOrder, repository: Git, key: str) -> tuple[str, tuple[str, ...]]:
    """Commit what is in the task's worktree; return the tip of its branch and the files that it changes."""
    worktree = work.worktree_of(repository, key)
    tip = repository.resolve(f"refs/heads/{worktree.branch}")
    if os.path.isdir(worktree.path):
        worktrees.refuse_another(worktree)
        if not worktrees.is_clean(worktree.git, tip):
            commit_all(worktree, f"ralph: the work on {key}")
            tip = repository.resolve(f"refs/heads/{worktree.branch}")
            if not worktrees.is_clean(worktree.git, tip):
                raise WrongWorktree(
                    f"not all of the work can be committed in {worktree.path}", "look at `git status` there"
                )
    try:
        return tip, merging.changed_files(repository, work.target_ref, tip)
    except UserError:
        if repository.try_run("merge-base", work.target_ref, tip).code != 1:
            raise
        raise WrongWorktree(
            f"{worktree.branch} has nothing in common with {work.shown_target}", f"look at {worktree.path}"
        ) from None
