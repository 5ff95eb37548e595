"""A process is identified by its pid and start time."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ralph.process import descendants
from ralph.process.descendants import (
    descendants_of,
    is_living,
    kill_run,
    own_start,
    processes_of_run,
    start_of,
)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def test_a_running_process_keeps_its_start_time(sleeper: subprocess.Popen[bytes]) -> None:
    start = start_of(sleeper.pid)
    assert start
    assert start_of(sleeper.pid) == start
    assert is_living(sleeper.pid, start)
    assert is_living(os.getpid(), own_start())


@pytest.mark.parametrize("variables", [{"TZ": "Asia/Tokyo"}, {"LC_ALL": "de_DE.UTF-8"}])
def test_without_proc_a_process_is_the_same_in_another_time_zone_and_language(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variables: dict[str, str]
) -> None:
    """As when a laptop travels, or when cron, which has no locale, looks at a run of a terminal."""
    monkeypatch.setattr(descendants, "HAS_PROC", False)
    ps = tmp_path / "ps"  # like that of macOS, whose names of months depend on the locale
    ps.write_text('#!/bin/sh\necho "S $LC_ALL $(date -d @1700000000 "+%c %H:%M")"\n')
    ps.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    start = start_of(sleeper.pid)
    assert start
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert is_living(sleeper.pid, start)


def test_another_process_with_the_same_pid_is_told_apart(sleeper: subprocess.Popen[bytes]) -> None:
    start = start_of(sleeper.pid) or ""
    boot, _, ticks = start.partition("+")
    assert not is_living(sleeper.pid, f"{boot}+{int(ticks) - 1}")
    assert not is_living(sleeper.pid, f"00000000+{ticks}")
    assert not is_living(sleeper.pid, "")


def test_a_zombie_counts_as_dead(sleeper: subprocess.Popen[bytes]) -> None:
    start = start_of(sleeper.pid) or ""
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert not is_living(sleeper.pid, start)
    sleeper.wait()
    assert start_of(sleeper.pid) is None


def test_pid_zero_has_no_start_time() -> None:
    assert start_of(0) is None
    assert start_of(-1) is None


def test_processes_that_are_hidden_from_us_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """If /proc is mounted with `hidepid=1`, other users' pids are listed, but their files cannot be read."""

    def hidden(path: str) -> bytes:
        raise PermissionError(1, "Operation not permitted", path)

    told = descendants._read
    parent = f"/proc/{os.getppid()}/stat"
    monkeypatch.setattr(descendants, "_read", lambda path: hidden(path) if path == parent else told(path))
    assert processes_of_run("nobody-bears-this") == []
    assert start_of(os.getppid()) is None


def test_unmarked_descendants_of_a_run_are_killed_with_it(mark, eventually) -> None:
    """The shell exits as soon as its `sleep` is killed; then the other children have no parent that leads to them."""
    others = f"for n in $(seq 5); do setsid env -i sleep {mark.seconds} & done"
    run = ["/bin/sh", "-c", f"trap '' TERM; {others}; trap - TERM; sleep {mark.seconds}; :"]
    with subprocess.Popen(run, env={**os.environ, "RALPH_RUN_ID": mark.seconds}) as shell:
        eventually(lambda: [process.name for process in descendants_of(shell.pid)] == [b"sleep"] * 6)
        assert kill_run(mark.seconds, grace=0.2) == 7
        assert mark.bearers() == []


def test_one_look_that_finds_nothing_does_not_end_a_sweep(mark, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel shows no environment of a process that is just executing another program."""
    empty: list[list[int]] = [[], []]
    listed = descendants._pids
    with subprocess.Popen(["sleep", mark.seconds], env={**os.environ, "RALPH_RUN_ID": mark.seconds}) as process:
        monkeypatch.setattr(descendants, "_pids", lambda: empty.pop() if empty else listed())
        assert kill_run(mark.seconds, grace=0.0) == 1
        assert process.wait() < 0
