"""Who said what, where, and what is wrong with it? What one source says, every fault in it with its path and what would
be right, and how to point a person at that. msgspec stops at the first error: this walk is taken when there is one."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from itertools import islice
from re import DOTALL, Match, finditer
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from msgspec import Meta, Struct

from ralph.core.text import clean, head, one_line
from ralph.errors import UserError
from ralph.files import read_given

if TYPE_CHECKING:
    import pathlib


KeyPath = tuple[str | int, ...]
MOST_FAULTS = 100  # nobody reads more of them

# Names that people try, and what they are called here.
MEANT = {
    "check": "guardrails",
    "checks": "guardrails",
    "command": "agent.command",
    "flags": "agent.flags",
    "model": "agent.model",
    "maxrestarts": "maximumIterations",
    "timeout": "turnTimeout",
    "completiontag": "until",
    "completionpromise": "until",
    "donefile": "until",
}


class Fault(Struct, frozen=True):
    """One thing that is wrong. `at_key`: with the name itself, not with its value."""

    path: KeyPath
    text: str
    at_key: bool = False


def faults(value: object, kind: Any, path: KeyPath = ()) -> Iterator[Fault]:
    """Everything in `value` that keeps it from being a `kind`. Nulls in objects are no fault: they mean "not said"."""
    bare = bare_kind(kind)
    if is_struct(bare) and isinstance(value, dict):
        yield from _faults_in_struct(value, bare, path)
    elif get_origin(bare) is tuple and isinstance(value, list):
        for index, item in enumerate(value):
            yield from faults(item, get_args(bare)[0], (*path, index))
    elif get_origin(bare) is dict and isinstance(value, dict):
        for key, item in value.items():
            if item is not None:
                yield from faults(item, get_args(bare)[1], (*path, key))
    else:
        try:
            msgspec.convert(value, kind)
        except (msgspec.ValidationError, UnicodeError):  # the latter: a word of the command line that is no text
            near = nearest(value, get_args(bare)) if isinstance(value, str) and get_origin(bare) is Literal else ""
            meant = f'; did you mean "{near}"?' if near else ""
            yield Fault(path, f"expected {described(kind)}, got {shown(value)}{meant}")


def _faults_in_struct(value: dict[str, object], kind: Any, path: KeyPath) -> Iterator[Fault]:
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    for key, item in value.items():
        if key not in fields:
            yield Fault((*path, key), unknown(key, fields), at_key=True)
        elif item is not None:
            yield from faults(item, fields[key].type, (*path, key))
    for name, field in fields.items():
        if field.required and value.get(name) is None:
            yield Fault(path, f'"{name}" is missing')


def unknown(key: object, names: Iterable[str]) -> str:
    """What to say about a name that does not exist, given those that do."""
    names = list(names)
    near = nearest(str(key), names)
    if near:
        return f'unknown key; did you mean "{near}"?'
    return f"unknown key; known are {', '.join(names)}" if len(names) < 10 else "unknown key"


def nearest(word: str, names: Iterable[str]) -> str:
    """The name that was probably meant, or nothing."""
    from difflib import get_close_matches

    plain = {name.lower(): name for name in names}
    tried = word.lower().replace("_", "").replace("-", "")
    meant = MEANT.get(tried, "")
    if meant.partition(".")[0] in plain.values():
        return meant
    close = get_close_matches(tried[:100], plain, n=1)
    return plain[close[0]] if close else ""


def described(kind: Any) -> str:
    """What a field takes, in words."""
    metas, bare = notes(kind), bare_kind(kind)
    for meta in metas:
        if meta.extra and "described" in meta.extra:
            return str(meta.extra["described"])
    if get_origin(bare) is Literal:
        return "one of " + ", ".join(f'"{choice}"' for choice in get_args(bare))
    least = "".join(f", {meta.ge} or more" for meta in metas if meta.ge is not None)
    least += "".join(f" above {meta.gt}" for meta in metas if meta.gt is not None)
    words = {int: f"a whole number{least}", float: f"a number{least}", bool: "true or false", str: "text"}
    if bare in words:
        return words[bare]
    return "a list" if get_origin(bare) is tuple else "an object"


def shown(value: object) -> str:
    """A value as a person wrote it, short and on one line."""
    try:
        text = str(value) if isinstance(value, float) else msgspec.json.encode(value).decode()
    except (TypeError, ValueError, RecursionError):  # what YAML or a command line can hold and JSON cannot
        text = str(value).encode("utf-8", "replace").decode()
    return head(clean(text).replace("\n", " "), 60, "…")


def is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Struct)


def bare_kind(kind: Any) -> Any:
    """A type without its annotations, and without None beside it."""
    while get_origin(kind) in (Annotated, Union, UnionType):
        kind = next(one for one in get_args(kind) if one is not type(None))
    return kind


def notes(kind: Any) -> list[Meta]:
    """What the annotations of a type say about it."""
    found: list[Meta] = []
    while get_origin(kind) in (Annotated, Union, UnionType):
        found += [meta for meta in getattr(kind, "__metadata__", ()) if isinstance(meta, Meta)]
        kind = next(one for one in get_args(kind) if one is not type(None))
    return found


Said = dict[str, Any]


class KeyPosition(Struct, frozen=True):
    """The lines and columns of a key and its value, and the name that stands there as the file spells it."""

    key: tuple[int, int]
    value: tuple[int, int]
    name: str


Places = dict[KeyPath, KeyPosition]


class Source(Struct, frozen=True, kw_only=True):
    """What one file, or the command line, says. `places` is asked only when there is something to point at;
    `options` are the settings' names on the command line, `left_alone` the parts of a larger file that are not ours."""

    name: str
    said: Said
    places: Callable[[], Places] = dict
    faults: tuple[Fault, ...] = ()
    options: Mapping[str, str] = {}
    left_alone: tuple[str, ...] = ()

    def position(self, fault: Fault) -> str:
        """Where a person finds it: an option that was typed by its name, all else by line and column."""
        keys = [step for step in fault.path if isinstance(step, str)]
        for length in range(len(keys), 0, -1):
            if option := self.options.get(".".join(keys[:length])):
                return option
        place = self.places().get(fault.path)
        name = one_line(clean(place.name if place else dotted(fault.path)), 100)
        line, column = (place.key if fault.at_key else place.value) if place else (0, 0)
        return self.name + (f":{line}:{column}" if line else "") + (f": {name}" if name else "")


