"""Who is at work in this workspace? One run at a time, by a lock that dies with its holder."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ralph.errors import UserError
from ralph.world.folder import cannot_write

PATIENCE = 0.5


@contextmanager
def workspace_lock(ralph: Path, run_id: str) -> Iterator[Callable[[], None]]:
    """Held by this process alone: its children do not inherit it, and the kernel drops it when the process dies. What
    is given locks again, where somebody has removed the file."""
    handles = [_locked(ralph / "lock", run_id)]

    def lock_again() -> None:
        if os.fstat(handles[-1]).st_nlink == 0:
            handles.append(_locked(ralph / "lock", run_id))

    try:
        yield lock_again
    finally:
        for handle in handles:
            os.close(handle)


def _locked(path: Path, run_id: str) -> int:
    import fcntl

    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise cannot_write(path, error) from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _sign(handle, path, run_id)
    except BlockingIOError:
        holder = _holder(handle)
        os.close(handle)
        raise UserError(
            f"another run is at work in {path.parent.parent}: {holder or 'unknown'}",
            "wait for it, stop it with `ralph stop`, or use another workspace",
        ) from None
    return handle


def _sign(handle: int, path: Path, run_id: str) -> None:
    try:
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"run {run_id}, process {os.getpid()}\n".encode(), 0)
    except OSError as error:
        raise cannot_write(path, error) from None


def _holder(handle: int) -> str:
    """What the holder says of itself. One that has only just got the lock may need a moment to say it."""
    import time

    deadline = time.monotonic() + PATIENCE
    while True:
        said = os.pread(handle, 200, 0).decode(errors="replace").strip()
        number = said.rpartition(" ")[2]
        if (number.isdigit() and _is_alive(int(number))) or time.monotonic() > deadline:
            return said
        time.sleep(0.01)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
