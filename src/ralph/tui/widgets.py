"""Widgets and dialogs of the TUI: textual's own, filled with painted lines."""

from collections.abc import Sequence
from typing import ClassVar, Literal

from msgspec import Struct
from rich.text import Text
from textual import events, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, RichLog, Static
from textual.widgets.option_list import Option

from ralph.core.text import one_line, plural
from ralph.errors import UserError
from ralph.history.evidence import patch_of
from ralph.process.process import kill_running_commands
from ralph.show.words import cut, nickname
from ralph.store.register import Listed
from ralph.tui.draw import Look, paragraphs
from ralph.tui.slash_commands import COMMANDS, complete, completions

MAX_LINES = 5000  # lines kept for scrolling back


def to_text(lines: Sequence[str]) -> Text:
    """Convert lines painted by `show.style` to rich text. A line with other control characters loses its paint."""
    text = Text.from_ansi("\n".join(lines), no_wrap=True, overflow="ellipsis")
    if text.plain.replace("\n", "").isprintable():
        return text
    if len(lines) == 1:
        return Text(one_line(lines[0], len(lines[0])), no_wrap=True, overflow="ellipsis")
    return Text("\n", no_wrap=True, overflow="ellipsis").join(to_text([line]) for line in lines)


class Pane(Static):
    """Shows a few lines; what does not fit is cut."""

    class Resized(Message):
        """The pane has a new size, so other lines may fit."""

    def __init__(self, id: str) -> None:  # noqa: A002 - textual's name for it
        super().__init__(id=id, markup=False)
        self.lines: list[str] = []

    def show(self, lines: Sequence[str]) -> None:
        if list(lines) != self.lines:
            self.lines = list(lines)
            self.update(to_text(self.lines))

    def set_title(self, title: str) -> None:
        self.border_title = f" {title} " if title else ""

    def on_resize(self) -> None:
        self.post_message(self.Resized())


