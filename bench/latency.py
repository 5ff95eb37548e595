"""How soon is it seen? The time from a line that an agent writes until it arrives where a person reads it."""

import os
import pty
import re
import time
from collections.abc import Callable, Iterator
from statistics import median, quantiles

from bench.lab import Lab
from bench.samples import Row, Sample, Wanted

CAT = "cat"
LINES, PAUSE, ROUNDS = 400, 0.003, 5
AGENT = f"""
import time
for number in range({LINES}):
    time.sleep({PAUSE})
    print(f"line {{number}} <{{time.monotonic_ns()}}>", flush=True)
"""
MICRO = 1000.0  # nanoseconds


def measure(lab: Lab) -> list[Row]:
    script = lab.folder("agent") / "agent.py"
    script.write_text(AGENT)
    agent = f"{lab.python} -I -S {script}"
    ralph = lab.running(agent, 1)
    rivals = ("/bin/sh", "-c", f"{agent} | cat")
    rows = []
    for place, open_pair in (("pipe", os.pipe), ("terminal", pty.openpty)):
        ours, theirs = [], []
        for _ in range(ROUNDS):
            ours.append(_delays(lab, ralph, open_pair))
            theirs.append(_delays(lab, rivals, open_pair))
        for name, part, most in (("p50", median, 150), ("p99", _p99, 500)):
            rows.append(
                Row(
                    f"shown through a {place}, {name}",
                    Sample(tuple(map(part, ours))),
                    "µs",
                    {CAT: Sample(tuple(map(part, theirs)))},
                    Wanted(most),
                )
            )
    return rows


def _delays(lab: Lab, argv: tuple[str, ...], open_pair: Callable[[], tuple[int, int]]) -> list[float]:
    """Microseconds, line by line. The first ones do not count: all is still warming up."""
    reader, writer = open_pair()
    pid = lab.start(argv, lab.workspace(), out=writer)
    os.close(writer)
    delays = list(_arrivals(reader))
    os.close(reader)
    os.waitpid(pid, 0)
    return delays[20:]


def _arrivals(reader: int) -> Iterator[float]:
    rest = b""
    while data := _read(reader):
        now = time.monotonic_ns()
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if stamp := re.search(rb"<(\d+)>", line):
                yield (now - int(stamp[1])) / MICRO


def _read(reader: int) -> bytes:
    try:
        return os.read(reader, 1 << 16)
    except OSError:  # a terminal that nobody holds open any more
        return b""


def _p99(values: list[float]) -> float:
    return quantiles(values, n=100)[98]
