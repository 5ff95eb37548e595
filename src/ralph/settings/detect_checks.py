"""Detect the checks that a project already has, from its files and from the installed tools. Nothing is run here.

For each purpose (test, lint, types) a recipe of just or make comes before the tools of the languages.
"""

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from shutil import which
from typing import Any, Literal, get_args

from msgspec import Struct

from ralph.files import read_given

Purpose = Literal["test", "lint", "types"]

MAX_FILE = 1 << 20  # bytes; larger files are ignored
RECIPES: dict[str, Purpose] = {
    **dict.fromkeys(("test", "tests", "check"), "test"),
    "lint": "lint",
    **dict.fromkeys(("typecheck", "type-check", "types"), "types"),
}
"""Recipe names that mean the same everywhere. The first one found wins."""
PYTHON_RUNNERS = {"uv.lock": "uv", "poetry.lock": "poetry", "pdm.lock": "pdm", "Pipfile.lock": "pipenv"}
PYTEST_FILES = (
    *("pyproject.toml", "pytest.ini", "conftest.py", "tests/conftest.py"),
    *("requirements-dev.txt", "requirements.txt", "Pipfile", "setup.cfg", "tox.ini"),
)
"""Files that mention pytest if the project uses it."""
TEST_FILES = ("test_*.py", "tests/test_*.py", "tests/*/test_*.py", "test/test_*.py")
PYTHON_TOOLS: tuple[tuple[str, Purpose, str, tuple[str, ...]], ...] = (
    ("ruff", "lint", "ruff check .", ("ruff.toml", ".ruff.toml")),
    ("mypy", "types", "mypy .", ("mypy.ini", ".mypy.ini")),
    ("pyright", "types", "pyright", ("pyrightconfig.json",)),
)
"""Name, purpose, command and own files of each tool."""
NODE_RUNNERS = {
    "pnpm-lock.yaml": ("pnpm", "pnpm exec"),
    "yarn.lock": ("yarn", "yarn"),
    "bun.lock": ("bun", "bunx"),
    "bun.lockb": ("bun", "bunx"),
}
"""What runs a script, and what runs an installed program."""


class DetectedCheck(Struct, frozen=True):
    """A command that could be a check, and the file that shows it."""

    command: str
    purpose: Purpose
    source: str


def detect_checks(workspace: Path) -> tuple[DetectedCheck, ...]:
    """Return the commands that verify work in this project: tests first, then linters, then type checkers."""
    recipes: dict[Purpose, DetectedCheck] = {}
    just = _recipes(workspace, "just", "justfile", "Justfile", ".justfile")
    make = _recipes(workspace, "make", "GNUmakefile", "makefile", "Makefile")
    for recipe in (*just, *make):
        recipes.setdefault(recipe.purpose, recipe)
    tools = [tool for find in (_python, _node, _rust, _go) for tool in find(workspace) if tool.purpose not in recipes]
    return tuple(sorted((*recipes.values(), *tools), key=lambda found: get_args(Purpose).index(found.purpose)))


def installed_checks(workspace: Path) -> list[str]:
    """Return the detected checks whose program is installed."""
    return [check.command for check in detect_checks(workspace) if which(check.command.split()[0])]


def _recipes(workspace: Path, runner: str, *files: str) -> Iterator[DetectedCheck]:
    """Yield the known recipes that need no argument."""
    source, text = _first(workspace, *files)
    found: set[str] = set()
    for line in text.splitlines():
        head, colon, rest = line.partition(":")
        names = head.removeprefix("@").split()
        if not colon or rest.lstrip(":").startswith("=") or line[:1].isspace():
            continue
        if runner == "make":
            found.update(names)
        elif all("=" in word or word.startswith("*") for word in names[1:]):
            found.update(names[:1])
    return (DetectedCheck(f"{runner} {name}", purpose, source) for name, purpose in RECIPES.items() if name in found)


