"""The TUI sends exactly what was typed, however fast; a menu and tab complete commands."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from textual import events
from textual.pilot import Pilot

from ralph.tui.app import RalphApp
from ralph.tui.slash_commands import complete, completions, parse_line
from ralph.tui.tui_state import TuiState

Typed = Callable[..., Awaitable[None]]
OnScreen = Callable[..., RalphApp]
Show = Callable[..., str]


def burst(app: RalphApp, keys: str) -> None:
    """Press keys as a terminal delivers them: all are in the queue before the first is handled."""
    for char in keys:
        key = {"\n": "enter", " ": "space", "\t": "tab", "\b": "backspace", "/": "slash", "-": "minus"}.get(char, char)
        app.post_message(events.Key(key, {"\n": "\r", "\b": "\x7f"}.get(char, char)))


def test_a_burst_of_keys_is_split_into_the_lines_that_were_typed(on_screen: OnScreen) -> None:
    lines = [f"/check test {number:02d} {'x' * (34 + number % 3)}" for number in range(20)]
    keys = "\n".join(lines) + "\n"
    assert len(keys) >= 1000

    async def scenario(app: RalphApp, pilot: Pilot[Any]) -> None:
        burst(app, keys)
        for _ in range(200):
            await pilot.pause(0.01)
            if len(app.state.plan.checks) == 20:
                break
        assert list(app.state.plan.checks) == [line.removeprefix("/check ") for line in lines]
        assert app.prompt.value == ""

    on_screen(scenario)


@pytest.mark.parametrize("typed", ["/check true\n/ralph 3\n", "/checc\bk trxx\b\bue\n/ralph 3\n"])
def test_two_commands_typed_at_once_are_two_even_with_corrections(on_screen: OnScreen, typed: str) -> None:
    async def scenario(app: RalphApp, pilot: Pilot[Any]) -> None:
        burst(app, typed)
        for _ in range(100):
            await pilot.pause(0.01)
            if app.state.plan.cap is not None:
                break
        assert (app.state.plan.checks, app.state.plan.cap) == (("true",), 3)

    on_screen(scenario)


def test_a_slash_opens_a_menu_and_tab_completes(on_screen: OnScreen, shown: Show) -> None:
    async def scenario(app: RalphApp, pilot: Pilot[Any]) -> None:
        await pilot.press("slash")
        await pilot.pause()
        assert "/ralph" in shown(app)
        assert "more" in shown(app, "menu")
        await pilot.press("c", "h")
        await pilot.pause()
        assert "/check" in shown(app, "menu")
        await pilot.press("tab")
        assert app.prompt.value == "/check "
        await pilot.press("x", "enter")
        await pilot.pause()
        assert not app.query_one("#menu").display
        assert "loop until 1 check passes" in shown(app)

    on_screen(scenario)


@pytest.mark.parametrize(
    ("line", "result"),
    [
        ("/ch", "/check "),
        ("/ra", "/ralph"),
        ("/agent cod", "/agent codex"),
        ("/x", "/x"),
        ("a goal", "a goal"),
        ("/stop n", "/stop now"),
    ],
)
def test_tab_completes_the_prefix_that_all_candidates_share(line: str, result: str) -> None:
    found = completions(line)
    assert (complete(line, found) if found else line) == result


def test_the_top_line_names_the_options_of_the_command_line(workspace: Path, environment: dict[str, str]) -> None:
    given = {"model": "opus", "max_cost": 2.5, "worktree": True, "sandbox": True, "yolo": True}
    state = TuiState(workspace, given, environment)
    assert {"--model=opus", "--max-cost=2.5", "--worktree", "--sandbox", "--yolo"} <= {*state.plan.words("go")}
    assert state.plan_words == "single shot, model opus, at most $2.50, in a worktree, in a sandbox, yolo"


def test_a_refused_line_comes_back_to_the_prompt(on_screen: OnScreen, typed: Typed) -> None:
    async def scenario(app: RalphApp, pilot: Pilot[Any]) -> None:
        await typed(pilot, "/nosuch thing")
        assert app.prompt.value == "/nosuch thing"

    on_screen(scenario)


def test_a_goal_that_could_not_start_comes_back_to_the_prompt(
    on_screen: OnScreen, typed: Typed, state: TuiState, shown: Show
) -> None:
    async def scenario(app: RalphApp, pilot: Pilot[Any]) -> None:
        await typed(pilot, "/agent no-such-agent")
        await typed(pilot, "a goal that took long to type")
        for _ in range(1500):
            await pilot.pause(0.02)
            app.survey()
            if app.prompt.value:
                break
        assert app.prompt.value == "a goal that took long to type"
        assert "no-such-agent" in shown(app)

    on_screen(scenario)


def test_a_second_goal_gets_a_worktree_and_a_message_says_so(record: Any, repository: Path, state: TuiState) -> None:
    record()
    state.survey()
    launched: list[list[str]] = []
    state.launch = lambda words, line="": launched.append(words)  # type: ignore[method-assign]
    command = parse_line("another goal")
    assert command
    said = state.carry_out(command)
    assert said.startswith("k3fa is running here, so this one gets a worktree · starting: ")
    assert "--worktree" in launched[0]


def test_a_run_that_is_still_starting_can_be_cancelled(state: TuiState, agent: Any, environment: Any) -> None:
    for line in (f"/agent {agent('sleep 60')}", "/ralph-loop go on for ever", "/cancel-ralph"):
        command = parse_line(line)
        assert command
        said = state.carry_out(command)
    assert said == "the run that was just started ends now"
    (one,) = state.launched
    one._process.wait(30)
    assert one.exit_code is not None
