"""Does a program that is asked about itself answer, and is nothing left of it?"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ralph.processes.keeper import Keeper
from ralph.processes.process import heard
from ralph.processes.program import Command


@pytest.fixture
def keeper() -> Iterator[Keeper]:
    with Keeper.start() as keeper:
        yield keeper


def test_what_it_prints_and_how_it_ends(keeper: Keeper, tmp_path: Path) -> None:
    said, ended = heard(
        keeper, Command(argv=("sh", "-c", "echo 1.2.3; echo careful >&2; exit 3"), cwd=str(tmp_path), env=os.environ)
    )
    assert (said, ended.stderr, ended.code) == ("1.2.3", "careful\n", 3)


def test_one_that_never_stops_talking_fills_no_memory(keeper: Keeper, tmp_path: Path) -> None:
    command = ("sh", "-c", "yes aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa | head -c 3000000")
    said, ended = heard(keeper, Command(argv=command, cwd=str(tmp_path), env=os.environ))
    assert ended.code == 0
    assert 0 < len(said) < 300_000


def test_one_that_hangs_is_ended_with_all_that_it_started(
    keeper: Keeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ralph.processes.process.PATIENCE", 0.3)
    os.mkfifo(tmp_path / "alive")
    reader = os.open(tmp_path / "alive", os.O_RDONLY | os.O_NONBLOCK)
    command = ("sh", "-c", "(setsid sleep 600 > alive) & sleep 600 > alive")
    _, ended = heard(keeper, Command(argv=command, cwd=str(tmp_path), env=os.environ))
    assert ended.ended_by
    os.set_blocking(reader, True)
    assert os.read(reader, 1) == b""  # the end of the file comes when the last process that holds it is gone
    os.close(reader)
