"""Detect the checks that a project already has, from its files and from the installed tools. Nothing is run here.

For each purpose (test, lint, types) a recipe of just or make comes before the tools of the languages.
"""

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from shutil import which
from typing import Any, Literal, get_args

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


DetectedCheck = tuple[Purpose, str]
"""What a check is for, and its command."""


def detect_checks(workspace: Path) -> list[str]:
    """Return the commands that verify work in this project: tests first, then linters, then type checkers."""
    recipes: dict[Purpose, str] = {}
    just = _recipes(workspace, "just", "justfile", "Justfile", ".justfile")
    make = _recipes(workspace, "make", "GNUmakefile", "makefile", "Makefile")
    for purpose, command in (*just, *make):
        recipes.setdefault(purpose, command)
    tools = [tool for find in (_python, _node, _rust, _go) for tool in find(workspace) if tool[0] not in recipes]
    checks = sorted((*recipes.items(), *tools), key=lambda check: get_args(Purpose).index(check[0]))
    return [command for _, command in checks]


def installed_checks(workspace: Path) -> list[str]:
    """Return the detected checks whose program is installed."""
    return [command for command in detect_checks(workspace) if which(command.split()[0])]


def _recipes(workspace: Path, runner: str, *files: str) -> Iterator[DetectedCheck]:
    """Yield the known recipes that need no argument."""
    available: set[str] = set()
    for line in _first(workspace, *files).splitlines():
        head, colon, rest = line.partition(":")
        names = head.removeprefix("@").split()
        if not colon or rest.lstrip(":").startswith("=") or line[:1].isspace():
            continue
        if runner == "make":
            available.update(names)
        elif all("=" in word or word.startswith("*") for word in names[1:]):
            available.update(names[:1])
    return ((purpose, f"{runner} {name}") for name, purpose in RECIPES.items() if name in available)


def _python(workspace: Path) -> Iterator[DetectedCheck]:
    tools = _table(_document(workspace / "pyproject.toml"), "tool")
    runners = (name for lock, name in PYTHON_RUNNERS.items() if (workspace / lock).exists() and which(name))
    runner = next((f"{name} run " for name in runners), "")
    if tests := _python_tests(workspace):
        yield "test", runner + tests
    for tool, purpose, command, files in PYTHON_TOOLS:
        if tool in tools or _first(workspace, *files):
            names_files = tool == "mypy" and {"files", "packages", "modules"} & _table(tools, tool).keys()
            yield purpose, runner + ("mypy" if names_files else command)


def _python_tests(workspace: Path) -> str:
    """Return how the tests are run; empty if there are none."""
    if any("pytest" in _text(workspace / name) for name in PYTEST_FILES):
        return "pytest -q"
    for path in (path for pattern in TEST_FILES for path in sorted(workspace.glob(pattern))):
        text = _text(path)
        if "import unittest" in text or "from unittest" in text:
            return f"python3 -m unittest discover -s {path.parent.relative_to(workspace).as_posix()}"
        return "pytest -q"
    return ""


def _node(workspace: Path) -> Iterator[DetectedCheck]:
    package = _document(workspace / "package.json")
    runners = (runner for lock, runner in NODE_RUNNERS.items() if (workspace / lock).exists())
    runner, execute = next(runners, ("npm", "npx"))
    purposes: set[Purpose] = set()
    for name, script in _table(package, "scripts").items():
        purpose = RECIPES.get(name)
        if not purpose or purpose in purposes or "no test specified" in str(script) or "--watch" in str(script).split():
            continue
        purposes.add(purpose)
        yield purpose, "npm test" if (runner, name) == ("npm", "test") else f"{runner} run {name}"
    has_typescript = "typescript" in _table(package, "devDependencies") and _text(workspace / "tsconfig.json")
    if has_typescript and "types" not in purposes:
        yield "types", f"{execute} tsc --noEmit"


def _rust(workspace: Path) -> Iterator[DetectedCheck]:
    if text := _text(workspace / "Cargo.toml"):
        everything = " --workspace" if "[workspace" in text else ""
        yield "test", f"cargo test{everything}"
        if "clippy" in text or _first(workspace, "clippy.toml", ".clippy.toml"):
            yield "lint", f"cargo clippy{everything} -- -D warnings"


def _go(workspace: Path) -> Iterator[DetectedCheck]:
    if _text(workspace / "go.mod"):
        has_linter = _first(workspace, ".golangci.yml", ".golangci.yaml", ".golangci.toml")
        yield "test", "go test ./..."
        yield "lint", "golangci-lint run" if has_linter else "go vet ./..."


def _first(workspace: Path, *names: str) -> str:
    """Return the text of the first of these files that exists and isn't empty."""
    return next(filter(None, (_text(workspace / name) for name in names)), "")


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


def read_table(path: Path, key: str) -> dict[str, Any]:
    """Return a table of a TOML or JSON file; empty if there is none."""
    return _table(_document(path), key)


def _table(document: dict[str, Any], key: str) -> dict[str, Any]:
    value = document.get(key)
    return value if isinstance(value, dict) else {}
