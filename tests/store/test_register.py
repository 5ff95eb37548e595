"""Which runs are there? Whoever asks once a second reads what has changed, and nothing else."""

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from tests.hostile_text import COMMANDS_A_TERMINAL, EVIL
from tests.web.scenes import Scene

from ralph.process.descendants import own_start
from ralph.store.register import STATE, KnownRuns, folders_in, host, listed

_opened: list[str] | None = None


def _hear(event: str, args: tuple[object, ...]) -> None:
    if event == "open" and _opened is not None:
        _opened.append(str(args[0]))


sys.addaudithook(_hear)


@contextmanager
def opened() -> Iterator[list[str]]:
    """The files that are opened meanwhile."""
    global _opened
    names: list[str] = []
    _opened = names
    yield names
    _opened = None


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[list[Scene]]:
    env = {"HOME": str(tmp_path / "home")}
    made = [Scene(tmp_path / "work", env, f"20261116-12000{number}-aaaa") for number in range(3)]
    for one in made[:2]:
        one.finish()
    yield made
    for one in made:
        one.close()


def looked(known: KnownRuns, runs: list[Scene]) -> tuple[list[str], int]:
    """The states of all runs, and how many files were opened for it."""
    with opened() as names:
        found = known.look(folders_in(runs[0].workspace / ".ralph"))
    return [run.state for run in found.values()], sum(name.endswith(STATE) for name in names)


def settle(*runs: Scene, ago: float = 60) -> None:
    """Makes them old: what was written just now may be written again at the same time by the clock."""
    then = time.time() - ago
    for one in runs:
        os.utime(one.folder.path / STATE, (then, then))


def test_what_has_not_changed_is_not_read_again(runs: list[Scene]) -> None:
    known = KnownRuns()
    settle(*runs)
    assert looked(known, runs) == (["done", "done", "running"], 3)
    assert looked(known, runs) == (["done", "done", "running"], 0)
    runs[2].finish("failed", "it broke")
    assert looked(known, runs) == (["done", "done", "failed"], 1)


def test_what_may_be_written_at_this_moment_is_read_again(runs: list[Scene]) -> None:
    known = KnownRuns()
    settle(*runs[:2])
    settle(runs[2], ago=-60)  # on a busy machine this moment may be long ago when somebody looks
    looked(known, runs)
    assert looked(known, runs)[1] == 1


def test_a_run_that_is_removed_is_seen_to_be(runs: list[Scene]) -> None:
    known = KnownRuns()
    settle(*runs)
    looked(known, runs)
    (runs[0].folder.path / STATE).unlink()
    runs[0].folder.journal.unlink()
    assert looked(known, runs)[0] == ["done", "running"]


def test_a_copy_of_a_fleets_work_goes_with_the_process_that_kept_it(tmp_path: Path) -> None:
    """Killed was who looked, and not the work."""
    folder = tmp_path / "20261116-130000-c0py"
    folder.mkdir()
    facts = {"run": folder.name, "kind": "work", "deaf": True, "workspace": "/w", "host": host()}
    me = {"pid": os.getpid(), "start": own_start()}
    for said, state in ((me, "running"), (me | {"outcome": "done"}, "done"), ({"pid": 1 << 30, "start": "1"}, None)):
        (folder / STATE).write_text(json.dumps(facts | said))
        found = listed(folder)
        assert (found and found.state) == state


def test_what_is_read_of_a_journal_is_fit_to_be_shown_as_well(tmp_path: Path) -> None:
    folder = tmp_path / ".ralph" / "runs" / "20261116-120000-aaaa"
    folder.mkdir(parents=True)
    told = {"goal": "g", "preset": EVIL, "agent": EVIL, "workspace": f"/w\r\nforged{EVIL}", "max_iterations": 1}
    line = {"type": "run_started", "timestamp": "", "run": "r", "seq": 1, "data": told}
    (folder / "journal.ndjson").write_text(json.dumps(line) + "\n")
    run = listed(folder)
    assert run
    shown = [value for value in msgspec.structs.astuple(run.facts) if isinstance(value, str)]
    assert not [value for value in shown if COMMANDS_A_TERMINAL.search(value)]
