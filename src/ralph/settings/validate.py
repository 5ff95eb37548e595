"""Find every problem in a settings document: its key path, what was expected there, and what was found.

msgspec alone would stop at the first error, and doesn't number list items.
"""

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from msgspec import Meta, Struct

from ralph.core.text import clean, head

KeyPath = tuple[str | int, ...]

# Keys that people try, in lower case, with the right key for each.
SUCCESSORS = {
    "check": "checks",
    "guardrail": "checks",
    "command": "agent.command",
    "flags": "agent.flags",
    "model": "agent.model",
    "maxrestarts": "maximumIterations",
    "timeout": "turnTimeout",
    "completiontag": "until",
    "completionpromise": "until",
    "donefile": "until",
}
REMOVED = {
    "reviewAfter": "reviews take place at every claim whose checks are green",
    "learn": "keep notes for later runs in a file that your agent reads, such as AGENTS.md",
    "side": "name the agent for commit messages in `scm.agent`, and that for reviews in `reviews.agent`",
    "parallelChecks": "let one check run them in parallel, such as `make -j4 check`",
    "guardrailRetryLimit": "a review that asks for changes refuses the claim",
}


class Problem(Struct, frozen=True):
    """One thing that is wrong with the value or the key at `path`."""

    path: KeyPath
    text: str


def find_problems(value: object, kind: Any, path: KeyPath = ()) -> Iterator[Problem]:
    """Yield the reasons why `value` is not a valid `kind`. A null in an object is valid: it means "not set"."""
    bare = bare_type(kind)
    if is_struct(bare) and isinstance(value, dict):
        types = field_types(bare)
        for key, item in value.items():
            if key not in types:
                yield Problem((*path, key), _unknown_key(key, list(types)))
            elif item is not None:
                yield from find_problems(item, types[key], (*path, key))
        required = list(types)[: len(types) - len(bare.__struct_defaults__)]
        yield from (Problem(path, f'"{name}" is missing') for name in required if value.get(name) is None)
    elif get_origin(bare) is tuple and isinstance(value, list):
        for index, item in enumerate(value):
            yield from find_problems(item, get_args(bare)[0], (*path, index))
    elif get_origin(bare) is dict and isinstance(value, dict):
        for key, item in value.items():
            if item is not None:
                yield from find_problems(item, get_args(bare)[1], (*path, key))
    else:
        try:
            msgspec.convert(value, kind)
        except (msgspec.ValidationError, UnicodeError):  # UnicodeError: command lines can contain any bytes
            near = closest(value, get_args(bare)) if isinstance(value, str) and get_origin(bare) is Literal else ""
            suggestion = f'; did you mean "{near}"?' if near else ""
            yield Problem(path, f"expected {describe_type(kind)}, got {show_value(value)}{suggestion}")
    if isinstance(value, str) and "\0" in value:
        yield Problem(path, "contains a NUL character, which no file name or argument can")


def _unknown_key(key: str, keys: list[str]) -> str:
    if key in REMOVED:
        return f"removed: {REMOVED[key]}; leave it out"
    if near := closest(key, keys):
        return f'unknown key; did you mean "{near}"?'
    return f"unknown key; known are {', '.join(keys)}" if len(keys) < 10 else "unknown key"


def closest(word: str, names: Iterable[str]) -> str:
    """Return the name that was probably meant; empty if none is close."""
    plain = {name.lower(): name for name in names}
    keys = set(plain.values())
    plain |= {tried: key for tried, key in SUCCESSORS.items() if key.partition(".")[0] in keys}
    close = get_close_matches(word.lower().replace("_", "").replace("-", "")[:100], plain, n=1)
    return plain[close[0]] if close else ""


def describe_type(kind: Any) -> str:
    """Describe the values of a type in words."""
    metas, bare = metas_of(kind), bare_type(kind)
    for meta in metas:
        if meta.extra and "expects" in meta.extra:
            return str(meta.extra["expects"])
    if get_origin(bare) is Literal:
        return "one of " + ", ".join(f'"{choice}"' for choice in get_args(bare))
    least = "".join(f", {meta.ge} or more" for meta in metas if meta.ge is not None)
    least += "".join(f" above {meta.gt}" for meta in metas if meta.gt is not None)
    words = {int: f"a whole number{least}", float: f"a number{least}", bool: "true or false", str: "text"}
    if bare in words:
        return words[bare]
    return "a list" if get_origin(bare) is tuple else "an object"


def show_value(value: object) -> str:
    """Return a value as JSON, short and on one line."""
    try:
        text = str(value) if isinstance(value, float) else msgspec.json.encode(value).decode()
    except (TypeError, ValueError, RecursionError):  # YAML and command lines can contain what JSON can't
        text = str(value).encode("utf-8", "replace").decode()
    return head(clean(text).replace("\n", " "), 60, "…")


def is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Struct)


def bare_type(kind: Any) -> Any:
    """Return a type without its annotations and without `| None`."""
    while get_origin(kind) in (Annotated, Union, UnionType):
        kind = next(member for member in get_args(kind) if member is not type(None))
    return kind


def metas_of(kind: Any) -> list[Meta]:
    """Return the annotations of a type, outermost first."""
    metas: list[Meta] = []
    while get_origin(kind) in (Annotated, Union, UnionType):
        metas += [meta for meta in getattr(kind, "__metadata__", ()) if isinstance(meta, Meta)]
        kind = next(member for member in get_args(kind) if member is not type(None))
    return metas


def field_types(struct: Any) -> dict[str, Any]:
    """Return the annotated type of each field by its key."""
    return dict(zip(struct.__struct_encode_fields__, struct.__annotations__.values(), strict=True))
