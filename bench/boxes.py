"""What does a box cost at each start, and how soon is everything in it gone? Beside the same run without one."""

import os
import shutil
import signal
import time
from pathlib import Path

from bench.lab import MILLI, Lab
from bench.samples import Row, Sample, Wanted

AGENT, STARTS, ROUNDS = "/bin/echo", 10, 3
WAYS = {"a start in a box": (("--sandbox",), 10), "… with a list of hosts": (("--sandbox", "--sandbox-net", "off"), 15)}


def measure(lab: Lab) -> list[Row]:
    if shutil.which("bwrap") is None:
        return []
    rows = []
    for name, (options, most) in WAYS.items():
        more = tuple(_a_start(lab, *options) - _a_start(lab) for _ in range(ROUNDS))
        rows.append(Row(f"{name}, over one without", Sample(more), "ms", {}, Wanted(most)))
    gone = tuple(_gone_after(lab) for _ in range(ROUNDS))
    return [*rows, Row("a box and all in it is gone after a kill", Sample(gone), "ms", {}, Wanted(50))]


def _a_start(lab: Lab, *options: str) -> float:
    """What each further iteration takes: all there is to it is one start."""
    once, often = (lab.seconds(lab.running(AGENT, n, *options), lab.workspace()) for n in (1, 1 + STARTS))
    return (often - once) / STARTS * MILLI


def _gone_after(lab: Lab) -> float:
    """From the kill of the outer process until the last one inside is no more."""
    folder = lab.workspace()
    agent = folder / "agent"  # in the workspace: what else lies beside it is not seen from inside
    agent.write_text("#!/bin/sh\ntouch started; sleep 600 & exec sleep 600\n")
    agent.chmod(0o755)
    ralph = lab.start(lab.running(str(agent), 1, "--sandbox"), folder)
    while not (folder / "started").exists():
        time.sleep(0.002)
    inside = [pid for pid, parent in _below(ralph).items() if parent]
    outer = next(pid for pid in inside if _name(pid) == "bwrap")
    began = time.perf_counter()
    os.kill(outer, signal.SIGKILL)
    within = [pid for pid in inside if _name(pid) in ("sleep", "bwrap")]
    while any(_name(pid) for pid in within):
        time.sleep(0.0005)
    taken = (time.perf_counter() - began) * MILLI
    os.kill(ralph, signal.SIGINT)
    os.waitpid(ralph, 0)
    return taken


def _below(root: int) -> dict[int, int]:
    """The living descendants of a process, with their parents; who started whom comes first."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (stat := _stat(int(entry.name))):
            parents[int(entry.name)] = int(stat[1])
    found = {root: 0}
    for _ in range(8):
        found |= {pid: parent for pid, parent in parents.items() if parent in found and pid not in found}
    return found


def _stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _name(pid: int) -> str:
    """Of a process that lives: nothing for one that is gone, or waits to be buried."""
    stat = _stat(pid)
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() if stat and stat[0] != "Z" else ""
    except OSError:
        return ""
