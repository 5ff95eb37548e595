"""Update refs that only ralph writes, and remove the locks that killed gits leave behind."""

import math
import os
import time
from collections.abc import Callable
from contextlib import suppress

from ralph.git.client import Git, git_error
from ralph.git.layout import read_line

STALE = 2.0  # seconds; git holds the lock of a ref or an index for milliseconds
STALE_PACKED_REFS = 10.0  # seconds; git writes all refs in one or two, even if there are a million


def remove_stale_locks(git: Git, *refs: str) -> None:
    """Remove the locks that a killed git left in one of ralph's worktrees, and on these refs."""
    remove_stale(*(os.path.join(git.git_dir, name) for name in ("index.lock", "HEAD.lock")), time_left=git.time_left)
    remove_stale_ref_locks(git, *refs)


def remove_stale_ref_locks(git: Git, *refs: str) -> None:
    """Remove the locks on refs that only ralph writes; make a symbolic ref an ordinary one again."""
    common = git.common_dir
    remove_stale(*(os.path.join(common, f"{ref}.lock") for ref in refs), time_left=git.time_left)
    for ref in refs:
        if read_line(os.path.join(common, ref)).startswith("ref:"):  # a commit would move the branch it points to
            git.run("update-ref", "--no-deref", ref, git.resolve(ref))


def remove_stale_packed_refs_lock(git: Git) -> None:
    """Remove the lock of a git that was killed while it removed a branch: it blocks every other removal."""
    remove_stale(os.path.join(git.common_dir, "packed-refs.lock"), age=STALE_PACKED_REFS, time_left=git.time_left)


def remove_stale(*locks: str, age: float = STALE, time_left: Callable[[], float] = lambda: math.inf) -> bool:
    """Remove locks once they are `age` seconds old, when no living git can hold them; return whether there was one.

    A lock stays if the run has no time left to wait for it.
    """
    found = False
    for lock in locks:
        with suppress(FileNotFoundError, NotADirectoryError):
            while abs(since := time.time() - os.stat(lock).st_mtime) < age:
                found = True
                if time_left() < age:
                    return True
                time.sleep(min(age - abs(since), 0.05))
            os.unlink(lock)
            found = True
    return found


def remove_reflog_links(git: Git, *refs: str) -> None:
    """Remove links on the way to the reflogs of refs that ralph is about to move.

    A sandboxed agent of another task can plant one while it runs, and git would append to the file it leads to.
    """
    for ref in refs:
        path = os.path.join(git.common_dir, "logs")
        for part in ref.split("/"):
            path = os.path.join(path, part)
            if os.path.islink(path):
                os.unlink(path)


def update_refs(git: Git, *changes: str) -> None:
    """Apply lines for `git update-ref --stdin` to refs that only ralph writes; a lock in the way is stale."""
    remove_reflog_links(git, *(change.split()[1] for change in changes))
    args = ("-c", "core.logAllRefUpdates=false", "update-ref", "--no-deref", "--stdin")
    lines = "".join(f"{change}\n" for change in changes).encode("utf-8", "surrogateescape")
    result = git.try_run(*args, stdin=lines)
    if result.found_lock:
        remove_stale_ref_locks(git, *(change.split()[1] for change in changes))
        remove_stale_packed_refs_lock(git)
        result = git.try_run(*args, stdin=lines)
    if result.code:
        raise git_error(args, result)