def _python(workspace: Path) -> Iterator[DetectedCheck]:
    tools = _table(_document(workspace / "pyproject.toml"), "tool")
    runners = (name for lock, name in PYTHON_RUNNERS.items() if (workspace / lock).exists() and which(name))
    runner = next((f"{name} run " for name in runners), "")
    tests, source = _python_tests(workspace)
    if tests:
        yield DetectedCheck(runner + tests, "test", source)
    for tool, purpose, command, files in PYTHON_TOOLS:
        if source := "pyproject.toml" if tool in tools else _first(workspace, *files)[0]:
            names_files = tool == "mypy" and {"files", "packages", "modules"} & _table(tools, tool).keys()
            yield DetectedCheck(runner + ("mypy" if names_files else command), purpose, source)


def _python_tests(workspace: Path) -> tuple[str, str]:
    """Return how the tests are run, and the file that shows it."""
    for name in PYTEST_FILES:
        if "pytest" in _text(workspace / name):
            return "pytest -q", name
    for pattern in TEST_FILES:
        for path in sorted(workspace.glob(pattern)):
            test = path.relative_to(workspace)
            uses_unittest = "import unittest" in _text(path) or "from unittest" in _text(path)
            run = f"python3 -m unittest discover -s {test.parent.as_posix()}" if uses_unittest else "pytest -q"
            return run, test.as_posix()
    return "", ""


def _node(workspace: Path) -> Iterator[DetectedCheck]:
    package = _document(workspace / "package.json")
    runners = (runner for lock, runner in NODE_RUNNERS.items() if (workspace / lock).exists())
    runner, execute = next(runners, ("npm", "npx"))
    found: set[Purpose] = set()
    for name, script in _table(package, "scripts").items():
        purpose = RECIPES.get(name)
        if not purpose or purpose in found or "no test specified" in str(script) or "--watch" in str(script).split():
            continue
        found.add(purpose)
        command = "npm test" if (runner, name) == ("npm", "test") else f"{runner} run {name}"
        yield DetectedCheck(command, purpose, "package.json")
    has_typescript = "typescript" in _table(package, "devDependencies") and _text(workspace / "tsconfig.json")
    if has_typescript and "types" not in found:
        yield DetectedCheck(f"{execute} tsc --noEmit", "types", "tsconfig.json")


def _rust(workspace: Path) -> Iterator[DetectedCheck]:
    text = _text(workspace / "Cargo.toml")
    if not text:
        return
    everything = " --workspace" if "[workspace" in text else ""
    yield DetectedCheck(f"cargo test{everything}", "test", "Cargo.toml")
    if source := "Cargo.toml" if "clippy" in text else _first(workspace, "clippy.toml", ".clippy.toml")[0]:
        yield DetectedCheck(f"cargo clippy{everything} -- -D warnings", "lint", source)


def _go(workspace: Path) -> Iterator[DetectedCheck]:
    if not _text(workspace / "go.mod"):
        return
    yield DetectedCheck("go test ./...", "test", "go.mod")
    if linter := _first(workspace, ".golangci.yml", ".golangci.yaml", ".golangci.toml")[0]:
        yield DetectedCheck("golangci-lint run", "lint", linter)
    else:
        yield DetectedCheck("go vet ./...", "lint", "go.mod")


def _first(workspace: Path, *names: str) -> tuple[str, str]:
    """Return the first of these files that exists and isn't empty, and its text."""
    return next(((name, text) for name in names if (text := _text(workspace / name))), ("", ""))


def _text(path: Path) -> str:
    """Return a file's text; empty if it can't be read or is too large."""
    try:
        return read_given(path, MAX_FILE).decode("utf-8", "replace")
    except OSError:
        return ""


def _document(path: Path) -> dict[str, Any]:
    """Return a parsed TOML or JSON file; empty if it can't be parsed, because only a suggestion would be lost."""
    try:
        parse = tomllib.loads if path.suffix == ".toml" else json.loads
        document = parse(_text(path))
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _table(document: dict[str, Any], key: str) -> dict[str, Any]:
    found = document.get(key)
    return found if isinstance(found, dict) else {}
