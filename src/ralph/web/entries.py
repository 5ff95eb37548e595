"""Which piece of a page does an event become? What the agent says and does, checks, refusals, talk: each an element
with an id, so that what ends (a tool call) takes the place of what began."""

from collections import deque

from msgspec import Struct

from ralph.core import events as e
from ralph.core.text import clean, head, short
from ralph.records.journal import Entry
from ralph.show.plots import Html, element
from ralph.show.words import duration, moment, plural
from ralph.web.pieces import inside, mark, prose, time_of

MOST_ENTRIES = 2000
MOST_BYTES = 900_000
MOST_SHOWN = 200
_TEXT_SHOWN = 4000


class Piece(Struct):
    """`seq` is the number of the last event that is in it."""

    id: str
    html: Html
    seq: int


class _Call(Struct, frozen=True):
    """A tool call that has not ended."""

    piece: Piece
    name: str
    given: str
    began: float


class RecentPieces:
    """The last pieces of a run's story. Bounded: what is older stands among the iterations."""

    def __init__(self, workspace: str) -> None:
        self._workspace = workspace
        self._kept: deque[Piece] = deque()
        self._bytes = 0
        self._calls: dict[str, _Call] = {}
        self.seq = 0
        self.begin = 0
        """Whoever has seen everything up to this number has missed nothing that is no longer kept."""

    def hear(self, entry: Entry, event: e.Event) -> None:
        self.seq = max(self.seq, entry.seq)
        html = self._rendered(event, entry)
        if html:
            piece = Piece(f"e{entry.seq}", html, entry.seq)
            if isinstance(event, e.ToolStarted):
                self._calls[event.id] = _Call(piece, event.name, event.input, entry.at)
            self._keep(piece)

    def since(self, after: int) -> str:
        """The pieces with something in them that happened after number `after`."""
        return "".join(piece.html for piece in self._kept if piece.seq > after)

    def shown(self, most: int = MOST_SHOWN) -> list[Html]:
        """What a page begins with: the pieces of the iteration at work, as far as a person would scroll back."""
        pieces = list(self._kept)
        first = max((at for at, piece in enumerate(pieces) if 'class="iteration"' in piece.html[:60]), default=0)
        return [piece.html for piece in pieces[max(first, len(pieces) - most) :]]

    def _keep(self, piece: Piece) -> None:
        self._kept.append(piece)
        self._bytes += len(piece.html)
        while len(self._kept) > MOST_ENTRIES or self._bytes > MOST_BYTES:
            gone = self._kept.popleft()
            self._bytes -= len(gone.html)
            self.begin = max(self.begin, gone.seq)

    def _rendered(self, event: e.Event, entry: Entry) -> Html | None:
        name = f"e{entry.seq}"
        match event:
            case e.IterationStarted():
                self._calls.clear()
                of = f" of {event.max_iterations}" if event.max_iterations else ""
                return element("h3", f"Iteration {event.iteration}{of}", time_of(entry.at), class_="iteration", id=name)
            case e.AgentText() if event.text.strip():
                return element("p", prose(head(event.text, _TEXT_SHOWN, " …").strip()), class_="says", id=name)
            case e.ToolStarted():
                given = element("code", inside(short(event.input, 300), self._workspace))
                since = element("span", "", class_="soft", data_since=f"{entry.at:.0f}")
                return element(
                    "div", mark("run"), element("b", short(event.name, 60)), given, since, class_="tool", id=name
                )
            case e.ToolFinished():
                return self._ended(event, entry)
        return _rendered_alone(event, entry, name)

    def _ended(self, event: e.ToolFinished, entry: Entry) -> Html | None:
        """The end of a call stands where its beginning stood, if that is still there."""
        call = self._calls.pop(event.id, None)
        if call is None:
            return _tool(f"e{entry.seq}", event, event.name, "", 0.0)
        given = inside(short(call.given, 300), self._workspace)
        html = _tool(call.piece.id, event, call.name or event.name, given, entry.at - call.began)
        self._bytes += len(html) - len(call.piece.html)
        call.piece.html, call.piece.seq = html, entry.seq
        return None


def _rendered_alone(event: e.Event, entry: Entry, name: str) -> Html | None:
    """Events that no other one belongs to."""
    match event:
        case e.AgentFinished() if event.failure or event.ended_by:
            why = short(event.reason or event.failure or event.ended_by.replace("-", " "), 400)
            return element("p", mark("bad"), f"The turn failed: {why}", class_="row bad-text", id=name)
        case e.CheckFinished():
            return _check(event, name)
        case e.ClaimRejected():
            return element("div", refusal(event.claim, event.reason), class_="refused", id=name)
        case e.Waiting():
            for_how_long = f" until {moment(event.until, 0)}" if event.until else f" {duration(event.seconds)}"
            return _row(f"Waiting{for_how_long}: {short(event.reason, 300)}", name)
        case e.Paused():
            return _row(f"Paused: {short(event.reason, 300)}", name)
        case e.Continued():
            return _row(f"Went on after {duration(event.seconds)}", name)
        case e.QuestionAsked():
            return element("div", element("b", "It asks: "), prose(event.text), class_="asked", id=name)
        case e.PersonTold():
            said = [element("p", element("b", "You: "), prose(note.text)) for note in event.notes]
            return element("div", said, class_="you", id=name)
        case e.PermissionDenied():
            return _row(f"Not allowed to use {short(event.tool, 80)}", name)
        case e.Notice() if event.level != "debug":
            return _row(short(event.text, 500), name)
        case e.RunFinished():
            tone = "good" if event.exit_code == 0 else "bad"
            sentence = element("b", f"{event.outcome}: ")
            return element("div", sentence, short(event.reason, 500), class_=f"ended {tone}", id=name)
    return None


def _row(text: str, name: str) -> Html:
    return element("p", text, class_="row soft", id=name)


def refusal(claim: str, reason: str) -> list[object]:
    """Why a claim was not believed."""
    return [
        element("b", "Not believed. "),
        "The agent said ",
        element("code", short(claim, 80)),
        ". ",
        prose(short(reason, 500)),
    ]


def _check(event: e.CheckFinished, name: str) -> Html:
    how = "" if event.passed else "timeout · " if event.timeout else f"exit {event.exit_code} · "
    top = [
        mark("good" if event.passed else "bad"),
        element("b", short(event.name, 120)),
        element("span", how + duration(event.duration_s), class_="soft"),
    ]
    output = event.output.strip()
    if event.passed or not output:
        return element("div", top, class_="tool", id=name)
    shown = element("pre", clean(head(output, _TEXT_SHOWN, "\n…")), tabindex="0")
    return element("details", element("summary", top), shown, class_="tool", open=True, id=name)


def _tool(name: str, ended: e.ToolFinished, tool: str, given: str, took: float) -> Html:
    size = plural(ended.lines, "line") if ended.chars else "no output"
    said = f"{duration(took)} · {size}" if took >= 2 else size
    top = [
        mark("good" if ended.ok else "bad"),
        element("b", short(tool, 60)),
        element("code", given),
        element("span", said, class_="soft"),
    ]
    if not ended.output.strip():
        return element("div", top, class_="tool", id=name)
    more = ended.lines - ended.output.count("\n") - 1
    rest = element("p", f"{plural(more, 'more line')} in the log", class_="soft") if more > 0 else None
    shown = element("pre", clean(head(ended.output, _TEXT_SHOWN, "\n…")), tabindex="0")
    return element("details", element("summary", top), shown, rest, class_="tool", id=name)
