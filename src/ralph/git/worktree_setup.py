"""Set up worktrees: submodules, the ignored files that `.worktreeinclude` names, and throwaway copies.

A throwaway copy is a worktree without branch or ref, in which checks may do anything. It is removed when its user is
finished. If ralph is killed, the keeper removes it; if the keeper is killed as well, the next run, the next copy or
`ralph clean` does. They recognise it by a file next to it, which is locked while the copy is in use.
"""

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex

from msgspec.structs import replace

from ralph.errors import UserError
from ralph.files import hold, locked, names_in, read_file, write_file
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
    worktrees_folder,
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


COPY, OWNER = ".copy", ".copy.owner"  # the ends of the names of a copy, and of its file, which names the repository
_CLEANUP = "from ralph.git.worktree_setup import remove_abandoned_copies; remove_abandoned_copies()"
_ARGV = (sys.executable, "-P", "-c", _CLEANUP)


@contextmanager
def check_out_copy(home: Git, run_id: str, commit: str, keeper: Keeper, name: str = "") -> Iterator[Worktree]:
    """Yield a throwaway copy of the user's repository `home` at this commit; remove it afterwards.

    `name` distinguishes several copies of one run.
    """
    free = replace(home, deadline=None)  # an interrupted run still has to tidy up
    copy = worktree_named(free, f"-{run_id}{name}-{token_hex(4)}{COPY}", "")
    owner = copy.path.removesuffix(COPY) + OWNER
    handle = None
    try:
        with worktree_lock(home):
            _remove_abandoned(os.path.dirname(copy.path))
            write_file(owner, b"\0".join(map(os.fsencode, (home.root, home.git_dir))))
            handle = hold(owner)
            keeper.set_cleanup(_ARGV, {**os.environ, "PYTHONPATH": PACKAGE_ROOT}, key=copy.path)
            check_out(replace(copy, home=home), commit)
        os.makedirs(copy.workspace, exist_ok=True)
        yield copy
    finally:
        if handle is not None:
            with worktree_lock(free):
                _remove_copy(copy, owner)
            os.close(handle)
            with suppress(KeeperLost):
                keeper.set_cleanup((), key=copy.path)


def remove_abandoned_copies() -> list[str]:
    """Remove the copies of all repositories that killed processes have left; return their paths."""
    folder = worktrees_folder()
    if not any(name.endswith(OWNER) for name in names_in(folder)):
        return []
    with locked(Path(folder)):
        return _remove_abandoned(folder)


def _remove_abandoned(folder: str) -> list[str]:
    removed = []
    for name in names_in(folder):
        owner = os.path.join(folder, name)
        if name.endswith(OWNER) and (handle := hold(owner)) is not None:
            with suppress(OSError, UserError):  # the next run tries again
                root, _, git_dir = os.fsdecode(read_file(owner)).partition("\0")
                copy = Worktree(owner.removesuffix(OWNER) + COPY, "", "", Git(root=root, git_dir=git_dir))
                _remove_copy(copy, owner)
                removed.append(copy.path)
            os.close(handle)
    return removed


def _remove_copy(copy: Worktree, owner: str) -> None:
    remove_folder(copy)
    os.unlink(owner)
