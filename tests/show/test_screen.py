import fcntl
import io
import os
import pty
import termios
from collections.abc import Callable
from pathlib import Path

import pyte
import pytest

from ralph.core import events as e
from ralph.core.model import Fingerprint, Iteration, Outcome, Turn, Usage
from ralph.show.event_lines import EventLines
from ralph.show.outlet import GLYPHS, Outlet, Style
from ralph.show.screen import Screen, make_screen


class Terminal(io.StringIO):
    """An emulated terminal with a screen to look at."""

    encoding = "utf-8"

    def __init__(self, columns: int = 60, rows: int = 24) -> None:
        super().__init__()
        self.raw = ""
        self.screen = pyte.Screen(columns, rows)
        self.screen.set_mode(pyte.modes.LNM)
        self.stream = pyte.Stream(self.screen)

    def write(self, text: str) -> int:
        self.raw += text
        self.stream.feed(text)
        return len(text)

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in self.screen.display if line.strip()]


class Watch:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def live(terminal: Terminal, clock: Callable[[], float] | None = None) -> Screen:
    style = Style(GLYPHS, color=True)
    lines = EventLines(style, announces=False)
    return Screen(
        Outlet(terminal), style, lines, live=True, columns=lambda: terminal.screen.columns, clock=clock or Watch()
    )


def narrow(*events: e.Event, columns: int) -> str:
    """Return the lines on a terminal without colours and without a live line."""
    out, style = io.StringIO(), Style(GLYPHS)
    screen = Screen(Outlet(out), style, EventLines(style), columns=lambda: columns)
    for event in events:
        screen(event)
    screen.close()
    return out.getvalue()


def plain(*events: e.Event, announced: str = "", **options: object) -> str:
    out = io.StringIO()
    screen = make_screen(out, env={}, **options)  # type: ignore[arg-type]
    if announced:
        screen.announce(announced)
    for event in events:
        screen(event)
    screen.close()
    return out.getvalue()


def test_the_live_line_stays_below_what_is_printed() -> None:
    terminal = Terminal()
    screen = live(terminal)
    screen(e.IterationStarted(3, 10, "goal"))
    screen(e.AgentStarted("claude"))
    screen(e.ToolStarted("1", "Bash", "pytest -q"))
    assert terminal.lines[-1] == " iteration 3/10 · 0s · Bash(pytest -q)"
    screen(e.ToolFinished(id="1", name="Bash", ok=True, output="ok", lines=1, chars=2))
    assert terminal.lines[-3:] == [
        "  • Bash(pytest -q)  1 line",
        "    └ ok",
        " iteration 3/10 · 0s · thinking",
    ]
    assert sum("iteration 3/10 ·" in line for line in terminal.lines) == 1


def test_the_live_line_shows_at_once_what_starts() -> None:
    terminal = Terminal()
    screen = live(terminal)
    for event, doing in (
        (e.IterationStarted(3, 10, "goal"), "preparing"),
        (e.AgentStarted("claude"), "claude"),
        (e.CheckStarted("make test"), "check make test"),
        (e.ReviewStarted("security"), "review security"),
    ):
        screen(event)
        assert terminal.lines[-1] == f" iteration 3/10 · 0s · {doing}"


def iteration(number: int, cost: float) -> Iteration:
    return Iteration(number=number, turn=Turn(text="x", usage=Usage(cost_usd=cost)))


def test_the_live_line_counts_time_and_money() -> None:
    terminal, watch = Terminal(), Watch()
    screen = live(terminal, watch)
    screen(e.RunStarted(goal="goal", preset="checks", agent="claude", workspace="/repo", max_iterations=None))
    screen(e.IterationStarted(1, None, "goal"))
    screen(e.IterationFinished(1, iteration(1, 0.42)))
    screen(e.IterationStarted(2, None, "goal"))
    screen(e.CheckStarted("make test"))
    screen.tick(watch.now + 252)
    assert terminal.lines[-1] == " iteration 2 · 4m12s · $0.42 · check make test 4m12s"


