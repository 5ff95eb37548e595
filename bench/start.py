"""How long until ralph answers? From a cold start: the version, the help, the first event, a run of one iteration."""

import os
import time

from bench.lab import LIMIT, MILLI, PYTHON, Lab
from bench.samples import Row, Wanted, compared

AGENT = "/bin/echo"
ROUNDS = 31


def measure(lab: Lab) -> list[Row]:
    bare = {PYTHON: lab.timing(lab.python, "-c", "pass")}
    limit = {LIMIT: lab.timing(lab.limit)} if lab.limit else {}
    loops = {name: lab.timing(*argv) for name, argv in lab.loops(AGENT, 1)}
    one = lab.running(AGENT, 1)
    version = {"ralph": lab.timing(lab.ralph, "--version"), **bare, **limit}
    return [
        compared("--version", version, ROUNDS, Wanted(1.6, PYTHON)),
        compared("--help", {"ralph": lab.timing(lab.ralph, "--help"), **bare}, ROUNDS),
        compared("run --help", {"ralph": lab.timing(lab.ralph, "run", "--help"), **bare}, ROUNDS),
        compared("run: first event", {"ralph": lambda: _first_line(lab, (*one, "--json")) * MILLI, **bare}, ROUNDS),
        compared("run of one iteration", {"ralph": lab.timing(*one), **bare, **loops}, ROUNDS, Wanted(6, PYTHON)),
    ]


def _first_line(lab: Lab, argv: tuple[str, ...]) -> float:
    reader, writer = os.pipe()
    began = time.perf_counter()
    pid = lab.start(argv, lab.workspace(), out=writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as lines:
        lines.readline()
        seconds = time.perf_counter() - began
        lines.read()
    os.waitpid(pid, 0)
    return seconds
