"""Time from a second Ctrl-C until no process is left, and processes left by twelve ways of ending a run."""

import os
import pty
import signal
import time
from collections.abc import Callable
from pathlib import Path

from bench.lab import MILLI, Lab
from bench.samples import Row, Sample, Wanted, taking_turns

PLAIN = "touch started; exec sleep 600"
AGENTS = {
    "plain": PLAIN,
    "background child": "sleep 600 & touch started; exec sleep 600",
    "setsid child": "setsid sleep 600 & touch started; exec sleep 600",
    "stubborn": "trap '' TERM INT HUP; touch started; while :; do sleep 600; done",
}
WAYS = ("INT", "TERM", "typed ^C")


def second_signal(lab: Lab) -> list[Row]:
    cooperative = taking_turns({"ralph": lambda: _end(lab, PLAIN, "INT")[0] * MILLI}, 11)["ralph"]
    stubborn = Sample(tuple(_end(lab, AGENTS["stubborn"], "INT")[0] * MILLI for _ in range(3)))
    return [
        Row("second Ctrl-C to nothing left", cooperative, "ms", {}, Wanted(1000)),
        Row("… with a stubborn agent", stubborn, "ms", {}, Wanted(1000)),
    ]


def orphans(lab: Lab) -> list[Row]:
    left = [_end(lab, script, way)[1] for way in WAYS for script in AGENTS.values()]
    name = "left alive: INT, TERM, typed ^C × plain, background, setsid, stubborn"
    return [Row(name, Sample((float(sum(left)),)), "processes", {}, Wanted(0))]


def _end(lab: Lab, script: str, way: str) -> tuple[float, int]:
    """End a run by two signals; return the seconds since the second one and the number of processes left."""
    folder = lab.workspace()
    argv = lab.running(lab.script("agent", script), 1)
    ours, theirs = pty.openpty()
    pid = _on_a_terminal(lab, argv, folder, theirs)
    os.close(theirs)
    _await(lambda: (folder / "started").exists())
    _send(way, pid, ours)
    _read_until(ours, b"shutting down")
    began = time.perf_counter()
    _send(way, pid, ours)
    os.waitpid(pid, 0)
    seconds = time.perf_counter() - began
    os.close(ours)
    left = _of_run(folder)
    for one in left:
        os.kill(one, signal.SIGKILL)
    return seconds, len(left)


def _send(way: str, pid: int, terminal: int) -> None:
    if way == "typed ^C":
        os.write(terminal, b"\x03")
    else:
        os.kill(pid, signal.Signals[f"SIG{way}"])


def _on_a_terminal(lab: Lab, argv: tuple[str, ...], folder: Path, terminal: int) -> int:
    """Start a program as a shell on that terminal would."""
    pid = os.fork()
    if pid == 0:
        os.login_tty(terminal)
        os.chdir(folder)
        os.execve(argv[0], argv, lab.env)
    return pid


def _await(happened: Callable[[], bool]) -> None:
    while not happened():
        time.sleep(0.002)


def _read_until(fd: int, mark: bytes) -> None:
    seen = b""
    while mark not in seen:
        seen += os.read(fd, 4096)


def _of_run(folder: Path) -> list[int]:
    """Live processes of the run in this workspace, found by RALPH_RUN_ID in their environment."""
    (run,) = (folder / ".ralph" / "runs").iterdir()
    mark = f"RALPH_RUN_ID={run.name}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found
