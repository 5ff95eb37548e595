"""Who is at work in this workspace? One run at a time, by a lock that dies with its holder."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ralph.errors import UserError
from ralph.world.folder import cannot_write


@contextmanager
def workspace_lock(ralph: Path, run_id: str) -> Iterator[None]:
    """Held by this process alone: its children do not inherit it, and the kernel drops it when the process dies."""
    import fcntl

    path = ralph / "lock"
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise cannot_write(path, error) from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = os.pread(handle, 200, 0).decode(errors="replace").strip()
        os.close(handle)
        raise UserError(
            f"another run is at work in {ralph.parent}: {holder or 'unknown'}",
            "wait for it, stop it with `ralph stop`, or use another workspace",
        ) from None
    try:
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"run {run_id}, process {os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(handle)
