"""The difference between the settings files at the start of a run and now. tests/e2e has the rest."""

import subprocess
from pathlib import Path

from ralph.settings.trust import SettingsRecord, SettingsWatch, difference_in, difference_since


def test_lines_that_are_too_many_to_compare_are_counted(tmp_path: Path) -> None:
    file, before = tmp_path / "settings.json", "\n" * 5000
    file.write_text(before + '{"yolo": true}')
    record = SettingsRecord(1, {bytes(file): before.encode()})
    assert difference_since(record) == f"{file}: 3001 more lines are not compared"


def test_different_line_ends_and_bytes_that_are_not_text_are_differences(tmp_path: Path) -> None:
    file = tmp_path / "settings.json"
    file.write_bytes(b"{}\r\n\xff")
    for before in (b"{}\n\xff", b"{}\r\n\xfe", b"{}\r\n"):
        assert difference_since(SettingsRecord(1, {bytes(file): before}))
    assert not difference_since(SettingsRecord(1, {bytes(file): b"{}\r\n\xff"}))


def test_an_edit_after_a_good_run_needs_no_trust_even_if_a_run_was_killed_before(tmp_path: Path) -> None:
    env = {"XDG_STATE_HOME": str(tmp_path / "state")}
    file = tmp_path / "settings.json"
    file.write_text("{}")
    killed = subprocess.Popen(["true"])
    killed.wait()
    SettingsWatch(tmp_path, "killed", [file], env, pid=killed.pid).begin()
    later = SettingsWatch(tmp_path, "later", [file], env)
    later.begin()
    assert later.end() == []
    file.write_text('{"checks": ["true"]}')
    assert difference_in(tmp_path, env) == ""
