"""What may lie over the screen for a while? A diff, the help, and the question what becomes of runs on leaving."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar, Literal

from msgspec import Struct
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen

from ralph.cli.diff import whole
from ralph.core.secrets import redact_text
from ralph.core.text import clean
from ralph.errors import UserError
from ralph.repository.changes import changed_files, patch
from ralph.repository.checkpoints import Checkpoints
from ralph.repository.git import repository
from ralph.show.words import cut
from ralph.ui.draw import Look, nickname, paragraphs
from ralph.ui.panes import Pane, Reel
from ralph.ui.typed import FORMS

MOST_LINES = 20_000
LONGEST_LINE = 500
TONES = {"+": "green", "-": "red", "@": "cyan"}
HEADS = ("diff ", "index ", "--- ", "+++ ", "new file", "deleted file", "similarity", "rename ", "old mode", "new mode")


class Changes(Struct, frozen=True):
    """`number` is the iteration, None for the whole run; `last` is the last one that can be looked at."""

    number: int | None
    last: int
    title: str
    lines: list[str]


def changes(run: str, place: str, number: int | None, look: Look) -> Changes:
    """The patch of an iteration of a run that worked in `place`, or of all of them."""
    if not Path(place).is_dir():
        raise UserError(f"{place} is gone", "the run's work cannot be looked at")
    repo = repository(Path(place))
    saved = Checkpoints(repo, run)
    numbers = [int(one.name) for one in saved.all() if one.name.isdigit()]
    last = max(numbers, default=0)
    if not last:
        raise UserError(f"{nickname(run)} has not finished an iteration yet", "what it changes is kept after each")
    before, after = saved.around(min(number, last)) if number else whole(saved)
    files = changed_files(repo, before, after)
    added, deleted = (sum(getattr(file, way) or 0 for file in files) for way in ("added", "deleted"))
    what = f"iteration {min(number, last)}" if number else f"iterations 1 to {last}"
    title = f"{nickname(run)} · {what} · {len(files)} file{'s' if len(files) != 1 else ''} · +{added} -{deleted}"
    lines = list(_painted(patch(repo, before, after), look))
    if len(lines) > MOST_LINES:
        lines[MOST_LINES:] = [look.paint("dim", f"… more: ralph diff {run} {number or ''}")]
    return Changes(number and min(number, last), last, title, lines or [look.paint("dim", "nothing was changed")])


def _painted(chunks: Iterable[bytes], look: Look) -> Iterator[str]:
    for count, raw in enumerate(_lines(chunks)):
        if count > MOST_LINES:
            return
        line = redact_text(clean(raw.decode("utf-8", "replace"))).expandtabs(4)[:LONGEST_LINE]
        if line.startswith("diff "):
            yield ""
            yield look.paint("title", line.rpartition(" b/")[2])
        elif not line.startswith(HEADS):
            tone = TONES.get(line[:1])
            yield look.paint(tone, line) if tone else line


def _lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines
    if rest:
        yield rest


Leaving = Literal["stop", "keep", "stay"]

KEYS = """\
enter      send the line               esc, tab    to the panes, and back
up, down   earlier lines, or the runs  pgup, pgdn  scroll; so do home and end
s, S       stop the run, or stop now   p, r        pause it, go on with it
t          tell it something           d           what it changed
/          a command                   ?           this page
q          leave"""


class HelpPage(ModalScreen[None]):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,question_mark", "leave")]

    def __init__(self, look: Look) -> None:
        super().__init__()
        self._look = look
        self._title, self._page, self._keys = Pane("page-title"), Reel("page", from_top=True), Pane("page-keys")

    def compose(self) -> ComposeResult:
        yield self._title
        yield self._page
        yield self._keys

    def on_mount(self) -> None:
        look = self._look
        wide = max(len(form.usage) for form in FORMS.values())
        rows = [f"{look.paint('bold', form.usage.ljust(wide))}  {form.help}" for form in FORMS.values()]
        text = ["A line that begins with no slash is a goal: it starts a run.", "", *rows, "", *KEYS.split("\n")]
        self._title.show([look.paint("title", "help")])
        self._keys.show([look.paint("dim", "up down pgup pgdn scroll · esc back")])
        self._page.unroll(text)
        self._page.focus()

    def action_leave(self) -> None:
        self.dismiss(None)


class DiffPage(ModalScreen[None]):
    """What a run changed: an iteration at a time, or all of it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,d", "leave"),
        Binding("left,h,left_square_bracket", "step(-1)"),
        Binding("right,l,right_square_bracket", "step(1)"),
        Binding("a", "whole"),
    ]

    def __init__(self, run: str, place: str, number: int | None, look: Look) -> None:
        super().__init__()
        self._run_id, self._place, self._number, self._look = run, place, number, look
        self._last = self._asked = 0
        self._title, self._page, self._keys = Pane("page-title"), Reel("page", from_top=True), Pane("page-keys")

    def compose(self) -> ComposeResult:
        yield self._title
        yield self._page
        yield self._keys

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
        self._page.unroll(found.lines)
        self._page.action_to_begin()

    def action_step(self, steps: int) -> None:
        if self._last:
            number = self._number + steps if self._number else self._last if steps < 0 else 1
            self._number = min(max(number, 1), self._last)
            self._load()

    def action_whole(self) -> None:
        self._number = None
        self._load()

    def action_leave(self) -> None:
        self.dismiss(None)


class LeavePage(ModalScreen[Leaving]):
    """Runs that were started here are at work: nobody leaves them by accident."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "answer('stop')"),
        Binding("k", "answer('keep')"),
        Binding("escape,q,ctrl+c", "answer('stay')"),
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
        answers = (("s", f"stop {it} now, and leave"), ("k", f"keep {it} running, and leave"), ("esc", "stay"))
        lines = [*paragraphs(who, 44), "", *(f"{paint('bold', key.ljust(4))} {does}" for key, does in answers)]
        pane.entitle("leave?")
        pane.show(lines)
        pane.styles.height = len(lines) + 2

    def action_answer(self, answer: Leaving) -> None:
        self.dismiss(answer)
