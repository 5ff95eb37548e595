"""Errors about a machine that lacks something: what is missing, and how to install it."""

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from ralph.errors import to_install

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize(
    ("prefix", "command"),
    [
        (
            "/home/me/.local/share/pipx/venvs/ralph-until-done",
            "pipx inject ralph-until-done 'rich>=13.7' 'textual>=8.2.5'",
        ),
        (
            "/home/me/.local/share/uv/tools/ralph-until-done",
            "uv pip install --python /home/me/.local/share/uv/tools/ralph-until-done/bin/python "
            "'rich>=13.7' 'textual>=8.2.5'",
        ),
        ("/home/me/project/.venv", "pip install 'rich>=13.7' 'textual>=8.2.5'"),
    ],
)
def test_the_hint_depends_on_how_ralph_was_installed(
    prefix: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.prefix", prefix)
    assert to_install("tui") == command


def test_every_extra_names_packages_that_can_be_installed_today() -> None:
    """ralph itself is not on a package index."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    del extras["dev"], extras["docs"]  # for developers
    for extra, packages in extras.items():
        names = [re.split(r"[<>=\[]", package)[0] for package in packages]
        assert [name for name in names if name not in to_install(extra)] == []
        assert "ralph-until-done" not in to_install(extra)


def test_the_hint_names_the_right_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "pip").touch(0o755)
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    monkeypatch.setenv("PATH", "/usr/bin")
    assert to_install("tui") == f"{tmp_path}/bin/pip install 'rich>=13.7' 'textual>=8.2.5'"
    monkeypatch.setenv("PATH", f"{tmp_path}/bin")
    assert to_install("tui") == "pip install 'rich>=13.7' 'textual>=8.2.5'"


WINDOWS = "ralph: Windows is not supported; use it inside WSL2 (wsl --install)"


@pytest.mark.parametrize("words", [[], ["--version"], ["run", "Fix it"], ["hook", "stop"]])
def test_on_windows_the_error_says_where_ralph_works(words: list[str]) -> None:
    lacking = ("fcntl", "pwd", "grp", "resource", "termios", "tty", "pty")
    script = (
        f"import runpy, sys; sys.modules.update(dict.fromkeys({lacking!r})); sys.platform = 'win32'\n"
        f"sys.argv = ['ralph', *{words!r}]\n"
        "runpy.run_module('ralph', run_name='__main__')"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (said.returncode, said.stdout, said.stderr) == (2, "", WINDOWS + "\n")


def test_the_command_of_the_wheel_says_the_same_on_windows(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    with zipfile.ZipFile(next(tmp_path.glob("ralph_until_done-*.whl"))) as wheel:
        scripts = {Path(name).name: wheel.read(name).decode() for name in wheel.namelist() if ".data/scripts/" in name}
    assert set(scripts) == {"ralph", "ralph.cmd"}
    assert scripts["ralph"].startswith("#!python\n")  # which the installer replaces by its own path
    assert scripts["ralph.cmd"] == f"@echo {WINDOWS} 1>&2 & exit /b 2\n"
