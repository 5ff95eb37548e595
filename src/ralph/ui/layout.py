"""Where on the screen is what? The runs on the left, the stream beside them, checks and todo below or on the right."""

import time

from textual.app import ComposeResult
from textual.containers import Container, Vertical

from ralph.history.overview import run_now
from ralph.history.run_history import Fold
from ralph.ui import draw
from ralph.ui.draw import Look
from ralph.ui.panes import Pane, RunList, ScrollPane
from ralph.ui.screen_state import ScreenState, Watching

TALL = 32  # rows from which on each run gets two lines
WELCOME = """\
No run yet.

Type a goal below and press enter: it starts a run in this folder. Before that, if you like:

  /check pytest -q   what must pass
  /ralph 5           loop at most 5 times
  /agent claude      who does the work
  /help              everything else"""


class ScreenLayout(Container):
    """Draws what it is given. Each pane compares, and is drawn anew only where something else is to be seen."""

    def __init__(self, look: Look) -> None:
        super().__init__()
        self._look = look
        self.runs, self.stream = RunList("runs"), ScrollPane("stream")
        self._head, self._checks, self._todo = map(Pane, ("head", "checks", "todo"))

    def compose(self) -> ComposeResult:
        yield self.runs
        with Vertical(id="main"):
            yield self._head
            yield self.stream
        with Vertical(id="facts"):
            yield self._checks
            yield self._todo

    def draw_all(self, state: ScreenState, watching: Watching | None) -> None:
        """After the terminal has got another size, or another run is looked at."""
        if watching:
            watching.scroll.fit(self.stream.content_size.width)
        self.draw_runs(state)
        self.draw_head(state, watching)
        self.draw_news(watching)

    def draw_runs(self, state: ScreenState) -> None:
        pane = self.runs
        is_tall = self.app.size.height >= TALL or 2 * len(state.present) <= pane.content_size.height
        columns = pane.content_size.width
        here = state.plan.workspace
        rows = [
            (one.run, draw.run_rows(one, columns, self._look, is_tall=is_tall, here=here))
            for one in state.present.values()
        ]
        pane.fill(rows, state.chosen)
        living = sum(run.is_alive for run in state.runs)
        pane.set_title(f"runs · {living} at work" if living else "runs")

    def draw_head(self, state: ScreenState, watching: Watching | None) -> None:
        pane = self._head
        lines: list[str] = []
        if watching:
            now, columns = time.time(), pane.content_size.width
            lines = draw.head(run_now(state.run, now), now, columns, self._look)
        pane.show(lines)

    def draw_news(self, watching: Watching | None) -> None:
        """All that a journal tells."""
        stream, fold = self.stream, watching.fold if watching else Fold("")
        if watching:
            stream.fill(watching.scroll.lines, watching.scroll.begin)
        else:
            stream.fill(draw.paragraphs(WELCOME, stream.content_size.width))
        stream.set_title("", f"{stream.below} more below" if stream.below else "")
        pane = self._checks
        pane.show(draw.verified(fold, pane.content_size.width, pane.content_size.height, self._look))
        known = fold.last_results
        passed = sum(bool(one and one.passed and name not in fold.running) for name, one in known.items())
        pane.set_title(f"checks {passed}/{len(known)}" if known else "checks")
        pane = self._todo
        pane.show(draw.todo(fold.todo, pane.content_size.width, pane.content_size.height, self._look))
        done = sum(item.status == "done" for item in fold.todo)
        pane.set_title(f"todo {done}/{len(fold.todo)}" if fold.todo else "todo")
