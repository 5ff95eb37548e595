"""Find and signal processes: descendants of a process, and those marked with the id of a run.

This needs /proc. Without it, as on macOS, only the process group of a program is known. The keeper imports this module,
so it uses the standard library only.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import NamedTuple

KEEPER_NAME = "loop-keeper"  # doesn't contain "ralph", so that `pkill ralph` spares it
MARK = "RALPH_RUN_ID"  # environment variable of everything that a run starts
MARK_PREFIX = f"{MARK}=".encode()
KEPT_MARK = "RALPH_KEEP_CHILDREN"  # set if its background processes may outlive the run
SWEEP_LOOKS = 3  # looks that find nothing end a sweep: one misses a process that is just executing or forking another
SWEEP_TIMEOUT = 5.0  # seconds after SIGKILL
HAS_PROC = sys.platform == "linux"
GONE = (FileNotFoundError, ProcessLookupError, PermissionError)  # PermissionError: hidden by `hidepid`


class RunningProcess(NamedTuple):
    """A running process. `started` distinguishes it from an earlier one with the same pid."""

    pid: int
    parent: int
    name: bytes
    started: bytes = b""


def descendants_of(root: int) -> list[RunningProcess]:
    """Return every running process below `root`, parents first."""
    children = _listed_children if os.path.exists(f"/proc/{root}/task/{root}/children") else _find_children()
    descendants = children(root)
    for process in descendants:
        descendants += children(process.pid)
    return descendants


def ancestors_of(pid: int) -> list[RunningProcess]:
    """Return the parent of `pid`, its parent, and so on."""
    ancestors = []
    process = _read_process(pid)
    while process and (process := _read_process(process.parent)):
        ancestors.append(process)
    return ancestors


def find_group(group: int, spared: Collection[int]) -> list[RunningProcess]:
    """Return a process group as if it were one process, unless it is empty.

    Spared processes may be in the group, so then there is nothing to kill until the run ends.
    """
    if not group or spared:
        return []
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return []
    except PermissionError:
        pass
    return [RunningProcess(-group, 0, b"")]


def marked_processes() -> dict[str, list[RunningProcess]]:
    """Return the processes that were started for a run and may not outlive it, by the id of their run."""
    by_run: dict[str, list[RunningProcess]] = {}
    for pid in _pids():
        try:
            environ = _read(f"/proc/{pid}/environ").split(b"\0")
        except OSError:  # it ended, or belongs to another user
            continue
        mark = next((value for value in environ if value.startswith(MARK_PREFIX)), None)
        if mark and f"{KEPT_MARK}=1".encode() not in environ and (process := _read_process(pid)):
            by_run.setdefault(os.fsdecode(mark.removeprefix(MARK_PREFIX)), []).append(process)
    return by_run


def processes_of_run(run_id: str) -> list[RunningProcess]:
    """Return the marked processes of a run and all their descendants, except this process and its ancestors.

    If a process of that run started us, our own descendants are left out as well.
    """
    spared = {os.getpid(), *(process.pid for process in ancestors_of(os.getpid()))}
    if os.environ.get(MARK) == run_id:
        spared.update(process.pid for process in descendants_of(os.getpid()))
    heads = marked_processes().get(run_id, []) if run_id else []
    by_pid = {process.pid: process for head in heads for process in (head, *descendants_of(head.pid))}
    return [process for process in by_pid.values() if process.pid not in spared]


def kill_run(run_id: str, grace: float = 2.0, time_left: Callable[[], float] = lambda: float("inf")) -> int:
    """End what is left of a run whose keeper is gone, until nothing is found; return how many processes there were.

    They get SIGTERM, and SIGKILL after `grace` seconds or what is left of the caller's time. Processes that don't end
    by then are given up after `SWEEP_TIMEOUT` seconds.
    """
    if not run_id:
        return 0
    by_pid: dict[int, RunningProcess] = {}
    asked: set[int] = set()
    kill_at = time.monotonic() + min(grace, time_left())
    empty_looks = 0
    while empty_looks < SWEEP_LOOKS and time.monotonic() < kill_at + SWEEP_TIMEOUT:
        # Without its parent, an unmarked child can't be found any more: so they are remembered.
        by_pid.update((process.pid, process) for process in processes_of_run(run_id))
        running = [process for process in by_pid.values() if is_running(process) and can_signal(process)]
        if time.monotonic() < kill_at:
            terminate(running, asked)
        else:
            kill(running)
        empty_looks = 0 if running else empty_looks + 1
        time.sleep(0.01)
    return len(by_pid)


def terminate(processes: Iterable[RunningProcess], asked: set[int]) -> None:
    """Send SIGTERM to each process whose pid isn't in `asked`, and add it.

    SIGCONT follows: a stopped process handles no other signal.
    """
    for process in processes:
        if process.pid not in asked:
            asked.add(process.pid)
            send_signal(process, signal.SIGTERM)
            send_signal(process, signal.SIGCONT)


def kill(processes: Iterable[RunningProcess]) -> None:
    for process in processes:
        send_signal(process, signal.SIGKILL)


def send_signal(process: RunningProcess, number: int) -> None:
    """Signal the process, unless it is gone, belongs to another user, or its pid was reused."""
    with suppress(ProcessLookupError, PermissionError):
        signal_if(number, process.pid, lambda: is_running(process))


def signal_if(number: int, pid: int, is_same: Callable[[], bool]) -> None:
    """Signal `pid` if `is_same()` holds; otherwise raise ProcessLookupError. A reused pid is never hit."""
    pidfd = open_pidfd(pid)
    try:
        if not is_same():
            raise ProcessLookupError
        if pidfd >= 0:
            signal.pidfd_send_signal(pidfd, number)
        else:
            os.kill(pid, number)
    finally:
        if pidfd >= 0:
            os.close(pidfd)


def can_signal(process: RunningProcess) -> bool:
    """Return False for a process of another user, such as one that the agent started with `sudo`."""
    try:
        os.kill(process.pid, 0)
    except PermissionError:
        return False
    except ProcessLookupError:
        pass
    return True


def open_pidfd(pid: int) -> int:
    """Return a descriptor that refers to this process even if its pid is reused; -1 if there is none."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return -1