def broken(name: str, problem: str, at: tuple[int, int] | None = None) -> Source:
    """A source that cannot be read."""
    places: Places = {(): KeyPosition(at, at, "")} if at else {}
    return Source(name=name, said={}, places=lambda: places, faults=(Fault((), problem),))


def refuse(found: Iterable[tuple[Source, Fault]]) -> None:
    """Raises all faults as one error, a line each; does nothing if there are none."""
    found = list(islice(found, MOST_FAULTS + 1))
    lines = [f"{source.position(fault)}: {fault.text}" for source, fault in found]
    where = "`--help` says what" if all(source.options for source, _ in found) else "`ralph schema settings` says what"
    if len(lines) > 1:
        many = f"more than {MOST_FAULTS}" if len(lines) > MOST_FAULTS else f"{len(lines)}"
        lines = [f"{many} errors in the settings", *(f"  {line}" for line in lines[:MOST_FAULTS])]
    if lines:
        is_absent = all(fault.text.startswith("cannot be read") for _, fault in found)
        raise UserError("\n".join(lines), "name a file that is there" if is_absent else f"{where} is valid")


def file_text(path: "pathlib.Path", most: int = 4 << 20) -> str | Source:
    """A file's text, or a broken source when there is none to be had."""
    name = readable(path)
    try:
        data = read_given(path, most)
    except OSError as error:
        why = error.strerror or str(error)
        return broken(name, f"cannot be read: {why[:1].lower()}{why[1:]}")
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


def dotted(path: KeyPath) -> str:
    """A path as a person writes it: `guardrails[0].command`."""
    parts = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return "".join(parts).removeprefix(".")


