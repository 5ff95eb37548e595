"""How do a person and their runs meet in a full screen? What is typed is carried out, and what happens is drawn."""

import asyncio
import signal
import time
from collections.abc import Callable
from typing import ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Horizontal, Vertical

from ralph.errors import UserError
from ralph.history.overview import run_now
from ralph.history.run_history import Fold
from ralph.show.words import nickname
from ralph.ui import draw
from ralph.ui.draw import Look
from ralph.ui.panes import DiffPage, HelpPage, LeavePage, Leaving, Pane, Prompt, RunList, ScrollPane
from ralph.ui.screen_state import ScreenState, Watching
from ralph.ui.typed import TypedCommand, completions, understood

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
        items = fold.todo
        pane.show(draw.todo(items, pane.content_size.width, pane.content_size.height, self._look))
        done = sum(item.status == "done" for item in items)
        pane.set_title(f"todo {done}/{len(items)}" if items else "todo")


LOOK_EVERY = 0.25
MENU = 8  # rows
SHOWN_FOR = 10  # seconds that a message stays
TYPING = "enter send · / commands · tab completes · esc keys · /help · ctrl+c leave"
STEERING = "s stop · p pause · r go on · t tell · d diff · / command · ? help · q leave"


class FullScreen(App[list[str]]):
    """Ends with the ids of runs that were started here and go on."""

    CSS_PATH = "look.tcss"
    TITLE = "ralph"
    ENABLE_COMMAND_PALETTE = False
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (60, "-usual"), (116, "-wide")]  # noqa: RUF012 - declared so by textual
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c,ctrl+q", "leave", priority=True),
        Binding("q", "leave"),
        Binding("escape", "type_or_steer"),
        Binding("s", "do('stop')"),
        Binding("S", "do('stop', 'now')"),
        Binding("p", "do('pause')"),
        Binding("r", "do('resume')"),
        Binding("t", "begin('/tell ')"),
        Binding("d", "do('diff')"),
        Binding("slash", "begin('/')"),
        Binding("question_mark", "do('help')"),
        Binding("i,enter", "begin('')"),
        Binding("pageup", "page(-1)"),
        Binding("pagedown", "page(1)"),
        Binding("home", "to_begin"),
        Binding("end", "to_end"),
    ]

    def __init__(self, state: ScreenState, look: Look) -> None:
        super().__init__(ansi_color=True)
        self.theme = "ansi-dark"
        self.state, self.look = state, look
        self._watching: Watching | None = None
        self._is_leaving = False
        self._message_left = 0
        self._top, self._message, self._mark, self._keys = map(Pane, ("top", "message", "mark", "keys"))
        self._menu = Pane("menu")
        self.screen_layout, self.prompt = ScreenLayout(look), Prompt("prompt", "a goal, or /help")

    def compose(self) -> ComposeResult:
        yield self._top
        yield self.screen_layout
        yield self._menu
        yield self._message
        with Horizontal(id="line"):
            yield self._mark
            yield self.prompt
        yield self._keys

    def on_mount(self) -> None:
        self._mark.show([self.look.paint("title", self.look.prompt)])
        self.screen.set_class(self.look.is_plain, "-plain")
        self.prompt.focus()
        self.set_interval(LOOK_EVERY, self.read_on)
        self.set_interval(1.0, self._every_second)
        self.call_after_refresh(self.survey)
        for number in (signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, self.exit, [])

    def on_unmount(self) -> None:
        if self._watching:
            self._watching.close()

    def say(self, text: str, is_error: bool = False) -> None:
        """Above the prompt, until something else is said or nobody needs it any more."""
        pane = self._message
        mark, tone = (self.look.style.marks.failed, "red") if is_error else (self.look.style.marks.dot, "cyan")
        rows = draw.paragraphs(f"{mark} {text}", max(self.size.width - 1, 10)) if text else []
        pane.show([self.look.paint(tone, row) for row in rows[:3]])
        pane.styles.height = max(len(pane.shown), 1)
        self._message_left = SHOWN_FOR

    def _attempt(self, act: Callable[[], None]) -> bool:
        """Whether it could be done; if not, a line says why."""
        try:
            act()
        except UserError as error:
            self.say(error.advice, is_error=True)
            return False
        return True

    def _every_second(self) -> None:
        self._message_left -= 1
        if self._message_left == 0:
            self.say("")
        self.survey(is_due=self.state.is_due)

    def survey(self, is_due: bool = True) -> None:
        """The runs, as they stand now."""
        if is_due:
            self._attempt(self.state.survey)
        for is_well, words, line in self.state.take_ended():
            back = "" if not line else "" if self.prompt.give_back(line) else " · up brings the line back"
            self.say(words + back, is_error=not is_well)
        if self._is_leaving and not self.state.launched:
            self.exit([])
        self._watch(self.state.chosen)
        self._draw_plan()
        self.screen_layout.draw_runs(self.state)
        self.screen_layout.draw_head(self.state, self._watching)

    def _watch(self, run: str) -> None:
        """Looks at another run from here on."""
        if run == (self._watching.run if self._watching else ""):
            return
        if self._watching:
            self._watching.close()
            self._watching = None
        self.screen_layout.stream.rewind()
        self._attempt(self._open)
        self.screen_layout.draw_all(self.state, self._watching)

    def _open(self) -> None:
        if self.state.chosen:
            columns = self.screen_layout.stream.content_size.width
            watching = Watching(self.state.run, self.look.style, columns)
            watching.begin()
            self._watching = watching
            self.read_on()

    def read_on(self) -> None:
        """What is new in the journal of the run that is looked at."""
        watching = self._watching
        if watching is None:
            return
        if self._attempt(lambda: self._read(watching)) and watching.is_behind:
            self.call_later(self.read_on)  # after the keys that were pressed meanwhile

    def _read(self, watching: Watching) -> None:
        if watching.look():
            self.screen_layout.draw_news(watching)

    def on_pane_resized(self) -> None:
        keys = TYPING if self.prompt.has_focus else STEERING
        self._keys.show([self.look.paint("dim", keys)])
        self._draw_plan()
        self.screen_layout.draw_all(self.state, self._watching)

    on_descendant_focus = on_pane_resized

    def _draw_plan(self) -> None:
        plan = self.state.plan
        self._top.show(draw.top(plan.workspace, self.state.home, self.state.plan_words, self.size.width, self.look))

    def on_run_list_chosen(self, message: RunList.Chosen) -> None:
        self.state.chosen = message.run
        self._watch(message.run)

    def on_prompt_sent(self, message: Prompt.Sent) -> None:
        if not self._attempt(lambda: self._carry_out(understood(message.line))):
            self.prompt.give_back(message.line)

    def on_input_changed(self) -> None:
        """The menu of commands, as long as one is being typed."""
        found = completions(self.prompt.value)
        wide = max((len(text) for text, _ in found), default=0)
        rows = [f"{self.look.paint('bold', text.ljust(wide))}  {self.look.paint('dim', does)}" for text, does in found]
        more = [self.look.paint("dim", f"… {len(rows) - MENU + 1} more")] if len(rows) > MENU else []
        self._menu.show([*rows[: MENU - bool(more)], *more])
        self._menu.styles.height = len(self._menu.shown) + 1
        self._menu.styles.margin = (0, 0, 2 + max(len(self._message.shown), 1), 0)
        self._menu.display = bool(rows)

    def _carry_out(self, command: TypedCommand | None) -> None:
        if command is None:
            return
        if command.name == "help":
            self.push_screen(HelpPage(self.look))
        elif command.name == "quit":
            self.action_leave()
        elif command.name == "diff":
            run = self.state.run
            worktree = self._watching.fold.history.worktree if self._watching else ""
            self.push_screen(DiffPage(run.id, worktree or run.facts.workspace, command.number, self.look))
        else:
            self.say(self.state.carry_out(command))
            self._draw_plan()

    def action_do(self, name: str, text: str = "") -> None:
        last = self._watching.fold.history.finished if self._watching and name == "diff" else 0
        self._attempt(lambda: self._carry_out(TypedCommand(name, text, last or None)))

    def action_begin(self, text: str) -> None:
        """Goes to the line, with a beginning of what may be typed."""
        self.prompt.focus()
        if text:
            self.prompt.value = text
            self.prompt.cursor_position = len(text)

    def action_type_or_steer(self) -> None:
        runs, stream = self.screen_layout.runs, self.screen_layout.stream
        pane = runs if runs.focusable else stream  # a narrow screen has no room for the runs
        (pane if self.prompt.has_focus else self.prompt).focus()

    def action_page(self, pages: int) -> None:
        self.screen_layout.stream.action_page(pages)

    def action_to_begin(self) -> None:
        self.screen_layout.stream.action_to_begin()

    def action_to_end(self) -> None:
        self.screen_layout.stream.action_to_end()

    def action_leave(self) -> None:
        """Never leaves a run behind by accident, and asks about none that has just ended."""
        if isinstance(self.screen, LeavePage):
            self.screen.dismiss("now")
            return
        self._attempt(self.state.survey)
        if self._is_leaving or not self.state.at_work:
            self.exit([])
        else:
            names = [nickname(one.run) or "a run" for one in self.state.at_work]
            self.push_screen(LeavePage(names, self.look), self._leave)

    def _leave(self, answer: Leaving | None) -> None:
        at_work = self.state.at_work
        if answer == "keep":
            for one in at_work:
                one.let_go()
            self.exit([one.run for one in at_work])
        elif answer == "now":
            for one in at_work:
                one.end(at_once=True)
            self.exit([])
        elif answer == "stop":
            self._is_leaving = True
            for one in at_work:
                one.end()
            self.say("stopping what was started here; q leaves at once")
