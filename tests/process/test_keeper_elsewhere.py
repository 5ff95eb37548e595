"""Without /proc and a subreaper, as on macOS: ralph ends the process group of each program."""

import os
import signal

import pytest

from ralph.process import descendants, keeper_program
from ralph.process.keeper import Keeper
from ralph.process.kept_process import KeptProcess, Limits


@pytest.fixture
def elsewhere(forked_keeper: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper_program, "adopt_orphans", lambda *_: False)
    monkeypatch.setattr(descendants, "HAS_PROC", False)
    monkeypatch.setattr("ralph.process.keeper.HAS_PROC", False)


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("trap", ["", "trap '' TERM;"])
def test_the_process_group_that_a_turn_leaves_is_killed(shell, mark, trap: str) -> None:
    command = shell(f"{trap} sleep {mark.seconds} & sleep {mark.seconds} &")
    with Keeper.start() as keeper:
        for _ in range(2):
            assert KeptProcess(command, keeper=keeper, limits=Limits(leftovers=0.2)).stream(print).code == 0
            assert mark.bearers() == []


@pytest.mark.usefixtures("elsewhere")
def test_kept_children_outlive_the_next_turn(shell, mark) -> None:
    command = shell(f"setsid sleep {mark.seconds} >/dev/null 2>&1 &", RALPH_KEEP_CHILDREN="1")
    with Keeper.start() as keeper:
        KeptProcess(command, keeper=keeper, keep_children=True).stream(print)
        (kept,) = mark.bearers()
        KeptProcess(shell(f"sleep {mark.seconds} &"), keeper=keeper).stream(print)
        assert mark.bearers() == [kept]
    assert mark.bearers() == [kept]


@pytest.mark.usefixtures("elsewhere")
def test_a_turn_that_takes_too_long_is_ended(shell, mark) -> None:
    command = shell(f"sleep {mark.seconds} & exec sleep {mark.seconds}")
    with Keeper.start() as keeper:
        ended = KeptProcess(command, keeper=keeper, limits=Limits(turn=0.1)).stream(print)
        assert (ended.code, ended.ended_by) == (-signal.SIGTERM, "turn-timeout")
        assert mark.bearers() == []


@pytest.mark.usefixtures("elsewhere")
def test_a_running_process_is_known_by_its_start_time() -> None:
    start = descendants.own_start()
    assert start
    assert descendants.own_start() == start
    assert descendants.start_of(1 << 22) is None


@pytest.mark.usefixtures("elsewhere")
def test_a_turn_that_takes_too_long_is_ended_although_other_processes_are_spared(shell, mark) -> None:
    class Spared:
        def pids(self) -> list[int]:
            return [os.getppid()]

        def expects(self, pid: int) -> bool:
            return False

    with Keeper.start() as keeper:
        keeper.spared = Spared()
        ended = KeptProcess(shell(f"exec sleep {mark.seconds}"), keeper=keeper, limits=Limits(turn=0.1)).stream(print)
        assert (ended.code, ended.ended_by) == (-signal.SIGTERM, "turn-timeout")
        assert mark.bearers() == []


@pytest.mark.usefixtures("forked_keeper")
def test_the_process_group_is_killed_if_only_the_subreaper_is_missing(
    shell, mark, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper_program, "adopt_orphans", lambda *_: False)
    with Keeper.start() as keeper:
        KeptProcess(shell(f"sleep {mark.seconds} &"), keeper=keeper, limits=Limits(leftovers=0.2)).stream(print)
        assert mark.bearers() == []
