"""A lint for `make style`: a few words and names that made this project hard to read must not come back.

It reads docstrings and comments in src, bench and tests, and the prose of the documentation. The list is short on
purpose: it holds words that are nearly always wrong here, not a grammar.

It also counts the variables and arguments in src that are named after what was done to a thing instead of after the
thing. The count may only go down: lower `MOST_VAGUE_NAMES` with it. `plain_english.py --names` lists them.
"""

import ast
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

WORDS = re.compile(
    r"\b(mend(s|ed)?|shall|anew|whoever|meanwhile|beside|to the letter|all the same|be it|for want of|in vain"
    r"|go(es|ing)? on|gone on|went on|at work|stands? aside|lest|thereof|whereof|farewell|mourn\w*|bereft)\b",
    re.IGNORECASE,
)
PARTICIPLE = re.compile(
    r"_?(shown|told|said|seen|heard|understood|settled|laid|meant|given|taken|made|done|begun|known|gone)"
)
# These name what was done to a thing; `one` names nothing.
VAGUE_NAME = re.compile(
    r"_*(one|found|said|seen|made|known|told|kept|shown|given|taken|done|left|held|put|meant|gone|begun|laid|drawn|sent"
    r"|lost)"
)
MOST_VAGUE_NAMES = 48
READS = ("src", "bench", "tests")
PROSE = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs")


def find_dialect(root: Path) -> Iterator[str]:
    """Yield `file:line: problem` for everything that should be reworded."""
    for path in (file for folder in READS for file in sorted((root / folder).rglob("*.py"))):
        name = str(path.relative_to(root))
        if name == "tests/plain_english.py":
            continue
        for line, text in [*_docstrings(path), *_comments(path)]:
            if found := WORDS.search(text):
                yield f"{name}:{line}: reword {found[0]!r}"
        if folder_of(name) == "src":
            yield from (f"{name}:{line}: name {function!r} after what it does" for line, function in _participles(path))
    for path in (file for entry in PROSE for file in _markdown(root / entry)):
        for line, text in enumerate(path.read_text().split("\n"), 1):
            if found := WORDS.search(re.sub(r"`[^`]*`", "", text)):
                yield f"{path.relative_to(root)}:{line}: reword {found[0]!r}"


def folder_of(name: str) -> str:
    return name.partition("/")[0]


def _markdown(entry: Path) -> list[Path]:
    return sorted(entry.rglob("*.md")) if entry.is_dir() else [entry]


def _docstrings(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield getattr(node, "lineno", 1), ast.get_docstring(node) or ""


def _comments(path: Path) -> Iterator[tuple[int, str]]:
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string


def _participles(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and PARTICIPLE.fullmatch(node.name):
            yield node.lineno, node.name


def find_vague_names(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and name of every variable, argument and field of a file that matches `VAGUE_NAME`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name = node.id
        elif isinstance(node, ast.arg):
            name = node.arg
        else:
            continue
        if VAGUE_NAME.fullmatch(name):
            yield node.lineno, name


def list_vague_names(root: Path) -> list[str]:
    """Return `file:line: name` for every vague name in src."""
    files = sorted((root / "src").rglob("*.py"))
    return [f"{file.relative_to(root)}:{line}: {name}" for file in files for line, name in find_vague_names(file)]


if __name__ == "__main__":
    root = Path(__file__).parents[1]
    names = list_vague_names(root)
    if sys.argv[1:] == ["--names"]:
        print("\n".join(names))
        sys.exit()
    problems = list(find_dialect(root))
    if len(names) > MOST_VAGUE_NAMES:
        problems += [f"{len(names)} variables are named after an act, {MOST_VAGUE_NAMES} may be (see VAGUE_NAME)"]
        problems += ["hint: git diff -U0 main | grep '^+', or list all with: python tests/plain_english.py --names"]
    print("\n".join(problems))
    sys.exit(1 if problems else 0)
