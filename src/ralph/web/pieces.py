"""The building blocks of all pages: frame, badges, buttons, forms, clocks, and one element per event of a run.

Each event's element has an id, so that the end of a tool call replaces its start. `element` escapes everything that an
agent, a check or a person wrote.
"""

import os
import time
from collections import deque
from collections.abc import Mapping, Sequence

from msgspec import Struct
from starlette.responses import HTMLResponse

from ralph.core import events as e
from ralph.core.model import Outcome
from ralph.core.text import clean, head, plural, short
from ralph.history.states import BADGES, TASK_TONES, Tone
from ralph.show.plots import Html, element, prose
from ralph.show.words import duration, from_home, moment, sentence_case, why_ended
from ralph.store.journal import Entry
from ralph.web.access import Level

_ICONS = {"pause": "M5 3h4v14H5zM11 3h4v14h-4z", "go": "M6 3l11 7-11 7z", "stop": "M4 4h12v12H4z"}


class Frame(Struct, frozen=True):
    """The site and the reader of a page: `base` is the path of the site, `level` what the reader may do."""

    base: str
    level: Level | None

    @property
    def may_steer(self) -> bool:
        return self.level is not None and self.level >= Level.STEER

    @property
    def may_start(self) -> bool:
        return self.level is not None and self.level >= Level.START

    def run(self, run_id: str, *rest: object) -> str:
        return "/".join((f"{self.base}runs/{run_id}", *map(str, rest)))

    def page(
        self,
        title: str | Html,
        *body: object,
        live: str | None = None,
        at: int = 0,
        class_: str = "",
        is_report: bool = False,
        status: int = 200,
    ) -> HTMLResponse:
        """Return a whole page. `live` is the query of its stream, and `at` the last event that it shows."""
        base, class_ = self.base, "report" if is_report else class_
        styles = ("page.css", *(["report.css"] if is_report else []), "drawings.css")
        head = element(
            "head",
            element("meta", charset="utf-8"),
            element("meta", name="viewport", content="width=device-width, initial-scale=1, viewport-fit=cover"),
            element("meta", name="color-scheme", content="light dark"),
            title if isinstance(title, Html) else page_title(title),
            [element("link", rel="stylesheet", href=f"{base}a/{name}") for name in styles],
            element("link", rel="icon", href=f"{base}a/icon.svg", type="image/svg+xml"),
            element("link", rel="manifest", href=f"{base}a/manifest.json"),
            element("script", src=f"{base}a/page.js", defer=True),
        )
        skip = element("a.skip", "Skip to content", href="#main")
        announcement = element("div#said", role="status", aria_live="polite")
        stream = {} if live is None else {"data_live": f"{base}events{live}", "data_at": str(at)}
        whole = element(
            "body", skip, *body, announcement, data_now=f"{time.time():.0f}", class_=class_ or None, **stream
        )
        html = f"<!doctype html>\n{element('html', head, whole, lang='en')}\n"
        return HTMLResponse(html.encode("utf-8", "replace"), status)

    def bar(self, *crumbs: object) -> Html:
        """Return the bar at the top of every page."""
        logo = element("a.logo", "ralph", href=self.base)
        return element("header.bar", logo, crumbs or element("span.soft", os.uname().nodename))


def page_title(text: str) -> Html:
    return element("title#title", text)


def message_page(frame: Frame, title: str, text: str, status: int) -> HTMLResponse:
    home = element("p", element("a", "All runs", href=frame.base)) if frame.level else None
    body = element("main.enter#main", element("h1", title), element("p", prose(text)), home)
    return frame.page(title, body, status=status)


def badge(tone: Tone, text: str) -> Html:
    return element(f"span.badge.{BADGES[tone]}", element("i", aria_hidden="true"), text)


def task_badge(state: str) -> Html:
    return badge(TASK_TONES[state], "running" if state == "working" else state)


def mark(tone: str) -> Html:
    sign, label = {"good": ("✓", "passed"), "bad": ("✗", "failed"), "run": ("●", "running")}[tone]
    return element("span", sign, class_=f"mark {tone}", role="img", aria_label=label)


def icon(name: str) -> Html:
    path = element("path", d=_ICONS[name])
    return element("svg.icon", path, viewBox="0 0 20 20", width="16", height="16", aria_hidden="true")


def button(text: object, kind: str = "", **attributes: object) -> Html:
    return element("button", text, class_=f"btn {kind}".strip(), **attributes)


