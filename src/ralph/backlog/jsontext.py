"""Where in a JSON text does a value stand? So that one of them can be changed, and every other byte stays."""

import json
import re
from typing import Any

from ralph.errors import UserError

Path = tuple[str | int, ...]

TOKEN = re.compile(r'"(?:[^"\\]|\\.)*+"?|[{}\[\],:]|[^\s{}\[\],:"]+', re.DOTALL)


def parsed(text: str, name: str) -> Any:
    """The document; one line that says what is wrong, and where, if it is none."""
    try:
        return json.loads(text.removeprefix("\ufeff"))
    except json.JSONDecodeError as error:
        raise UserError(f"{name}:{error.lineno}: this is not JSON: {error.msg}", "mend the list") from None
    except RecursionError:
        raise UserError(f"{name} is nested too deeply", "mend the list") from None


def spans(text: str) -> dict[Path, tuple[int, int]]:
    """The place of every value in a well-formed JSON text."""
    found: dict[Path, tuple[int, int]] = {}
    path: list[str | int] = []  # the way to the value that comes next
    starts: list[int] = []  # of the objects and lists around it
    tokens = list(TOKEN.finditer(text, len(text) - len(text.removeprefix("\ufeff"))))
    for token, following in zip(tokens, [*(token[0] for token in tokens[1:]), ""], strict=True):
        word = token[0]
        if word in "{[":
            starts.append(token.start())
            path.append("" if word == "{" else 0)
        elif word in "}]":
            path.pop()
            found[tuple(path)] = (starts.pop(), token.end())
        elif word == "," and isinstance(path[-1], int):
            path[-1] += 1
        elif following == ":":
            path[-1] = json.loads(word, strict=False)
        elif word not in ",:":
            found[tuple(path)] = token.span()
    return found


def with_values(text: str, values: dict[Path, Any]) -> str:
    """The text with these values changed, or added as the last of their objects."""
    places = spans(text)
    edits = []
    for path, value in values.items():
        written = json.dumps(value, ensure_ascii=False)
        if path in places:
            edits.append((*places[path], written))
        elif path[:-1] in places:
            edits.append(_added(text, places, path, written))
    for start, end, written in sorted(edits, reverse=True):
        text = text[:start] + written + text[end:]
    return text


def _added(text: str, places: dict[Path, tuple[int, int]], path: Path, written: str) -> tuple[int, int, str]:
    """Behind the last value of the object, and as far from the margin as that."""
    start, end = places[path[:-1]]
    inside = [place for other, place in places.items() if other[:-1] == path[:-1] and len(other) == len(path)]
    member = f"{json.dumps(path[-1])}: {written}"
    if not inside:
        return start + 1, end - 1, member
    last = max(place[1] for place in inside)
    first_key = re.match(r"\s*", text[start + 1 :])
    return last, last, f",{first_key[0] if first_key else ' '}{member}"
