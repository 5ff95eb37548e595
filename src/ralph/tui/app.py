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
from ralph.history.fold import Fold
from ralph.history.overview import run_now
from ralph.process.ralph_child import StopLevel
from ralph.show.outlet import Style
from ralph.show.words import nickname
from ralph.tui import draw
from ralph.tui.slash_commands import TypedCommand, completions, parse_line
from ralph.tui.terminal_driver import TerminalDriver
from ralph.tui.tui_state import ShownRun, TuiState
from ralph.tui.widgets import DiffScreen, HelpScreen, Pane, Prompt, QuitAnswer, QuitScreen, RunList, ScrollLog

WELCOME = """\
No run yet.

Type a goal below and press enter: it starts a run in this folder. Before that, if you like:

  /check pytest -q   what must pass
  /ralph 5           loop at most 5 times
  /agent claude      who does the work
  /help              everything else"""
PANES = ("top", "head", "checks", "todo", "menu", "message", "mark", "keys")
READ_INTERVAL = 0.25
MAX_MENU = 8  # rows
MESSAGE_SECONDS = 10
TYPING_KEYS = "enter send · / commands · tab completes · esc keys · /help · ctrl+c quit"
STEERING_KEYS = "s stop · p pause · r resume · a accept · t tell · d diff · / command · q quit"


