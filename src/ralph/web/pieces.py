"""What are all pages made of? Their frame, badges, buttons, forms and clocks. Text stays text: whatever an agent, a
check or a person wrote is escaped, and nothing of it runs."""

import os
import re
import time
import zlib
from collections.abc import Mapping, Sequence

from ralph.core.text import clean, short
from ralph.show.plots import Html, element, joined
from ralph.show.words import duration
from ralph.web.access import Level
from ralph.web.server import WebAnswer

TONES = {"done": "good", "stopped": "good", "running": "run"}
TONES |= dict.fromkeys(("paused", "asking", "waiting", "stopping"), "warn")
TONES |= dict.fromkeys(("queued", "held", "withdrawn", "blocked"), "calm")
_ICONS = {"pause": "M5 3h4v14H5zM11 3h4v14h-4z", "go": "M6 3l11 7-11 7z", "stop": "M4 4h12v12H4z"}
_CLOCKS = re.compile(r'(data-since="\d+">)[^<]*')
_CODE = re.compile(r"`([^`\n]{1,200})`")


class Frame:
    """What a page is told about itself: `base` is where the site begins, `level` what its reader may do, `live` the
    topic of its stream, as a query."""

    def __init__(self, base: str, level: Level | None) -> None:
        self.base, self.level = base, level

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
        title: str,
        *body: object,
        live: str = "",
        at: int = 0,
        class_: str = "",
        styles: Sequence[str] = ("page.css",),
        has_form: bool = False,
    ) -> WebAnswer:
        """A whole page. One without a script loads itself anew now and then, unless somebody may be typing on it."""
        base = self.base
        head = element(
            "head",
            element("meta", charset="utf-8"),
            element("meta", name="viewport", content="width=device-width, initial-scale=1, viewport-fit=cover"),
            element("meta", name="color-scheme", content="light dark"),
            page_title(title),
            [element("link", rel="stylesheet", href=f"{base}a/{name}") for name in styles],
            element("link", rel="icon", href=f"{base}a/icon.svg", type="image/svg+xml"),
            element("link", rel="manifest", href=f"{base}a/manifest.json"),
            _REFRESH if live and not has_form else None,
            element("script", src=f"{base}a/page.js", defer=True),
        )
        skip = element("a", "Skip to the page", href="#main", class_="skip")
        said = element("div", id="said", role="status", aria_live="polite")
        attributes = {"data_live": f"{base}events{live}" if live else None, "data_at": str(at) if live else None}
        whole = element("body", skip, *body, said, data_now=f"{time.time():.0f}", class_=class_ or None, **attributes)
        html = f"<!doctype html>\n{element('html', head, whole, lang='en')}\n"
        return WebAnswer(html.encode("utf-8", "replace"))

    def bar(self, *crumbs: object) -> Html:
        """The top of every page."""
        begin = element("a", "New run", href=f"{self.base}new", class_="btn primary", data_key="n")
        return element(
            "header",
            element("a", "ralph", href=self.base, class_="logo"),
            crumbs or element("span", os.uname().nodename, class_="soft"),
            element("nav", begin if self.may_start else None),
            class_="bar",
        )


_REFRESH = element("noscript", element("meta", http_equiv="refresh", content="10"))
RELOAD = element("noscript", element("a", "Load this page anew", href="", class_="btn"))


def page_title(text: str) -> Html:
    return element("title", text, id="title")


def sentence_page(frame: Frame, title: str, text: str, status: int) -> WebAnswer:
    """A page that says one thing."""
    home = element("p", element("a", "All runs", href=frame.base)) if frame.level else None
    body = element("main", element("h1", title), element("p", prose(text)), home, id="main", class_="enter")
    made = frame.page(title, body)
    return WebAnswer(made.body, status)


def badge(state: str, text: str = "") -> Html:
    tone = TONES.get(state, "bad")
    return element("span", element("i", aria_hidden="true"), text or state, class_=f"badge {tone}")


def mark(tone: str) -> Html:
    sign, said = {"good": ("✓", "passed"), "bad": ("✗", "failed"), "run": ("●", "running")}[tone]
    return element("span", sign, class_=f"mark {tone}", role="img", aria_label=said)


def icon(name: str) -> Html:
    path = element("path", d=_ICONS[name])
    return element("svg", path, class_="icon", viewBox="0 0 20 20", width="16", height="16", aria_hidden="true")


def button(text: object, kind: str = "", **attributes: object) -> Html:
    return element("button", text, class_=f"btn {kind}".strip(), **attributes)


def form(action: str, *inside: object, class_: str = "", is_quick: bool = True, hidden: Mapping[str, str] = {}) -> Html:
    """A form that is posted. A quick one is sent without leaving the page, where a script can."""
    fields = [element("input", type="hidden", name=name, value=value) for name, value in hidden.items()]
    quick = {"data_quick": True} if is_quick else {}
    return element("form", fields, *inside, method="post", action=action, class_=class_ or None, **quick)


def text_area(name: str, label: str, id_: str, rows: int = 1, **attributes: object) -> Html:
    area = element("textarea", "", name=name, id=id_, rows=str(rows), maxlength="20000", **attributes)
    return element("label", element("span", label, class_="hidden"), area)


def clock(since: float, now: float, class_: str = "soft") -> Html:
    """How long something has been going on; where a script runs, it goes on counting."""
    return element("span", duration(round(max(now - since, 0.0))), class_=class_, data_since=f"{since:.0f}")


def time_of(at: float) -> Html:
    said = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
    return element("time", time.strftime("%H:%M", time.localtime(at)), title=said)


def prose(text: str) -> Html:
    """Text with its code spans set as code."""
    text = clean(text)
    made: list[object] = []
    at = 0
    for found in _CODE.finditer(text):
        made += [text[at : found.start()], element("code", found[1])]
        at = found.end()
    return joined(*made, text[at:])


def inside(text: str, workspace: str) -> str:
    """Text without the way to the workspace, which is the same everywhere."""
    return text.replace(workspace.rstrip("/") + "/", "") if len(workspace) > 1 else text


def place_name(path: str) -> str:
    return short(os.path.basename(path.rstrip("/")) or path, 60)


def from_home(path: str) -> str:
    home = os.environ.get("HOME", "")
    return "~" + path[len(home) :] if home and path.startswith(home + "/") else path


def fingerprint(pieces: Mapping[str, str]) -> int:
    """Differs where the pieces do, be it by more than the time that has passed."""
    return zlib.crc32("".join(_CLOCKS.sub(r"\1", html) for html in pieces.values()).encode("utf-8", "replace"))
