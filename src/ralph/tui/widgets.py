"""Widgets and dialogs of the TUI: textual's own, filled with painted lines."""

from collections.abc import Sequence
from typing import ClassVar, Literal

from rich.text import Text
from textual import events, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, RichLog, Static
from textual.widgets.option_list import Option
from textual.worker import Worker, get_current_worker

from ralph.core.text import one_line, plural
from ralph.errors import UserError
from ralph.history.evidence import Patch, patch_of
from ralph.process.own_process import kill_running_commands
from ralph.show.outlet import Style
from ralph.show.words import cut, nickname
from ralph.store.register import Listed
from ralph.tui.draw import paragraphs
from ralph.tui.slash_commands import COMMANDS, complete, completions

MAX_LINES = 5000  # lines kept for scrolling back


def to_text(lines: Sequence[str]) -> Text:
    """Convert lines painted by `show.style` to rich text. A line with other control characters loses its colours."""
    text = Text.from_ansi("\n".join(lines), no_wrap=True, overflow="ellipsis")
    if text.plain.replace("\n", "").isprintable():
        return text
    if len(lines) == 1:
        return Text(one_line(lines[0], len(lines[0])), no_wrap=True, overflow="ellipsis")
    return Text("\n", no_wrap=True, overflow="ellipsis").join(to_text([line]) for line in lines)


class Pane(Static):
    """Shows a few lines; what does not fit is cut."""

    def __init__(self, id: str) -> None:  # noqa: A002 - textual's name for it
        super().__init__(id=id, markup=False)
        self.lines: list[str] = []

    def show(self, lines: Sequence[str], title: str = "") -> None:
        self.border_title = f" {title} " if title else ""
        if list(lines) != self.lines:
            self.lines = list(lines)
            self.update(to_text(self.lines))


class ScrollLog(RichLog):
    """A log that can be scrolled. New lines scroll into view unless the user has scrolled up."""

    class Resized(Message):
        """The log has a new size, and so have the panes around it."""

    def __init__(self, id: str) -> None:  # noqa: A002 - textual's name for it
        super().__init__(id=id, max_lines=MAX_LINES, min_width=0)

    def on_resize(self, event: events.Resize) -> None:
        self.post_message(self.Resized())

    def replace_lines(self, lines: Sequence[str], scroll_end: bool = True) -> None:
        self.clear()
        if lines:
            self.write(to_text(lines), shrink=False, scroll_end=scroll_end)
        self.count_lines_below()

    def add_lines(self, lines: Sequence[str]) -> None:
        follow = self.is_vertical_scroll_end
        dropped = len(self.lines) + len(lines) - MAX_LINES
        if lines:
            self.write(to_text(lines), shrink=False, scroll_end=follow)
        if dropped > 0 and not follow:  # keep the view in place
            self.scroll_relative(y=-dropped, animate=False)
        self.count_lines_below()

    def count_lines_below(self) -> None:
        below = int(self.max_scroll_y - self.scroll_y)
        self.border_subtitle = f" {below} more below " if below > 0 else ""

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        self.count_lines_below()


class RunList(OptionList):
    """The runs; the highlighted one is shown."""

    def fill(self, rows: dict[str, list[str]], chosen: str) -> None:
        """Show these lines for each run id, and highlight `chosen`."""
        options = [Option(to_text(lines), id=run) for run, lines in rows.items()]
        with self.prevent(OptionList.OptionHighlighted):
            if [option.id for option in self.options] != [*rows]:
                self.set_options(options)
            for old, new in zip(self.options, options, strict=True):
                if old.prompt != new.prompt:
                    self.replace_option_prompt(str(old.id), new.prompt)
            if chosen in rows:
                self.highlighted = self.get_option_index(chosen)


MAX_HISTORY = 200
EDITING = ("cursor_", "delete_", "home", "end", "recall")  # actions that edit the line


class Prompt(Input):
    """The line that the user types, with a history. Enter sends it and clears it at once for the next one."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("up", "recall(-1)"), Binding("down", "recall(1)")]

    class Sent(Message):
        def __init__(self, line: str) -> None:
            super().__init__()
            self.line = line

    def __init__(self, id: str, placeholder: str) -> None:  # noqa: A002 - textual's name for it
        super().__init__(id=id, placeholder=placeholder, compact=True, select_on_focus=False)
        self.cursor_blink = False
        self._history: list[str] = []
        self._at = 0

    async def on_key(self, event: events.Key) -> None:
        """Handle editing keys in the order they were pressed; textual would run bindings later, out of order."""
        own = [
            binding
            for binding in self._bindings.key_to_bindings.get(event.key, [])
            if binding.action.startswith(EDITING)
        ]
        if event.key == "enter":
            self._consume(event)
            if self.value and self.value not in self._history[-1:]:
                self._history = [*self._history, self.value][-MAX_HISTORY:]
            self._at = len(self._history)
            self.post_message(self.Sent(self.value))
            self.value = ""
        elif event.key == "tab" and (candidates := completions(self.value)):
            self._consume(event)
            self.set_line(complete(self.value, candidates))
        elif own and not event.is_printable and self.check_action(own[0].action, ()):
            self._consume(event)
            await self.run_action(own[0].action)

    def _consume(self, event: events.Event) -> None:
        event.stop()
        event.prevent_default()

    def set_line(self, line: str) -> None:
        self.value = line
        self.cursor_position = len(line)

    def on_paste(self, event: events.Paste) -> None:
        """Insert everything that was pasted as one line; textual would keep only the first line."""
        self._consume(event)
        text = event.text.strip("\n")
        self.insert_text_at_cursor(" ".join(text.split()) if "\n" in text else text)

    def give_back(self, line: str) -> bool:
        """Put a rejected line back unless the user has typed something else; return whether that was done."""
        if not self.value:
            self.set_line(line)
        return self.value == line

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Leave `home` and `end` to the stream while the line is empty."""
        return bool(self.value) if action in ("home", "end") else super().check_action(action, parameters)

    def action_recall(self, steps: int) -> None:
        if self._history:
            self._at = min(max(self._at + steps, 0), len(self._history))
            self.set_line(self._history[self._at] if self._at < len(self._history) else "")