class ScrollLog(RichLog):
    """Lines to scroll in. New lines scroll into view unless the user has scrolled up."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("k", "scroll_up"),
        Binding("j", "scroll_down"),
        Binding("b", "page_up"),
        Binding("space", "page_down"),
        Binding("g", "scroll_home"),
        Binding("G", "scroll_end"),
    ]

    def __init__(self, id: str) -> None:  # noqa: A002 - textual's name for it
        super().__init__(id=id, max_lines=MAX_LINES, min_width=0)

    def replace_lines(self, lines: Sequence[str], at_end: bool = True) -> None:
        self.clear()
        self.add_lines(lines, at_end)
        if not at_end:
            self.scroll_home(animate=False)

    def add_lines(self, lines: Sequence[str], follow: bool | None = None) -> None:
        follow = self.is_vertical_scroll_end if follow is None else follow
        total = len(self.lines) + len(lines)
        if lines:
            self.write(to_text(lines), shrink=False, scroll_end=follow)
        if total > MAX_LINES and not follow:  # keep the view in place while old lines are dropped
            self.scroll_relative(y=MAX_LINES - total, animate=False)
        self.show_lines_below()

    @property
    def lines_below(self) -> int:
        return max(int(self.max_scroll_y - self.scroll_y), 0)

    def show_lines_below(self) -> None:
        subtitle = f" {self.lines_below} more below " if self.lines_below else ""
        if subtitle != self.border_subtitle:
            self.border_subtitle = subtitle

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        self.show_lines_below()

    def scroll_pages(self, pages: int) -> None:
        self.scroll_relative(y=pages * max(self.content_size.height - 1, 1), animate=False)


class RunList(OptionList):
    """The runs; the highlighted one is shown."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("k", "cursor_up"), Binding("j", "cursor_down")]

    def __init__(self, id: str) -> None:  # noqa: A002 - textual's name for it
        super().__init__(id=id, markup=False, compact=True)

    def fill(self, rows: dict[str, list[str]], chosen: str) -> None:
        """Show these lines for each run id, and highlight `chosen`."""
        options = [Option(to_text(lines), id=run) for run, lines in rows.items()]
        if [option.id for option in self.options] == [*rows]:
            for old, new in zip(self.options, options, strict=True):
                if old.prompt != new.prompt:
                    self.replace_option_prompt(str(old.id), new.prompt)
        else:
            with self.prevent(OptionList.OptionHighlighted):
                self.set_options(options)
        if chosen in rows and self.highlighted != (index := self.get_option_index(chosen)):
            with self.prevent(OptionList.OptionHighlighted):
                self.highlighted = index

    def on_resize(self) -> None:
        self.post_message(Pane.Resized())


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
        own = [one for one in self._bindings.key_to_bindings.get(event.key, []) if one.action.startswith(EDITING)]
        if event.key == "enter":
            self._consume(event)
            self._send()
        elif event.key == "tab" and (found := completions(self.value)):
            self._consume(event)
            self._set_line(complete(self.value, found))
        elif own and not event.is_printable and self.check_action(own[0].action, ()):
            self._consume(event)
            await self.run_action(own[0].action)

    def _consume(self, event: events.Key) -> None:
        event.stop()
        event.prevent_default()

    def _send(self) -> None:
        line = self.value
        if line and line not in self._history[-1:]:
            self._history = [*self._history, line][-MAX_HISTORY:]
        self._at = len(self._history)
        self.value = ""
        self.post_message(self.Sent(line))

    def _set_line(self, line: str) -> None:
        self.value = line
        self.cursor_position = len(line)

    def on_paste(self, event: events.Paste) -> None:
        """Insert everything that was pasted as one line; textual would keep only the first line."""
        event.prevent_default()
        event.stop()
        text = event.text.strip("\n")
        self.insert_text_at_cursor(" ".join(text.split()) if "\n" in text else text)

    def give_back(self, line: str) -> bool:
        """Put a rejected line back unless the user has typed something else; return whether it is there."""
        if not self.value:
            self._set_line(line)
        return self.value == line

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Leave `home` and `end` to the stream while the line is empty."""
        return bool(self.value) if action in ("home", "end") else super().check_action(action, parameters)

    def action_recall(self, steps: int) -> None:
        if self._history:
            self._at = min(max(self._at + steps, 0), len(self._history))
            self._set_line(self._history[self._at] if self._at < len(self._history) else "")


KEYS = """\
enter      send the line               esc         to the panes, and back
up, down   earlier lines, or the runs  pgup, pgdn  scroll; so do home and end
s, S       stop the run, or stop now   p, r        pause it, resume it
t          tell it something           d           what it changed
a          accept its branch           /           a command
?          this page                   q           quit"""


class TextScreen(ModalScreen[None]):
    """A title, text to scroll in, and a line of keys."""

    def __init__(self, look: Look) -> None:
        super().__init__()
        self._look = look
        self._title, self._text, self._keys = Pane("page-title"), ScrollLog("page"), Pane("page-keys")

    def compose(self) -> ComposeResult:
        yield self._title
        yield self._text
        yield self._keys

    def action_close(self) -> None:
        self.dismiss(None)


class HelpScreen(TextScreen):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,question_mark", "close")]

    def on_mount(self) -> None:
        look = self._look
        wide = max(len(form.usage) for form in COMMANDS.values())
        rows = [f"{look.paint('bold', form.usage.ljust(wide))}  {form.help}" for form in COMMANDS.values()]
        self._title.show([look.paint("title", "help")])
        self._keys.show([look.paint("dim", "up down pgup pgdn scroll · esc back")])
        intro = "A line without a leading slash is a goal: it starts a run."
        self._text.replace_lines([intro, "", *rows, "", *KEYS.split("\n")], at_end=False)
        self._text.focus()


PATCH_TONES = {"+": "green", "-": "red", "@": "cyan"}


class DiffText(Struct, frozen=True):
    """The painted diff of iteration `number`, or of the whole run (None); `last` is the last iteration with a diff."""

    number: int | None
    last: int
    title: str
    lines: list[str]


def load_diff(run: Listed, number: int | None, look: Look) -> DiffText:
    """Ask git for the diff of an iteration, or of the whole run."""
    patch = patch_of(run, number)
    added, deleted = (sum(getattr(file, way) for file in patch.files) for way in ("added", "deleted"))
    what = f"iteration {patch.number}" if patch.number else f"iterations 1 to {patch.last}"
    lines: list[str] = []
    for file in patch.files:
        lines += ["", look.paint("title", file.path)]
        tones = ((PATCH_TONES.get(line[:1]), line) for line in file.lines)
        lines += [look.paint(tone, line) if tone else line for tone, line in tones]
    if patch.is_cut:
        lines.append(look.paint("dim", f"… more: ralph diff {run.id} {number or ''}"))
    title = f"{nickname(run.id)} · {what} · {plural(len(patch.files), 'file')} · +{added} -{deleted}"
    return DiffText(patch.number, patch.last, title, lines or [look.paint("dim", "no changes")])


class DiffScreen(TextScreen):
    """What a run changed: one iteration at a time, or everything."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,d", "close"),
        Binding("left,h,left_square_bracket", "step(-1)", priority=True),
        Binding("right,l,right_square_bracket", "step(1)", priority=True),
        Binding("a", "whole"),
    ]

    def __init__(self, run: Listed, number: int | None, look: Look) -> None:
        super().__init__(look)
        self._listed, self._number = run, number
        self._last = self._request = 0

    def on_mount(self) -> None:
        keys = "left right iteration · a all · up down pgup pgdn scroll · esc back"
        self._keys.show([self._look.paint("dim", keys)])
        self._text.focus()
        self._reload()

    def on_unmount(self) -> None:
        kill_running_commands()  # a git that hangs

    def _reload(self) -> None:
        self._title.show([self._look.paint("dim", "asking git…")])
        self._request += 1
        self._load(self._number, self._request)

    @work(thread=True)
    def _load(self, number: int | None, request: int) -> None:
        """Load the diff in a thread, because git may be slow."""
        try:
            diff = load_diff(self._listed, number, self._look)
        except UserError as error:
            diff = DiffText(None, 0, error.message, [error.hint])
        self.app.call_later(self._show, diff, request)  # never blocks, even if the app is about to exit

    def _show(self, diff: DiffText, request: int) -> None:
        if request != self._request or not self.is_mounted:  # superseded by a later key, or closed
            return
        self._number, self._last = diff.number, diff.last
        self._title.show([self._look.paint("title", cut(diff.title, self.size.width))])
        self._text.replace_lines(diff.lines, at_end=False)

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

    def __init__(self, names: Sequence[str], look: Look) -> None:
        super().__init__()
        self._names, self._look = names, look

    def compose(self) -> ComposeResult:
        yield Pane("question")

    def on_mount(self) -> None:
        is_one = len(self._names) == 1
        it = "it" if is_one else "them"
        answers = (
            ("s", f"stop {it} now and quit"),
            ("^c", "the same at once, whatever hangs"),
            ("k", f"keep {it} running and quit"),
            ("esc", "stay"),
        )
        who = f"{', '.join(self._names)}, started here, {'is' if is_one else 'are'} still running."
        lines = [
            *paragraphs(who, 44),
            "",
            *(f"{self._look.paint('bold', key.ljust(4))} {does}" for key, does in answers),
        ]
        pane = self.query_one("#question", Pane)
        pane.set_title("quit?")
        pane.show(lines)
        pane.styles.height = len(lines) + 2

    def action_answer(self, answer: QuitAnswer) -> None:
        self.dismiss(answer)
