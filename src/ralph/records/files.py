"""How is a small shared file changed so that nobody ever sees half of it, and no change is lost?"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ralph.errors import UserError


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Changes of `folder` by one process at a time. The lock leaves no file, and dies with its holder."""
    import fcntl

    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise unusable(folder, error) from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def put(path: Path, text: str) -> None:
    """Write the whole of a file, in the place of what was there. Its folder must be locked."""
    fresh = path.with_name(f".{path.name}.new")
    try:
        fresh.write_bytes(text.encode("utf-8", "surrogateescape"))
        os.replace(fresh, path)
    except OSError as error:
        raise unusable(path, error) from None


def unusable(path: Path, error: OSError) -> UserError:
    return UserError(f"cannot use {path}: {error.strerror or error}", "check the folder and its permissions")
