"""A hint about an optional part names ralph's own distribution, and the way in which ralph was installed."""

import pytest

from ralph.errors import to_install


@pytest.mark.parametrize(
    ("prefix", "command"),
    [
        ("/home/me/.local/share/pipx/venvs/ralph-until-done", "pipx install --force 'ralph-until-done[tui]'"),
        ("/home/me/.local/share/uv/tools/ralph-until-done", "uv tool install --force 'ralph-until-done[tui]'"),
        ("/home/me/project/.venv", "pip install 'ralph-until-done[tui]'"),
    ],
)
def test_the_hint_fits_how_it_was_installed(prefix: str, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.prefix", prefix)
    assert to_install("tui") == command
