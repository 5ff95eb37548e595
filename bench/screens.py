"""What does it cost to look on? The line screen while an agent talks, and the report of a night, in processor time."""

import os
import pty
import time
from collections.abc import Iterator
from pathlib import Path

from bench.lab import MILLI, Lab
from bench.samples import Row, Sample, Wanted
from ralph.core import events as e
from ralph.show.screen import make_screen

A_SECOND, SECONDS = 50, 60
"""Events a second, and for how long."""
CHECKS = tuple(f"seq 900; test $(wc -l < small) -gt 39 || test {at} -lt 0" for at in range(10))


def measure(lab: Lab) -> list[Row]:
    night = _night(lab)
    taken = tuple(_reported(lab, night))
    size = (night / "night.html").stat().st_size / 1024
    return [
        Row("the line screen at 50 events a second", Sample(tuple(_screens())), "% of a core", {}, Wanted(2)),
        Row("a report of 40 iterations, processor time", Sample(taken), "ms", {}, Wanted(300)),
        Row("… its size", Sample((size,)), "KB", {}, Wanted(600)),
    ]


def talk() -> Iterator[e.Event]:
    """What a busy agent says and does."""
    yield e.RunStarted(goal="Make the tests pass", preset="checks", agent="claude", workspace="/w", max_iterations=25)
    yield e.IterationStarted(1, 25, "Make the tests pass")
    yield e.AgentStarted("claude")
    for number in range(A_SECOND * SECONDS // 3):
        name, given = ("Edit", "/w/src/cart.py") if number % 4 == 0 else ("Bash", "pytest -q tests/test_cart.py")
        yield e.AgentText("The coupon is subtracted as an amount, and should be a percentage of the price.")
        yield e.ToolStarted(str(number), name, given)
        yield e.ToolFinished(
            id=str(number), name=name, ok=number % 7 != 0, output="1 failed\n" * 12, lines=12, chars=108
        )


def _screens() -> Iterator[float]:
    """On a terminal, with the live line; the clock goes as if the agent took its time."""
    now = [1_700_000_000.0]
    for _ in range(5):
        terminal, ours = pty.openpty()
        with open(ours, "w", encoding="utf-8") as stream:
            screen = make_screen(stream, env={"TERM": "xterm-256color"}, clock=lambda: now[0])
            began = time.process_time()
            for number, event in enumerate(talk()):
                now[0] += 1 / A_SECOND
                screen(event)
                if number % A_SECOND == 0:
                    screen.tick(now[0])
                _drain(terminal)
            taken = time.process_time() - began
            screen.close()
        os.close(terminal)
        yield 100 * taken / SECONDS


def _drain(terminal: int) -> None:
    os.set_blocking(terminal, False)
    try:
        while os.read(terminal, 1 << 16):
            pass
    except BlockingIOError:
        pass


def _night(lab: Lab) -> Path:
    """A repository in which 40 iterations changed files, and ten checks failed each time."""
    folder = lab.workspace()
    for words in (("init", "-q"), ("add", "-A"), ("commit", "-qm", "first")):
        lab.spent(("/usr/bin/env", "git", *words), folder)
    agent = lab.script("agent", 'N=$RALPH_ITERATION; seq $N 300 > big; seq 1 $N > small; echo "working on $N"')
    checks = [word for check in CHECKS for word in ("--check", check)]
    lab.spent(lab.running(agent, 40, *checks, "--quiet"), folder)
    return folder


def _reported(lab: Lab, night: Path) -> Iterator[float]:
    """Of ralph, and of git below it."""
    for _ in range(7):
        child = lab.start((lab.ralph, "report", "-o", "night.html"), night)
        *_, used = os.wait4(child, 0)
        yield (used.ru_utime + used.ru_stime) * MILLI
