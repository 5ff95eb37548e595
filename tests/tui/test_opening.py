"""Open the TUI with the real command in a real terminal; if that is impossible, a message says why."""

import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pexpect
import pyte
import pytest
from tests.hostile_text import EVIL, SCRIPT, forge

SIZE = (24, 80)
NO_GOAL = 'ralph: no goal\nhint: say what to achieve: "GOAL", -p TEXT, -f FILE, --spec FILE, or text on stdin\n'


class Terminal:
    """A terminal that runs the command. `screen` shows what was read so far."""

    def __init__(self, words: list[str], cwd: Path, env: dict[str, str]) -> None:
        self.child = pexpect.spawn(words[0], words[1:], cwd=str(cwd), env=env, dimensions=SIZE, timeout=60)
        self._screen = pyte.Screen(SIZE[1], SIZE[0])
        self._stream = pyte.ByteStream(self._screen)
        self.raw = b""

    def until(self, text: str) -> str:
        """Read until the text is on the screen."""
        deadline = time.monotonic() + 60
        while text not in self.seen:
            assert time.monotonic() < deadline, self.seen
            self._read()
        return self.seen

    def _read(self) -> None:
        try:
            data = self.child.read_nonblocking(65536, timeout=1)
        except pexpect.TIMEOUT:
            return
        self.raw += data
        self._stream.feed(data)

    @property
    def seen(self) -> str:
        return "\n".join(line.rstrip() for line in self._screen.display)

    def end(self) -> int:
        """The exit code. A run that is shown as done may be about to end yet: asked whether to stop it, one does."""
        is_asked = False
        while True:
            try:
                self._read()
            except pexpect.EOF:
                break
            if "quit?" in self.seen and not is_asked:
                is_asked = True
                self.child.send("s")
        self.child.close()
        return self.child.exitstatus if self.child.exitstatus is not None else -self.child.signalstatus


@pytest.fixture
def terminal(environment: dict[str, str], workspace: Path) -> Iterator[Callable[..., Terminal]]:
    made: list[Terminal] = []

    def open_one(*words: str, **env: str) -> Terminal:
        command = [sys.executable, "-m", "ralph", *words]
        made.append(Terminal(command, workspace, {"TERM": "xterm-256color", **environment, **env}))
        return made[-1]

    yield open_one
    for one in made:
        one.child.close(force=True)


def test_the_tui_restores_the_terminal_when_it_closes(terminal: Callable[..., Terminal]) -> None:
    one = terminal("ui")
    one.until("next: single shot")
    one.until("No run yet.")
    one.child.send("/ralph 5\r")
    one.until("cap: 5")
    one.until("next: loop until STOP, at most 5")
    one.child.send("\x03")
    assert one.end() == 0
    assert b"\x1b[?1049h" in one.raw
    assert one.raw.rindex(b"\x1b[?1049l") > one.raw.rindex(b"\x1b[?1049h")


def test_ralph_run_without_a_goal_opens_the_tui(terminal: Callable[..., Terminal], agent: Callable[..., str]) -> None:
    agent("echo STOP")
    one = terminal("run", ".", "--ralph", "3", "--agent", "fake-agent", "--check", "true")
    one.until("next: loop until STOP, at most 3, 1 check")
    one.child.send("Make it so\r")
    one.until("done after 1 iteration")
    one.child.send("\x03")
    assert one.end() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_closes_the_tui_and_restores_the_terminal(terminal: Callable[..., Terminal], number: int) -> None:
    one = terminal("ui")
    one.until("No run yet.")
    one.child.kill(number)
    assert one.end() == 0
    assert one.raw.rindex(b"\x1b[?1049l") > one.raw.rindex(b"\x1b[?1049h")


def test_no_color_sends_no_colour_to_the_terminal(terminal: Callable[..., Terminal]) -> None:
    import re

    one = terminal("ui", NO_COLOR="1")
    one.until("No run yet.")
    one.child.send("\x03")
    assert one.end() == 0
    codes = {code for found in re.findall(rb"\x1b\[([0-9;]*)m", one.raw) for code in found.split(b";")}
    assert not codes & {b"%d" % code for code in (*range(30, 39), *range(40, 49), *range(90, 98), *range(100, 108))}


def test_a_missing_textual_is_reported_with_a_hint(environment: dict[str, str], workspace: Path) -> None:
    code = (
        "import sys; sys.modules['textual'] = None; from ralph.cli.main import run_cli; sys.exit(run_cli(['ui', '.']))"
    )
    env = {"TERM": "xterm", **environment}
    one = Terminal([sys.executable, "-c", code], workspace, env)
    assert one.end() == 2
    said = "the TUI needs textual, which is not installed\nhint: pip install 'rich>=13.7' 'textual>=8.2.5'"
    assert one.raw.replace(b"\r", b"").decode() == f"ralph: {said}\n"


def test_a_dumb_terminal_is_refused(terminal: Callable[..., Terminal]) -> None:
    one = terminal("ui", TERM="dumb")
    assert one.end() == 2
    assert b"the TUI needs a terminal" in one.raw


def test_without_a_terminal_the_tui_is_refused(ralph: Callable[..., Any]) -> None:
    result = ralph("ui")
    assert (result.code, result.out) == (2, "")
    assert result.err == ("ralph: the TUI needs a terminal\nhint: `ralph ps` and `ralph logs -f` work anywhere\n")
    result = ralph("ui", "no-such-folder")
    assert (result.code, result.err) == (2, "ralph: folder not found: no-such-folder\nhint: name a folder\n")


@pytest.mark.parametrize("words", [(".",), (".", "--agent", "claude"), (".", "--json"), (), (".", "--print")], ids=str)
def test_without_a_terminal_a_run_needs_a_goal(ralph: Callable[..., Any], words: tuple[str, ...]) -> None:
    result = ralph("run", *words)
    assert (result.code, result.out, result.err) == (2, "", NO_GOAL)


def test_a_word_that_is_not_a_folder_is_a_goal(ralph: Callable[..., Any], agent: Callable[..., str]) -> None:
    agent("echo STOP")
    assert ralph("run", "docs", "--ralph", "2", "--agent", "fake-agent").code == 0


@pytest.mark.parametrize("forged", [False, True])
def test_no_control_characters_of_runs_reach_the_terminal(
    terminal: Callable[..., Terminal],
    ralph: Callable[..., Any],
    agent: Callable[..., str],
    repository: Path,
    forged: bool,
) -> None:
    check = f"printf '%s' '{EVIL}'; false"
    assert ralph("run", f"goal {EVIL}", "-m", "2", "--check", check, "--agent", agent(SCRIPT)).code == 1
    if forged:
        forge(next(repository.glob(".ralph/runs/*")))
    one = terminal("ui")
    one.until("goal x")
    # A key right behind an Escape belongs to it, and a whole burst is typed text: wait for each result.
    for keys, shown in (
        ("\x1b", "s stop"),
        ("j", "goal x"),
        ("d", "esc back"),
        ("\x1b", "s stop"),
        ("\r", "enter send"),
    ):
        one.child.send(keys)
        one.until(shown)
    one.child.send("\x03")
    assert one.end() == 0
    for harm in ("]52;c;", "\x9b31m", "\x9d0;t", "\u202e"):
        assert harm.encode() not in one.raw
    assert b"[2Jy" not in one.raw