def form(action: str, *inside: object, class_: str = "", is_quick: bool = True, hidden: Mapping[str, str] = {}) -> Html:
    """Return a form. If `is_quick`, the script sends it without leaving the page."""
    fields = [element("input", type="hidden", name=name, value=value) for name, value in hidden.items()]
    quick = {"data_quick": True} if is_quick else {}
    return element("form", fields, *inside, method="post", action=action, class_=class_ or None, **quick)


def post_button(action: str, text: object, kind: str = "", hidden: Mapping[str, str] = {}) -> Html:
    """Return a button that sends a form."""
    return form(action, button(text, kind), hidden=hidden)


def text_area(label: str, id_: str, rows: int = 1, **attributes: object) -> Html:
    area = element("textarea", "", name="text", id=id_, rows=str(rows), maxlength="20000", **attributes)
    return element("label", element("span.hidden", label), area)


def clock(since: float, now: float, class_: str = "soft") -> Html:
    """Return how long something has been running. A script on the page advances it."""
    return element("span", duration(round(max(now - since, 0.0))), class_=class_, data_since=f"{since:.0f}")


def facts_line(*facts: str | Html | None) -> Html:
    """Return a line of facts, without the empty ones."""
    spans = [fact if isinstance(fact, Html) else element("span", short(fact, 200)) for fact in facts if fact]
    return element("p.facts.soft", spans)


def items(rows: Sequence[Html], more: int = 0) -> Html:
    """Return a list; if it is too long, its last line says how many entries are left out."""
    return element("ul", rows, element("li.soft", f"and {more} more") if more > 0 else None, role="list")


def shorten_paths(text: str, workspace: str) -> str:
    """Return text with paths relative to the workspace."""
    return text.replace(workspace.rstrip("/") + "/", "") if len(workspace) > 1 else text


def place_name(path: str) -> str:
    return short(os.path.basename(path.rstrip("/")) or path, 60)


def place_words(path: str) -> str:
    """Return the path with the home folder as ~."""
    return from_home(path, os.environ.get("HOME", ""))


MAX_PIECES = 2000
MAX_BYTES = 900_000
INITIAL_PIECES = 200
_MAX_TEXT = 4000  # characters


class Piece(Struct):
    """One element of the stream; `seq` is the number of the last event in it."""

    id: str
    html: Html
    seq: int


class RecentPieces:
    """The latest pieces of a run's stream. Older ones are dropped; the iterations still list them."""

    def __init__(self, workspace: str) -> None:
        self._workspace = workspace
        self._kept: deque[Piece] = deque()
        self._bytes = 0
        self._calls: dict[str, tuple[Piece, e.ToolStarted, float]] = {}  # unfinished ones, and when they began
        self.seq = 0
        self.begin = 0
        """A page that shows the events up to this number lacks none of those that were dropped."""

    def add(self, entry: Entry, event: e.Event) -> None:
        self.seq = max(self.seq, entry.seq)
        html = self._render(event, entry)
        if html:
            piece = Piece(f"e{entry.seq}", html, entry.seq)
            if isinstance(event, e.ToolStarted):
                self._calls[event.id] = piece, event, entry.at
            self._kept.append(piece)
            self._bytes += len(html)
            while len(self._kept) > MAX_PIECES or self._bytes > MAX_BYTES:
                oldest = self._kept.popleft()
                self._bytes -= len(oldest.html)
                self.begin = max(self.begin, oldest.seq)

    def since(self, after: int) -> str:
        """Return the pieces that changed after event number `after`."""
        return "".join(piece.html for piece in self._kept if piece.seq > after)

    def latest(self, limit: int = INITIAL_PIECES) -> list[Html]:
        """Return the pieces of the current iteration, at most the last `limit`."""
        pieces = list(self._kept)
        first = max((at for at, piece in enumerate(pieces) if 'class="iteration"' in piece.html[:60]), default=0)
        return [piece.html for piece in pieces[max(first, len(pieces) - limit) :]]

    def _render(self, event: e.Event, entry: Entry) -> Html | None:
        """Return the element of an event; None if it has none, or belongs to the element of an earlier event."""
        name = f"e{entry.seq}"
        match event:
            case e.IterationStarted():
                self._calls.clear()
                of = f" of {event.max_iterations}" if event.max_iterations else ""
                at = time.localtime(entry.at)
                time_ = element("time", time.strftime("%H:%M", at), title=time.strftime("%Y-%m-%d %H:%M:%S", at))
                return element("h3.iteration", f"Iteration {event.iteration}{of}", time_, id=name)
            case e.ToolStarted():
                argument = element("code", shorten_paths(short(event.input, 300), self._workspace))
                since = element("span.soft", "", data_since=f"{entry.at:.0f}")
                return element("div.tool", mark("run"), element("b", short(event.name, 60)), argument, since, id=name)
            case e.ToolFinished():
                return self._finish_call(event, entry)
        return _render_single(event, name)

    def _finish_call(self, event: e.ToolFinished, entry: Entry) -> Html | None:
        """Add the result to the element of a tool call; return a new element if its start is unknown."""
        if event.id not in self._calls:
            return _tool(f"e{entry.seq}", event, event.name, "", 0.0)
        piece, call, began = self._calls.pop(event.id)
        argument = shorten_paths(short(call.input, 300), self._workspace)
        html = _tool(piece.id, event, call.name or event.name, argument, entry.at - began)
        self._bytes += len(html) - len(piece.html)
        piece.html, piece.seq = html, entry.seq
        return None


