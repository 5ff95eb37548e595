import os
import subprocess
from collections.abc import Iterator

import pytest

from ralph.processes.descendants import is_living, own_start, start_of


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def test_a_living_process_keeps_its_start(sleeper: subprocess.Popen[bytes]) -> None:
    start = start_of(sleeper.pid)
    assert start
    assert start_of(sleeper.pid) == start
    assert is_living(sleeper.pid, start)
    assert is_living(os.getpid(), own_start())


def test_another_process_with_its_number_is_not_it(sleeper: subprocess.Popen[bytes]) -> None:
    start = start_of(sleeper.pid) or ""
    boot, _, ticks = start.partition("+")
    assert not is_living(sleeper.pid, f"{boot}+{int(ticks) - 1}")
    assert not is_living(sleeper.pid, f"00000000+{ticks}")
    assert not is_living(sleeper.pid, "")


def test_a_process_that_nobody_has_waited_for_is_dead(sleeper: subprocess.Popen[bytes]) -> None:
    start = start_of(sleeper.pid) or ""
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert not is_living(sleeper.pid, start)
    sleeper.wait()
    assert start_of(sleeper.pid) is None


def test_no_process_has_no_number() -> None:
    assert start_of(0) is None
    assert start_of(-1) is None
