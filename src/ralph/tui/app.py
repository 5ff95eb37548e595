"""The TUI: shows all runs and the chosen one, and carries out what the user types."""

import asyncio
import signal
import time
from collections.abc import Callable
from typing import ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Horizontal, Vertical
from textual.widgets import OptionList

from ralph.errors import UserError
from ralph.history.overview import run_now
from ralph.history.run_history import Fold
from ralph.show.words import nickname
from ralph.tui import draw
from ralph.tui.draw import Look
from ralph.tui.slash_commands import TypedCommand, completions, parse_line
from ralph.tui.tui_state import ShownRun, TuiState
from ralph.tui.widgets import DiffScreen, HelpScreen, Pane, Prompt, QuitAnswer, QuitScreen, RunList, ScrollLog

TALL = 32  # rows from which on each run gets two lines
WELCOME = """\
No run yet.

Type a goal below and press enter: it starts a run in this folder. Before that, if you like:

  /check pytest -q   what must pass
  /ralph 5           loop at most 5 times
  /agent claude      who does the work
  /help              everything else"""


class MainLayout(Container):
    """The list of runs, the stream of the chosen one, its checks and its todo list."""

    def __init__(self, look: Look) -> None:
        super().__init__()
        self._look = look
        self.runs, self.stream = RunList("runs"), ScrollLog("stream")
        self._head, self._checks, self._todo = map(Pane, ("head", "checks", "todo"))

    def compose(self) -> ComposeResult:
        yield self.runs
        with Vertical(id="main"):
            yield self._head
            yield self.stream
        with Vertical(id="facts"):
            yield self._checks
            yield self._todo

    def draw_all(self, state: TuiState, watched: ShownRun | None) -> None:
        """Draw everything for a new size or another run."""
        columns = self.stream.scrollable_content_region.width
        if watched:
            self.stream.replace_lines(watched.stream.fit(columns))
        else:
            self.stream.replace_lines(draw.paragraphs(WELCOME, max(columns, 10)))
        self.draw_runs(state)
        self.draw_head(state, watched)
        self.draw_facts(watched)

    def draw_runs(self, state: TuiState) -> None:
        pane = self.runs
        is_tall = self.app.size.height >= TALL or 2 * len(state.present) <= pane.content_size.height
        columns, here = pane.scrollable_content_region.width, state.plan.workspace
        rows = {
            one.run: draw.run_rows(one, columns, self._look, is_tall=is_tall, here=here)
            for one in state.present.values()
        }
        pane.fill(rows, state.chosen)
        running = sum(run.is_alive for run in state.runs)
        pane.border_title = f" runs · {running} running " if running else " runs "

    def draw_head(self, state: TuiState, watched: ShownRun | None) -> None:
        now, columns = time.time(), self._head.content_size.width
        self._head.show(draw.head(run_now(state.run, now), now, columns, self._look) if watched else [])

    def draw_facts(self, watched: ShownRun | None) -> None:
        """Draw the panes next to the stream: checks and todo list."""
        fold, pane = watched.fold if watched else Fold(""), self._checks
        pane.show(draw.checks_pane(fold, pane.content_size.width, pane.content_size.height, self._look))
        known = fold.last_results
        passed = sum(bool(one and one.passed and name not in fold.running) for name, one in known.items())
        pane.set_title(f"checks {passed}/{len(known)}" if known else "checks")
        items, pane = fold.todo, self._todo
        pane.show(draw.todo(items, pane.content_size.width, pane.content_size.height, self._look))
        done = sum(item.status == "done" for item in items)
        pane.set_title(f"todo {done}/{len(items)}" if items else "todo")


READ_INTERVAL = 0.25
MAX_MENU = 8  # rows
MESSAGE_SECONDS = 10
TYPING_KEYS = "enter send · / commands · tab completes · esc keys · /help · ctrl+c quit"
STEERING_KEYS = "s stop · p pause · r resume · a accept · t tell · d diff · / command · q quit"


