"""What was asked for when a backlog was taken on, and what passes between the processes that work it off? Small files
in the work's folder, and one line that each process prints at its end."""

import os
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from ralph import __version__
from ralph.backlog.backlog_source import BacklogSource
from ralph.core.backlog import Item
from ralph.core.text import one_line
from ralph.core.work_events import WorkStarted
from ralph.errors import UserError
from ralph.files import read_file
from ralph.records.folder import RunFolder
from ralph.repository.git import Repository
from ralph.repository.landing import Remote
from ralph.repository.worktrees import Worktree, named
from ralph.settings import Settings

ORDER, REQUEST, ITEMS = "work.json", "gate.json", "items"
SETTINGS = (".ralph/settings.json", ".ralph/settings.local.json")


class WorkOrder(Struct, frozen=True, kw_only=True):
    """Fixed when a work starts. `name` is what its branches are called by; `settings` are those of each loop; `target`
    is a branch here, unless `remote` has it; `base` is where the target starts; `is_shared` where many machines work on
    it, so that the items' branches live on the remote, too."""

    id: str
    name: str
    workspace: str
    source: BacklogSource
    settings: Settings
    target: str
    base: str
    remote: Remote | None = None
    agent_args: tuple[str, ...] = ()
    slots: int = 1
    returns: int = 3
    max_cost: float | None = None
    max_time: float | None = None
    setup: str = ""
    version: str = ""
    is_shared: bool = False

    @property
    def checks(self) -> tuple[str, ...]:
        return tuple(guardrail.command for guardrail in self.settings.guardrails)

    @property
    def shown_target(self) -> str:
        return f"{self.remote.name}/{self.remote.branch}" if self.remote else self.target

    @property
    def target_ref(self) -> str:
        return self.remote.ref if self.remote else f"refs/heads/{self.target}"

    def started(self, resumed: bool = False) -> WorkStarted:
        """The event with which it begins, or goes on."""
        return WorkStarted(
            name=self.name,
            backlog=self.source.name,
            workspace=self.workspace,
            target=self.shown_target,
            base=self.base,
            push=self.shown_target if self.remote else "",
            checks=self.checks,
            slots=self.slots,
            most_returns=self.returns,
            max_cost=self.max_cost,
            max_time=self.max_time,
            pid=os.getpid(),
            version=__version__,
            resumed=resumed,
        )

    def branch_of(self, key: str) -> str:
        return f"ralph/{self.name}/{key}"

    def worktree_of(self, repository: Repository, key: str) -> Worktree:
        return named(repository, f"-{self.name}-{key}", self.branch_of(key))

    def gate_in(self, repository: Repository) -> Worktree:
        """The gate's own working tree: no item's key begins with a dot."""
        return named(repository, f"-{self.name}.gate", "")

    def kept(self, repository: Repository) -> tuple[str, ...]:
        """The settings that no branch may change, from the top of the repository."""
        return tuple(os.path.join(repository.prefix, name) for name in SETTINGS)


class Assignment(Struct, frozen=True):
    """What one loop is for. `note` is what the gate saw, or what a person said, `is_returned` which of them. `worker`
    is set where it was somebody else's before, who may not know that yet."""

    item: Item
    run: str
    note: str = ""
    is_returned: bool = False
    worker: str = ""


class Looped(Struct, frozen=True, kw_only=True):
    """What came of a loop. `tip` is the commit of its work, `files` what that changes."""

    outcome: str
    reason: str
    exit_code: int
    run: str
    verified: bool = False
    cost_usd: float | None = None
    tip: str = ""
    files: tuple[str, ...] = ()


def folder_of(path: str) -> RunFolder:
    """The folder of a work, by its path."""
    place = Path(path)
    return RunFolder(place.parent.parent, place.name)


Known = TypeVar("Known")


def read(folder: RunFolder, name: str, kind: type[Known]) -> Known:
    path = folder.path / name
    try:
        return msgspec.json.decode(read_file(path), type=kind)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}", "start the work anew") from None
    except msgspec.MsgspecError as error:
        said = one_line(str(error))
        raise UserError(f"cannot understand {path}: {said}", "was it written by another version of ralph?") from None


def put(folder: RunFolder, name: str, value: object) -> None:
    folder.write(name, msgspec.json.encode(value))


def assignment_of(key: str) -> str:
    return f"{ITEMS}/{key}.json"
