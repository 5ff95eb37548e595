"""Which processes live below another, or bear the mark of a run? Read from /proc, elsewhere from `ps`."""

from __future__ import annotations

import os
import sys
import time

from ralph.processes.spawning import MARK

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Collection, Iterable, Iterator
else:
    import _signal as signal  # see keeper.py


_LOOKS = 5
_PATIENCE = 60.0  # seconds for `ps`
_HAS_PROC = sys.platform == "linux"
_GONE = (FileNotFoundError, ProcessLookupError, PermissionError)  # or it is hidden from us: `hidepid`


class RunningProcess:
    """A living process. `began` tells it from another one that had the same number before."""

    __slots__ = ("began", "group", "name", "parent", "pid")

    def __init__(self, pid: int, parent: int, group: int, name: bytes, began: bytes = b"") -> None:
        self.pid = pid
        self.parent = parent
        self.group = group
        self.name = name
        self.began = began


AskedBefore = set[tuple[int, bytes]]


def below(root: int, known: Collection[int] = ()) -> list[RunningProcess]:
    """Every living process below `root`, less those `known` and what is below them; parents come first."""
    children = _listed_children if os.path.exists(f"/proc/{root}/task/{root}/children") else _tabled_children()

    def unknown(pid: int) -> list[RunningProcess]:
        return [child for child in children(pid) if child.pid not in known]

    found = unknown(root)
    for process in found:
        found += unknown(process.pid)
    return found


def in_group(group: int) -> list[RunningProcess]:
    """Every living process of a process group."""
    return [process for process in _all() if process.group == group]


def marked(run_id: str, name: str = MARK) -> list[RunningProcess]:
    """Every living process that was started for a run, less this one and those above it."""
    above = _above()
    return [process for process in _bearers(f"{name}={run_id}".encode()) if process.pid not in above]


def send(process: RunningProcess, number: int) -> None:
    """Signals a process, unless its number has come to mean another one since it was found."""

    def is_same() -> bool:
        now = _look_at(process.pid) if _HAS_PROC else process
        return now is not None and now.began == process.began

    try:
        deliver(number, process.pid, is_same)
    except (ProcessLookupError, PermissionError):
        pass


def is_in_reach(process: RunningProcess) -> bool:
    """Whether we may end it: what an agent starts by `sudo` is not ours."""
    try:
        os.kill(process.pid, 0)
    except PermissionError:
        return False
    except ProcessLookupError:
        pass
    return True


def deliver(number: int, pid: int, is_same: Callable[[], bool]) -> None:
    """Signals this very process; ProcessLookupError where it is gone, whoever has got its number since."""
    held = handle(pid)
    try:
        if not is_same():
            raise ProcessLookupError
        if held >= 0:
            signal.pidfd_send_signal(held, number)
        else:
            os.kill(pid, number)
    finally:
        if held >= 0:
            os.close(held)


def sweep_marked(
    run_id: str,
    grace: float = 2.0,
    known: Iterable[RunningProcess] = (),
    left: Callable[[], float] = lambda: float("inf"),
) -> int:
    """Ends what is left of a run whose keeper is gone, and all that lives below it. Says how many there were. Only git,
    which takes away its locks, is asked first, where there is so much time `left`: others may have taken the keeper's
    request to end for a reason to kill it, or to stop it, and would do so to us."""
    # All are known before the first is asked: a parent that ends takes the trace to its children with it.
    found = {process.pid: process for process in left_of(run_id, known)}
    asked: AskedBefore = set()
    deadline = time.monotonic() + grace
    unseen, is_last = 0, False
    while run_id and unseen < _LOOKS and not is_last:  # one look may miss who forks and goes all the time
        overdue = time.monotonic() - deadline
        is_last = overdue > grace
        living = []
        for process in _each_left(run_id, found.values()):
            press([process], asked, kill=process.name != b"git" or overdue >= 0 or left() < grace)
            living.append(process)
        found.update((process.pid, process) for process in living)
        unseen = 0 if living else unseen + 1
        time.sleep(0.01)
    return len(found)


def left_of(run_id: str, known: Iterable[RunningProcess] = ()) -> list[RunningProcess]:
    """Those with the mark of a run, those known to be of it (they may have lost that in the meantime), and all that
    live below them; but not this process, nor those above it; nor, where who was left has started it, those below."""
    return distinct(list(_each_left(run_id, known)))


