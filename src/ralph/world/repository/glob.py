"""Does a path match what the user wrote? Patterns as in `.gitignore`: `*`, `?`, `[a-z]`, `**`, `!` for exceptions."""

from collections.abc import Sequence
from re import Pattern

from msgspec import Struct

from ralph.errors import UserError


class Glob(Struct, frozen=True):
    """One pattern. `start` is the part before its first wildcard: all that it matches is there, or below."""

    text: str
    start: str
    pattern: Pattern[str]
    is_exception: bool = False


def parse_glob(text: str) -> Glob:
    import re

    is_exception = text.startswith("!")
    body = text.removeprefix("!").rstrip("/")
    if body.startswith("./"):
        body = body[1:]
    is_anchored = "/" in body
    body = body.lstrip("/")
    if not body or ".." in body.split("/"):
        raise UserError(f"{text!r} is no pattern for files in the workspace", "write it like tests/** or *.lock")
    anywhere = "" if is_anchored else "(?:.*/)?"
    try:
        pattern = re.compile(f"{anywhere}{_regex(body)}(?:/.*)?", re.DOTALL)
    except re.error as error:
        raise UserError(f"cannot read the pattern {text!r}: {error}", "check its brackets") from None
    return Glob(text, _start(body) if is_anchored else "", pattern, is_exception)


def matches(globs: Sequence[Glob], path: str) -> bool:
    """Whether the last pattern that speaks of `path` is not an exception. Below a matched folder everything matches."""
    for glob in reversed(globs):
        if glob.pattern.fullmatch(path):
            return not glob.is_exception
    return False


def _start(body: str) -> str:
    parts = body.split("/")
    plain = next((i for i, part in enumerate(parts) if any(c in part for c in "*?[\\")), len(parts))
    return "/".join(parts[:plain])


def _regex(body: str) -> str:
    import re

    token = (
        r"(?P<deep>(?<![^/])\*\*/)|(?P<all>(?<![^/])\*\*\Z)|(?P<some>\*+)|(?P<one>\?)"
        r"|\[(?P<not>[!^]?)(?P<of>\]?[^\]]*)\]|\\(?P<plain>.)|."
    )
    fixed = {"deep": "(?:.*/)?", "all": ".+", "some": "[^/]*", "one": "[^/]"}

    def translated(found: "re.Match[str]") -> str:
        if found["of"] is not None:
            chosen = re.sub(r"[\\\[&~|]", r"\\\g<0>", found["of"]).replace("--", r"-\-")
            return f"(?!/)[{'^' if found['not'] else ''}{chosen}]"
        return fixed.get(found.lastgroup or "") or re.escape(found["plain"] or found[0])

    return re.sub(token, translated, body, flags=re.DOTALL)
