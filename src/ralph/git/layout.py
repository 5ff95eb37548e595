"""Read the small files in which git keeps HEAD and the links between worktrees."""

import os

from ralph.errors import UserError
from ralph.files import read_given

MAX_NAME = 4096 + len("gitdir: \n")  # bytes; no path is longer


def read_name(path: str) -> str:
    """Return the content of one of git's small files, up to the first NUL."""
    return os.fsdecode(read_given(path, MAX_NAME).partition(b"\0")[0])


def read_line(path: str) -> str:
    """Return the stripped content of one of git's small files; empty if it cannot be read."""
    try:
        return read_name(path).strip()
    except OSError:
        return ""


def git_dir_of(worktree: str) -> str:
    """Return the git folder of a working tree: where its HEAD and index are."""
    mark = os.path.join(worktree, ".git")
    if os.path.isdir(mark):
        return mark
    try:
        return os.path.join(worktree, read_name(mark).removeprefix("gitdir:").strip())
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UserError(f"cannot read {mark}: {error.strerror}", "remove that worktree: git worktree remove") from None


def common_dir_of(git_dir: str) -> str:
    """Return the folder with objects, refs and settings, which linked worktrees share."""
    try:
        name = read_name(os.path.join(git_dir, "commondir")).removesuffix("\n")
    except OSError:
        return git_dir
    return os.path.normpath(os.path.join(git_dir, name))
