"""Cost of a hundred sleeping loops: memory and processor time, keepers included."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from bench.lab import Lab
from bench.samples import Row, Sample, Wanted

LOOPS = 100
SETTLING, WATCHED = 2.0, 5.0  # seconds


def measure(lab: Lab) -> list[Row]:
    agent = lab.script("thinker", "touch started; exec sleep 600")
    loops = [_start(lab, agent) for _ in range(LOOPS)]
    try:
        ours = [pid for loop, _ in loops for pid in (loop, *children(loop))]
        memory = [sum(_pss(pid) for pid in (loop, *children(loop))) for loop, _ in loops]
        time.sleep(SETTLING)
        before = sum(map(_ticks, ours))
        time.sleep(WATCHED)
        busy = (sum(map(_ticks, ours)) - before) / os.sysconf("SC_CLK_TCK") / WATCHED
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):  # twice means now
            for loop, _ in loops:
                os.kill(loop, number)
        for loop, _ in loops:
            os.waitpid(loop, 0)
    return [
        Row("100 loops, memory of each (PSS, with its keeper)", Sample(tuple(memory)), "MB", {}, Wanted(40)),
        Row("100 loops, processor time of all", Sample((busy * 100,)), "%", {}, Wanted(1)),
    ]


def _start(lab: Lab, agent: str) -> tuple[int, Path]:
    """Start a run and wait until its agent is running."""
    folder = lab.workspace()
    pid = lab.start(lab.running(agent, 1), folder)
    while not (folder / "started").exists():
        time.sleep(0.005)
    return pid, folder


def children(pid: int) -> Iterator[int]:
    """Child processes: for a run, its keeper."""
    yield from map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())


def _pss(pid: int) -> float:
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")) / 1024


def _ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
