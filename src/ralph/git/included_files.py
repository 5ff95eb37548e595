"""Ignored files that every worktree of a repository needs, such as `.env`: `.worktreeinclude` names them."""

import os
import shutil
from contextlib import suppress

from ralph.errors import UserError
from ralph.files import read_given, write_file
from ralph.git.client import Git

INCLUDE_FILE = ".worktreeinclude"
COPIED_LIST = "ralph-carried"
MAX_COPIED_LIST = 1 << 26  # bytes


def copied_files(git: Git) -> list[bytes]:
    """Return the files that were copied into a worktree: not work, even if `.gitignore` no longer names them."""
    with suppress(OSError, UserError):
        return read_given(os.path.join(git.git_dir, COPIED_LIST), MAX_COPIED_LIST).split(b"\0")
    return []


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
        target = os.path.join(os.fsencode(git.root), path)
        source = os.path.join(os.fsencode(home.root), path)
        if b".ralph" in path.split(b"/") or os.path.lexists(target) or not os.path.isfile(source):
            continue
        with suppress(FileNotFoundError):  # somebody may just be removing it
            os.makedirs(os.path.dirname(target), exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
