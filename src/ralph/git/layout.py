"""Read the small files in which git keeps HEAD, branches and the links between worktrees, without running git."""

import os
from contextlib import suppress

from ralph.errors import UserError
from ralph.files import read_given

MAX_NAME = 4096 + len("gitdir: \n")  # bytes; no path is longer
MAX_PACKED_REFS = 1 << 20  # bytes; running git is faster than reading a larger file
SHA1_DIGITS, SHA256_DIGITS = 40, 64


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


def read_ref(git_dir: str, name: str) -> str | None:
    """Return the commit that HEAD or a branch points to, "" if there is no such branch, None if only git can tell."""
    common, content = common_dir_of(git_dir), ""
    if name == "HEAD":
        content = read_name(os.path.join(git_dir, "HEAD"))
        name = content[5:].removesuffix("\n") if content.startswith("ref: refs/heads/") else ""
    elif not name.startswith(("refs/heads/", "refs/remotes/")):
        return None
    if name:
        if {".", ".."} & {*name.split("/")}:
            return None
        content = _ref_content(common, name)
        if not content:
            return "" if os.path.isdir(os.path.join(common, "refs", "heads")) else None
    commit = content.removesuffix("\n")
    is_commit = len(commit) in (SHA1_DIGITS, SHA256_DIGITS) and not commit.strip("0123456789abcdef")
    return commit if is_commit and commit.strip("0") and content.endswith("\n") else None


def _ref_content(common_dir: str, ref: str) -> str:
    """Return what the ref's own file says, or the line about it in packed-refs; empty if there is neither."""
    try:
        return read_name(os.path.join(common_dir, ref)) or "empty"
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        with suppress(FileNotFoundError):
            packed = read_given(os.path.join(common_dir, "packed-refs"), MAX_PACKED_REFS)
            before, found, _ = packed.partition(b" %b\n" % os.fsencode(ref))
            return os.fsdecode(before.rpartition(b"\n")[2]) + "\n" if found else ""
    return ""
