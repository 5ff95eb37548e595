"""Copies of one process that has learned what they need: who asked for them has them for children, and nothing else."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from ralph.processes import nursery
from ralph.processes.nursery import Nursery
from ralph.processes.reaper import Channel

pytestmark = pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="only Linux gives orphans away")


class Copy:
    """`ralph land` of a place where nothing is, on a leash; what it said to people is in a file."""

    def __init__(self, place: Nursery, folder: Path) -> None:
        self.log = folder / "log"
        out = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        self.pid, self.leash = place.start(("land", str(folder / "nothing")), (out, out))
        os.close(out)

    def is_called(self, *words: str) -> bool:
        """Once it has come to that."""
        wanted, deadline = "\0".join(words), time.monotonic() + 60
        while wanted not in Path(f"/proc/{self.pid}/cmdline").read_text() and time.monotonic() < deadline:
            time.sleep(0.005)
        return wanted in Path(f"/proc/{self.pid}/cmdline").read_text()

    def go(self) -> int:
        os.write(self.leash, b"\n")
        return self.end()

    def end(self) -> int:
        pid, status = os.waitpid(self.pid, 0)
        with suppress(OSError):
            os.close(self.leash)
        assert pid == self.pid
        return os.waitstatus_to_exitcode(status)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Nursery]:
    made = Nursery(str(tmp_path / "a-folder-that-is-long-enough-for-the-names-of-copies"), os.environ)
    yield made
    made.close()


def test_a_copy_is_a_child_of_ours_with_a_session_and_a_name_of_its_own(place: Nursery, tmp_path: Path) -> None:
    copies = [Copy(place, tmp_path) for _ in range(3)]
    for copy in copies:
        assert copy.is_called("ralph", "land", str(tmp_path))
        assert os.getsid(copy.pid) == copy.pid
        assert not [one for one in Path(f"/proc/{copy.pid}/fd").iterdir() if "socket" in os.readlink(one)]
    assert [copy.go() for copy in copies] == [2, 2, 2]
    assert "nothing" in copies[-1].log.read_text()


def test_one_of_which_nobody_comes_to_know_does_nothing(place: Nursery, tmp_path: Path) -> None:
    copy = Copy(place, tmp_path)
    os.close(copy.leash)
    assert copy.end() == 75
    assert copy.log.read_text() == ""


def test_one_that_is_told_to_end_before_its_first_step_ends(place: Nursery, tmp_path: Path) -> None:
    for _ in range(20):
        copy = Copy(place, tmp_path)
        os.kill(copy.pid, signal.SIGINT)
        assert copy.end() == -signal.SIGINT


def test_where_it_was_killed_another_one_takes_its_place(place: Nursery, tmp_path: Path) -> None:
    assert Copy(place, tmp_path).go() == 2
    os.kill(place._pid, signal.SIGKILL)
    assert Copy(place, tmp_path).go() == 2
    last = Copy(place, tmp_path)
    assert last.is_called("ralph", "land")
    assert last.go() == 2


def test_the_copy_of_one_that_was_killed_before_it_told_of_it_takes_nothing_from_the_next(
    place: Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = list[int]()

    def lost(line: Channel) -> tuple[tuple[int], list[int]] | None:
        answer = Channel.receive(line)
        if answer is None or made:
            return answer
        made.append(answer[0][0])
        os.kill(place._pid, signal.SIGKILL)
        return None

    monkeypatch.setattr(nursery, "Channel", type("Losing", (Channel,), {"receive": lost}))
    copy = Copy(place, tmp_path)
    assert made[0] != copy.pid
    assert os.waitstatus_to_exitcode(os.waitpid(made[0], 0)[1]) == 75, "it did nothing"
    assert copy.go() == 2


def test_it_does_not_take_itself_for_the_copy_that_nobody_told_it_of(place: Nursery, tmp_path: Path) -> None:
    """The one that forks the copy, and has yet to say its number, can be killed as well."""
    (tmp_path / "sitecustomize.py").write_text(KILLED_BEFORE_IT_TELLS)
    place._env = {**os.environ, "PYTHONPATH": str(tmp_path), "KILLED": str(tmp_path / "killed")}
    place.open()
    assert place._line is not None
    told = []
    for _ in range(2):
        with open(os.devnull, "r+b") as nothing:
            place._line.send(("land", "nothing"), [nothing.fileno()] * 3)
        told.append(place._line.receive())
    assert (tmp_path / "killed").exists()
    assert told[0] == ((0,), [])
    assert told[1] is not None, "it goes on making others"
    assert told[1][0][0] > 0


KILLED_BEFORE_IT_TELLS = """
import os, signal
write = os.write
def killed_once(fd, data):
    if data.isdigit() and not os.path.exists(os.environ["KILLED"]):
        open(os.environ["KILLED"], "x").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return write(fd, data)
os.write = killed_once
"""


def test_where_it_makes_none_a_process_is_started_as_any_other(
    place: Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nursery, "adopt_orphans", lambda wanted=True: False)
    copy = Copy(place, tmp_path)
    assert copy.is_called("-P", "-m", "ralph", "land", str(tmp_path / "nothing"))
    assert copy.go() == 2


def test_one_that_is_stopped_is_not_waited_for(place: Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nursery, "PATIENCE", 10_000.0)
    place.open()
    os.kill(place._pid, signal.SIGSTOP)
    assert Copy(place, tmp_path).go() == 2


def test_nobody_starts_one_by_hand() -> None:
    done = subprocess.run([sys.executable, "-m", "ralph", "nursery"], stdin=subprocess.DEVNULL, capture_output=True)
    assert done.returncode == 2
    assert b"nothing to start by hand" in done.stderr


def test_its_copies_outlive_it(place: Nursery, tmp_path: Path) -> None:
    copy = Copy(place, tmp_path)
    place.close()
    assert copy.go() == 2
