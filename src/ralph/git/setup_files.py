"""What `.worktreeinclude` and `--setup` made in one of ralph's worktrees: not the agent's work while it is unchanged.

`worktree_setup` records these files once, after the setup, in a file next to the worktree. Checkpoints, commits and
`git clean` leave out those that are still the same, and `git status` of the agent doesn't list them.
"""

import os
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from hashlib import blake2b

import msgspec
from msgspec import Struct

from ralph.errors import UserError
from ralph.files import Stamp, read_given, replace_file, stamp

RECORD_SUFFIX, EXCLUDES_SUFFIX = ".setup", ".excludes"  # of the files next to the worktree
MAX_RECORD = 1 << 30  # bytes; a million files have a fifth of it
MAX_CONTENT = 1 << 30  # bytes; a larger file counts as changed if its times have changed

TreeEntry = tuple[bytes, str]
"""Mode of a file in a git tree, and the hash of its object."""


class SetupFile(Struct, array_like=True, frozen=True):
    """A file that the setup made, changed or removed."""

    path: bytes
    before: TreeEntry | None
    """The file in the commit. None if the setup created it."""
    after: TreeEntry | None
    """The file after the setup. None if the setup removed it."""
    stamp: Stamp
    digest: bytes


class SetupFiles(Struct, array_like=True):
    """The files of one worktree that are no work."""

    files: tuple[SetupFile, ...] = ()
    included: frozenset[bytes] = frozenset()
    """Copied by `.worktreeinclude`, such as `.env`. They are never work, not even if git doesn't ignore them now."""

    def unchanged(self, root: str) -> dict[bytes, TreeEntry | None]:
        """Return the files that are not work in the worktree at `root`, as the commit before the setup has them."""
        return {file.path: file.before for file in self.files if is_unchanged(root, file)} | dict.fromkeys(
            self.included
        )

    def new(self) -> list[bytes]:
        """Return the paths that the commit doesn't have."""
        return [*(file.path for file in self.files if file.before is None), *sorted(self.included)]


def is_unchanged(root: str, file: SetupFile) -> bool:
    """Return whether a file is still as the setup left it. A new time alone is no change."""
    place = os.path.join(os.fsencode(root), file.path)
    return file.stamp == _stamp(place) or file.digest == _digest(place)


def describe(root: str, path: bytes, before: TreeEntry | None, after: TreeEntry | None) -> SetupFile:
    """Return the description of a file that the setup has just made, changed or removed."""
    place = os.path.join(os.fsencode(root), path)
    return SetupFile(path, before, after, _stamp(place), _digest(place))


def load_setup_files(root: str) -> SetupFiles:
    """Return what is recorded for the worktree at `root`; nothing for a folder that isn't a worktree of ralph."""
    with suppress(OSError, UserError, msgspec.MsgspecError):
        return msgspec.msgpack.decode(read_given(root + RECORD_SUFFIX, MAX_RECORD), type=SetupFiles)
    return SetupFiles()


def save_setup_files(root: str, setup: SetupFiles, ignored_by_user: bytes) -> None:
    """Record what the setup made. `ignored_by_user` are the user's own patterns for files that git ignores everywhere,
    because git reads only one such file."""
    patterns = b"".join(b"/" + _escape(path) + b"\n" for path in setup.new())
    replace_file(root + EXCLUDES_SUFFIX, ignored_by_user.rstrip(b"\n") + b"\n" + patterns)
    replace_file(root + RECORD_SUFFIX, msgspec.msgpack.encode(setup))


def forget_setup_files(root: str) -> None:
    for suffix in (RECORD_SUFFIX, EXCLUDES_SUFFIX):
        with suppress(FileNotFoundError):
            os.unlink(root + suffix)


def excludes_file(root: str) -> str:
    """Return the file with the patterns by which git ignores what the setup made; empty if there is none."""
    path = root + EXCLUDES_SUFFIX
    return path if os.path.isfile(path) else ""


def quiet_environment(excludes: str, env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with which git ignores what the patterns in the file `excludes` name.

    `info/exclude` would hide these names in the user's tree as well, because git reads it from the common folder.
    """
    count = int(number) if (number := env.get("GIT_CONFIG_COUNT", "")).isdigit() else 0
    return {
        "GIT_CONFIG_COUNT": str(count + 1),
        f"GIT_CONFIG_KEY_{count}": "core.excludesFile",
        f"GIT_CONFIG_VALUE_{count}": excludes,
    }


def parse_raw_changes(out: bytes) -> Iterable[tuple[bytes, TreeEntry | None, TreeEntry | None]]:
    """Yield path, entry before and entry after of each change that `git diff-tree -r -z --no-renames` prints."""
    fields = out.split(b"\0")
    for about, path in zip(fields[::2], fields[1::2], strict=False):
        mode, new_mode, name, new_name, _ = about.removeprefix(b":").split()
        yield path, _entry(mode, name), _entry(new_mode, new_name)


def _entry(mode: bytes, name: bytes) -> TreeEntry | None:
    return (mode, name.decode()) if mode.strip(b"0") else None


def _escape(path: bytes) -> bytes:
    """Return a pattern of .gitignore that matches only this path."""
    special = b"\\*?[ !#"
    return b"".join(b"\\" + bytes([char]) if char in special else bytes([char]) for char in path)


def _stamp(place: bytes) -> Stamp:
    try:
        return stamp(os.lstat(place))
    except OSError:
        return ()


def _digest(place: bytes) -> bytes:
    """Return a hash of a file's kind and content; empty if there is no file."""
    try:
        info = os.lstat(place)
        if stat.S_ISLNK(info.st_mode):
            return b"link " + os.readlink(place)
        kind = b"program " if info.st_mode & 0o100 else b"file "
        return kind + blake2b(read_given(os.fsdecode(place), MAX_CONTENT), digest_size=20).digest()
    except (OSError, UserError):
        return b""