class RalphApp(App[list[str]]):
    """Returns the ids of runs that were started here and keep running."""

    CSS_PATH = "look.tcss"
    TITLE = "ralph"
    ENABLE_COMMAND_PALETTE = False
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (60, "-usual"), (116, "-wide")]  # noqa: RUF012 - declared so by textual
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c,ctrl+q", "quit_or_ask", priority=True),
        Binding("q", "quit_or_ask"),
        Binding("escape", "type_or_steer"),
        Binding("s", "do('stop')"),
        Binding("S", "do('stop', 'now')"),
        Binding("p", "do('pause')"),
        Binding("r", "do('resume')"),
        Binding("a", "do('accept')"),
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

    def __init__(self, state: TuiState, look: Look) -> None:
        super().__init__(ansi_color=True)
        self.theme = "ansi-dark"
        self.state, self.look = state, look
        self._watched: ShownRun | None = None
        self._shown_run: str | None = None  # None until something was drawn
        self._is_quitting = False
        self._message_seconds = 0
        self._top, self._message, self._mark, self._keys = map(Pane, ("top", "message", "mark", "keys"))
        self._menu = Pane("menu")
        self.main_layout, self.prompt = MainLayout(look), Prompt("prompt", "a goal, or /help")

    def compose(self) -> ComposeResult:
        yield self._top
        yield self.main_layout
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
        self.set_interval(READ_INTERVAL, self.read_journal)
        self.set_interval(1.0, self._every_second)
        self.call_after_refresh(self.survey)
        for number in (signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, self.exit, [])

    def on_unmount(self) -> None:
        if self._watched:
            self._watched.close()

    def show_message(self, text: str, is_error: bool = False) -> None:
        """Show a message above the prompt for a few seconds, or until the next one."""
        mark, tone = (self.look.style.marks.failed, "red") if is_error else (self.look.style.marks.dot, "cyan")
        rows = draw.paragraphs(f"{mark} {text}", max(self.size.width - 1, 10)) if text else []
        self._message.show([self.look.paint(tone, row) for row in rows[:3]])
        self._message.styles.height = max(len(self._message.lines), 1)
        self._message_seconds = MESSAGE_SECONDS

    def _attempt(self, act: Callable[[], None]) -> bool:
        """Call `act`; show a UserError as a message and return False."""
        try:
            act()
        except UserError as error:
            self.show_message(error.advice, is_error=True)
            return False
        return True

    def _every_second(self) -> None:
        self._message_seconds -= 1
        if self._message_seconds == 0:
            self.show_message("")
        self.survey(is_due=self.state.is_due)

    def survey(self, is_due: bool = True) -> None:
        """Draw the list of runs; look at all of them first if that is due."""
        if is_due:
            self._attempt(self.state.survey)
        for is_success, message, line in self.state.take_ended():
            back = "" if not line else "" if self.prompt.give_back(line) else " · up brings the line back"
            self.show_message(message + back, is_error=not is_success)
        if self._is_quitting and not self.state.launched:
            self.exit([])
        self._watch(self.state.chosen)
        self._draw_top()
        self.main_layout.draw_runs(self.state)
        self.main_layout.draw_head(self.state, self._watched)

    def _watch(self, run: str) -> None:
        """Show another run from now on."""
        if run == self._shown_run:
            return
        self._shown_run = run
        if self._watched:
            self._watched.close()
            self._watched = None
        self._attempt(self._open_watched)
        self.main_layout.draw_all(self.state, self._watched)

    def _open_watched(self) -> None:
        if self.state.chosen:
            columns = self.main_layout.stream.scrollable_content_region.width
            watched = ShownRun(self.state.run, self.look.style, columns)
            watched.begin()
            self._watched = watched
            watched.read_new()

    def read_journal(self) -> None:
        """Show what is new in the journal of the chosen run."""
        watched = self._watched
        if watched and self._attempt(lambda: self._read(watched)) and watched.is_behind:
            self.call_later(self.read_journal)  # after the keys that were pressed in between

    def _read(self, watched: ShownRun) -> None:
        lines = watched.read_new()
        if lines is not None:
            self.main_layout.stream.add_lines(lines)
            self.main_layout.draw_facts(watched)

    def on_pane_resized(self) -> None:
        keys = TYPING_KEYS if self.prompt.has_focus else STEERING_KEYS
        self._keys.show([self.look.paint("dim", keys)])
        self._draw_top()
        self.main_layout.draw_all(self.state, self._watched)

    def on_descendant_focus(self) -> None:
        keys = TYPING_KEYS if self.prompt.has_focus else STEERING_KEYS
        self._keys.show([self.look.paint("dim", keys)])

    def _draw_top(self) -> None:
        plan = self.state.plan
        self._top.show(draw.top(plan.workspace, self.state.home, self.state.plan_words, self.size.width, self.look))

    def on_option_list_option_highlighted(self, message: OptionList.OptionHighlighted) -> None:
        self.state.chosen = str(message.option_id)
        self._watch(self.state.chosen)
        self.main_layout.draw_head(self.state, self._watched)

    def on_option_list_option_selected(self) -> None:
        """Enter in the list of runs goes to the prompt."""
        self.action_begin("")

    def on_prompt_sent(self, message: Prompt.Sent) -> None:
        if not self._attempt(lambda: self._carry_out(parse_line(message.line))):
            self.prompt.give_back(message.line)

    def on_input_changed(self) -> None:
        """Show the menu of commands while one is being typed."""
        found = completions(self.prompt.value)
        wide = max((len(text) for text, _ in found), default=0)
        rows = [f"{self.look.paint('bold', text.ljust(wide))}  {self.look.paint('dim', does)}" for text, does in found]
        more = [self.look.paint("dim", f"… {len(rows) - MAX_MENU + 1} more")] if len(rows) > MAX_MENU else []
        self._menu.show([*rows[: MAX_MENU - bool(more)], *more])
        self._menu.styles.height = len(self._menu.lines) + 1
        self._menu.styles.margin = (0, 0, 2 + max(len(self._message.lines), 1), 0)
        self._menu.display = bool(rows)

    def _carry_out(self, command: TypedCommand | None) -> None:
        if command is None:
            return
        if command.name == "help":
            self.push_screen(HelpScreen(self.look))
        elif command.name == "quit":
            self.action_quit_or_ask()
        elif command.name == "diff":
            self.push_screen(DiffScreen(self.state.run, command.number, self.look))
        else:
            self.show_message(self.state.carry_out(command))
            self._draw_top()

    def action_do(self, name: str, text: str = "") -> None:
        last = self._watched.fold.history.finished if self._watched and name == "diff" else 0
        self._attempt(lambda: self._carry_out(TypedCommand(name, text, last or None)))

    def action_begin(self, text: str) -> None:
        """Focus the prompt, with the beginning of a line."""
        self.prompt.focus()
        if text:
            self.prompt.value = text
            self.prompt.cursor_position = len(text)

    def action_type_or_steer(self) -> None:
        runs, stream = self.main_layout.runs, self.main_layout.stream
        pane = runs if runs.focusable else stream  # a narrow screen hides the runs
        (pane if self.prompt.has_focus else self.prompt).focus()

    def action_page(self, pages: int) -> None:
        self.main_layout.stream.scroll_pages(pages)

    def action_to_begin(self) -> None:
        self.main_layout.stream.scroll_home(animate=False)

    def action_to_end(self) -> None:
        self.main_layout.stream.scroll_end(animate=False)

    def action_quit_or_ask(self) -> None:
        """Quit, but ask first if runs started here are still running."""
        if isinstance(self.screen, QuitScreen):
            self.screen.dismiss("now")
            return
        self._attempt(self.state.survey)
        if self._is_quitting or not self.state.running:
            self.exit([])
        else:
            names = [nickname(one.run) or "a run" for one in self.state.running]
            self.push_screen(QuitScreen(names, self.look), self._quit)

    def _quit(self, answer: QuitAnswer | None) -> None:
        running = self.state.running
        if answer == "keep":
            for one in running:
                one.let_go()
            self.exit([one.run for one in running])
        elif answer == "now":
            for one in running:
                one.end(at_once=True)
            self.exit([])
        elif answer == "stop":
            self._is_quitting = True
            for one in running:
                one.end()
            self.show_message("stopping the runs that were started here; q quits at once")
