"""What a person is told whose machine is not as ralph needs it: which part is missing, and how to get it."""

import subprocess
import sys
from pathlib import Path

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


def test_the_pip_of_another_place_is_not_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "pip").touch(0o755)
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    monkeypatch.setenv("PATH", "/usr/bin")
    assert to_install("tui") == f"{tmp_path}/bin/pip install 'ralph-until-done[tui]'"
    monkeypatch.setenv("PATH", f"{tmp_path}/bin")
    assert to_install("tui") == "pip install 'ralph-until-done[tui]'"


@pytest.mark.parametrize("words", [[], ["--version"], ["run", "Fix it"], ["hook", "stop"]])
def test_on_windows_it_says_where_it_works_instead_of_a_missing_module(words: list[str]) -> None:
    lacking = ("fcntl", "pwd", "grp", "resource", "termios", "tty", "pty")
    script = (
        f"import os, sys; sys.modules.update(dict.fromkeys({lacking!r})); os.name = 'nt'\n"
        f"sys.argv = ['ralph', *{words!r}]\n"
        "from ralph.__main__ import leave, main; leave(main())"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    line = "ralph: not on Windows itself: use it inside WSL2 (wsl --install)\n"
    assert (said.returncode, said.stdout, said.stderr) == (2, "", line)
