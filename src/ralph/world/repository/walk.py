"""Has anything changed, where there is no git to ask? A walk over names, sizes and times: cheap, and less sure."""

import os
import stat
from collections.abc import Iterator

CACHES = frozenset({"__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis"})
LIBRARIES = frozenset({"node_modules", ".venv", "venv", ".tox", ".nox"})
OWN = frozenset({".git", ".hg", ".jj", ".svn", ".ralph"})
SKIPPED = CACHES | LIBRARIES | OWN
MOST = 200_000


def walk_fingerprint(root: str | os.PathLike[str]) -> str:
    """A digest of the path, size, time of change and mode of every file below `root`.

    It does not see an edit that keeps size and time, what lies in the folders `SKIPPED`, in folders that cannot be read
    or behind links, nor anything after the first `MOST` files; and it takes a file for changed when only its time did.
    """
    from hashlib import blake2b

    digest = blake2b(digest_size=20)
    for count, (path, seen) in enumerate(files_below(os.fsencode(root))):
        if count == MOST:
            break
        digest.update(b"%b\0%d %d %o\n" % (path, seen.st_size, seen.st_mtime_ns, seen.st_mode))
    return digest.hexdigest()


def files_below(top: bytes, skipped: frozenset[str] = SKIPPED) -> Iterator[tuple[bytes, os.stat_result]]:
    """Every file and link below `top`, by its path from there, in a fixed order."""
    names = {os.fsencode(name) for name in skipped}
    waiting = [b""]
    while waiting:
        folder = waiting.pop()
        for entry in _entries(os.path.join(top, folder)):
            try:
                seen = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            path = folder + entry.name
            if not stat.S_ISDIR(seen.st_mode):
                yield path, seen
            elif entry.name not in names:
                waiting.append(path + b"/")


def _entries(folder: bytes) -> list[os.DirEntry[bytes]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return []
