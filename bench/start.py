"""How long until ralph answers? From a cold start: the version, the help, the first event, a run of one iteration."""

import json
import os
import time
from collections.abc import Callable

from bench.lab import LIMIT, MILLI, PEERS, PYTHON, Lab, found
from bench.samples import Row, Wanted, compared

AGENT = "/bin/echo"
ROUNDS = 31


def measure(lab: Lab) -> list[Row]:
    bare = {PYTHON: lab.timing(lab.python, "-c", "pass")}
    limit = {LIMIT: lab.timing(lab.limit)} if lab.limit else {}
    peers = {name: path for name in PEERS if (path := found(name))}
    versions = {name: lab.timing(path, "--version") for name, path in peers.items()}
    runs = {name: _peer(lab, path, PEERS[name]) for name, path in peers.items() if PEERS[name]}
    loops = {name: lab.timing(*argv) for name, argv in lab.loops(AGENT, 1)}
    one = lab.running(AGENT, 1)
    version = {"ralph": lab.timing(lab.ralph, "--version"), **bare, **limit, **versions}
    return [
        compared("--version", version, ROUNDS, Wanted(1.6, PYTHON)),
        compared("--help", {"ralph": lab.timing(lab.ralph, "--help"), **bare}, ROUNDS),
        compared("run --help", {"ralph": lab.timing(lab.ralph, "run", "--help"), **bare}, ROUNDS),
        compared("run: first event", {"ralph": lambda: _first_line(lab, (*one, "--json")) * MILLI, **bare}, ROUNDS),
        compared(
            "run of one iteration", {"ralph": lab.timing(*one), **bare, **loops, **runs}, ROUNDS, Wanted(5, PYTHON)
        ),
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


def _peer(lab: Lab, path: str, words: tuple[str, ...]) -> Callable[[], float]:
    """One iteration of another loop, told by its settings file which agent to use."""

    def run() -> float:
        folder = lab.workspace()
        (folder / ".ralph").mkdir()
        (folder / ".ralph" / "settings.json").write_text(json.dumps({"agent": {"command": AGENT}}))
        return lab.seconds((path, *words), folder) * MILLI

    return run
