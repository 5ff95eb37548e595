"""Who is at work in this workspace? One run at a time, by a lock that dies with its holder."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ralph.errors import UserError
from ralph.world.records.folder import cannot_write

PATIENCE = 3.0


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
    """The lock's descriptor. A holder that was killed may be survived for a moment by a child that had not yet become
    the program it was to be; and one that has only just got the lock may not have signed it yet."""
    import fcntl
    import time

    handle = _opened(path)
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            holder = os.pread(handle, 200, 0).decode(errors="replace").strip()
        if _is_alive(holder.rpartition(" ")[2]) or time.monotonic() > deadline:
            os.close(handle)
            raise UserError(
                f"another run is at work in {path.parent.parent}: {holder or 'unknown'}",
                "wait for it, stop it with `ralph stop`, or use another workspace",
            )
        time.sleep(0.01)
    _sign(handle, path, run_id)
    return handle


def _opened(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise cannot_write(path, error) from None


def _sign(handle: int, path: Path, run_id: str) -> None:
    try:
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"run {run_id}, process {os.getpid()}\n".encode(), 0)
    except OSError as error:
        raise cannot_write(path, error) from None


def _is_alive(process: str) -> bool:
    try:
        os.kill(int(process), 0)
    except (ValueError, ProcessLookupError):
        return False
    except PermissionError:
        pass
    return True
