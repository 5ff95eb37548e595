"""Set up worktrees: submodules, the ignored files that `.worktreeinclude` names, and throwaway copies.

A throwaway copy is a worktree without branch or ref, in which checks may do anything. It is removed when its user is
finished. If ralph is killed, the keeper removes it; if the keeper is killed as well, the next copy of the same
repository does.
"""

import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from msgspec.structs import replace

from ralph.errors import UserError
from ralph.files import is_alive, write_file
from ralph.git.client import Git, git_at
from ralph.git.index import gitlinks, submodule_paths
from ralph.git.worktrees import (
    COPIED_LIST,
    Worktree,
    check_out,
    registered_git_dir,
    remove_folder,
    worktree_lock,
    worktree_named,
)
from ralph.process.keeper import PACKAGE_ROOT, Keeper, KeeperLost

INCLUDE_FILE = ".worktreeinclude"
PREPARED = "ralph-prepared"  # file in the worktree's git folder; before it exists nobody has worked there


def is_prepared(worktree: Worktree) -> bool:
    """Return whether submodules, included files and setup of this worktree are complete."""
    kept = registered_git_dir(worktree)
    return bool(kept) and os.path.lexists(worktree.path) and os.path.exists(os.path.join(kept, PREPARED))


def mark_prepared(worktree: Worktree) -> None:
    write_file(os.path.join(worktree.git.git_dir, PREPARED), b"")


def init_submodules(home: Git, git: Git) -> list[str]:
    """Check out the submodules of a new worktree; return those that the user's own tree `home` does not have either.

    They are cloned from the user's tree, which needs no network and no keys.
    """
    missing: list[str] = []
    linked = gitlinks(git)
    for path, name in submodule_paths(git).items():
        folder = os.fsdecode(path)
        source = os.path.join(home.root, folder)
        if path not in linked:
            continue
        if not os.path.lexists(os.path.join(source, ".git")):
            missing.append(folder)
            continue
        users = git_at(source)
        local = ("-c", "protocol.file.allow=always", "-c", f"submodule.{name}.url={users.git_dir}")
        if git.try_run(*local, "submodule", "--quiet", "update", "--init", "--", folder).code:
            missing.append(folder)
        else:
            inside = init_submodules(users, git_at(os.path.join(git.root, folder)))
            missing += [os.path.join(folder, name) for name in inside]
    return missing


def copy_included_files(home: Git, git: Git) -> None:
    """Copy the ignored files that `.worktreeinclude` names (patterns as in .gitignore) into a worktree."""
    patterns = os.path.join(home.root, INCLUDE_FILE)
    if not os.path.isfile(patterns):
        return
    args = ("ls-files", "-z", "--others", "--ignored", f"--exclude-from={patterns}")
    included = [path for path in home.run(*args).split(b"\0") if path]
    found = home.try_run("check-ignore", "-z", "--stdin", stdin=b"\0".join(included)).out.split(b"\0")
    ignored = [path for path in found if path]
    write_file(os.path.join(git.git_dir, COPIED_LIST), b"\0".join(ignored))
    for path in ignored:
        target, source = git.place(path), home.place(path)
        if b".ralph" in path.split(b"/") or os.path.lexists(target) or not os.path.isfile(source):
            continue
        with suppress(FileNotFoundError):  # another program may just be removing it
            os.makedirs(os.path.dirname(target), exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)


_NAME = re.compile(r"-(\d+)\.copy")  # the end of a copy's folder name; the number is the pid of its ralph
_CLEANUP = "import sys; from ralph.git.worktree_setup import remove_copy; remove_copy(*sys.argv[1:])"


@contextmanager
def check_out_copy(home: Git, run_id: str, commit: str, keeper: Keeper, name: str = "") -> Iterator[Worktree]:
    """Yield a throwaway copy of the user's repository `home` at this commit; remove it afterwards.

    `name` distinguishes several copies of one run.
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
