"""Throwaway worktrees: a state of the repository in which checks may do anything, without branch or ref.

A copy is removed when its user is finished. If ralph is killed, the keeper removes it; if the keeper is killed as well,
the next copy of the same repository does.
"""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from msgspec.structs import replace

from ralph.errors import UserError
from ralph.files import is_alive
from ralph.git.client import Git
from ralph.git.worktrees import Worktree, check_out, registered_git_dir, remove_folder, worktree_lock, worktree_named
from ralph.process.keeper import PACKAGE_ROOT, Keeper, KeeperLost

_NAME = re.compile(r"-(\d+)\.copy")  # at the end of a copy's folder; the number is the pid of its ralph
_CLEANUP = "import sys; from ralph.git.throwaway import remove_copy; remove_copy(*sys.argv[1:])"


@contextmanager
def check_out_copy(home: Git, run_id: str, commit: str, keeper: Keeper, name: str = "") -> Iterator[Worktree]:
    """Yield a new worktree of the user's repository `home` at this commit; it is gone afterwards.

    `name` tells several copies of one run apart.
    """
    free = replace(home, deadline=None)  # an interrupted run still has to tidy up
    copy = worktree_named(free, f"-{run_id}{name}-{os.getpid()}.copy", "")
    argv = (sys.executable, "-P", "-c", _CLEANUP, copy.path, home.root, home.git_dir)
    try:
        with worktree_lock(home):
            _remove_abandoned(free, os.path.dirname(copy.path))
            keeper.set_cleanup(argv, {**os.environ, "PYTHONPATH": PACKAGE_ROOT}, key=copy.path)
            check_out(replace(copy, home=home), commit)
        os.makedirs(copy.workspace, exist_ok=True)
        yield copy
    finally:
        with worktree_lock(free):
            remove_folder(copy)
        with suppress(KeeperLost):
            keeper.set_cleanup((), key=copy.path)


def remove_copy(path: str, root: str, git_dir: str) -> None:
    """Remove a copy whose ralph was killed."""
    remove_folder(Worktree(path, "", path, Git(root=root, git_dir=git_dir)))


def _remove_abandoned(home: Git, folder: str) -> None:
    """Remove the copies of this repository that were left when ralph and its keeper were both killed."""
    for name in os.listdir(folder):
        found = _NAME.search(name)
        copy = Worktree(os.path.join(folder, name), "", "", home)
        if found and found.end() == len(name) and not is_alive(int(found[1])) and registered_git_dir(copy):
            with suppress(UserError):
                remove_folder(copy)
