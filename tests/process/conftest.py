import os
import secrets
import select
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from ralph.process import keeper as keeper_module
from ralph.process import keeper_program
from ralph.process.keeper import Keeper
from ralph.process.keeper_program import Channel
from ralph.process.program import Command, DetachedProcess


class Mark:
    """A unique number of seconds to sleep. Processes with it in their arguments or environment were started by this
    test."""

    def __init__(self) -> None:
        self.seconds = f"3{secrets.randbelow(10**8):08}"
        self.env = {"TEST_MARK": self.seconds}

    def bearers(self) -> list[int]:
        return [int(name) for name in os.listdir("/proc") if name.isdigit() and self._is_on(Path("/proc", name))]

    def _is_on(self, process: Path) -> bool:
        try:
            words = (process / "cmdline").read_bytes().split(b"\0") + (process / "environ").read_bytes().split(b"\0")
        except OSError:
            return False
        return self.seconds.encode() in words or f"TEST_MARK={self.seconds}".encode() in words

    def wait_until_gone(self) -> None:
        """Wait until all marked processes have ended, for tests in which the keeper outlives ralph."""
        while bearers := self.bearers():
            try:
                handle = os.pidfd_open(bearers[0])
            except ProcessLookupError:
                continue
            waiting = select.poll()
            waiting.register(handle, select.POLLIN)
            ended = waiting.poll(60_000)
            os.close(handle)
            assert ended, f"process {bearers[0]} is still alive"


@pytest.fixture
def mark() -> Iterator[Mark]:
    mark = Mark()
    yield mark
    for pid in mark.bearers():
        with suppress(ProcessLookupError):
            os.kill(pid, 9)


@pytest.fixture
def keeper() -> Iterator[Keeper]:
    with Keeper.start() as keeper:
        yield keeper


@pytest.fixture
def forked_keeper(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the keeper instead of executing it, so that it sees what the test has patched."""

    def fork(channel: int) -> DetachedProcess:
        ralph = os.getpid()
        if pid := os.fork():
            return DetachedProcess(pid)
        try:
            os.setsid()
            keeper_program.ignore_signals()
            os.dup2(channel, 0)
            os.closerange(3, 1024)
            with socket.socket(fileno=0) as end:
                keeper_program.KeeperProgram(Channel(end), ralph).serve()
        finally:
            os._exit(0)

    monkeypatch.setattr(keeper_module, "execute_keeper", fork)


@pytest.fixture
def shell(tmp_path: Path, mark: Mark) -> Callable[..., Command]:
    """Return a function that makes a command for a shell script in the test's folder."""

    def command(script: str, stdin: bytes = b"", **env: str) -> Command:
        return Command(
            argv=("/bin/sh", "-c", script),
            cwd=str(tmp_path),
            env={"PATH": os.environ["PATH"], **mark.env, **env},
            stdin=stdin,
        )

    return command


@pytest.fixture
def python(tmp_path: Path, mark: Mark) -> Callable[..., Command]:
    """Return a function that makes a command for a Python script in the test's folder."""

    def command(script: str, stdin: bytes = b"", **env: str) -> Command:
        argv = (sys.executable, "-I", "-S", "-c", script)
        return Command(argv=argv, cwd=str(tmp_path), env={"PATH": os.environ["PATH"], **mark.env, **env}, stdin=stdin)

    return command
