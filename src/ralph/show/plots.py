"""HTML and SVG elements. Colours come from the page's stylesheet, so they work in the dark and on paper."""

import re
from functools import cache

from ralph.core.text import clean

_BARE = ("br", "meta", "link", "input", "rect", "path", "circle", "line")
"""Elements without contents."""
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
        return Html(f"{opening}/>")
    inner = _html(children[0]) if len(children) == 1 else "".join(map(_html, children))
    return Html(f"{opening}>{inner}</{name}>")


def joined(*children: object) -> Html:
    """Join children: HTML unchanged, text escaped, None skipped, lists in order."""
    return Html("".join(map(_html, children)))


def prose(text: str) -> Html:
    """Return text with its `code spans` as elements."""
    text = clean(text)
    parts: list[object] = []
    at = 0
    for match in _CODE.finditer(text):
        parts += [text[at : match.start()], element("code", match[1])]
        at = match.end()
    return joined(*parts, text[at:])


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