def test_the_live_line_shows_cost_and_todo_progress() -> None:
    terminal, watch = Terminal(90), Watch()
    screen = live(terminal, watch)
    screen(e.RunStarted(goal="goal", preset="checks", agent="claude", workspace="/repo", max_iterations=10))
    for number, cost in ((1, 0.20), (2, 0.40)):
        screen(e.IterationStarted(number, 10, "goal"))
        screen(e.IterationFinished(number, iteration(number, cost)))
    screen(e.IterationStarted(3, 10, "goal"))
    screen(e.AgentStarted("claude"), e.TodoUpdated((e.TodoItem("a", "done"), e.TodoItem("b", "active"))))
    screen(e.ToolStarted("1", "Bash", "make"))
    assert terminal.lines[-1] == " iteration 3/10 · 0s · $0.60 · todo 1/2 · Bash(make)"


def test_the_end_shows_the_name_of_the_run_and_the_next_commands() -> None:
    out = io.StringIO()
    screen = make_screen(out, env={}, live=False)
    screen.belongs_to("20261115-101500-k3fa")
    screen(
        e.RunStarted(
            goal="g",
            preset="checks",
            agent="claude",
            workspace="/ws",
            max_iterations=3,
            base_tree=Fingerprint.parse("t:1"),
            branch="ralph/k3fa",
        )
    )
    for number in (1, 2):
        screen(
            e.IterationFinished(number, Iteration(number=number, turn=Turn(text="x"), tree=Fingerprint.parse("t:2")))
        )
    screen(
        e.RunFinished(
            outcome=Outcome.EXHAUSTED,
            reason="2 iterations",
            iterations=2,
            cost_usd=None,
            duration_s=1.0,
            exit_code=1,
            branch="ralph/k3fa",
        )
    )
    screen.close()
    assert out.getvalue().splitlines()[-6:] == [
        "run 20261115-101500-k3fa",
        "  ralph resume k3fa -m 10  continue where it stopped",
        "  ralph diff k3fa          what it changed",
        "  ralph show k3fa          what happened, iteration by iteration",
        "",
        "ralph: exhausted: 2 iterations (1s)",
    ]


def test_a_wait_counts_down() -> None:
    terminal, watch = Terminal(), Watch()
    screen = live(terminal, watch)
    screen(e.IterationStarted(2, 5, "goal"))
    screen(e.Waiting(720.0, "usage limit reached", until=watch.now + 720))
    assert " · waiting 12m until " in terminal.lines[-1]
    screen.tick(watch.now + 60)
    assert " · waiting 11m until " in terminal.lines[-1]
    screen.tick(watch.now + 99_999)
    assert " · waiting 0s until " in terminal.lines[-1]
    watch.now += 100_000
    screen(e.AgentStarted("claude"))
    assert terminal.lines[-1] == " iteration 2/5 · 1d3h · claude"


@pytest.mark.parametrize("columns", [12, 30, 60])
def test_the_live_line_is_never_wider_than_the_terminal(columns: int) -> None:
    terminal = Terminal(columns)
    screen = live(terminal)
    screen(e.IterationStarted(1, 10, "goal"))
    screen(e.ToolStarted("1", "Read", "日本語のファイル名がとても長い🙂🙂🙂🙂🙂🙂🙂🙂.txt"))
    for _ in range(3):
        screen.tick()
    assert sum(line.startswith(" iteration") for line in terminal.lines) == 1
    assert terminal.lines[-1].endswith("…")


def test_a_terminal_made_narrower_keeps_one_live_line() -> None:
    terminal = Terminal(60)
    screen = live(terminal)
    screen(e.IterationStarted(1, 10, "goal"))
    screen(e.ToolStarted("1", "Bash", "a rather long command that needs room"))
    terminal.screen.resize(24, 30)
    screen.tick()
    assert terminal.lines[-1] == " iteration 1/10 · 0s · Bash(…"
    assert sum(line.startswith(" iteration") for line in terminal.lines) == 1


def test_a_line_folded_by_a_narrower_terminal_is_erased_whole() -> None:
    """A terminal that folds lines keeps the cursor on its character: at the start, above the folded rest."""
    terminal = Terminal(40)
    screen = live(terminal)
    screen(e.IterationStarted(1, 10, "goal"))
    assert terminal.screen.cursor.x == 0
    row = terminal.screen.cursor.y
    terminal.stream.feed(f"\x1b[{row + 2};1Hfolded rest\x1b[{row + 1};1H")
    screen.tick()
    assert "folded rest" not in "\n".join(terminal.lines)