def _each_left(run_id: str, known: Iterable[RunningProcess]) -> Iterator[RunningProcess]:
    """As they are found: who is ended at once has no time to get away by a fork."""
    spared, look, seen = _above(), _looking(), set[int]()
    if os.environ.get(MARK) == run_id or any(process.pid in spared for process in known):
        spared.update(process.pid for process in below(os.getpid()))
    again = (now for process in known if (now := look(process.pid)) and now.began == process.began)
    for heads in (_bearers(f"{MARK}={run_id}".encode()) if run_id else (), again):
        for head in heads:  # in a long chain each is below all others: whoever was seen is not looked at again
            found = [head, *below(head.pid, seen)] if head.pid not in seen else []
            seen.update(process.pid for process in found)
            yield from (process for process in found if process.pid not in spared)


def _above() -> set[int]:
    """This process and those above it."""
    look, above = _looking(), set[int]()
    process = look(os.getpid())
    while process is not None:
        above.add(process.pid)
        process = look(process.parent)
    return above


def _looking() -> Callable[[int], RunningProcess | None]:
    """What says of a number which living process it is."""
    return _look_at if _HAS_PROC else {process.pid: process for process in _all()}.get


def press(living: list[RunningProcess], asked: AskedBefore, kill: bool) -> None:
    """Asks each of them once to end, or kills them. A shell that is just becoming the program it starts may lose the
    request: so one that has another name since is asked again."""
    for process in living:
        if kill:
            send(process, signal.SIGKILL)
        elif (process.pid, process.name) not in asked:
            send(process, signal.SIGTERM)
            send(process, signal.SIGCONT)  # one that is stopped hears nothing else
    asked.update((process.pid, process.name) for process in living)


def without(living: list[RunningProcess], spared: Iterable[int], upward: bool = False) -> list[RunningProcess]:
    """Those of `living` (parents first) that are neither spared nor live below one who is, nor (`upward`) above."""
    safe = set(spared)
    above = set(safe)
    for process in reversed(living) if upward else ():
        if process.pid in above:
            above.add(process.parent)
    for process in living:
        if process.parent in safe:
            safe.add(process.pid)
    return [process for process in living if process.pid not in safe | above]


def distinct(processes: list[RunningProcess]) -> list[RunningProcess]:
    return list({one.pid: one for one in processes}.values())


