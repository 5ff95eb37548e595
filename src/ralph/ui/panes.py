"""What is the full screen made of? Panes that show painted lines, a reel to scroll in, the list of runs, the line that
a person types; and what may lie over it for a while: a diff, the help, the question what becomes of runs."""

from collections.abc import Sequence
from contextlib import ExitStack
from functools import lru_cache
from itertools import islice
from typing import ClassVar, Literal

from msgspec import Struct
from rich.segment import Segment
from rich.style import Style as RichStyle
from textual import events, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.screen import ModalScreen
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Input

from ralph.core.text import clean, plural
from ralph.errors import UserError
from ralph.history.evidence import patch_in
from ralph.processes.program import asked_by, leaving_alone
from ralph.show.words import cut, nickname
from ralph.ui.draw import Look, paragraphs
from ralph.ui.typed import FORMS, completed, completions

_PAINTS = {
    "0": RichStyle.null(),
    "1": RichStyle(bold=True),
    "2": RichStyle(dim=True),
    "31": RichStyle(color="red"),
    "32": RichStyle(color="green"),
    "33": RichStyle(color="yellow"),
    "36": RichStyle(color="cyan"),
    "1;36": RichStyle(bold=True, color="cyan"),
    "1;31": RichStyle(bold=True, color="red"),
    "1;32": RichStyle(bold=True, color="green"),
    "1;33": RichStyle(bold=True, color="yellow"),
}
_CUT = Strip([Segment("…")])
_REVERSED = RichStyle(reverse=True)


@lru_cache(2048)
def strip_of(line: str) -> Strip:
    """A line as it was painted by `show.style`: no other escape codes have an effect, and nothing else gets out."""
    first, *painted = line.split("\x1b[")
    segments = [Segment(one_row(first), _PAINTS["0"])] if first else []
    for part in painted:
        code, _, text = part.partition("m")
        if code not in _PAINTS:
            code, text = "0", part
        if text := one_row(text):
            segments.append(Segment(text, _PAINTS[code]))
    return Strip(segments)


def one_row(text: str) -> str:
    return text if text.isprintable() else clean(text).replace("\n", " ").replace("\t", " ")


class Pane(Widget):
    """Shows lines from its top. What does not fit is cut."""

    class Resized(Message):
        """It has got another size, in which other lines may fit."""

    def __init__(self, id: str) -> None:  # noqa: A002 - textual's name for it
        super().__init__(id=id)
        self._shown: list[str] = []
        self._titles = "", ""

    @property
    def shown(self) -> list[str]:
        return self._shown

    def show(self, lines: Sequence[str]) -> None:
        lines = list(lines)
        if lines != self._shown:
            self._shown = lines
            self.refresh()

    def on_resize(self) -> None:
        self.post_message(self.Resized())

    def set_title(self, title: str, below: str = "") -> None:
        """Sets the words on the border; textual would draw the pane anew even where they are the same."""
        if (title, below) != self._titles:
            self._titles = title, below
            self.border_title, self.border_subtitle = f" {title} " if title else "", f" {below} " if below else ""

    def render_line(self, y: int) -> Strip:
        width = self.content_size.width
        strip = strip_of(self._shown[y]) if y < len(self._shown) else Strip.blank(width)
        if strip.cell_length > width:
            strip = Strip.join([strip.crop(0, width - 1), _CUT])
        return self.dressed(strip.crop_extend(0, width, None), y)

    def dressed(self, strip: Strip, y: int) -> Strip:
        return strip


