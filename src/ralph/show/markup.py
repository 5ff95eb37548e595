"""How does text become HTML that it cannot break out of? Everything is escaped that was not made here."""

from ralph.core.text import clean

_ESCAPES = {ord("&"): "&amp;", ord("<"): "&lt;", ord(">"): "&gt;", ord('"'): "&quot;", ord("'"): "&#39;"}
_ALONE = frozenset({"br", "meta", "line", "rect", "path", "circle"})


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def escape(text: str) -> Html:
    return text if isinstance(text, Html) else Html(clean(text).translate(_ESCAPES))


def element(name: str, /, *children: object, **attributes: object) -> Html:
    """One element. An attribute that is None or False is left out; `class_` and `aria_label` mean what they say."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in _ALONE and not children:
        return Html(f"<{name}{given}>" if name in ("br", "meta") else f"<{name}{given}/>")
    return Html(f"<{name}{given}>{joined(*children)}</{name}>")


def joined(*children: object) -> Html:
    """Children in a row: HTML as it is, text escaped, nothing for None, lists in order."""
    return Html(
        "".join(
            joined(*child)
            if isinstance(child, list | tuple)
            else escape(child if isinstance(child, str) else str(child))
            for child in children
            if child is not None
        )
    )
