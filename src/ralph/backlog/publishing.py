"""How does the work on an item reach the other machines of a fleet? By its branch on the remote, pushed after every
iteration: only from where we left it, and only while this worker is in charge."""

import os
import time
from contextlib import suppress
from pathlib import Path

from ralph.backlog import item_worktrees
from ralph.backlog.work_order import WorkOrder
from ralph.errors import UserError
from ralph.files import read_given
from ralph.processes.interrupt import Interrupt
from ralph.repository import landing
from ralph.repository.git import Repository, commit_of
from ralph.repository.landing import Remote, refused_because

CHARGE = "charge"
LOOK = 0.2  # seconds between two looks at whether we are in charge again
PATIENCE = 60.0  # seconds for a remote that is away
TRIES = 5
TAKEN = "another worker has this item"


class Charge:
    """Until when a worker is surely in charge of what it has taken, in a file of the work's folder: its loops and
    landings are processes of their own, and ask here before they push. The moment is one of the clock that all
    processes of a machine share, and that nobody sets."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / CHARGE

    def extend(self, until: float) -> None:
        fresh = self._path.with_name(f".{CHARGE}.new")
        fresh.write_text(repr(until))
        os.replace(fresh, self._path)

    def end(self) -> None:
        with suppress(OSError):
            self._path.unlink()

    def holds(self) -> bool:
        try:
            return time.monotonic() < float(read_given(self._path, 100))
        except (OSError, ValueError):
            return False

    def wait(self, interrupt: Interrupt) -> bool:
        """Until we are in charge; False where somebody wants us to end first."""
        while not self.holds():
            if interrupt.wait(LOOK):
                return False
        return True


def clear_remote(work: WorkOrder, home: Repository) -> None:
    """Removes the branches of items that are in the target, where whoever landed them was killed before."""
    if work.remote is None:
        return
    prefix = f"refs/remotes/{work.remote.name}/"
    work.remote.fetch(home, work.branch_of(""))
    out = home.git("for-each-ref", "--format=%(objectname) %(refname)", f"{prefix}{work.branch_of('')}")
    tips = {ref.removeprefix(prefix): tip for tip, ref in map(str.split, out.decode("utf-8", "replace").splitlines())}
    left = landing.unlanded(home, work.target_ref, {*tips.values()})
    work.remote.drop(home, {branch: tip for branch, tip in tips.items() if tip not in left})


class Taken(Exception):
    """The branch is no longer where we left it: the item is somebody else's now."""


class Publisher:
    """The branch of one item on the remote. `_left` is where we left it there. It is kept here and nowhere else: what
    git knows of the remote's branches changes with every fetch, also by others in this clone, and a lease on that
    would prove nothing."""

    def __init__(self, work: WorkOrder, home: Repository, key: str, charge: Charge, interrupt: Interrupt) -> None:
        assert work.remote is not None
        self._work, self._home, self._key = work, home, key
        self._remote: Remote = work.remote
        self._charge, self._interrupt = charge, interrupt
        self._branch = work.branch_of(key)
        self._left = ""

    def prepare(self) -> None:
        """Brings the target and the item's branch here as the remote has them; what was done here since and was never
        pushed counts only where it grew from that."""
        self._remote.fetch(self._home, self._branch, PATIENCE)
        self._left = commit_of(self._home.root, f"refs/remotes/{self._remote.name}/{self._branch}")
        if self._left:
            item_worktrees.align(self._work, self._home, self._key, self._left)

    def fence(self, worker: str) -> None:
        """Moves the branch before anything is done on it: whoever had the item before us can push no more."""
        for _ in range(TRIES):
            tip = commit_of(self._home.root, f"refs/heads/{self._branch}")
            fence = landing.on_top_of(self._home, tip, f"ralph: {worker} goes on with {self._key}")
            self._home.git("update-ref", f"refs/heads/{self._branch}", fence, tip)
            with suppress(Taken):
                if self.push():
                    return
            self._left = self._remote.known(self._home, [self._branch])[self._branch]
        raise UserError(f"{self._remote.name} does not take {self._branch}", "look at the remote, and start again")

    def push(self) -> bool:
        """Pushes what is committed; whether it is there now. Not being in charge is no reason to stop working."""
        tip = commit_of(self._home.root, f"refs/heads/{self._branch}")
        if tip == self._left:
            return True
        if not self._charge.holds():
            return False
        answer = self._remote.push_branch(self._home, self._branch, tip, self._left)
        if answer.code:
            try:
                now = self._remote.known(self._home, [self._branch])[self._branch]
            except UserError:
                return False  # nobody is to be reached there: later
            if now != tip and now != self._left:
                raise Taken
            if now != tip:
                said = refused_because(answer)
                raise UserError(f"{self._remote.name} refuses {self._branch}: {said}", "may it be pushed to?")
        self._left = tip
        return True

    def settle(self) -> bool:
        """Pushes the last of it, however long that takes; False where somebody wants us to end first."""
        while not self.push():
            if not self._charge.wait(self._interrupt) or self._interrupt.wait(LOOK):
                return False
        return True
