"""What did a person ask for with `/ralph-loop …`? Finds the task and the options in what was typed.

No shell reads this, and none is imitated: the task is whatever stands between the options, to the letter. One pair of
quotes around the whole of it is taken off; everything inside stays as it is.
"""

import re
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from ralph.errors import UserError
from ralph.hooks.hosts import TEXTS
from ralph.run.options import Option, put_value

QUOTES = {'"': '"', "'": "'", "“": "”"}
_COMMAND = re.compile(r"\s*(/?)(?:ralph:)?(ralph-loop|ulw-loop|cancel-ralph)(?=\s|$)\s*")


class Spoken(Struct, frozen=True):
    """A command of ours: its name, and all that follows it."""

    name: str
    rest: str


def command_in(prompt: str) -> Spoken | None:
    """The command that a prompt begins with. Some hosts put the text of its file in front of what was typed."""
    for _, _, text in TEXTS.values():
        prompt = prompt.removeprefix(text)
    found = _COMMAND.match(prompt)
    if found is None:
        return None
    slash, name, rest = found[1], found[2], prompt[found.end() :]
    # Without the slash it may as well be a sentence about the command.
    if not slash and name != "cancel-ralph" and not rest.startswith((*QUOTES, "--")):
        return None
    if not slash and name == "cancel-ralph" and rest.strip():
        return None
    return Spoken(name, rest)


def parse(text: str, options: Sequence[Option]) -> tuple[str, dict[str, Any]]:
    """The task, and the values of the options in front of it and behind it, by name."""
    reader = _Reader(options)
    values: dict[str, Any] = {}
    start = reader.leading(text, values)
    text = text[start:].strip()
    task, rest = _quoted(text, reader) or _bare(text, reader)
    reader.all_of(rest, values)
    return task, values


def _quoted(text: str, reader: "_Reader") -> tuple[str, str] | None:
    """The task inside one pair of quotes, and the options after them. Where quotes do anything else, they are text."""
    close = QUOTES.get(text[:1])
    found = re.compile(rf"(?<!\\){re.escape(close)}").search(text, 1) if close else None
    if close is None or found is None:
        return None
    task, rest = text[1 : found.start()], text[found.end() :]
    if not reader.is_options(rest) and not rest.lstrip().startswith("--"):
        return None
    return task.replace(f"\\{close}", close), rest


def _bare(text: str, reader: "_Reader") -> tuple[str, str]:
    """A task without quotes ends where nothing but options follows."""
    for match in re.finditer(r"(?:^|(?<=\s))--", text):
        if reader.is_options(text[match.start() :]):
            return text[: match.start()].strip(), text[match.start() :]
    return text, ""


class _Reader:
    """Reads options from text, word by word. A value may stand in quotes."""

    _WORD = re.compile(r"\s*(--?[A-Za-z][\w-]*)(?:=|(?=\s)|$)")
    _VALUE = re.compile(r"\s*(?:\"((?:[^\"\\]|\\.)*)\"|'([^']*)'|(\S+))(?=\s|$)", re.DOTALL)

    def __init__(self, options: Sequence[Option]) -> None:
        self._options = {name: option for option in options for name in option.names}

    def leading(self, text: str, values: dict[str, Any]) -> int:
        """Reads what options come first; how far they go."""
        at = 0
        while (step := self._one(text, at, values)) is not None:
            at = step
        return at

    def is_options(self, text: str) -> bool:
        at = self.leading(text, {})
        return not text[at:].strip()

    def all_of(self, text: str, values: dict[str, Any]) -> None:
        at = self.leading(text, values)
        rest = text[at:].strip()
        if rest:
            raise UserError(f"cannot understand {rest[:80]!r}", f"options: {', '.join(self._options)}")

    def _one(self, text: str, at: int, values: dict[str, Any]) -> int | None:
        word = self._WORD.match(text, at)
        option = self._options.get(word[1]) if word else None
        if word is None or option is None:
            return None
        if option.kind == "flag":
            values[option.name] = True
            return word.end()
        value = self._VALUE.match(text, word.end())
        if value is None:
            return None
        said = value[1].replace('\\"', '"') if value[1] is not None else value[2] if value[2] is not None else value[3]
        self._put(option, said, values)
        return value.end()

    def _put(self, option: Option, said: str, values: dict[str, Any]) -> None:
        if option.choices and said not in option.choices:
            raise UserError(f"{option.names[-1]} {said}: not one of {', '.join(option.choices)}")
        try:
            put_value(values, option, said)
        except ValueError:
            raise UserError(f"{option.names[-1]} {said}: not a number") from None
