"""The list of runs."""

import json
import os
from pathlib import Path

import msgspec
from tests.hostile_text import COMMANDS_A_TERMINAL, EVIL

from ralph.process.descendants import own_start
from ralph.store.register import STATE, host, run_at


def test_a_copy_of_a_fleets_backlog_is_listed_while_its_process_runs(tmp_path: Path) -> None:
    """Only the process that showed the copy was killed, not the backlog."""
    folder = tmp_path / "20261116-130000-c0py"
    folder.mkdir()
    facts = {"run": folder.name, "kind": "work", "ignores_signals": True, "workspace": "/w", "host": host()}
    me = {"pid": os.getpid(), "start": own_start()}
    for said, state in ((me, "running"), (me | {"outcome": "done"}, "done"), ({"pid": 1 << 30, "start": "1"}, None)):
        (folder / STATE).write_text(json.dumps(facts | said))
        found = run_at(folder)
        assert (found and found.state) == state


def test_a_summary_from_a_journal_has_no_control_characters(tmp_path: Path) -> None:
    folder = tmp_path / ".ralph" / "runs" / "20261116-120000-aaaa"
    folder.mkdir(parents=True)
    told = {"goal": "g", "preset": EVIL, "agent": EVIL, "workspace": f"/w\r\nforged{EVIL}", "max_iterations": 1}
    line = {"type": "run_started", "timestamp": "", "run": "r", "seq": 1, "data": told}
    (folder / "journal.ndjson").write_text(json.dumps(line) + "\n")
    run = run_at(folder)
    assert run
    shown = [value for value in msgspec.structs.astuple(run.facts) if isinstance(value, str)]
    assert not [value for value in shown if COMMANDS_A_TERMINAL.search(value)]
