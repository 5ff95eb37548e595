"""Who said what, and where? What one source says, and how to point a person at a fault in it."""

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ralph.core.text import clean, one_line
from ralph.errors import UserError
from ralph.settings.faults import Fault, Path

if TYPE_CHECKING:
    import pathlib

Said = dict[str, Any]


class Place(Struct, frozen=True):
    """The lines and columns of a key and its value, and the name that stands there as the file spells it."""

    key: tuple[int, int]
    value: tuple[int, int]
    name: str


Places = dict[Path, Place]


class Source(Struct, frozen=True):
    """What one file, or the command line, says. `places` is asked only when there is something to point at."""

    name: str
    said: Said
    places: Callable[[], Places] = dict
    faults: tuple[Fault, ...] = ()

    def position(self, fault: Fault) -> str:
        place = self.places().get(fault.path)
        name = one_line(clean(place.name if place else dotted(fault.path)), 100)
        line, column = (place.key if fault.at_key else place.value) if place else (0, 0)
        return self.name + (f":{line}:{column}" if line else "") + (f": {name}" if name else "")


def broken(name: str, problem: str, at: tuple[int, int] | None = None) -> Source:
    """A source that cannot be read."""
    places: Places = {(): Place(at, at, "")} if at else {}
    return Source(name, {}, lambda: places, (Fault((), problem),))


def refuse(found: Iterable[tuple[Source, Fault]]) -> None:
    """Raises all faults as one error, a line each; does nothing if there are none."""
    lines = [f"{source.position(fault)}: {fault.text}" for source, fault in found]
    if len(lines) > 1:
        lines = [f"{len(lines)} errors in the settings", *(f"  {line}" for line in lines)]
    if lines:
        raise UserError("\n".join(lines), "`ralph schema settings` says what is valid")


def file_text(path: "pathlib.Path") -> str | Source:
    """A file's text, or a broken source when there is none to be had."""
    name = readable(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        return broken(name, f"cannot be read: {(error.strerror or str(error)).lower()}")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8", "replace")
        return broken(name, "not UTF-8 text", line_and_column(before, len(before)))
    return text if text.strip() else broken(name, "the file is empty; write {} into it, or delete it")


def readable(path: "pathlib.Path") -> str:
    """A path as a person would name it from here."""
    here = os.path.relpath(path)
    return str(path) if here.startswith(os.pardir) else here


def line_and_column(text: str, offset: int) -> tuple[int, int]:
    return text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)


def dotted(path: Path) -> str:
    """A path as a person writes it: `guardrails[0].command`."""
    parts = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return "".join(parts).removeprefix(".")
