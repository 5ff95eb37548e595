"""All regular expressions of ralph, how each is used, and texts that may be slow to search."""

import ast
import importlib
import re
import re._constants as sre  # type: ignore[import-not-found]
import re._parser as sre_parse  # type: ignore[import-not-found]
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from types import ModuleType

from msgspec import Struct

import ralph

ROOT = Path(ralph.__file__).parent
SEARCHES = {"search", "findall", "finditer", "sub", "split"}
NOT_OURS = {"ralph.builtin_agent"}  # a separate program, with libraries that may be missing


class Expression(Struct, frozen=True):
    """A pattern and its place in the source. `anchored`: it is only matched at one place of a text."""

    name: str
    pattern: re.Pattern[str] | re.Pattern[bytes]
    anchored: bool


def expressions() -> list[Expression]:
    """Return every pattern that a module has as a constant, and every literal one in its code."""
    found = {each.name: each for path in sorted(ROOT.rglob("*.py")) for each in _in_module(path)}
    return list(found.values())


def _in_module(path: Path) -> Iterator[Expression]:
    source = path.read_text(encoding="utf-8")
    if "import re\n" not in source:
        return
    tree, name = ast.parse(source), ".".join(path.relative_to(ROOT.parent).with_suffix("").parts)
    named = {id(node.value): ast.unparse(node.targets[0]) for node in ast.walk(tree) if isinstance(node, ast.Assign)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("re.") and node.args:
            literal = _literal(node.args[0])
            used = ast.unparse(node.func)[3:]
            uses = {used} if used != "compile" else _uses(source, named.get(id(node), "?"))
            if literal is not None:
                pattern = re.compile(literal, _flags(node))
                yield Expression(f"{name}:{node.lineno}: {literal!r}", pattern, not uses & SEARCHES)
    if not any(name.startswith(each) for each in NOT_OURS):
        yield from _held(importlib.import_module(name.removesuffix(".__init__")), source)


def _literal(node: ast.expr) -> str | bytes | None:
    is_text = isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    return node.value if is_text else None  # type: ignore[attr-defined, no-any-return]


def _flags(node: ast.Call) -> re.RegexFlag:
    said = ast.unparse(node)
    return sum((flag for flag in re.RegexFlag if f"re.{flag.name}" in said), re.NOFLAG)


def _uses(source: str, name: str) -> set[str]:
    """Return the methods with which a pattern is used; if it is passed to other code, all of them."""
    return set(re.findall(rf"\b{re.escape(name)}\.(\w+)\b", source)) or SEARCHES


def _held(module: ModuleType, source: str) -> Iterator[Expression]:
    """Yield the patterns that a module holds as constants: compiled, or as text that `re` compiles on first use."""
    for attribute, value in vars(module).items():
        for held in value if isinstance(value, tuple | list) else [value]:
            for pattern in held if isinstance(held, tuple) else [held]:
                if isinstance(pattern, str) and not attribute.startswith("__"):
                    uses = set(re.findall(rf"\bre\.(\w+)\({re.escape(attribute)}\b", source))
                    if uses or pattern.startswith("(?i)"):
                        is_anchored = bool(uses) and not uses & SEARCHES
                        yield Expression(
                            f"{module.__name__}.{attribute}: {pattern!r}", re.compile(pattern), is_anchored
                        )
                if isinstance(pattern, re.Pattern) and repr(pattern.pattern) not in source:
                    is_anchored = not _uses(source, attribute) & SEARCHES
                    yield Expression(f"{module.__name__}.{attribute}: {pattern.pattern!r}", pattern, is_anchored)


def attacks(pattern: re.Pattern[str] | re.Pattern[bytes]) -> Iterator[tuple[str, str]]:
    """Return texts that may cause backtracking, each as a beginning and a part to repeat: pieces of the pattern, and
    pairs of them, from the start or after the first pieces."""
    text = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
    pieces = list(dict.fromkeys(filter(None, _pieces(sre_parse.parse(text, pattern.flags & ~re.UNICODE)))))[:24]
    for piece in dict.fromkeys([*pieces, *(a + b for a, b in product(pieces[:10], repeat=2))]):
        for first in (0, 1):
            yield "".join(pieces[:first]), piece
    for first, piece in product(range(2, min(len(pieces), 8)), pieces):
        yield "".join(pieces[:first]), piece


def _pieces(tree: object) -> Iterator[str]:
    """Return a text for each part of an expression: literals unchanged, one character of each class."""
    run = ""
    for kind, value in tree:  # type: ignore[attr-defined]
        if kind is sre.LITERAL:
            run += chr(value)
            continue
        if run:
            yield run
            run = ""
        yield from _piece(kind, value)
    if run:
        yield run


def _piece(kind: object, value: object) -> Iterator[str]:
    if kind is sre.IN:
        for each, what in value:  # type: ignore[attr-defined]
            if each is sre.LITERAL:
                yield chr(what)
            elif each is sre.RANGE:
                yield chr(what[0])
            elif each is sre.CATEGORY:
                yield {"SPACE": " ", "DIGIT": "1", "WORD": "a"}.get(str(what).rpartition("_")[2], "-")
    elif kind in (sre.ANY, sre.NOT_LITERAL):
        yield "a"
    elif kind in (sre.MAX_REPEAT, sre.MIN_REPEAT, getattr(sre, "POSSESSIVE_REPEAT", None)):
        yield from _pieces(value[2])  # type: ignore[index]
    elif kind is sre.SUBPATTERN:
        yield from _pieces(value[3])  # type: ignore[index]
    elif kind is sre.BRANCH:
        for branch in value[1]:  # type: ignore[index]
            yield from _pieces(branch)
    elif kind in (sre.ASSERT, sre.ASSERT_NOT):
        yield from _pieces(value[1])  # type: ignore[index]
    elif kind is getattr(sre, "ATOMIC_GROUP", None):
        yield from _pieces(value)
