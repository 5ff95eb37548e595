"""Without a subreaper, as on macOS: processes are found by their group, their parents and their mark."""

import signal

import pytest

from ralph.process import descendants, keeper_program
from ralph.process.keeper import Keeper
from ralph.process.lifecycle import Limits
from ralph.process.process import Process

ESCAPES = {
    "in the background": "sleep {n} &",
    "in another group": "set -m; sleep {n} &",
    "in another session": "setsid sleep {n} &",
    "a daemon": "setsid sh -c 'sleep {n} &'",
    "deaf to SIGTERM": "trap '' TERM; setsid sleep {n} & trap - TERM",
}


@pytest.fixture(params=[True, False], ids=["with /proc", "with ps"])
def elsewhere(request: pytest.FixtureRequest, forked_keeper: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper_program, "adopt_orphans", lambda *_: False)
    monkeypatch.setattr(descendants, "HAS_PROC", request.param)


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("escape", ESCAPES.values(), ids=ESCAPES.keys())
def test_the_mark_finds_processes_that_a_turn_leaves(shell, mark, escape: str) -> None:
    command = shell(escape.format(n=mark.seconds), RALPH_RUN_ID=mark.seconds)
    with Keeper.start() as keeper:
        ended = Process(command, keeper=keeper, limits=Limits(leftovers=0.2)).stream(print)
        assert mark.bearers() == []
        assert (ended.code, ended.leftovers) == (0, 1)
        assert Process(command, keeper=keeper, limits=Limits(leftovers=0.2)).stream(print).leftovers == 1


@pytest.mark.usefixtures("elsewhere")
def test_kept_children_outlive_the_next_turn(shell, mark) -> None:
    command = shell(
        f"setsid sleep {mark.seconds} >/dev/null 2>&1 &", RALPH_RUN_ID=mark.seconds, RALPH_KEEP_CHILDREN="1"
    )
    with Keeper.start() as keeper:
        Process(command, keeper=keeper, keep_children=True).stream(print)
        (kept,) = mark.bearers()
        Process(shell(f"sleep {mark.seconds} &", RALPH_RUN_ID=mark.seconds), keeper=keeper).stream(print)
        assert mark.bearers() == [kept]
    assert mark.bearers() == [kept]


@pytest.mark.usefixtures("elsewhere")
def test_a_turn_that_takes_too_long_is_ended(shell, mark) -> None:
    command = shell(f"setsid sleep {mark.seconds} & exec sleep {mark.seconds}", RALPH_RUN_ID=mark.seconds)
    with Keeper.start() as keeper:
        ended = Process(command, keeper=keeper, limits=Limits(turn=0.1)).stream(print)
        assert (ended.code, ended.ended_by) == (-signal.SIGTERM, "turn-timeout")
        assert mark.bearers() == []