def test_the_live_line_is_erased_at_the_end(run: list[e.Event]) -> None:
    terminal = Terminal(100, 200)
    screen = live(terminal)
    for event in run:
        screen(event)
    screen.close()
    assert not any(line.startswith(" iteration") for line in terminal.lines)
    assert terminal.lines[-1].startswith("ralph: done after 3 iterations: ")
    assert terminal.screen.cursor.x == 0
    assert terminal.raw.count("\x1b[?7l") == terminal.raw.count("\x1b[?7h")


def test_a_crash_without_an_outcome_removes_the_live_line() -> None:
    terminal = Terminal()
    screen = live(terminal)
    screen(e.IterationStarted(1, 10, "goal"))
    screen.close()
    assert len(terminal.lines) == 1


def test_after_an_announced_end_the_live_line_says_how_to_end_at_once() -> None:
    terminal = Terminal()
    screen = live(terminal)
    screen(e.IterationStarted(1, 10, "goal"))
    screen.announce("Received signal, shutting down...")
    screen(e.Notice("next"))
    live_line = " iteration 1/10 · 0s · Ctrl-C again ends it now · preparing"
    assert terminal.lines[1:] == ["Received signal, shutting down...", "! next", live_line]
    assert plain(announced="Received signal, shutting down...", quiet=True) == "Received signal, shutting down...\n"


def test_silent_events_do_not_redraw_more_than_needed() -> None:
    terminal, watch = Terminal(), Watch()
    screen = live(terminal, watch)
    screen(e.IterationStarted(1, 10, "goal"))
    before = len(terminal.raw)
    for _ in range(100):
        screen(e.AgentUnknown("x"))
    assert len(terminal.raw) == before
    watch.now += 1
    screen(e.AgentUnknown("x"))
    assert len(terminal.raw) > before


def test_plain_output_has_no_escape_and_no_live_line(run: list[e.Event]) -> None:
    text = plain(*run)
    assert "\x1b" not in text
    assert "\r" not in text
    recorded = (Path(__file__).parent / "glyphs.txt").read_text(encoding="utf-8")
    assert text.startswith(recorded)
    assert text[len(recorded) :].splitlines() == [
        "",
        "  #  checks           tools   cost    time  what happened",
        "  1  ✗ 1/2 make test      3  $0.12    1m4s  claim refused: checks",
        "  2                       0           2.5s  failed: the agent exited with 1",
        "  3  ✓ 2/2                1  $0.04    9.5s  done, committed",
        "                          4  $0.16  13m20s  total",
        "",
        "The work is on branch ralph/3f2a in /home/user/.cache/ralph/3f2a",
        "To merge it: git merge ralph/3f2a",
        "ralph: done after 3 iterations: the agent said COMPLETE and 2 checks passed (13m20s, $0.16)",
    ]


def test_quiet_prints_only_the_outcome(run: list[e.Event]) -> None:
    assert plain(*run, quiet=True).splitlines() == [
        "The work is on branch ralph/3f2a in /home/user/.cache/ralph/3f2a",
        "To merge it: git merge ralph/3f2a",
        "ralph: done after 3 iterations: the agent said COMPLETE and 2 checks passed (13m20s, $0.16)",
    ]


@pytest.mark.parametrize("options", [{}, {"quiet": True}, {"agent_output": False}, {"verbose": True}, {"color": True}])
def test_the_outcome_is_the_very_last_line(options: dict[str, bool], run: list[e.Event]) -> None:
    assert "ralph: done after 3 iterations: " in plain(*run, **options).splitlines()[-1]


def test_timestamps_precede_all_lines_but_the_outcome() -> None:
    text = plain(
        e.Notice("one"),
        e.IterationStarted(1, 2, ""),
        e.RunFinished(outcome=Outcome.DONE, reason="x", iterations=0, cost_usd=None, duration_s=1.0, exit_code=0),
        timestamps=True,
        clock=lambda: 0.0,
    )
    first, gap, second, _, last = text.splitlines()
    assert (first[0], first[3], first[9:]) == ("[", ":", "] ! one")
    assert gap == ""
    assert second[9:].startswith("] ── iteration 1/2 ")
    assert last == "ralph: done: x (1s)"


