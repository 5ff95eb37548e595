"""The list of runs."""

import json
from pathlib import Path

import msgspec
from tests.hostile_text import COMMANDS_A_TERMINAL, EVIL

from ralph.store.register import run_at


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
