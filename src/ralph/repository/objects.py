"""How does git keep a folder or a commit? As an object in its store, under the name that its content gives it.

They are written here in git's own format, which has not changed since its first year: a process for each would take
longer than all else that ralph does between two turns.
"""

import os
import stat
import zlib
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from ralph.records.folder import cannot_write
from ralph.repository.git import Repository

_SHA1_DIGITS = 40
_SWEEPS = 5  # so often git may sweep up an empty folder in the moment in which something is about to be put there


def write(repository: Repository, kind: str, content: bytes, like: str) -> str:
    """Keeps an object, and returns its name: of the same kind (SHA-1 or SHA-256) as `like`, a name in this store."""
    data = f"{kind} {len(content)}\0".encode() + content
    name = _digest(data, len(like))
    store = _store(repository)
    folder = os.path.join(store, name[:2])
    path = os.path.join(folder, name[2:])
    if _is_kept(path):
        return name
    try:
        # Most of a folder are names of objects, which do not become smaller: not to try is a third of the time.
        _put(path, zlib.compress(data, 0), stat.S_IMODE(os.stat(store).st_mode))
    except OSError as error:
        raise cannot_write(Path(folder), error) from None
    return name


def _is_kept(path: str) -> bool:
    """Whether the object is there; then it is made as young as a new one, so that no garbage collection takes it."""
    try:
        os.utime(path)
    except OSError:  # it is not there, or is somebody else's
        return os.path.exists(path)
    return True


def _put(path: str, packed: bytes, mode: int) -> None:
    """All or nothing. Who may use the store, by the `mode` of its folder, may read the object; nobody may change it."""
    folder, name = os.path.split(path)
    draft = os.path.join(folder, f"tmp_obj_{os.getpid()}_{name}")  # so named, git sweeps up what a killed ralph leaves
    try:
        with _opened(draft, mode) as file:
            file.write(packed)
        os.chmod(draft, mode & 0o444)
        os.rename(draft, path)
    except OSError:
        with suppress(OSError):
            os.unlink(draft)
        raise


def _opened(draft: str, mode: int) -> BinaryIO:
    folder = os.path.dirname(draft)
    for _ in range(_SWEEPS):
        with suppress(FileNotFoundError):
            return open(draft, "wb")
        with suppress(FileExistsError, FileNotFoundError):
            os.mkdir(folder)
            os.chmod(folder, mode)
    return open(draft, "wb")


def _store(repository: Repository) -> str:
    """Linked worktrees share that of the repository they belong to."""
    try:
        with open(os.path.join(repository.git_dir, "commondir"), encoding="utf-8", errors="surrogateescape") as file:
            shared = file.read().removesuffix("\n")
    except FileNotFoundError:
        shared = ""
    return os.path.join(repository.git_dir, shared, "objects")


def _digest(data: bytes, digits: int) -> str:
    if digits != _SHA1_DIGITS:
        from hashlib import sha256

        return sha256(data).hexdigest()
    try:
        from _sha1 import sha1  # type: ignore[import-not-found]  # hashlib brings OpenSSL: 4 ms, and 3 MB
    except ImportError:
        from hashlib import sha1
    name: str = sha1(data).hexdigest()
    return name