def test_a_whole_run_fits_a_terminal_of_forty_columns(run: list[e.Event]) -> None:
    from ralph.show.words import width

    lines = narrow(*run, columns=40).splitlines()
    assert [line for line in lines if width(line) > 40] == []
    *_, before, last = " ".join(lines).rpartition("ralph: done after 3 iterations: ")
    assert before
    assert last == plain(*run).splitlines()[-1].partition(before)[2]


def test_a_narrow_terminal_breaks_lines() -> None:
    assert narrow(e.AgentText("one two three four five"), columns=14) == "  one two\n  three four\n  five\n"


def test_every_line_is_one_write(run: list[e.Event]) -> None:
    class Counting(io.StringIO):
        writes = 0

        def write(self, text: str) -> int:
            self.writes += 1
            return super().write(text)

    out = Counting()
    screen = make_screen(out)
    screen(e.ToolFinished(id="1", name="Bash", ok=False, output="a\nb\nc\n", lines=3, chars=6))
    assert out.writes == 1


def test_skipped_lines_are_counted_and_reported() -> None:
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    with open(writer, "w", encoding="utf-8") as stream:
        screen = make_screen(stream)
        os.write(writer, b"x" * 4096)
        screen(e.AgentText("lost"))
        screen(e.ToolFinished(id="1", name="Bash", ok=True, output="lost", lines=1, chars=4))
        os.read(reader, 65536)
        screen(e.AgentText("seen"))
        assert os.read(reader, 65536).decode().splitlines() == [
            "… 4 lines skipped: the reader is slow",
            "",
            "  seen",
        ]
    os.close(reader)


def test_nothing_follows_the_outcome_that_a_slow_reader_missed() -> None:
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    with open(writer, "w", encoding="utf-8") as stream:
        screen = make_screen(stream)
        os.write(writer, b"x" * 4096)
        screen(e.AgentText("lost"))
        os.read(reader, 65536)
        screen(
            e.RunFinished(outcome=Outcome.DONE, reason="x", iterations=1, cost_usd=None, duration_s=1.0, exit_code=0)
        )
        screen.close()
        assert os.read(reader, 65536).decode().splitlines() == [
            "… 1 line skipped: the reader is slow",
            "",
            "ralph: done after 1 iteration: x (1s)",
        ]
    os.close(reader)


def test_a_reader_who_left_does_not_end_the_run(run: list[e.Event]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w", encoding="utf-8") as stream:
        screen = make_screen(stream)
        for event in run:
            screen(event)
        screen.close()


def test_a_run_works_without_stderr(run: list[e.Event]) -> None:
    screen = make_screen(None)
    for event in run:
        screen(event)
    screen.tick()
    screen.close()


def on_a_terminal(env: dict[str, str], run: list[e.Event], columns: int = 100, **options: object) -> str:
    """Return what a real (pseudo) terminal receives."""
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (30, columns))
    attributes = termios.tcgetattr(slave)
    attributes[1] &= ~termios.OPOST
    termios.tcsetattr(slave, termios.TCSANOW, attributes)
    with open(slave, "w", encoding="utf-8") as stream:
        screen = make_screen(stream, env=env, **options)  # type: ignore[arg-type]
        for event in run:
            screen(event)
        screen.close()
        received = b""
        while not received.endswith(b"$0.16)\n") and not received.endswith(b"$0.16)\x1b[0m\n"):
            received += os.read(master, 65536)
    os.close(master)
    return received.decode()


def test_a_real_terminal_gets_colour_and_a_live_line(run: list[e.Event]) -> None:
    text = on_a_terminal({"TERM": "xterm"}, run)
    assert "\x1b[1;36m── iteration 1/10 " in text
    assert "\x1b[?7l" in text


def test_no_color_keeps_the_live_line_but_not_the_colours(run: list[e.Event]) -> None:
    text = on_a_terminal({"TERM": "xterm", "NO_COLOR": "1"}, run)
    assert "\x1b[?7l" in text
    assert "\x1b[0m" not in text


@pytest.mark.parametrize(
    ("env", "options"), [({"TERM": "dumb"}, {}), ({}, {}), ({"TERM": "xterm"}, {"live": False, "color": False})]
)
def test_a_dumb_terminal_gets_plain_lines(env: dict[str, str], options: dict[str, bool], run: list[e.Event]) -> None:
    text = on_a_terminal(env, run, **options)
    assert "\x1b" not in text
    assert "\r" not in text
