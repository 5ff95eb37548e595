"""A process is known by when it began; it is gone when its last thread is, though its first may have ended before."""

import fcntl
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ralph.processes import descendants
from ralph.processes.descendants import is_living, left_of, own_start, start_of, sweep_marked
from ralph.processes.keeper import Keeper
from ralph.processes.process import run_process
from ralph.processes.program import Command


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


def test_whoever_is_hidden_from_us_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where /proc is mounted with `hidepid=1`, a number says that somebody is there, and nothing says who."""

    def hidden(path: str) -> bytes:
        raise PermissionError(1, "Operation not permitted", path)

    told = descendants._said_by
    parent = f"/proc/{os.getppid()}/stat"
    monkeypatch.setattr(descendants, "_said_by", lambda path: hidden(path) if path == parent else told(path))
    assert left_of("nobody-bears-this") == []
    assert start_of(os.getppid()) is None


pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="threads are told apart by /proc")

# Holds a lock for as long as one of its threads lives; its first thread ends by itself, as no exit of the process.
HEADLESS = """
import ctypes, fcntl, os, threading, time
lock = open({lock!r}, "w")
fcntl.flock(lock, fcntl.LOCK_EX)
threading.Thread(target=time.sleep, args=(600,)).start()
ctypes.CDLL(None).syscall({exit}, 0)
"""
EXIT = {"x86_64": 60, "aarch64": 93}


def script(folder: Path) -> str:
    number = EXIT.get(os.uname().machine)
    if number is None:
        pytest.skip("the number of this machine's call to end one thread is not known here")
    return HEADLESS.format(lock=str(folder / "lock"), exit=number)


def is_held(folder: Path) -> bool:
    with open(folder / "lock") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_a_background_process_without_its_first_thread_does_not_survive_the_turn(
    keeper: Keeper, shell: Callable[..., Command], tmp_path: Path
) -> None:
    path = tmp_path / "headless.py"
    path.write_text(script(tmp_path))
    wait = "until grep -q '^State:.Z' /proc/$!/status; do sleep 0.01; done"
    ended = run_process(keeper, shell(f"{sys.executable} -I -S {path} & {wait}"), on_lines=print)
    assert ended.code == 0
    assert ended.leftovers == 1
    assert not is_held(tmp_path)


def test_such_a_process_is_found_by_the_mark_of_its_run(tmp_path: Path, mark) -> None:
    import subprocess

    path = tmp_path / "headless.py"
    path.write_text(script(tmp_path))
    process = subprocess.Popen([sys.executable, "-I", "-S", path], env={**os.environ, "RALPH_RUN_ID": mark.seconds})
    while b") Z " not in Path(f"/proc/{process.pid}/stat").read_bytes():
        time.sleep(0.01)
    assert sweep_marked(mark.seconds, grace=1.0) == 1
    assert process.wait(60) < 0
    assert not is_held(tmp_path)


CHAIN = """
import os, sys, time
for _ in range(int(sys.argv[1])):
    if os.fork():
        break
else:
    print(flush=True)
time.sleep(600)
"""


def test_whoever_is_below_many_others_is_not_looked_at_for_each_of_them(mark, monkeypatch: pytest.MonkeyPatch) -> None:
    length, looks, look_at = 40, list[int](), descendants._look_at
    words = [sys.executable, "-I", "-S", "-c", CHAIN, str(length)]
    with subprocess.Popen(words, env={"RALPH_RUN_ID": mark.seconds}, stdout=subprocess.PIPE) as first:
        assert first.stdout is not None
        first.stdout.readline()
        with monkeypatch.context() as patch:
            patch.setattr(descendants, "_look_at", lambda pid: looks.append(pid) or look_at(pid))
            chain = {process.pid for process in left_of(mark.seconds)}
        assert sweep_marked(mark.seconds) == len(chain) == length + 1
    assert len([pid for pid in looks if pid in chain]) < 4 * length


def test_the_youngest_are_looked_at_first_also_when_numbers_have_begun_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[str] = []
    monkeypatch.setattr(descendants, "_pids", lambda: [7, 31_000, 8, 32_000])
    monkeypatch.setattr(descendants, "_said_by", lambda path: b"0.5 0.5 0.5 1/300 8\n")
    monkeypatch.setattr(descendants, "_environ_of", lambda folder: looks.append(folder) or b"SOME=THING")
    assert list(descendants._bearers(b"RALPH_RUN_ID=x")) == []
    assert looks == ["/proc/8", "/proc/7", "/proc/32000", "/proc/31000"]


RESTLESS = """
import os, sys, time
for _ in range(4):
    if os.fork() == 0:
        os.setsid()
        while not os.path.exists(sys.argv[1]):
            time.sleep(0.05)
            if os.fork():
                os._exit(0)
        os._exit(0)
"""


def test_one_that_forks_and_goes_all_the_time_does_not_get_away(tmp_path: Path, mark) -> None:
    """It is never the process for long that somebody has just seen."""
    enough = tmp_path / "enough"
    reader, writer = os.pipe()  # whoever lives holds it open
    words = [sys.executable, "-I", "-S", "-c", RESTLESS, str(enough)]
    env = {**os.environ, "RALPH_RUN_ID": mark.seconds}
    assert subprocess.run(words, env=env, pass_fds=[writer], check=False).returncode == 0
    os.close(writer)
    sweep_marked(mark.seconds)
    ready = select.poll()
    ready.register(reader)
    try:
        assert ready.poll(5000) == [(reader, select.POLLHUP)]
    finally:
        enough.touch()
        os.close(reader)