def handle(pid: int) -> int:
    """A descriptor that stays with this very process; -1 where the system has none to give."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return -1


def _listed_children(pid: int) -> list[RunningProcess]:
    children: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", "rb") as listing:
                children += map(int, listing.read().split())
    except _GONE:
        pass  # it ended while it was read
    return [process for child in children if (process := _look_at(child))]


def _tabled_children() -> Callable[[int], list[RunningProcess]]:
    families: dict[int, list[RunningProcess]] = {}
    for process in _all():
        families.setdefault(process.parent, []).append(process)
    return lambda pid: families.pop(pid, [])


def _all() -> list[RunningProcess]:
    if _HAS_PROC:
        return [process for pid in _pids() if (process := _look_at(pid))]
    table = (line.split(None, 4) for line in _ps("-A", "-o", "pid=,ppid=,pgid=,state=,comm="))
    return [
        RunningProcess(int(pid), int(parent), int(group), *name)
        for pid, parent, group, state, *name in table
        if not state.startswith(b"Z")
    ]


def _look_at(pid: int) -> RunningProcess | None:
    try:
        # The name in brackets may itself hold spaces and brackets.
        before, _, after = _said_by(f"/proc/{pid}/stat").rpartition(b")")
    except _GONE:
        return None
    fields = after.split()  # from its state on
    if fields[0] == b"X" or (fields[0] == b"Z" and int(fields[17]) < 2):  # it lives while another thread of it does
        return None
    return RunningProcess(pid, int(fields[1]), int(fields[2]), before.partition(b"(")[2], fields[19])


def collect_killed(pid: int) -> None:
    """Takes note of the end of a child that was killed, once it has come. What a debugger holds stays with that: it is
    dead all the same."""
    until = time.monotonic() + 1
    try:
        while True:
            is_over = start_of(pid) is None or time.monotonic() > until
            if os.waitpid(pid, os.WNOHANG)[0] or is_over:
                return
            time.sleep(0.002)
    except ChildProcessError:  # it was not ours, or a parent of ours taught us to ignore SIGCHLD
        pass


def is_held(pid: int) -> bool:
    """Whether a debugger holds it, or it was stopped. A debugger that only watches, as `strace` does, lets it go again
    at once."""
    for _ in range(_LOOKS):
        try:
            if _said_by(f"/proc/{pid}/stat").rpartition(b")")[2].split()[0] not in b"tT":
                return False
        except (OSError, IndexError):
            return False
        time.sleep(0.02)
    return True


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _bearers(mark: bytes) -> Iterator[RunningProcess]:
    """The youngest first: one that has just been forked may be gone in a moment."""
    if not _HAS_PROC:
        look = _looking()
        yield from (process for pid in _bearers_in_ps(mark) if (process := look(pid)))
        return
    pids, latest = _pids(), int(_said_by("/proc/loadavg").split()[-1])  # the highest number is followed by the lowest
    for pid in sorted(pids, key=lambda pid: (pid <= latest, pid), reverse=True):
        told = _environ_of(f"/proc/{pid}")
        if not told and _look_at(
            pid
        ):  # the first thread may have ended, and tells nothing; the others share what it had
            try:
                threads = [task for task in os.listdir(f"/proc/{pid}/task") if task != str(pid)]
            except OSError:
                continue
            told = b"".join(_environ_of(f"/proc/{pid}/task/{task}") for task in threads)
        if mark in told.split(b"\0") and (process := _look_at(pid)):
            yield process


def _environ_of(folder: str) -> bytes:
    try:
        with open(f"{folder}/environ", "rb") as environment:
            return environment.read()
    except OSError:  # it has ended by now, or is somebody else's
        return b""


def _bearers_in_ps(mark: bytes) -> Iterator[int]:
    show_environment = "-axEww" if sys.platform == "darwin" else "axeww"
    for line in _ps(show_environment, "-o", "pid=,command="):
        if mark in line.split():
            yield int(line.split()[0])


def _ps(*options: str) -> list[bytes]:
    from ralph.processes.program import AskedProgram, asked_by

    with asked_by(None), AskedProgram(("ps", *options), os.environ) as asked:  # in nobody's name, at any time
        return asked.output(_PATIENCE).splitlines()


_booted: list[str] = []  # which start of the system this is, once that was asked


def start_of(pid: int) -> str | None:
    """When the living process `pid` was started, in the system's own words; None where none lives."""
    if pid <= 0:
        return None
    if _HAS_PROC:
        # Clock ticks are counted from the start of the system: after the next one they begin anew.
        found = _look_at(pid)
        if not _booted:
            _booted.append(_said_by("/proc/sys/kernel/random/boot_id")[:8].decode())
        return f"{_booted[0]}+{int(found.began)}" if found else None
    state, *start = b"".join(_ps("-o", "state=,lstart=", "-p", str(pid))).decode().split() or [""]
    return None if not state or state.startswith("Z") else " ".join(start)


_RECORDED = 64  # bytes that say which process is meant


def record_line(pid: int, start: str) -> bytes:
    """A process as it is written down, always of the same length."""
    return f"{pid} {start}".encode().ljust(_RECORDED - 1)[: _RECORDED - 1] + b"\n"


def recorded(line: bytes) -> RunningProcess | None:
    """The process that was written down, if it still lives."""
    pid, _, start = line[:_RECORDED].decode("utf-8", "replace").strip().partition(" ")
    if not pid.isdecimal() or not is_living(int(pid), start):
        return None
    return _look_at(int(pid)) if _HAS_PROC else next((process for process in _all() if process.pid == int(pid)), None)


def own_start() -> str:
    return start_of(os.getpid()) or ""


def is_living(pid: int, start: str) -> bool:
    """Whether the process that had this number and this start time still lives."""
    return bool(start) and start_of(pid) == start


def _said_by(path: str) -> bytes:
    """With three calls, where Python's files take nine: the keeper asks this of every program that it starts."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 4096)
    finally:
        os.close(fd)
