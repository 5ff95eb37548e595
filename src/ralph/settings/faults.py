"""What is wrong with a settings document? Every fault in it, with its path and what would be right.

msgspec stops at the first error; this walk is only taken when there is one.
"""

from collections.abc import Iterable, Iterator
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from msgspec import Meta, Struct

from ralph.core.text import clean, head

Path = tuple[str | int, ...]

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

    path: Path
    text: str
    at_key: bool = False


def faults(value: object, kind: Any, path: Path = ()) -> Iterator[Fault]:
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
        except msgspec.ValidationError:
            yield Fault(path, f"expected {described(kind)}, got {shown(value)}{_nearest_choice(value, bare)}")


def _faults_in_struct(value: dict[str, object], kind: Any, path: Path) -> Iterator[Fault]:
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


def _nearest_choice(value: object, kind: Any) -> str:
    near = nearest(value, get_args(kind)) if isinstance(value, str) and get_origin(kind) is Literal else ""
    return f'; did you mean "{near}"?' if near else ""
