"""A run that is still continuing: what it tells, line by line, and what lives because of it."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

PATIENCE = 40.0


class Live:
    """The real command in the background, with `--json`. Reading its events is how a test keeps step with it."""

    def __init__(self, words: tuple[str, ...], cwd: Path, env: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ralph", *words, "--json"],
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.events: list[dict[str, Any]] = []

    def until(self, kind: str) -> dict[str, Any]:
        """Reads on to the next event of this kind."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.events.append(json.loads(line))
            if self.events[-1]["type"] == kind:
                return dict(self.events[-1]["data"])
        raise AssertionError(f"the run ended without {kind}: {self.kinds()}")

    def end(self, number: int | None = None) -> int:
        """Sends a signal, if one is given, and reads to the end. The exit code."""
        if number is not None:
            self.process.send_signal(number)
        out, self.err = self.process.communicate(timeout=PATIENCE)
        self.events += [json.loads(line) for line in out.splitlines()]
        return self.process.returncode

    def kinds(self) -> list[str]:
        return [event["type"] for event in self.events]

    def one(self, kind: str) -> dict[str, Any]:
        (event,) = [event for event in self.events if event["type"] == kind]
        return dict(event["data"])


@pytest.fixture
def live(environment: dict[str, str], workspace: Path) -> Iterator[Callable[..., Live]]:
    begun: list[Live] = []

    def start(*words: str, cwd: Path | None = None, **env: str) -> Live:
        begun.append(Live(words, cwd or workspace, {**environment, **env}))
        return begun[-1]

    yield start
    for one in begun:
        with suppress(ProcessLookupError):
            os.killpg(one.process.pid, signal.SIGKILL)
        one.process.communicate()


A_SECOND, AT_MOST = 1.0, 4.9  # seconds; an agent that gets SIGTERM has five


@pytest.fixture
def at_once() -> Callable[[], AbstractContextManager[None]]:
    """Fail if the block takes longer than a second, not counting the time in which the machine was overloaded."""

    @contextmanager
    def within_a_second() -> Iterator[None]:
        began, waited = time.monotonic(), _waited()
        yield
        took = time.monotonic() - began
        assert took - (_waited() - waited) < A_SECOND, f"it took {took:.1f} s"
        assert took < AT_MOST

    return within_a_second


def _waited() -> float:
    """Return the seconds since boot in which a process waited for a processor or a disk, or the host for this VM."""
    try:
        told = [Path("/proc/pressure", what).read_text() for what in ("cpu", "io")]
        stolen = int(Path("/proc/stat").read_text().split()[8]) / os.sysconf("SC_CLK_TCK")
        return stolen + sum(int(text.partition("total=")[2].split()[0]) for text in told) / 1e6
    except (OSError, ValueError, IndexError):  # the kernel doesn't count them: assume that all of the time was
        return time.monotonic()


@pytest.fixture
def alive() -> Callable[[str], list[int]]:
    """Return a function that finds the processes with a word on their command line."""
    return _processes_with


def _processes_with(word: str) -> list[int]:
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            words = Path("/proc", pid, "cmdline").read_bytes().split(b"\0")
            if word.encode() in words:
                found.append(int(pid))
    return found


@pytest.fixture
def nap() -> Iterator[str]:
    """Return an argument of `sleep` that no other command line has. Such processes are killed after the test."""
    word = f"{random.randrange(10**6, 10**7)}.{os.getpid()}"
    yield word
    for pid in _processes_with(word):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def streams() -> Path:
    """What real agents printed."""
    return Path(__file__).parent.parent / "agents" / "streams"


@pytest.fixture
def journal(workspace: Path) -> Callable[[], list[dict[str, Any]]]:
    """The events in the journal of the only run here."""

    def read() -> list[dict[str, Any]]:
        (path,) = workspace.glob(".ralph/runs/*/journal.ndjson")
        return [json.loads(line) for line in path.read_text().splitlines()]

    return read
