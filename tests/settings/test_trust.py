"""The difference between the settings files at the start of a run and now. tests/e2e has the rest."""

from pathlib import Path

from ralph.settings.trust import difference_since


def test_lines_that_are_too_many_to_compare_are_reported(tmp_path: Path) -> None:
    file, before = tmp_path / "settings.json", "\n" * 5000
    file.write_text(before + '{"yolo": true}')
    assert "changes that cannot be shown: below line 2000" in difference_since({bytes(file): before.encode()})


def test_a_change_that_no_line_shows_is_a_difference(tmp_path: Path) -> None:
    file = tmp_path / "settings.json"
    file.write_bytes(b"{}\r\n")
    assert "changes that cannot be shown" in difference_since({bytes(file): b"{}\n"})
    assert not difference_since({bytes(file): b"{}\r\n"})