class RalphApp(App[list[str]]):
    """The app of the TUI. It returns the ids of runs that were started here and keep running."""

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
        Binding("pageup", "scroll_stream(-1)"),
        Binding("pagedown", "scroll_stream(1)"),
        Binding("home", "scroll_stream(-1e6)"),  # further than there are pages
        Binding("end", "scroll_stream(1e6)"),
    ]

    def __init__(self, state: TuiState, style: Style) -> None:
        super().__init__(TerminalDriver, ansi_color=True)
        self.theme = "ansi-dark"
        self.state, self.style = state, style
        self._watched: ShownRun | None = None
        self._shown_run: str | None = None  # None until something was drawn
        self._is_quitting = False
        self._message_seconds = 0
        self._panes = {name: Pane(name) for name in PANES}
        self.runs, self.stream = RunList(id="runs", markup=False, compact=True), ScrollLog("stream")
        self.prompt = Prompt("prompt", "a goal, or /help")

    def compose(self) -> ComposeResult:
        panes = self._panes
        main = Vertical(panes["head"], self.stream, id="main")
        facts = Vertical(panes["checks"], panes["todo"], id="facts")
        yield panes["top"]
        yield Container(self.runs, main, facts, id="panes")
        yield panes["menu"]
        yield panes["message"]
        yield Horizontal(panes["mark"], self.prompt, id="line")
        yield panes["keys"]

    def on_mount(self) -> None:
        is_plain = self.style.marks is draw.PLAIN
        self._panes["mark"].show([self.style.paint("title", ">" if is_plain else "❯")])
        self.screen.set_class(is_plain, "-plain")
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
        mark, tone = (self.style.marks.failed, "red") if is_error else (self.style.marks.dot, "cyan")
        rows = draw.paragraphs(f"{mark} {text}", max(self.size.width - 1, 10)) if text else []
        pane = self._panes["message"]
        pane.show([self.style.paint(tone, row) for row in rows[:3]])
        pane.styles.height = max(len(pane.lines), 1)
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
        """Draw the list of runs; if an update is due, look at all of them first."""
        if is_due:
            self._attempt(self.state.survey)
        for is_success, message, line in self.state.take_ended():
            back = "" if not line else "" if self.prompt.give_back(line) else " · up brings the line back"
            self.show_message(message + back, is_error=not is_success)
        if self._is_quitting and not self.state.launched:
            self.exit([])
        self._watch(self.state.chosen)
        self._draw_top()
        self._draw_runs()
        self._draw_head()

    def _watch(self, run: str) -> None:
        """Show another run from now on."""
        if run == self._shown_run:
            return
        self._shown_run = run
        if self._watched:
            self._watched.close()
            self._watched = None
        self.on_scroll_log_resized()

    def _draw_stream(self) -> None:
        """Draw the lines of the chosen run at the current width."""
        columns = self.stream.scrollable_content_region.width
        lines = draw.paragraphs(WELCOME, max(columns, 10))
        try:
            if self.state.chosen:
                watched = self._watched or ShownRun(self.state.run, self.style)
                lines = watched.open(columns)
                self._watched = watched
        except UserError as error:
            self.show_message(error.advice, is_error=True)
        self.stream.replace_lines(lines)

    def read_journal(self) -> None:
        """Show what is new in the journal of the chosen run."""
        if watched := self._watched:
            self._attempt(lambda: self._read(watched))

    def _read(self, watched: ShownRun) -> None:
        lines = watched.read_new()
        if lines is not None:
            self.stream.add_lines(lines)
            self._draw_facts()

    def on_scroll_log_resized(self) -> None:
        self.on_descendant_focus()
        self._draw_top()
        self._draw_stream()
        self._draw_runs()
        self._draw_head()
        self._draw_facts()

    def on_descendant_focus(self) -> None:
        keys = TYPING_KEYS if self.prompt.has_focus else STEERING_KEYS
        self._panes["keys"].show([self.style.paint("dim", keys)])

    def _draw_top(self) -> None:
        state = self.state
        line = draw.top(state.plan.workspace, state.home, state.plan_words, self.size.width, self.style)
        self._panes["top"].show(line)

    def _draw_runs(self) -> None:
        state, pane = self.state, self.runs
        is_tall = 2 * len(state.present) <= pane.content_size.height
        columns, here = pane.scrollable_content_region.width, state.plan.workspace
        present = state.present.items()
        rows = {id_: draw.run_rows(run, columns, self.style, is_tall=is_tall, here=here) for id_, run in present}
        pane.fill(rows, state.chosen)
        running = sum(run.is_alive for run in state.runs)
        pane.border_title = f" runs · {running} running " if running else " runs "

    def _draw_head(self) -> None:
        pane, now = self._panes["head"], time.time()
        columns = pane.content_size.width
        pane.show(draw.head(run_now(self.state.run, now), now, columns, self.style) if self._watched else [])

    def _draw_facts(self) -> None:
        """Draw the panes next to the stream: checks and the todo list."""
        fold = self._watched.fold if self._watched else Fold("")
        pane, results = self._panes["checks"], fold.last_results
        passed = sum(bool(result and result.passed and name not in fold.running) for name, result in results.items())
        lines = draw.checks_pane(fold, pane.content_size.width, pane.content_size.height, self.style)
        pane.show(lines, f"checks {passed}/{len(results)}" if results else "checks")
        pane, items = self._panes["todo"], fold.todo
        finished = sum(item.status == "done" for item in items)
        lines = draw.todo(items, pane.content_size.width, pane.content_size.height, self.style)
        pane.show(lines, f"todo {finished}/{len(items)}" if items else "todo")

    def on_option_list_option_highlighted(self, message: OptionList.OptionHighlighted) -> None:
        self.state.chosen = str(message.option_id)
        self._watch(self.state.chosen)
        self._draw_head()

    def on_option_list_option_selected(self) -> None:
        """Focus the prompt after Enter in the list of runs."""
        self.action_begin("")

    def on_prompt_sent(self, message: Prompt.Sent) -> None:
        if not self._attempt(lambda: self._carry_out(parse_line(message.line))):
            self.prompt.give_back(message.line)

    def on_input_changed(self) -> None:
        """Show the menu of commands while one is being typed."""
        words, paint = completions(self.prompt.value), self.style.paint
        wide = max((len(text) for text, _ in words), default=0)
        rows = [f"{paint('bold', text.ljust(wide))}  {paint('dim', does)}" for text, does in words]
        more = [paint("dim", f"… {len(rows) - MAX_MENU + 1} more")] if len(rows) > MAX_MENU else []
        menu = self._panes["menu"]
        menu.show([*rows[: MAX_MENU - bool(more)], *more])
        menu.styles.height = len(menu.lines) + 1
        menu.styles.margin = (0, 0, 2 + max(len(self._panes["message"].lines), 1), 0)
        menu.display = bool(rows)

    def _carry_out(self, command: TypedCommand | None) -> None:
        if command is None:
            return
        if command.name == "help":
            self.push_screen(HelpScreen(self.style))
        elif command.name == "quit":
            self.action_quit_or_ask()
        elif command.name == "diff":
            self.push_screen(DiffScreen(self.state.run, command.number, self.style))
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
            self.prompt.set_line(text)

    def action_type_or_steer(self) -> None:
        pane = self.runs if self.runs.focusable else self.stream  # a narrow screen hides the runs
        (pane if self.prompt.has_focus else self.prompt).focus()

    def action_scroll_stream(self, pages: float) -> None:
        self.stream.scroll_relative(y=pages * max(self.stream.content_size.height - 1, 1), animate=False)

    def action_quit_or_ask(self) -> None:
        """Quit, but ask first if runs started here are still running."""
        if isinstance(self.screen, QuitScreen):
            self.screen.dismiss("now")
            return
        self._attempt(self.state.survey)
        if self._is_quitting or not self.state.running:
            self.exit([])
        else:
            names = [nickname(run.run) or "a run" for run in self.state.running]
            self.push_screen(QuitScreen(names, self.style), self._quit)

    def _quit(self, answer: QuitAnswer | None) -> None:
        running = self.state.running
        if answer == "keep":
            for run in running:
                run.let_go()
            self.exit([run.run for run in running])
        elif answer == "now":
            for run in running:
                run.request_stop(StopLevel.AT_ONCE)
            self.exit([])
        elif answer == "stop":
            self._is_quitting = True
            for run in running:
                run.request_stop(StopLevel.NOW)
            self.show_message("stopping the runs that were started here; q quits at once")
