"""Is this still the process that we knew? Its number may mean another by now; number and start time together cannot."""

import os
import sys


def start_of(pid: int) -> str | None:
    """When the living process `pid` was started, in the system's own words; None where none lives."""
    if pid <= 0:
        return None
    return _start_in_proc(pid) if sys.platform == "linux" else _start_in_ps(pid)


def own_start() -> str:
    return start_of(os.getpid()) or ""


def is_living(pid: int, start: str) -> bool:
    """Whether the process that had this number and this start time still lives."""
    return bool(start) and start_of(pid) == start


def _start_in_proc(pid: int) -> str | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            # The name in brackets may itself hold spaces and brackets.
            fields = stat.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    dead = fields[0] in (b"Z", b"X")
    return None if dead else f"{_boot()}+{int(fields[19])}"


def _boot() -> str:
    """Clock ticks are counted from the start of the system: after the next one they begin anew."""
    with open("/proc/sys/kernel/random/boot_id") as boot:
        return boot.read(8)


def _start_in_ps(pid: int) -> str | None:
    import subprocess

    told = subprocess.run(("ps", "-o", "state=,lstart=", "-p", str(pid)), capture_output=True, text=True, check=False)
    state, _, start = told.stdout.strip().partition(" ")
    return None if not state or state.startswith("Z") else " ".join(start.split())