KEYS = """\
enter      send the line               esc         to the panes, and back
up, down   earlier lines, or the runs  pgup, pgdn  scroll; so do home and end
s, S       stop the run, or stop now   p, r        pause it, resume it
t          tell it something           d           what it changed
a          accept its branch           /           a command
?          this page                   q           quit"""


class TextScreen(ModalScreen[None]):
    """A title, scrollable text, and a line of keys."""

    def __init__(self, style: Style) -> None:
        super().__init__()
        self._style = style
        self._title, self._text, self._keys = Pane("page-title"), ScrollLog("page"), Pane("page-keys")

    def compose(self) -> ComposeResult:
        yield from (self._title, self._text, self._keys)

    def show_text(self, title: str, lines: Sequence[str]) -> None:
        self._title.show([self._style.paint("title", cut(title, self.app.size.width))])
        self._text.replace_lines(lines, scroll_end=False)
        self._text.scroll_home(animate=False)

    def action_close(self) -> None:
        self.dismiss(None)


class HelpScreen(TextScreen):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,question_mark", "close")]

    def on_mount(self) -> None:
        wide = max(len(form.usage) for form in COMMANDS.values())
        rows = [f"{self._style.paint('bold', form.usage.ljust(wide))}  {form.help}" for form in COMMANDS.values()]
        intro = "A line without a leading slash is a goal: it starts a run."
        self.show_text("help", [intro, "", *rows, "", *KEYS.split("\n")])
        self._keys.show([self._style.paint("dim", "up down pgup pgdn scroll · esc back")])
        self._text.focus()


PATCH_TONES = {"+": "green", "-": "red", "@": "cyan"}


class DiffScreen(TextScreen):
    """The changes of a run: of one iteration, or of all if `number` is None."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,d", "close"),
        Binding("left", "step(-1)", priority=True),
        Binding("right", "step(1)", priority=True),
        Binding("a", "whole"),
    ]

    def __init__(self, run: Listed, number: int | None, style: Style) -> None:
        super().__init__(style)
        self._listed, self._number = run, number
        self._last = 0

    def on_mount(self) -> None:
        keys = "left right iteration · a all · up down pgup pgdn scroll · esc back"
        self._keys.show([self._style.paint("dim", keys)])
        self._text.focus()
        self._reload()

    def on_unmount(self) -> None:
        kill_running_commands()  # a git that hangs

    def _reload(self) -> None:
        self._title.show([self._style.paint("dim", "asking git…")])
        self._load(self._number)

    @work(thread=True, exclusive=True)
    def _load(self, number: int | None) -> None:
        """Load the diff in a thread, because git may be slow."""
        try:
            patch: Patch | UserError = patch_of(self._listed, number)
        except UserError as error:
            patch = error
        self.app.call_later(self._show, patch, get_current_worker())  # never blocks, even if the app is about to exit

    def _show(self, patch: Patch | UserError, worker: Worker[None]) -> None:
        if worker.is_cancelled or not self.is_mounted:  # superseded by a later key, or closed
            return
        if isinstance(patch, UserError):
            self.show_text(patch.message, [patch.hint])
            return
        self._number, self._last = patch.number, patch.last
        added, deleted = sum(file.added for file in patch.files), sum(file.deleted for file in patch.files)
        what = f"iteration {patch.number}" if patch.number else f"iterations 1 to {patch.last}"
        size = f"{plural(len(patch.files), 'file')} · +{added} -{deleted}"
        lines, paint = [], self._style.paint
        for file in patch.files:
            lines += ["", paint("title", file.path)]
            lines += [paint(PATCH_TONES.get(line[:1], "plain"), line) for line in file.lines]
        if patch.is_cut:
            lines.append(paint("dim", f"… more: ralph diff {self._listed.id} {patch.number or ''}"))
        title = f"{nickname(self._listed.id)} · {what} · {size}"
        self.show_text(title, lines or [paint("dim", "no changes")])

    def action_step(self, steps: int) -> None:
        if self._last:
            number = self._number + steps if self._number else self._last if steps < 0 else 1
            self._number = min(max(number, 1), self._last)
            self._reload()

    def action_whole(self) -> None:
        self._number = None
        self._reload()


QuitAnswer = Literal["now", "stop", "keep", "stay"]


class QuitScreen(ModalScreen[QuitAnswer]):
    """Asks what to do with runs that were started here and are still running."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "answer('stop')"),
        Binding("k", "answer('keep')"),
        Binding("escape,q", "answer('stay')"),
    ]

    def __init__(self, names: Sequence[str], style: Style) -> None:
        super().__init__()
        self._names, self._style = names, style

    def compose(self) -> ComposeResult:
        verb, it = ("is", "it") if len(self._names) == 1 else ("are", "them")
        answers = {
            "s": f"stop {it} now and quit",
            "^c": "the same at once, whatever hangs",
            "k": f"keep {it} running and quit",
            "esc": "stay",
        }
        lines = [*paragraphs(f"{', '.join(self._names)}, started here, {verb} still running.", 44), ""]
        lines += [f"{self._style.paint('bold', key.ljust(4))} {does}" for key, does in answers.items()]
        pane = Pane("question")
        pane.show(lines, "quit?")
        pane.styles.height = len(lines) + 2
        yield pane

    def action_answer(self, answer: QuitAnswer) -> None:
        self.dismiss(answer)
