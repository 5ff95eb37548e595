"""The screen with runs on record: what is seen, and what keys and lines do."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from textual.events import Paste
from textual.pilot import Pilot

from ralph.core import events as e
from ralph.core.model import Iteration
from ralph.store.mailbox import Mailbox
from ralph.tui.app import RalphApp
from ralph.tui.draw import tui_style
from ralph.tui.tui_state import TuiState

Show = Callable[..., str]
Typed = Callable[[Pilot[Any], str], Awaitable[None]]
OnScreen = Callable[..., RalphApp]
TODO = (e.TodoItem("Read the parser", "done"), e.TodoItem("Fix it", "active"), e.TodoItem("Run the tests"))


@pytest.fixture
def busy(record: Callable[..., Any], iteration: Callable[..., Iteration]) -> Any:
    """A run in its third iteration."""
    return record(
        "k3fa",
        e.IterationFinished(1, iteration(1, False, False)),
        e.CheckFinished(name="check 1", passed=True, exit_code=0, duration_s=1.2),
        e.CheckFinished(name="check 2", passed=False, exit_code=1, duration_s=0.3),
        e.IterationFinished(2, iteration(2, True, False)),
        e.IterationStarted(3, 10, "go"),
        e.AgentStarted("claude"),
        e.TodoUpdated(TODO),
        e.AgentText("I look at the parser."),
        e.ToolStarted("t1", "Read", "src/parser.py"),
    )


def test_all_panes_fit_into_80_by_24(busy: Any, on_screen: OnScreen, shown: Show) -> None:
    async def scenario(app: RalphApp, pilot: Pilot[Any]) -> None:
        seen = shown(app)
        for part in (
            "next: single shot",
            "● k3fa running         3/10",
            "k3fa running · 3/10",
            "$0.20 · 2.4K tokens",
            "Make the parser accept empty input",
            "▸ Read(src/parser.py)",
            "─ checks 1/2 ─",
            "✓ check 1              1.2s",
            "✗ check 2              0.3s",
            "─ todo 1/3 ─",
            "▸ Fix it",
            "I look at the parser.",
            "a goal, or /help",
            "enter send",
        ):
            assert part in seen, seen
        assert "·▄" in shown(app, "checks")

    on_screen(scenario)


@pytest.mark.parametrize("size", [(120, 40), (200, 60), (80, 24), (60, 15), (40, 10), (20, 6)], ids=str)
def test_the_stream_and_the_prompt_are_visible_in_every_size(
    busy: Any, on_screen: OnScreen, shown: Show, size: tuple[int, int]
) -> None:
    async def scenario(app: RalphApp, pilot: Pilot[Any]) -> None:
        seen = shown(app)
        assert "❯ " in seen
        assert ("parser" in seen) or size[1] < 10

    on_screen(scenario, size)


def test_a_wide_terminal_has_three_columns(busy: Any, on_screen: OnScreen, shown: Show) -> None:
    async def scenario(app: RalphApp, pilot: Pilot[Any]) -> None:
        assert app.screen.query_one("#checks").region.x > app.screen.query_one("#stream").region.x
        assert "  Make the parser accept em" in shown(app, "runs")
        await pilot.resize_terminal(80, 24)
        await pilot.pause()
        assert app.screen.query_one("#checks").region.x == 0
        assert shown(app, "runs") == "● k3fa running         3/10\n  Make the parser accept e…"

    on_screen(scenario, (140, 40))


def test_without_a_run_the_stream_says_how_to_start_one(on_screen: OnScreen, shown: Show, typed: Typed) -> None:
    async def scenario(app: RalphApp, pilot: Pilot[Any]) -> None:
        assert "No run yet." in shown(app, "stream")
        await typed(pilot, "/stop")
        assert shown(app, "message") == "✗ no run yet (type a goal to start one)"
        await pilot.press("escape", "d", "p", "s", "r")
        assert shown(app, "message") == "✗ no run yet (type a goal to start one)"

    on_screen(scenario)


def test_new_events_appear_in_the_stream_and_the_list(busy: Any, on_screen: OnScreen, shown: Show) -> None:
    async def scenario(app: RalphApp, pilot: Pilot[Any]) -> None:
        busy.tell(e.AgentText("Now I know what is wrong."))
        app.read_journal()
        await pilot.pause()
        assert "Now I know what is wrong." in shown(app)
        busy.finish()
        app.survey()
        app.read_journal()
        await pilot.pause()
        assert "✓ k3fa done" in shown(app, "runs")
        assert "done after 2 iterations" in shown(app, "stream")

    on_screen(scenario)


COMMANDS = {
    "/ralph": "· cap: not set · the next run: single shot",
    "/ralph 5": "· cap: 5 · the next run: loop until STOP, at most 5",
    "/ralph -1": "· cap: none · the next run: loop until STOP, open end",
    "/ralph off": "· cap: off · the next run: single shot",
    "/check make test": "· checks: make test",
    "/check": "· checks: none",
    "/agent codex": "· agent: codex",
    "/agent": "· agent: as the settings say, or the first that is installed",
    "/tell use tabs": "· the next prompt of k3fa carries it",
    "/pause": "· k3fa pauses before its next turn; r resumes it",
    "/resume": "✗ k3fa is running (p pauses it)",
    "/rlaph 5": "✗ unknown command /rlaph (did you mean /ralph?)",
    "/diff two": "✗ /diff two: expected the number of an iteration (the first one is 1)",
    "a new goal": "✗ k3fa is running here (/tell TEXT talks to it, /stop ends it)",
}


@pytest.mark.parametrize(("line", "answer"), COMMANDS.items(), ids=COMMANDS)
def test_every_command_shows_one_message(
    line: str, answer: str, busy: Any, on_screen: OnScreen, shown: Show, typed: Typed
) -> None:
    async def scenario(app: RalphApp, pilot: Pilot[Any]) -> None:
        await typed(pilot, line)
        assert shown(app, "message") == answer
        is_refused = answer.startswith("✗")
        assert app.prompt.value == (line if is_refused else "")

    on_screen(scenario)


def test_the_cap_applies_to_all_later_runs_until_it_is_changed(
    on_screen: OnScreen, shown: Show, typed: Typed, state: TuiState
) -> None:
    async def scenario(app: RalphApp, pilot: Pilot[Any]) -> None:
        await typed(pilot, "/ralph 5")
        assert "next: loop until STOP, at most 5" in shown(app, "top")
        assert "--ralph=5" in state.plan.words("go")
        await typed(pilot, "/ralph off")
        assert "--ralph=0" in state.plan.words("go")
        await typed(pilot, "/check make test")
        assert "--ralph=0" in state.plan.words("go")
        await typed(pilot, "/ralph default")
        assert "--preset=checks" in state.plan.words("go")
        assert "next: loop until 1 check passes" in shown(app, "top")
        await typed(pilot, "/check off")
        assert state.plan.checks == ()

    on_screen(scenario)


def test_keys_pause_and_resume_a_run_and_send_it_a_note(busy: Any, on_screen: OnScreen, shown: Show) -> None:
    async def scenario(app: RalphApp, pilot: Pilot[Any]) -> None:
        mailbox = Mailbox(busy.folder.path)
        await pilot.press("escape", "p")
        assert mailbox.read().is_paused
        await pilot.press("r")
        assert not mailbox.read().is_paused
        await pilot.press("t", *"tabs", "enter")
        assert [note.text for note in mailbox.read().notes] == ["tabs"]
        app.survey()
        assert "1 note for the next prompt" in shown(app, "head")

    on_screen(scenario)


def test_tell_answers_the_oldest_question(busy: Any, on_screen: OnScreen, shown: Show, typed: Typed) -> None:
    async def scenario(app: RalphApp, pilot: Pilot[Any]) -> None:
        mailbox = Mailbox(busy.folder.path)
        asked = mailbox.ask("Which port?")
        app.survey()
        assert "? k3fa asking" in shown(app, "runs")
        assert "? t answers: Which port?" in shown(app, "head")
        await typed(pilot, "/tell 8080")
        assert shown(app, "message") == "· answered: Which port?"
        assert mailbox.read().notes[0].answers == asked

    on_screen(scenario)


def test_letters_are_text_while_the_prompt_has_the_focus(busy: Any, on_screen: OnScreen) -> None:
    async def scenario(app: RalphApp, pilot: Pilot[Any]) -> None:
        await pilot.press(*"spdq?/")
        assert app.prompt.value == "spdq?/"
        assert not Mailbox(busy.folder.path).read().is_paused
        assert len(app.screen_stack) == 1

    on_screen(scenario)


def test_keys_and_clicks_choose_the_run_that_is_shown(
    record: Callable[..., Any], on_screen: OnScreen, shown: Show
) -> None:
    old = record("aaaa", e.AgentText("old words"), date="20250101-000000")
    old.finish("stalled", "nothing changed")
    record("bbbb", e.AgentText("new words"))

    async def scenario(app: RalphApp, pilot: Pilot[Any]) -> None:
        assert [line[2:6] for line in shown(app, "runs").split("\n")[::2]] == ["bbbb", "aaaa"]
        assert "new words" in shown(app, "stream")
        await pilot.press("escape", "down")
        await pilot.pause()
        assert "old words" in shown(app, "stream")
        assert "→ nothing changed" in shown(app, "head")
        await pilot.press("down", "down", "up")
        await pilot.pause()
        assert "new words" in shown(app, "stream")
        await pilot.click("#runs", offset=(3, 3))
        await pilot.pause()
        assert "old words" in shown(app, "stream")

    on_screen(scenario)


def test_a_run_that_is_gone_is_no_longer_shown(record: Callable[..., Any], on_screen: OnScreen, shown: Show) -> None:
    import shutil

    gone = record("aaaa", e.AgentText("words"))

    async def scenario(app: RalphApp, pilot: Pilot[Any]) -> None:
        shutil.rmtree(gone.folder.path)
        app.read_journal()
        assert "cannot read" in shown(app, "message")
        app.survey()
        await pilot.pause()
        assert shown(app, "runs") == ""
        assert "No run yet." in shown(app, "stream")

    on_screen(scenario)


def test_new_lines_do_not_move_the_stream_after_scrolling_back(busy: Any, on_screen: OnScreen, shown: Show) -> None:
    busy.tell(*(e.AgentText(f"line {number}") for number in range(200)))

    async def scenario(app: RalphApp, pilot: Pilot[Any]) -> None:
        assert "line 199" in shown(app, "stream")
        await pilot.press("pageup")
        before = shown(app, "stream")
        assert "line 199" not in before
        busy.tell(e.AgentText("one more"))
        app.read_journal()
        assert shown(app, "stream") == before
        await pilot.press("escape", "tab", "end")
        assert "one more" in shown(app, "stream")
        await pilot.press("home")
        assert "· claude" in shown(app, "stream")

    on_screen(scenario)


def test_home_and_end_scroll_the_stream_while_the_prompt_is_empty(busy: Any, on_screen: OnScreen, shown: Show) -> None:
    busy.tell(*(e.AgentText(f"line {number}") for number in range(200)))

    async def scenario(app: RalphApp, pilot: Pilot[Any]) -> None:
        await pilot.press("home")
        assert "· claude" in shown(app, "stream")
        await pilot.press("b", "home", "a", "end", "c")
        assert app.prompt.value == "abc"
        assert "· claude" in shown(app, "stream")
        await pilot.press(*["backspace"] * 3, "end")
        assert "line 199" in shown(app, "stream")

    on_screen(scenario)


def test_keys_steer_runs_on_a_narrow_screen(busy: Any, on_screen: OnScreen) -> None:
    async def scenario(app: RalphApp, pilot: Pilot[Any]) -> None:
        await pilot.press("escape", "p")
        assert Mailbox(busy.folder.path).read().is_paused
        await pilot.press("escape", "x")
        assert app.prompt.value == "x"

    on_screen(scenario, (40, 10))


def test_up_and_down_recall_earlier_lines(on_screen: OnScreen, typed: Typed) -> None:
    async def scenario(app: RalphApp, pilot: Pilot[Any]) -> None:
        prompt = app.prompt
        await pilot.press("up")
        await typed(pilot, "/ralph 5")
        await typed(pilot, "/check make")
        await pilot.press("up")
        assert prompt.value == "/check make"
        await pilot.press("up", "up")
        assert prompt.value == "/ralph 5"
        await pilot.press("down", "down")
        assert prompt.value == ""

    on_screen(scenario)


@pytest.mark.parametrize(
    ("pasted", "line"),
    [("one", "one"), (" a b ", " a b "), ("one\n", "one"), ("one\n\n  two\r\nthree", "one two three"), ("", "")],
)
def test_pasted_lines_are_joined_into_one(pasted: str, line: str, on_screen: OnScreen) -> None:
    async def scenario(app: RalphApp, pilot: Pilot[Any]) -> None:
        app.prompt.post_message(Paste(pasted))
        await pilot.pause()
        assert app.prompt.value == line

    on_screen(scenario)


def test_the_help_lists_every_command(on_screen: OnScreen, shown: Show, typed: Typed) -> None:
    from ralph.tui.slash_commands import COMMANDS

    async def scenario(app: RalphApp, pilot: Pilot[Any]) -> None:
        await typed(pilot, "/help")
        seen = shown(app)
        assert all(form.usage in seen and form.help in seen for form in COMMANDS.values())
        assert not any(line.rstrip().endswith("…") for line in seen.splitlines()), "every line fits in 80 columns"
        await pilot.press("s", "d")
        assert len(app.screen_stack) == 2
        await pilot.press("escape")
        await pilot.pause()
        assert len(app.screen_stack) == 1

    on_screen(scenario, size=(80, 40))


def test_the_help_begins_with_its_first_line(on_screen: OnScreen, shown: Show, typed: Typed) -> None:
    async def scenario(app: RalphApp, pilot: Pilot[Any]) -> None:
        await typed(pilot, "/help")
        assert "A line without a leading slash is a goal" in shown(app)

    on_screen(scenario, size=(80, 24))


def test_ctrl_c_quits_if_no_run_was_started_here(busy: Any, on_screen: OnScreen) -> None:
    async def scenario(app: RalphApp, pilot: Pilot[Any]) -> None:
        await pilot.press("ctrl+c")

    assert on_screen(scenario).return_value == []


def test_slash_quit_quits(on_screen: OnScreen, typed: Typed) -> None:
    async def scenario(app: RalphApp, pilot: Pilot[Any]) -> None:
        await typed(pilot, "/quit")

    assert on_screen(scenario).return_value == []


def test_keys_work_while_a_flood_of_events_is_read(busy: Any, on_screen: OnScreen, shown: Show) -> None:
    async def scenario(app: RalphApp, pilot: Pilot[Any]) -> None:
        busy.tell(*(e.AgentText(f"line {number}") for number in range(20_000)), e.AgentText("the end"))
        while "the end" not in shown(app, "stream"):
            app.read_journal()
            await pilot.press("x")
        assert app.prompt.value.startswith("x")

    on_screen(scenario)


def test_no_color_removes_all_colours(
    busy: Any, on_screen: OnScreen, state: TuiState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    app = RalphApp(state, tui_style(None, {"TERM": "xterm"}))

    async def scenario(app: RalphApp, pilot: Pilot[Any]) -> None:
        filters = app.get_line_filters()
        for strip in app.screen._compositor.render_strips(app.size):
            for segment in strip.apply_filter(filters[-1], app.screen.background_colors[1]):
                style = segment.style
                assert style is None or all(color is None or color.is_default for color in (style.color, style.bgcolor))

    on_screen(scenario, app=app)


def test_markup_and_escape_sequences_of_agents_are_plain_text(busy: Any, on_screen: OnScreen, shown: Show) -> None:
    async def scenario(app: RalphApp, pilot: Pilot[Any]) -> None:
        busy.tell(
            e.AgentText("\x1b[2Jgone\x1b]0;title\x07 [bold]x[/bold]\ttab\x00"), e.CheckStarted("\x1b[31m[red]make")
        )
        busy.tell(e.TodoUpdated((e.TodoItem("[b]\x1b[1mbold", "active"),)))
        app.read_journal()
        await pilot.pause()
        seen = shown(app)
        assert "\x1b" not in seen
        assert "gone [bold]x[/bold]" in seen
        assert "[red]make" in seen
        assert "▸ [b]bold" in seen

    on_screen(scenario)


@pytest.mark.usefixtures("repository")
def test_the_diff_shows_one_iteration_or_all(
    workspace: Path,
    ralph: Callable[..., Any],
    agent: Callable[..., str],
    on_screen: OnScreen,
    shown: Show,
    typed: Typed,
) -> None:
    agent('printf "%s\\n" "change $N" >> work.txt; [ $N = 2 ] && echo STOP')
    assert ralph("run", "go", "--ralph", "3", "--agent", "fake-agent").code == 0

    async def page(app: RalphApp, pilot: Pilot[Any]) -> tuple[str, str]:
        await app.workers.wait_for_complete()
        await pilot.pause()
        return shown(app, "page-title"), shown(app, "page")

    async def scenario(app: RalphApp, pilot: Pilot[Any]) -> None:
        await pilot.press("escape", "d")
        title, lines = await page(app, pilot)
        assert title.endswith("iteration 2 · 1 file · +1 -0")
        assert lines.split("\n")[1:] == ["work.txt", "@@ -1 +1,2 @@", " change 1", "+change 2"]
        await pilot.press("left")
        assert "iteration 1 · 1 file" in (await page(app, pilot))[0]
        await pilot.press("left", "a")
        assert "iterations 1 to 2 · 1 file · +2 -0" in (await page(app, pilot))[0]
        await pilot.press("escape")
        await pilot.pause()
        await typed(pilot, "/diff 9")
        assert "iteration 2" in (await page(app, pilot))[0]

    on_screen(scenario)


def test_without_git_the_diff_shows_why_there_is_none(busy: Any, on_screen: OnScreen, shown: Show) -> None:
    async def scenario(app: RalphApp, pilot: Pilot[Any]) -> None:
        await pilot.press("escape", "d")
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert "git" in shown(app, "page-title")

    on_screen(scenario)
