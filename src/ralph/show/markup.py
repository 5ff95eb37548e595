"""How does text become HTML that it cannot break out of? Everything is escaped that was not made here."""

from functools import cache

from ralph.core.text import clean

_ESCAPES = {ord("&"): "&amp;", ord("<"): "&lt;", ord(">"): "&gt;", ord('"'): "&quot;", ord("'"): "&#39;"}
_ALONE = frozenset({"br", "meta", "line", "rect", "path", "circle"})


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def escape(text: str) -> str:
    if isinstance(text, Html) or text.replace(" ", "").replace("-", "").isalnum():  # as most of it is
        return text
    return clean(text).translate(_ESCAPES)


def element(name: str, /, *children: object, **attributes: object) -> Html:
    """One element. An attribute that is None or False is left out; `class_` and `aria_label` mean what they say."""
    given = ""
    for key, value in attributes.items():
        if value is not None and value is not False:
            given += f' {_attribute(key)}="{_html(value)}"'
    if name in _ALONE and not children:
        return Html(f"<{name}{given}>" if name in ("br", "meta") else f"<{name}{given}/>")
    inner = _html(children[0]) if len(children) == 1 else "".join(map(_html, children))
    return Html(f"<{name}{given}>{inner}</{name}>")


def joined(*children: object) -> Html:
    """Children in a row: HTML as it is, text escaped, nothing for None, lists in order."""
    return Html("".join(map(_html, children)))


def _html(child: object) -> str:
    if type(child) is Html:  # most of them
        return child
    if isinstance(child, str):
        return escape(child)
    if child is None:
        return ""
    return "".join(map(_html, child)) if isinstance(child, list | tuple) else escape(str(child))


@cache
def _attribute(key: str) -> str:
    return key.rstrip("_").replace("_", "-")
