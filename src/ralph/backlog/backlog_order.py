"""The order of a backlog run: its validated request, frozen and stored, and the files that its processes exchange."""

import os
import time
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from ralph import __version__
from ralph.backlog.backlog_source import BacklogSource
from ralph.core.backlog import Board, FailedCheck, Job
from ralph.core.backlog_events import BacklogStarted, TaskStarted
from ralph.core.model import Outcome
from ralph.core.text import one_line
from ralph.errors import UNREADABLE, UserError
from ralph.files import save_file
from ralph.git import merging
from ralph.git.client import Git
from ralph.git.merging import Reserved
from ralph.git.remote import GitSettings, Remote
from ralph.git.worktrees import Worktree, worktree_named
from ralph.settings import Settings, convert_stored
from ralph.store.folder import RunFolder, backlog_order_folder, new_run_id, read_order
from ralph.store.mailbox import Mailbox
from ralph.store.register import read_summary

ORDER, REQUEST, TASKS = "work.json", "gate.json", "tasks"
SETTINGS = (".ralph/settings.json", ".ralph/settings.local.json")


class BacklogOrder(Struct, frozen=True, kw_only=True):
    """The request of a backlog run.

    - `name` is part of its branch names.
    - `settings` are those of each loop.
    - `target` is the local branch that it merges into, unless it merges into `remote`.
    - `base` is the commit that the target starts at.
    - `is_shared`: several machines work on it, so the tasks' branches are pushed.
    """

    id: str
    name: str
    workspace: str
    source: BacklogSource
    settings: Settings
    target: str
    base: str
    remote: Remote | None = None
    slots: int = 1
    returns: int = 3
    max_cost: float | None = None
    max_time: float | None = None
    version: str = ""
    is_shared: bool = False
    allow_red: bool = False

    @property
    def checks(self) -> tuple[str, ...]:
        return tuple(check.command for check in self.settings.checks)

    @property
    def shown_target(self) -> str:
        return f"{self.remote.name}/{self.remote.branch}" if self.remote else self.target

    @property
    def target_ref(self) -> str:
        return self.remote.ref if self.remote else f"refs/heads/{self.target}"

    def started(self, resumed: bool = False) -> BacklogStarted:
        """Return the event with which the run begins or resumes."""
        return BacklogStarted(
            name=self.name,
            backlog=self.source.name,
            workspace=self.workspace,
            target=self.shown_target,
            base=self.base,
            push=self.shown_target if self.remote else "",
            checks=self.checks,
            slots=self.slots,
            max_returns=self.returns,
            max_cost=self.max_cost,
            max_time=self.max_time,
            pid=os.getpid(),
            version=__version__,
            resumed=resumed,
        )

    def is_overdue(self, elapsed: float) -> bool:
        """Return whether the time limit has passed."""
        return self.max_time is not None and elapsed >= self.max_time

    def branch_of(self, key: str) -> str:
        return f"ralph/{self.name}/{key}"

    def worktree_of(self, repository: Git, key: str) -> Worktree:
        return worktree_named(repository, f"-{self.name}-{key}", self.branch_of(key))

    def gate_worktree(self, repository: Git) -> Worktree:
        """Return the gate's worktree. No task's key begins with a dot."""
        return worktree_named(repository, f"-{self.name}.gate", "")

    def reserved_names(self, repository: Git) -> Reserved:
        settings = tuple(os.path.join(repository.prefix, name) for name in SETTINGS)
        tick = self.source.ticked if self.remote else self.source.ticked_as_edited
        return Reserved(self.source.paths, settings, tick)


class Assignment(Struct, frozen=True, kw_only=True):
    """What one loop works on.

    - `worker` names this machine if another one had the task before.
    - `push_settings` are git's settings for pushing when the backlog run began.
    - `red` are the checks that fail on the target, if that is allowed.
    """

    job: Job
    run: str
    attempt: int = 1
    worker: str = ""
    push_settings: GitSettings | None = None
    red: tuple[FailedCheck, ...] = ()


def folder_of(path: str) -> RunFolder:
    """Return the folder of a backlog run."""
    place = Path(path)
    return RunFolder(place.parent.parent, place.name)


Known = TypeVar("Known")


def read(folder: RunFolder, name: str, kind: type[Known]) -> Known:
    """Read a file of the backlog run's order folder; raise a UserError if it is malformed."""
    path = f"{backlog_order_folder(folder.path)}/{name}"
    data = read_order(path, folder.id)
    try:
        return convert_stored(msgspec.json.decode(data), kind)
    except UNREADABLE as error:
        message = f"cannot parse {path}: {one_line(str(error))}"
        raise UserError(message, "was it written by another version of ralph?") from None


def decode_order(text: str) -> BacklogOrder:
    """Decode an order from a database."""
    try:
        return convert_stored(msgspec.json.decode(text), BacklogOrder)
    except UNREADABLE as error:
        raise UserError(f"cannot parse its order: {one_line(str(error))}", "was it written by a newer ralph?") from None


def put(folder: RunFolder, name: str, value: object) -> None:
    """Write a file of the backlog run's order folder, for its child processes."""
    save_file(f"{backlog_order_folder(folder.path)}/{name}", msgspec.json.encode(value))


def put_order(folder: RunFolder, order: BacklogOrder) -> None:
    """Store the order, and a copy for people in the run's folder."""
    put(folder, ORDER, order)
    folder.write(ORDER, msgspec.json.encode(order))


def assignment_of(key: str) -> str:
    return f"{TASKS}/{key}.json"


def assign_task(
    order: BacklogOrder,
    folder: RunFolder,
    board: Board,
    key: str,
    *,
    push_settings: GitSettings | None,
    worker: str = "",
) -> TaskStarted:
    """Write the assignment of a task's next loop; return the event that it starts. An interrupted run is resumed.

    `worker` names this machine in a fleet.
    """
    job = board.jobs[key]
    summary = read_summary(str(folder.path.parent / job.run)) if job.run else None
    resumes = summary is not None and summary.outcome in ("", Outcome.INTERRUPTED.value)
    run = job.run if resumes else new_run_id(time.time())
    if resumes:  # it may have ended while the backlog run was paused
        Mailbox(str(folder.path.parent / run)).unpause()
    attempt = job.attempts if resumes else job.attempts + 1
    assigned = Assignment(
        job=job,
        run=run,
        attempt=attempt,
        worker=worker if job.attempts else "",
        push_settings=push_settings,
        red=board.red,
    )
    put(folder, assignment_of(key), assigned)
    return TaskStarted(key, attempt, run, worker)


def make_target(order: BacklogOrder, repository: Git) -> None:
    """Create the target branch unless it exists. Store the order first: it names the run that owns the branch."""
    ref = f"refs/heads/{order.target}"
    if order.remote is None and not repository.resolve(ref):
        merging.move_target(repository, ref, order.base, "")
