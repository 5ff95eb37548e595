"""Start-up time: the version, and a run of one iteration."""

from bench.lab import PYTHON, Lab
from bench.samples import Row, Wanted, compared

AGENT = "/bin/echo"
ROUNDS = 21


def measure(lab: Lab) -> list[Row]:
    bare = {PYTHON: lab.timing(lab.python, "-c", "pass")}
    loops = {name: lab.timing(*argv) for name, argv in lab.loops(AGENT, 1)}
    version = {"ralph": lab.timing(lab.ralph, "--version"), **bare}
    one = {"ralph": lab.timing(*lab.running(AGENT, 1)), **bare, **loops}
    return [
        compared("--version", version, ROUNDS, Wanted(6, PYTHON)),
        compared("run of one iteration", one, ROUNDS, Wanted(16, PYTHON)),
    ]
