"""A TUI ends with its terminal, at whatever moment that is closed."""

import os
import pty
import random
import select
import subprocess
import sys
from pathlib import Path

import pytest

UI = [sys.executable, "-P", "-m", "ralph", "ui"]
CONTROLLED = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""
"""Make the terminal on stdin control the process, which then gets a SIGHUP when it is closed."""
KEYS = b"/help\r\x1b?/work \x7f\x7f\x1b"
END_TIMEOUT = 60.0  # seconds; a TUI that hangs never ends


def close_after(size: int, keys: bytes, env: dict[str, str], workspace: Path, has_signal: bool = True) -> None:
    """Open the TUI, close its terminal once it has drawn `size` bytes, and wait for its end."""
    terminal, inside = pty.openpty()
    command = [sys.executable, "-c", CONTROLLED, *UI] if has_signal else UI
    with subprocess.Popen(
        command, stdin=inside, stdout=inside, stderr=inside, env=env, cwd=workspace, start_new_session=True
    ) as ui:
        os.close(inside)
        try:
            drawn = 0
            while drawn < size and select.select([terminal], [], [], END_TIMEOUT)[0]:
                drawn += len(os.read(terminal, min(size - drawn, 4096)))
            os.write(terminal, keys)
            os.close(terminal)
            ui.wait(END_TIMEOUT)
        finally:
            ui.kill()


@pytest.fixture
def env(environment: dict[str, str]) -> dict[str, str]:
    # Unbuffered, each write reaches the terminal at once: this made nearly every closed terminal a hang.
    return {**environment, "TERM": "xterm-256color", "LINES": "40", "COLUMNS": "120", "PYTHONUNBUFFERED": "1"}


@pytest.mark.parametrize("size", [30, 300, 4000])
def test_the_tui_ends_when_its_terminal_is_closed_while_it_draws(
    env: dict[str, str], workspace: Path, size: int
) -> None:
    close_after(size, KEYS, env, workspace)


def test_the_tui_ends_with_its_terminal_if_no_signal_arrives(env: dict[str, str], workspace: Path) -> None:
    """As for a terminal that doesn't control the process."""
    close_after(4000, KEYS, env, workspace, has_signal=False)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_tui_ends_with_its_terminal_200_times(env: dict[str, str], workspace: Path) -> None:
    chance = random.Random(54)
    for _ in range(200):
        unbuffered = {"PYTHONUNBUFFERED": chance.choice(("", "1"))}
        close_after(chance.randrange(1, 5000), KEYS * chance.choice((0, 1, 20)), env | unbuffered, workspace)