class ScrollPane(Pane, can_focus=True):
    """Shows a part of many lines: their end, until a person scrolls up."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "roll(-1)"),
        Binding("down,j", "roll(1)"),
        Binding("pageup,b", "page(-1)"),
        Binding("pagedown,space", "page(1)"),
        Binding("home,g", "to_begin"),
        Binding("end,G", "to_end"),
    ]

    def __init__(self, id: str, from_top: bool = False) -> None:  # noqa: A002 - textual's name for it
        super().__init__(id)
        self._lines: Sequence[str] = ()
        self._begin = 0  # the number of the first line that is still there
        self._top: int | None = 0 if from_top else None  # None: the end is shown, and followed

    @property
    def below(self) -> int:
        """How many lines come after those that are shown."""
        return max(self._begin + len(self._lines) - self._first() - self.content_size.height, 0)

    def fill(self, lines: Sequence[str], begin: int = 0) -> None:
        """Shows these lines, the first of which has the number `begin`."""
        self._lines, self._begin = lines, begin
        self._draw()

    def rewind(self) -> None:
        """The end is followed again."""
        self._top = None

    def _first(self) -> int:
        last = max(self._begin + len(self._lines) - self.content_size.height, self._begin)
        return last if self._top is None else min(max(self._top, self._begin), last)

    def _draw(self) -> None:
        at = self._first() - self._begin
        self.show(list(islice(self._lines, at, at + self.content_size.height)))

    def on_resize(self) -> None:
        self._draw()

    def action_roll(self, lines: int) -> None:
        self._go(self._first() + lines)

    def action_page(self, pages: int) -> None:
        self._go(self._first() + pages * max(self.content_size.height - 1, 1))

    def action_to_begin(self) -> None:
        self._go(self._begin)

    def action_to_end(self) -> None:
        self._go(self._begin + len(self._lines))

    def _go(self, top: int) -> None:
        last = self._begin + len(self._lines) - self.content_size.height
        self._top = None if top >= last else max(top, self._begin)
        self._draw()

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        self.action_roll(-3)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        self.action_roll(3)


class RunList(Pane, can_focus=True):
    """The runs, one of which is looked at."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "step(-1)"),
        Binding("down,j", "step(1)"),
        Binding("home", "step(-100000)"),
        Binding("end", "step(100000)"),
    ]

    class Chosen(Message):
        def __init__(self, run: str) -> None:
            super().__init__()
            self.run = run

    def __init__(self, id: str) -> None:  # noqa: A002 - textual's name for it
        super().__init__(id)
        self._rows: list[tuple[str, list[str]]] = []
        self._chosen = ""
        self._first = 0

    def fill(self, rows: list[tuple[str, list[str]]], chosen: str) -> None:
        """Shows the rows of each run, by its id; all of them have as many."""
        self._rows, self._chosen = rows, chosen
        self._draw()

    @property
    def _at(self) -> int:
        return next((at for at, (run, _) in enumerate(self._rows) if run == self._chosen), 0)

    @property
    def _each(self) -> int:
        return len(self._rows[0][1]) if self._rows else 1

    def _draw(self) -> None:
        room = max(self.content_size.height // self._each, 1)
        self._first = min(max(self._first, self._at - room + 1, 0), self._at, max(len(self._rows) - room, 0))
        self.show([line for _, rows in self._rows[self._first : self._first + room] for line in rows])

    def dressed(self, strip: Strip, y: int) -> Strip:
        is_chosen = self._rows and self._first + y // self._each == self._at and y < len(self.shown)
        return strip.apply_style(_REVERSED) if is_chosen and (self.has_focus or y % self._each == 0) else strip

    def on_resize(self) -> None:
        self._draw()

    def on_focus(self) -> None:
        self.refresh()

    on_blur = on_focus

    def action_step(self, steps: int) -> None:
        if self._rows:
            self._choose(min(max(self._at + steps, 0), len(self._rows) - 1))

    def on_click(self, event: events.Click) -> None:
        at = event.get_content_offset(self)
        place = self._first + at.y // self._each if at else len(self._rows)
        if place < len(self._rows):
            self._choose(place)

    def _choose(self, place: int) -> None:
        run = self._rows[place][0]
        if run != self._chosen:
            self._chosen = run
            self._draw()
            self.refresh()
            self.post_message(self.Chosen(run))


MOST_LINES = 200
EDITS = ("cursor_", "delete_", "home", "end", "recall")
"""What keys do to a line."""


class Prompt(Input):
    """The line that a person types. It is sent as it stands when enter is pressed, and is free for the next at once:
    keys may come faster than anything can be carried out."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("up", "recall(-1)"), Binding("down", "recall(1)")]

    class Sent(Message):
        def __init__(self, line: str) -> None:
            super().__init__()
            self.line = line

    def __init__(self, id: str, placeholder: str) -> None:  # noqa: A002 - textual's name for it
        super().__init__(id=id, placeholder=placeholder, compact=True, select_on_focus=False)
        self.cursor_blink = False  # it would be drawn twice a second, for nothing
        self._lines: list[str] = []
        self._at = 0

    async def on_key(self, event: events.Key) -> None:
        """Here, in the order of the keys: bindings are looked at later, when more of them may have changed the line."""
        own = [one for one in self._bindings.key_to_bindings.get(event.key, []) if one.action.startswith(EDITS)]
        if event.key == "enter":
            self._take(event)
            line = self.value
            if line and line not in self._lines[-1:]:
                self._lines.append(line)
                del self._lines[:-MOST_LINES]
            self._at = len(self._lines)
            self.value = ""
            self.post_message(self.Sent(line))
        elif event.key == "tab" and (found := completions(self.value)):
            self._take(event)
            self.value = completed(self.value, found)
            self.cursor_position = len(self.value)
        elif own and not event.is_printable and self.check_action(own[0].action, ()):
            self._take(event)
            await self.run_action(own[0].action)

    def _take(self, event: events.Key) -> None:
        event.stop()
        event.prevent_default()

    def on_paste(self, event: events.Paste) -> None:
        """All that was pasted, as one line. Textual would take the first of several, and say nothing."""
        event.prevent_default()
        event.stop()
        text = event.text.strip("\n")
        self.insert_text_at_cursor(" ".join(text.split()) if "\n" in text else text)

    def give_back(self, line: str) -> bool:
        """What could not be done stands there again, unless something else was typed meanwhile: `up` brings it back."""
        if not self.value:
            self.value = line
            self.cursor_position = len(line)
        return self.value == line

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """In an empty line `home` and `end` lead nowhere: they are left to what the agent says."""
        return bool(self.value) if action in ("home", "end") else super().check_action(action, parameters)

    def action_recall(self, steps: int) -> None:
        """Brings back an earlier line."""
        if not self._lines:
            return
        self._at = min(max(self._at + steps, 0), len(self._lines))
        self.value = self._lines[self._at] if self._at < len(self._lines) else ""
        self.cursor_position = len(self.value)


TONES = {"+": "green", "-": "red", "@": "cyan"}


class Changes(Struct, frozen=True):
    """`number` is the iteration, None for the whole run; `last` is the last one that can be looked at."""

    number: int | None
    last: int
    title: str
    lines: list[str]


def changes(run: str, place: str, number: int | None, look: Look) -> Changes:
    """The patch of an iteration of a run that worked in `place`, or of all of them."""
    patch = patch_in(run, place, number)
    added, deleted = (sum(getattr(file, way) for file in patch.files) for way in ("added", "deleted"))
    what = f"iteration {patch.number}" if patch.number else f"iterations 1 to {patch.last}"
    many = plural(len(patch.files), "file")
    lines: list[str] = []
    for file in patch.files:
        lines += ["", look.paint("title", file.path)]
        tones = ((TONES.get(line[:1]), line) for line in file.lines)
        lines += [look.paint(tone, line) if tone else line for tone, line in tones]
    if patch.is_cut:
        lines.append(look.paint("dim", f"… more: ralph diff {run} {number or ''}"))
    title = f"{nickname(run)} · {what} · {many} · +{added} -{deleted}"
    return Changes(patch.number, patch.last, title, lines or [look.paint("dim", "nothing was changed")])


Leaving = Literal["now", "stop", "keep", "stay"]

KEYS = """\
enter      send the line               esc         to the panes, and back
up, down   earlier lines, or the runs  pgup, pgdn  scroll; so do home and end
s, S       stop the run, or stop now   p, r        pause it, go on with it
t          tell it something           d           what it changed
/          a command                   ?           this page
q          leave"""


class TextPage(ModalScreen[None]):
    """A title, text to scroll in, and the keys."""

    def __init__(self, look: Look) -> None:
        super().__init__()
        self._look = look
        self._title, self._page, self._keys = Pane("page-title"), ScrollPane("page", from_top=True), Pane("page-keys")

    def compose(self) -> ComposeResult:
        yield self._title
        yield self._page
        yield self._keys

    def action_leave(self) -> None:
        self.dismiss(None)


class HelpPage(TextPage):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,question_mark", "leave")]

    def on_mount(self) -> None:
        look = self._look
        wide = max(len(form.usage) for form in FORMS.values())
        rows = [f"{look.paint('bold', form.usage.ljust(wide))}  {form.help}" for form in FORMS.values()]
        text = ["A line that begins with no slash is a goal: it starts a run.", "", *rows, "", *KEYS.split("\n")]
        self._title.show([look.paint("title", "help")])
        self._keys.show([look.paint("dim", "up down pgup pgdn scroll · esc back")])
        self._page.fill(text)
        self._page.focus()


class DiffPage(TextPage):
    """What a run changed: an iteration at a time, or all of it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,d", "leave"),
        Binding("left,h,left_square_bracket", "step(-1)"),
        Binding("right,l,right_square_bracket", "step(1)"),
        Binding("a", "whole"),
    ]

    def __init__(self, run: str, place: str, number: int | None, look: Look) -> None:
        super().__init__(look)
        self._run_id, self._place, self._number = run, place, number
        self._last = self._asked = 0
        self._stays = ExitStack()

    def on_mount(self) -> None:
        self._asker = self._stays.enter_context(leaving_alone())
        keys = "left right iteration · a all · up down pgup pgdn scroll · esc back"
        self._keys.show([self._look.paint("dim", keys)])
        self._page.focus()
        self._load()

    def on_unmount(self) -> None:
        self._stays.close()  # a git that hangs would hold up the screen as well

    def _load(self) -> None:
        self._title.show([self._look.paint("dim", "asking git…")])
        self._asked += 1
        self._ask(self._number, self._asked)

    @work(thread=True)
    def _ask(self, number: int | None, asked: int) -> None:
        """In a thread: git may take its time, and the screen must not."""
        try:
            with asked_by(self._asker):
                found = changes(self._run_id, self._place, number, self._look)
        except UserError as error:
            found = Changes(None, 0, error.message, [error.hint])
        self.app.call_from_thread(self._show, found, asked)

    def _show(self, found: Changes, asked: int) -> None:
        if asked != self._asked:  # something else is wanted by now
            return
        self._number, self._last = found.number, found.last
        self._title.show([self._look.paint("title", cut(found.title, self.size.width))])
        self._page.fill(found.lines)
        self._page.action_to_begin()

    def action_step(self, steps: int) -> None:
        if self._last:
            number = self._number + steps if self._number else self._last if steps < 0 else 1
            self._number = min(max(number, 1), self._last)
            self._load()

    def action_whole(self) -> None:
        self._number = None
        self._load()


class LeavePage(ModalScreen[Leaving]):
    """Runs that were started here are at work: nobody leaves them by accident."""

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
        paint = self._look.paint
        is_one = len(self._names) == 1
        who = f"{', '.join(self._names)}, started here, {'is' if is_one else 'are'} still at work."
        it = "it" if is_one else "them"
        pane = self.query_one("#question", Pane)
        answers = (
            ("s", f"stop {it} now, and leave"),
            ("^c", "the same at once, whatever hangs"),
            ("k", f"keep {it} running, and leave"),
            ("esc", "stay"),
        )
        lines = [*paragraphs(who, 44), "", *(f"{paint('bold', key.ljust(4))} {does}" for key, does in answers)]
        pane.set_title("leave?")
        pane.show(lines)
        pane.styles.height = len(lines) + 2

    def action_answer(self, answer: Leaving) -> None:
        self.dismiss(answer)
