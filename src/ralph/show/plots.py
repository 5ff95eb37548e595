"""HTML elements and SVG drawings. Colours come from the page's stylesheet, so they work in the dark and on paper."""

import re
import time
from collections.abc import Callable, Iterable, Sequence
from functools import cache

from msgspec import Struct
from msgspec.structs import replace

from ralph.core.text import clean
from ralph.history.run_history import RunHistory, Span
from ralph.show.words import duration, portion

# How empty elements of these kinds end.
_BARE = {**dict.fromkeys(("br", "meta", "link", "input"), ">"), **dict.fromkeys(("rect", "path", "circle"), "/>")}


_CODE = re.compile(r"`([^`\n]{1,200})`")


class Html(str):
    """Text that is already HTML."""

    __slots__ = ()


def escape(text: str) -> str:
    if isinstance(text, Html) or text.isalnum():
        return text
    text = clean(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return text.replace('"', "&quot;").replace("'", "&#39;")  # `translate` would look every character up


def element(selector: str, /, *children: object, **attributes: object) -> Html:
    """Return an element; the selector is `p.soft#now`. Attributes that are None or False are left out, and one that is
    True has no value; `class_` and `aria_label` become `class` and `aria-label`."""
    name, opening = _parse_selector(selector)
    for key, value in attributes.items():
        if value is True:
            opening += f" {_attribute(key)}"
        elif value is not None and value is not False:
            opening += f' {_attribute(key)}="{_html(value)}"'
    if not children and name in _BARE:
        return Html(opening + _BARE[name])
    inner = _html(children[0]) if len(children) == 1 else "".join(map(_html, children))
    return Html(f"{opening}>{inner}</{name}>")


def joined(*children: object) -> Html:
    """Join children: HTML unchanged, text escaped, None skipped, lists in order."""
    return Html("".join(map(_html, children)))


def legend(entries: Iterable[tuple[str, str]]) -> Html:
    """Return what the colours of a drawing mean, from pairs of a tone and a name."""
    return element("p.legend", [element("span", element(f"i.f-{tone}"), name) for tone, name in entries])


def prose(text: str) -> Html:
    """Return text with its `code spans` as elements."""
    text = clean(text)
    made: list[object] = []
    at = 0
    for found in _CODE.finditer(text):
        made += [text[at : found.start()], element("code", found[1])]
        at = found.end()
    return joined(*made, text[at:])


def _html(child: object) -> str:
    if type(child) is Html:  # most of them
        return child
    if isinstance(child, str):
        return escape(child)
    if child is None:
        return ""
    return "".join(map(_html, child)) if isinstance(child, list | tuple) else escape(str(child))


@cache
def _parse_selector(selector: str) -> tuple[str, str]:
    """Return the name of an element, and its opening tag with class and id."""
    rest, _, id_ = selector.partition("#")
    name, *classes = rest.split(".")
    return name, f"<{name}" + (f' class="{" ".join(classes)}"' if classes else "") + (f' id="{id_}"' if id_ else "")


@cache
def _attribute(key: str) -> str:
    return key.rstrip("_").replace("_", "-")


WIDTH, HEIGHT = 360.0, 150.0
_DIGIT, _BOTTOM, _TOP, _RIGHT = 6.6, 20.0, 12.0, 8.0
LANES = {"turn": "agent", "check": "checks", "measurement": "measuring", "wait": "waiting", "pause": "paused"}


Say = Callable[[float], str]


class Layer(Struct):
    """One value per bar. `tone` is the class that the stylesheet colours."""

    name: str
    tone: str
    values: list[float]


def bars(title: str, labels: Sequence[str], layers: Sequence[Layer], say: Say) -> Html:
    """Draw stacked bars, one per label, with the axis on the left."""
    totals = [sum(layer.values[at] for layer in layers) for at in range(len(labels))]
    most = max(totals, default=0.0) or 1.0
    left = max(len(say(most * share)) for share in (0.0, 0.5, 1.0)) * _DIGIT + 12  # room for the labels of the axis
    room, tall = WIDTH - _RIGHT - left, HEIGHT - _BOTTOM - _TOP
    step = room / max(len(labels), 1)
    wide = min(step * 0.72, 38.0)
    drawn: list[Html] = []
    for share in (0.0, 1.0) if say(most / 2).endswith(".5") else (0.0, 0.5, 1.0):
        y = _TOP + tall - share * tall
        drawn.append(draw_line(left, y, WIDTH - _RIGHT, y, "grid"))
        drawn.append(draw_label(left - 5, y + 4, say(most * share), "end"))
    for at, label in enumerate(labels):
        x, floor = left + at * step + (step - wide) / 2, _TOP + tall
        pieces = []
        for layer in layers:
            high = portion(layer.values[at], most) * tall
            floor -= high
            if high:
                pieces.append(_rect(x, floor, wide, max(high, 0.5), f"f-{layer.tone}"))
        said = ", ".join(f"{layer.name} {say(layer.values[at])}" for layer in layers if layer.values[at])
        drawn.append(element("g", element("title", f"iteration {label}: {said or say(0)}"), *pieces))
        if len(labels) <= 24 or at % (len(labels) // 12) == 0:
            drawn.append(draw_label(x + wide / 2, HEIGHT - 5, label, "middle"))
    return draw_svg(WIDTH, HEIGHT, title, drawn)


def timeline(history: RunHistory) -> Html:
    """Draw when the agent, the checks and the waits took place: a lane for each."""
    spans = [one for one in history.spans if one.kind in LANES]
    lanes = [kind for kind in LANES if any(one.kind == kind for one in spans)]
    began = history.began
    length = max([history.ended - began, *(one.ended - began for one in spans)], default=0.0) or 1.0
    wide, high, left = 960.0, 18.0, 60.0
    room = wide - left - 8
    foot = _TOP + len(lanes) * (high + 6)
    drawn: list[Html] = []
    for one in history.iterations:
        x = left + min(max(one.began - began, 0) / length, 1) * room
        drawn.append(draw_line(x, _TOP - 4, x, foot, "tick"))
    for at, kind in enumerate(lanes):
        y = _TOP + at * (high + 6)
        drawn.append(draw_label(left - 8, y + high - 5, LANES[kind], "end"))
        for span in _join_spans([one for one in spans if one.kind == kind], length / room):
            x = left + (span.began - began) / length * room
            what = f"iteration {span.iteration}, {span.what}: {duration(span.ended - span.began)}"
            size = max((span.ended - span.began) / length * room, 0.8)
            drawn.append(element("g", element("title", what), _rect(x, y, size, high, f"f-{kind}")))
    said: set[str] = set()
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        anchor = {0.0: "start", 1.0: "end"}.get(share, "middle")
        text = time.strftime("%H:%M:%S" if length < 7200 else "%H:%M", time.localtime(began + share * length))
        if text not in said:  # a run of a second has only one
            drawn.append(draw_label(left + share * room, foot + 14, text, anchor))
        said.add(text)
    return draw_svg(wide, foot + 20, "when the agent, the checks and the waits took place", drawn)


def _join_spans(spans: list[Span], least: float) -> list[Span]:
    """Join spans of one iteration with less than `least` seconds between them."""
    drawn: list[Span] = []
    for span in sorted(spans, key=lambda one: one.began):
        last = drawn[-1] if drawn else None
        if last and last.iteration == span.iteration and span.began - last.ended < least:
            what = last.what if last.what == span.what else "several"
            drawn[-1] = replace(last, what=what, ended=max(last.ended, span.ended))
        else:
            drawn.append(span)
    return drawn


def draw_label(x: float, y: float, text: str, anchor: str) -> Html:
    return element("text", text, x=f"{x:.2f}", y=f"{y:.2f}", text_anchor=anchor)


# Numbers and our own class names need no escaping.


def draw_line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Html:
    return Html(f'<line x1="{x1:.2f}" x2="{x2:.2f}" y1="{y1:.2f}" y2="{y2:.2f}" class="{kind}"/>')


def _rect(x: float, y: float, width: float, height: float, tone: str) -> Html:
    return Html(f'<rect x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}" class="{tone}" rx="1.5"/>')


def draw_svg(width: float, height: float, title: str, drawn: list[Html]) -> Html:
    box = f"0 0 {width:g} {height:g}"
    return element("svg", element("title", title), *drawn, viewBox=box, role="img", aria_label=title)