def exclude_spared(
    processes: list[RunningProcess], spared: Iterable[int], ancestors: bool = False
) -> list[RunningProcess]:
    """Return `processes` (parents first) without the spared ones, their descendants and optionally their ancestors."""
    below = set(spared)
    above = set(below)
    for process in reversed(processes) if ancestors else ():
        if process.pid in above:
            above.add(process.parent)
    for process in processes:
        if process.parent in below:
            below.add(process.pid)
    return [process for process in processes if process.pid not in below | above]


def start_of(pid: int) -> str | None:
    """Return when the running process `pid` was started, in the system's own format; None if there is none."""
    if pid <= 0:
        return None
    if HAS_PROC:
        stat = _read_process(pid)
        boot_id = _read("/proc/sys/kernel/random/boot_id")[:8].decode()
        return f"{boot_id}+{int(stat.started)}" if stat else None  # ticks are counted from the last boot
    # `ps` prints local time, in the language of the locale: people travel, and cron has no locale.
    with os.popen(f"LC_ALL=C TZ=UTC ps -o state=,lstart= -p {pid}") as ps:
        state, *start = ps.read().split() or [""]
    return None if not state or state.startswith("Z") else " ".join(start)


def own_start() -> str:
    return start_of(os.getpid()) or ""


def is_living(pid: int, start: str) -> bool:
    """Return whether the process that had this pid and start time is still running."""
    return bool(start) and start_of(pid) == start


def is_running(process: RunningProcess) -> bool:
    """Return whether this very process is still running, not one that has its pid."""
    now = _read_process(process.pid) if HAS_PROC and process.pid > 0 else process  # below 0: a group
    return now is not None and now.started == process.started


def _listed_children(pid: int) -> list[RunningProcess]:
    children: list[int] = []
    with suppress(*GONE):  # it ended while we read
        for thread in os.listdir(f"/proc/{pid}/task"):
            children += map(int, _read(f"/proc/{pid}/task/{thread}/children").split())
    return [process for child in children if (process := _read_process(child))]


def _find_children() -> Callable[[int], list[RunningProcess]]:
    """Return a function like `_listed_children` for kernels that don't list the children of a process."""
    by_parent: dict[int, list[RunningProcess]] = {}
    for process in filter(None, map(_read_process, _pids())):
        by_parent.setdefault(process.parent, []).append(process)
    return lambda pid: by_parent.pop(pid, [])


def _read_process(pid: int) -> RunningProcess | None:
    try:
        # The name in parentheses may itself contain spaces and parentheses.
        before, _, after = _read(f"/proc/{pid}/stat").rpartition(b")")
    except GONE:
        return None
    state, parent, *fields = after.split()
    if state in (b"X", b"Z"):
        return None
    return RunningProcess(pid, int(parent), before.partition(b"(")[2], fields[17])


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()] if HAS_PROC else []


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
