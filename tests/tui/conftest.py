"""Runs on record, as their own processes would have left them, and a screen to look at them in."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from ralph.core import events as e
from ralph.core.model import Check, Iteration, Outcome, Turn, Usage
from ralph.show.outlet import GLYPHS, Style
from ralph.store.folder import RunFolder, prepare
from ralph.store.journal import Journal
from ralph.store.writer import Registration, Writer, enlist
from ralph.tui.app import RalphApp
from ralph.tui.tui_state import TuiState

GOAL = "Make the parser accept empty input"
Scenario = Callable[[RalphApp, Pilot[Any]], Awaitable[None]]


def an_iteration(number: int, *passed: bool, cost: float = 0.1) -> Iteration:
    checks = tuple(
        Check(name=f"check {at}", passed=ok, exit_code=0 if ok else 1, duration=1.2 if ok else 0.3)
        for at, ok in enumerate(passed, start=1)
    )
    return Iteration(
        number=number,
        turn=Turn(text="said", usage=Usage(input_tokens=1000, output_tokens=200, cost_usd=cost), duration=2.0),
        checks=checks,
    )


@pytest.fixture
def iteration() -> Callable[..., Iteration]:
    return an_iteration


class Recorded:
    """Record a run. It counts as running while this process lives, unless it has an outcome."""

    def __init__(self, workspace: Path, env: dict[str, str], run_id: str, cap: int | None) -> None:
        self.folder = RunFolder(prepare(workspace), run_id)
        self.folder.make()
        journal = Journal(self.folder.journal).open()
        self._writer = Writer(run_id, [journal])
        self._registration = Registration(self.folder)
        self._registration.begin()
        enlist(self.folder, env)
        self.id = run_id
        self._closers = (journal.close,)
        self.tell(
            e.RunStarted(
                goal=GOAL,
                preset="checks",
                agent="claude",
                workspace=str(workspace),
                max_iterations=cap,
                checks=("check 1", "check 2"),
                pid=os.getpid(),
            )
        )

    def tell(self, *events: e.Event) -> None:
        if events:
            self._registration(*self._writer(*events))
            self._registration.tick()

    def finish(self, outcome: str = "done", reason: str = "the agent said COMPLETE and 2 checks passed") -> None:
        code = {"done": 0, "interrupted": 130}.get(outcome, 1)
        self.tell(
            e.RunFinished(
                outcome=Outcome(outcome), reason=reason, iterations=2, cost_usd=0.25, duration_s=65.0, exit_code=code
            )
        )

    def close(self) -> None:
        for close in self._closers:
            close()


@pytest.fixture
def record(workspace: Path, environment: dict[str, str]) -> Iterator[Callable[..., Recorded]]:
    made: list[Recorded] = []

    def make(name: str = "k3fa", *events: e.Event, cap: int | None = 10, date: str = "20260101-120000") -> Recorded:
        made.append(Recorded(workspace, environment, f"{date}-{name}", cap))
        made[-1].tell(*events)
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def plain() -> Style:
    """Signs without paint."""
    return Style(GLYPHS)


@pytest.fixture
def state(workspace: Path, environment: dict[str, str]) -> Iterator[TuiState]:
    made = TuiState(workspace, env=environment)
    yield made
    made.close()


@pytest.fixture
def on_screen(state: TuiState, plain: Style) -> Callable[..., RalphApp]:
    """Run a scenario in a screen of this size."""

    def play(scenario: Scenario, size: tuple[int, int] = (80, 24), app: RalphApp | None = None) -> RalphApp:
        screen = app or RalphApp(state, plain)

        async def run() -> None:
            async with screen.run_test(size=size) as pilot:
                await pilot.pause()
                await scenario(screen, pilot)

        asyncio.run(run())
        return screen

    return play


@pytest.fixture
def typed() -> Callable[..., Awaitable[None]]:
    """Type a line into the prompt and send it."""

    async def send(pilot: Pilot[Any], line: str) -> None:
        assert isinstance(pilot.app, RalphApp)
        pilot.app.prompt.focus()
        pilot.app.prompt.value = line
        await pilot.press("enter")
        await pilot.pause()

    return send


@pytest.fixture
def shown() -> Callable[..., str]:
    """Return the text of a pane or of the whole screen."""

    def read(app: RalphApp, pane: str = "") -> str:
        width, height = app.size
        strips = app.screen._compositor.render_strips(app.size)
        assert len(strips) == height
        assert all(strip.cell_length == width for strip in strips)
        if pane:
            region = app.screen.query_one(f"#{pane}").content_region
            strips = [strip.crop(region.x, region.right) for strip in strips[region.y : region.bottom]]
        return "\n".join(strip.text.rstrip() for strip in strips).rstrip()

    return read
