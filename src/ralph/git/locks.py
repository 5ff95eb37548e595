"""Retry git commands that meet a lock or a race, remove the locks of killed gits, and update ralph's refs."""

import math
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import count

from msgspec import Struct

from ralph.git.client import Git, git_error, read_line


class RetryPolicy(Struct, frozen=True):
    """Retry until `attempts` are used up or `timeout` seconds have passed; the delay grows by `factor`."""

    timeout: float = math.inf
    attempts: int | None = None
    delay: float = 0.0
    factor: float = 1.0
    max_delay: float = 5.0

    def tries(self) -> Iterator[bool]:
        """Yield once for each attempt, True for the last one, and sleep between attempts."""
        began, delay = time.monotonic(), self.delay
        for number in count(1):
            is_last = number == self.attempts or time.monotonic() - began >= self.timeout
            yield is_last
            if is_last:
                return
            time.sleep(min(delay, self.max_delay))
            delay *= self.factor


# A ref is locked for milliseconds. A lock that stays longer belongs to a killed git: see `remove_stale`.
LOCKED_REF = RetryPolicy(timeout=10.0, delay=0.01)
# A remote may be unreachable for a while; callers set the timeout.
REMOTE_AWAY = RetryPolicy(delay=0.1, factor=2.0)

STALE = 2.0  # seconds; git holds the lock of a ref or an index for milliseconds
STALE_PACKED_REFS = 10.0  # seconds; git needs one or two to write all refs, even if there are a million


def remove_stale_locks(git: Git, *refs: str) -> None:
    """Remove the locks that a killed git left in one of ralph's worktrees, and on these refs."""
    remove_stale(git, *(os.path.join(git.git_dir, name) for name in ("index.lock", "HEAD.lock")))
    remove_stale_ref_locks(git, *refs)


def remove_stale_ref_locks(git: Git, *refs: str) -> None:
    """Remove the locks on refs that only ralph writes; turn a symbolic ref back into an ordinary one."""
    common = git.common_dir
    remove_stale(git, *(os.path.join(common, f"{ref}.lock") for ref in refs))
    for ref in refs:
        if read_line(os.path.join(common, ref)).startswith("ref:"):  # a commit would move the branch it points to
            git.run("update-ref", "--no-deref", ref, git.resolve(ref))


def remove_stale(git: Git, *locks: str, age: float = STALE) -> bool:
    """Wait until these locks are `age` seconds old, then remove them: no living git can hold them.

    Return whether there was a lock. A lock stays if the run has no time left to wait.
    """
    any_stale = False
    for lock in locks:
        with suppress(FileNotFoundError, NotADirectoryError):
            while abs(since := time.time() - os.stat(lock).st_mtime) < age:
                any_stale = True
                if git.time_left() < age:
                    return True
                time.sleep(min(age - abs(since), 0.05))
            os.unlink(lock)
            any_stale = True
    return any_stale


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
    """Run `git update-ref --stdin` with these lines. Only ralph writes these refs, so a lock on them is stale."""
    remove_reflog_links(git, *(change.split()[1] for change in changes))
    args = ("-c", "core.logAllRefUpdates=false", "update-ref", "--no-deref", "--stdin")
    lines = "".join(f"{change}\n" for change in changes).encode("utf-8", "surrogateescape")
    result = git.try_run(*args, stdin=lines)
    if result.found_lock:
        remove_stale_ref_locks(git, *(change.split()[1] for change in changes))
        # A git that was killed while it removed a branch blocks every other removal.
        remove_stale(git, os.path.join(git.common_dir, "packed-refs.lock"), age=STALE_PACKED_REFS)
        result = git.try_run(*args, stdin=lines)
    if result.code:
        raise git_error(args, result)
