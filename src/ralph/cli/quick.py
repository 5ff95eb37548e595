"""How does a well-formed command line start in a blink? Reads it by the table of options alone.

Anything unusual (an unknown option, a missing or bad value, a call for help) is left to click, which explains it.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ralph.cli.options import Option

    Values = dict[str, Any]


def parse(options: Sequence[Option], argv: Sequence[str]) -> tuple[Values, list[str]] | None:
    """The options' values by name, and the positional words; None if click has to look at it."""
    by_name = {name: option for option in options for name in option.names}
    values: Values = {}
    words: list[str] = []
    rest = iter(argv)
    for word in rest:
        if word == "--":
            words += rest
        elif not word.startswith("-") or word == "-":
            words.append(word)
        else:
            name, equals, value = _split(word)
            option = by_name.get(name)
            if option is None or (option.kind == "flag" and equals and name != "--print"):
                return None
            if option.kind == "flag":
                words += [value] if equals else []  # `--print=GOAL` is `--print GOAL`
                values[option.name] = True
                continue
            text = value if equals else next(rest, None)
            if text is None or not _store(values, option, text):
                return None
    return values, words


def _split(word: str) -> tuple[str, bool, str]:
    """`--name=value`, `-mVALUE` or a bare name."""
    if word.startswith("--"):
        name, equals, value = word.partition("=")
        return name, bool(equals), value
    return word[:2], len(word) > 2, word[2:]


def _store(values: Values, option: Option, text: str) -> bool:
    if (option.choices and text not in option.choices) or (option.once and option.name in values):
        return False
    try:
        value = {"int": int, "float": float}.get(option.kind, str)(text)
    except ValueError:
        return False
    if option.kind == "list":
        values.setdefault(option.name, []).append(value)
    else:
        values[option.name] = value
    return True
