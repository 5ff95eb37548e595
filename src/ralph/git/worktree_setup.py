"""Set up worktrees: submodules, the ignored files that `.worktreeinclude` names, and throwaway copies.

A throwaway copy is a worktree without branch or ref, in which checks may do anything. It is removed when its user is
finished. If ralph is killed, the keeper removes it; if the keeper is killed as well, the next run, the next copy or
`ralph clean` does. They recognise it by a file next to it, which is locked while the copy is in use.
"""

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex

from msgspec.structs import replace

from ralph.errors import UserError
from ralph.files import config_folder, hold, locked, names_in, read_file, read_given, temporary_folder, write_file
from ralph.git.client import Git, git_at
from ralph.git.index import PrivateIndex, gitlinks, submodule_paths
from ralph.git.setup_files import (
    SetupFile,
    SetupFiles,
    describe,
    forget_setup_files,
    parse_raw_changes,
    save_setup_files,
)
from ralph.git.untracked import untracked_files
from ralph.git.worktrees import (
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
    """Record that the worktree is complete, with the untracked files that it has by now."""
    git = worktree.git
    write_file(os.path.join(git.git_dir, PREPARED), b"\0".join(sorted(untracked_files(git))))


def new_untracked_files(worktree: Worktree) -> frozenset[bytes]:
    """Return the untracked files that a worktree got after it was prepared."""
    git = worktree.git
    try:
        before = read_file(os.path.join(git.git_dir, PREPARED)).split(b"\0")
    except OSError:
        before = []
    return untracked_files(git) - {*before}


def init_submodules(repository: Git, git: Git) -> list[str]:
    """Check out the submodules of a new worktree; return those that the user's own tree lacks as well.

    They are cloned from the user's tree, which needs no network and no keys.
    """
    missing: list[str] = []
    linked = gitlinks(git)
    for path, name in submodule_paths(git).items():
        folder = os.fsdecode(path)
        source = os.path.join(repository.root, folder)
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


def copy_included_files(repository: Git, git: Git) -> list[bytes]:
    """Copy the ignored files that `.worktreeinclude` names (patterns as in .gitignore) into a worktree; return them."""
    patterns = os.path.join(repository.root, INCLUDE_FILE)
    if not os.path.isfile(patterns):
        return []
    args = ("ls-files", "-z", "--others", "--ignored", f"--exclude-from={patterns}")
    names = [path for path in repository.run(*args).split(b"\0") if path]
    ignored = repository.try_run("check-ignore", "-z", "--stdin", stdin=b"\0".join(names)).out.split(b"\0")
    included = [path for path in ignored if path and b".ralph" not in path.split(b"/")]
    for path in included:
        target, source = git.place(path), repository.place(path)
        # A link is copied as a link, even to a folder: npm workspaces and pnpm link their packages.
        if os.path.lexists(target) or not (os.path.isfile(source) or os.path.islink(source)):
            continue
        with suppress(FileNotFoundError):  # another program may just be removing it
            os.makedirs(os.path.dirname(target), exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
    return included


def record_setup(worktree: Worktree, included: Sequence[bytes]) -> list[SetupFile]:
    """Record what the setup of a worktree made, changed or removed, apart from ignored files; return it."""
    git = worktree.git
    forget_setup_files(git.root)
    with temporary_folder() as folder:
        index = PrivateIndex(git, folder)
        index.begin()
        tree = index.tree(whole=True).files
        changes = git.run("diff-tree", "-r", "-z", "--no-renames", "HEAD", tree)
    files = [describe(git.root, *change) for change in parse_raw_changes(changes) if change[0] not in {*included}]
    if files or included:
        everywhere = _ignored_everywhere(worktree.repository)
        save_setup_files(git.root, SetupFiles(tuple(files), frozenset(included)), everywhere)
    return files


def _ignored_everywhere(repository: Git) -> bytes:
    """Return the patterns of the user's `core.excludesFile`."""
    named = repository.try_run("config", "--type=path", "--get", "core.excludesFile").out.removesuffix(b"\n")
    default = os.path.join(os.path.dirname(config_folder(os.environ)), "git/ignore")
    with suppress(OSError):
        return read_given(os.fsdecode(named) or default)
    return b""


COPY, OWNER = ".copy", ".copy.owner"  # the ends of the names of a copy, and of its file, which names the repository
_CLEANUP = "from ralph.git.worktree_setup import remove_abandoned_copies; remove_abandoned_copies()"
_ARGV = (sys.executable, "-P", "-c", _CLEANUP)


@contextmanager
def check_out_copy(repository: Git, run_id: str, commit: str, keeper: Keeper, name: str = "") -> Iterator[Worktree]:
    """Yield a throwaway copy of the user's repository at this commit; remove it afterwards.

    `name` distinguishes several copies of one run.
    """
    free = replace(repository, deadline=None)  # an interrupted run still has to tidy up
    copy = worktree_named(free, f"-{run_id}{name}-{token_hex(4)}{COPY}", "")
    owner = copy.path.removesuffix(COPY) + OWNER
    handle = None
    try:
        with worktree_lock(repository):
            _remove_abandoned(os.path.dirname(copy.path))
            write_file(owner, b"\0".join(map(os.fsencode, (repository.root, repository.git_dir))))
            handle = hold(owner)
            keeper.set_cleanup(_ARGV, {**os.environ, "PYTHONPATH": PACKAGE_ROOT}, key=copy.path)
            check_out(replace(copy, repository=repository), commit)
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