def _render_single(event: e.Event, name: str) -> Html | None:
    """Return the element of an event that is complete by itself."""
    match event:
        case e.AgentText() if event.text.strip():
            return element("p.says", prose(head(event.text, _MAX_TEXT, " …").strip()), id=name)
        case e.AgentFinished() if event.failure or event.ended_by:
            why = short(event.reason or event.failure or event.ended_by.replace("-", " "), 400)
            return element("p.row.bad-text", mark("bad"), f"The turn failed: {why}", id=name)
        case e.CheckFinished():
            how = "" if event.passed else "timeout · " if event.timeout else f"exit {event.exit_code} · "
            output, note = "" if event.passed else event.output, how + duration(event.duration_s)
            return result_row(event.passed, short(event.name, 120), note, output=output, id_=name, is_open=True)
        case e.ExamFinished():
            return result_row(event.passed, f"exam {short(event.name, 120)}", id_=name)
        case e.ClaimRejected():
            claim, why = element("code", short(event.claim, 80)), sentence_case(short(event.reason, 500))
            text = (element("b", "Claim refused. "), "The agent said ", claim, ". ", prose(why))
            return element("div.refused", text, id=name)
        case e.Waiting():
            for_how_long = f" until {moment(event.until, 0)}" if event.until else f" {duration(event.seconds)}"
            return _row(f"Waiting{for_how_long}: {short(event.reason, 300)}", name)
        case e.Paused():
            return _row(f"Paused: {short(event.reason, 300)}", name)
        case e.Continued():
            return _row(f"Resumed after {duration(event.seconds)}", name)
        case e.QuestionAsked():
            return element("div.asked", element("b", "Question: "), prose(event.text), id=name)
        case e.PersonTold():
            notes = [element("p", element("b", "You: "), prose(note.text)) for note in event.notes]
            return element("div.you", notes, id=name)
        case e.PermissionDenied():
            return _row(f"Not allowed to use {short(event.tool, 80)}", name)
        case e.Notice() if event.level != "debug":
            return _row(short(event.text, 500), name)
        case e.RunFinished():
            is_done = event.outcome is Outcome.DONE
            tone = "bad" if event.exit_code else "good" if event.verified or not is_done else "warn"
            outcome = event.outcome.value + (" (unverified)" if tone == "warn" else "")
            why = short(why_ended(event), 500)
            return element("div", element("b", f"{outcome}: "), why, class_=f"ended {tone}", id=name)
    return None


def _row(text: str, name: str) -> Html:
    return element("p.row.soft", text, id=name)


def _tool(name: str, ended: e.ToolFinished, tool: str, argument: str, took: float) -> Html:
    size = plural(ended.lines, "line") if ended.chars else "no output"
    note = f"{duration(took)} · {size}" if took >= 2 else size
    unseen = ended.lines - ended.output.count("\n") - 1
    more = f"{plural(unseen, 'more line')} in the log" if unseen > 0 else ""
    code = element("code", argument)
    return result_row(ended.ok, short(tool, 60), note, output=ended.output, code=code, more=more, id_=name)


def result_row(
    passed: bool,
    title: str,
    note: str = "",
    *,
    output: str = "",
    code: Html | None = None,
    more: str = "",
    id_: str | None = None,
    is_open: bool = False,
) -> Html:
    """Return a row for something that passed or failed, which unfolds to its output and `more`."""
    sign = mark("good" if passed else "bad")
    top = [sign, element("b", title), code, element("span.soft", note) if note else None]
    if not output.strip():
        return element("div.tool", top, id=id_)
    text = element("pre", clean(head(output.strip("\n"), _MAX_TEXT, "\n…")), tabindex="0")
    rest = element("p.soft", more) if more else None
    return element("details.tool", element("summary", top), text, rest, open=is_open, id=id_)
