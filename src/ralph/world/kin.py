"""Which processes live below another, or bear the mark of a run? Read from /proc, elsewhere from `ps`."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

MARK = "RALPH_RUN_ID"
_HAS_PROC = sys.platform == "linux"

Kin = tuple[int, int]  # a process and its parent


def below(root: int) -> list[Kin]:
    """Every living process below `root`; parents come first."""
    children = _listed_children if os.path.exists(f"/proc/{root}/task/{root}/children") else _tabled_children()
    found = [(child, root) for child in children(root)]
    for pid, _ in found:
        found += [(child, pid) for child in children(pid)]
    return found


def in_group(group: int) -> list[Kin]:
    """Every living process of a process group."""
    return [(pid, parent) for pid, parent, its_group in _table() if its_group == group]


def marked(run_id: str) -> list[Kin]:
    """Every living process that was started for a run, less this one and those above it."""
    parents = {pid: parent for pid, parent, _ in _table()}
    above, pid = set(), os.getpid()
    while pid and pid not in above:
        above.add(pid)
        pid = parents.get(pid, 0)
    mark = f"{MARK}={run_id}".encode()
    bearers = _bearers_in_proc(mark) if _HAS_PROC else _bearers_in_ps(mark)
    return [(pid, parents[pid]) for pid in bearers if pid in parents and pid not in above]


def send(kin: Kin, number: int) -> None:
    """Signals a process, unless its number has come to mean another one since it was found."""
    pid, parent = kin
    handle = _handle(pid)
    try:
        # The parent of an orphan is now this process, or the first of all.
        if _HAS_PROC and _state(pid)[1] not in (parent, os.getpid(), 1):
            return
        if handle >= 0:
            signal.pidfd_send_signal(handle, number)
        else:
            os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass
    finally:
        if handle >= 0:
            os.close(handle)


def sweep_marked(run_id: str, grace: float = 2.0) -> int:
    """Ends what is left of a run whose keeper is gone, and all that lives below it. Says how many there were."""
    asked: set[int] = set()
    deadline = time.monotonic() + grace
    while run_id and (living := _family(marked(run_id))):
        overdue = time.monotonic() - deadline
        if overdue > grace:
            break
        for kin in living:
            if overdue >= 0:
                send(kin, signal.SIGKILL)
            elif kin[0] not in asked:
                send(kin, signal.SIGTERM)
                send(kin, signal.SIGCONT)
        asked.update(pid for pid, _ in living)
        time.sleep(0.01)
    return len(asked)


def _family(heads: list[Kin]) -> list[Kin]:
    return list(dict.fromkeys(kin for head in heads for kin in (head, *below(head[0]))))


def _handle(pid: int) -> int:
    """A descriptor that stays with this very process; -1 where the system has none to give."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return -1


def _listed_children(pid: int) -> list[int]:
    children: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", "rb") as listing:
                children += map(int, listing.read().split())
    except (FileNotFoundError, ProcessLookupError):
        pass  # it ended while it was read
    return [child for child in children if _state(child)[0] not in "ZX"]


def _tabled_children() -> Callable[[int], list[int]]:
    families: dict[int, list[int]] = {}
    for pid, parent, _ in _table():
        families.setdefault(parent, []).append(pid)
    return lambda pid: families.get(pid, [])


def _table() -> Iterator[tuple[int, int, int]]:
    """Every living process with its parent and its group."""
    if not _HAS_PROC:
        for line in _ps("-A", "-o", "pid=,ppid=,pgid=,state="):
            *numbers, mode = line.split()[:4]
            if not mode.startswith(b"Z"):
                pid, parent, group = map(int, numbers)
                yield pid, parent, group
        return
    for pid in _processes():
        state, parent, group = _state(pid)
        if state not in "ZX":
            yield pid, parent, group


def _processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _state(pid: int) -> tuple[str, int, int]:
    """State, parent and group of a process; "X" when there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            # The name in brackets may itself hold spaces and brackets.
            state, parent, group = stat.read().rpartition(b")")[2].split()[:3]
    except (FileNotFoundError, ProcessLookupError):
        return "X", 0, 0
    return state.decode(), int(parent), int(group)


def _bearers_in_proc(mark: bytes) -> Iterator[int]:
    for pid in _processes():
        # It may have ended by now, or be somebody else's.
        with suppress(OSError), open(f"/proc/{pid}/environ", "rb") as environment:
            if mark in environment.read().split(b"\0"):
                yield pid


def _bearers_in_ps(mark: bytes) -> Iterator[int]:
    show_environment = "-axEww" if sys.platform == "darwin" else "axeww"
    for line in _ps(show_environment, "-o", "pid=,command="):
        if mark in line.split():
            yield int(line.split()[0])


def _ps(*options: str) -> list[bytes]:
    import subprocess

    return subprocess.run(("ps", *options), stdout=subprocess.PIPE, check=False).stdout.splitlines()
