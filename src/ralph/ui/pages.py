"""What may lie over the screen for a while? A diff, the help, and the question what becomes of runs on leaving."""

from collections.abc import Iterator, Sequence
from typing import ClassVar, Literal

from msgspec import Struct
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen

from ralph.errors import UserError
from ralph.history.evidence import PatchedFile, patch_in
from ralph.show.words import cut, nickname
from ralph.ui.draw import Look, paragraphs
from ralph.ui.panes import Pane, ScrollPane
from ralph.ui.typed import FORMS

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
    many = f"{len(patch.files)} file{'s' if len(patch.files) != 1 else ''}"
    lines = list(_painted(patch.files, look))
    if patch.is_cut:
        lines.append(look.paint("dim", f"… more: ralph diff {run} {number or ''}"))
    title = f"{nickname(run)} · {what} · {many} · +{added} -{deleted}"
    return Changes(patch.number, patch.last, title, lines or [look.paint("dim", "nothing was changed")])


def _painted(files: Sequence[PatchedFile], look: Look) -> Iterator[str]:
    for file in files:
        yield ""
        yield look.paint("title", file.path)
        for line in file.lines:
            tone = TONES.get(line[:1])
            yield look.paint(tone, line) if tone else line


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

    def on_mount(self) -> None:
        keys = "left right iteration · a all · up down pgup pgdn scroll · esc back"
        self._keys.show([self._look.paint("dim", keys)])
        self._page.focus()
        self._load()

    def _load(self) -> None:
        self._title.show([self._look.paint("dim", "asking git…")])
        self._asked += 1
        self._ask(self._number, self._asked)

    @work(thread=True)
    def _ask(self, number: int | None, asked: int) -> None:
        """In a thread: git may take its time, and the screen must not."""
        try:
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