STRING = r'"[^"\\]*+(?>(?:\\.[^"\\]*+)*)"'
KEY = STRING + r"(\s*:)?"
TOKEN = STRING + r'|[{}\[\],:]|[^\s{}\[\],:"]+'
DEEPEST = 50


def json_source(path: "pathlib.Path") -> Source:
    """What a JSON file says."""
    text = file_text(path)
    if isinstance(text, Source):
        return text
    name = readable(path)
    try:
        value = msgspec.json.decode(text)
        written = sum(match[1] is not None for match in finditer(KEY, text, DOTALL))
        repeats = written != _count_keys(value, DEEPEST)  # it has more keys than its value
    except RecursionError:
        return broken(name, "nested too deeply")
    except (msgspec.DecodeError, ValueError) as error:
        return _malformed(name, text, str(error))
    if not isinstance(value, dict):
        return broken(name, f"expected an object {{…}}, got {shown(value)}")
    value.pop("$schema", None)
    scan = cache(lambda: _scanned(text))
    return Source(name=name, said=value, places=lambda: scan().places, faults=tuple(scan().repeated if repeats else ()))


def _count_keys(value: object, room: int) -> int:
    if not isinstance(value, dict | list):
        return 0
    if room == 0:
        raise RecursionError
    items, own = (value.values(), len(value)) if isinstance(value, dict) else (value, 0)
    return own + sum(_count_keys(item, room - 1) for item in items)


def _malformed(name: str, text: str, error: str) -> Source:
    """Where msgspec could not go on, and why."""
    problem, _, byte = error.removeprefix("JSON is malformed: ").removesuffix(")").partition(" (byte ")
    if byte:
        offset = len(text.encode()[: int(byte)].decode("utf-8", "replace"))
        if text.startswith(("//", "/*", "#"), offset):
            problem = "there are no comments in JSON"
    elif "truncated" in problem:
        offset, problem = len(text.rstrip()), "it ends too early"
    else:
        numbers = (token for token in finditer(TOKEN, text, DOTALL) if token[0][0] in "-0123456789")
        offset = next((token.start() for token in numbers if not _is_in_range(token[0])), 0)
        problem = "the number is out of range"
    return broken(name, f"not valid JSON: {problem}", line_and_column(text, min(offset, len(text))))


def _is_in_range(number: str) -> bool:
    try:
        msgspec.json.decode(number)
    except (msgspec.DecodeError, ValueError):
        return False
    return True


def _scanned(text: str) -> "_Scan":
    scan = _Scan(text)
    scan.read((), None)
    return scan


class _Scan:
    """One pass over a valid JSON text: the places in it, and the keys that come twice."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: Iterator[Match[str]] = finditer(TOKEN, text, DOTALL)
        self.places: Places = {}
        self.repeated: list[Fault] = []
        self._seen, self._line, self._begin = 0, 1, 0  # how far it has come, the line there, and where that begins

    def _at(self, token: Match[str]) -> tuple[int, int]:
        """The line and column of a token, counted from the one before."""
        start = token.start()
        self._line += self.text.count("\n", self._seen, start)
        self._begin = self.text.rfind("\n", self._seen, start) + 1 or self._begin
        self._seen = start
        return self._line, start - self._begin + 1

    def read(self, path: KeyPath, key: tuple[int, int] | None) -> str:
        """Goes over one value, or the bracket that ends a list; answers with its first token."""
        token = next(self.tokens)
        at = self._at(token)
        if token[0] != "]":
            self.places[path] = KeyPosition(key or at, at, dotted(path))
        if token[0] == "{":
            self._read_object(path)
        elif token[0] == "[":
            index = 0
            while self.read((*path, index), None) != "]" and next(self.tokens)[0] != "]":
                index += 1
        return token[0]

    def _read_object(self, path: KeyPath) -> None:
        for token in self.tokens:
            if token[0] == "}":
                return
            if token[0] == ",":
                continue
            key = msgspec.json.decode(token[0], type=str)
            at, first = self._at(token), self.places.get((*path, key))
            if first:
                self.repeated.append(Fault((*path, key), f"given twice, first on line {first.key[0]}", at_key=True))
            next(self.tokens)
            self.read((*path, key), at)
