"""Detect the checks that a project already has, from its files. Nothing is run here.

For each purpose (test, lint, types) a recipe of just or make comes before the tools of the languages.
"""

import json
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import which
from typing import Any, Literal, get_args

from msgspec import Struct

from ralph.files import read_given

Purpose = Literal["test", "lint", "types"]

MAX_FILE = 1 << 20  # bytes; larger files are ignored
_RECIPES: dict[str, Purpose] = {
    **dict.fromkeys(("test", "tests", "check"), "test"),
    "lint": "lint",
    **dict.fromkeys(("typecheck", "type-check", "types"), "types"),
}
"""Recipe names that mean the same everywhere. The first one found wins."""


class DetectedCheck(Struct, frozen=True):
    """A command that could be a check, and the file that shows it. `fallback` works without the project's runner."""

    command: str
    purpose: Purpose
    source: str
    fallback: str = ""


def detect_checks(workspace: Path) -> tuple[DetectedCheck, ...]:
    """Return the commands that verify work in this project: tests first, then linters, then type checkers."""
    recipes: dict[Purpose, DetectedCheck] = {}
    just = _recipes(workspace, "just", "justfile", "Justfile", ".justfile")
    make = _recipes(workspace, "make", "GNUmakefile", "makefile", "Makefile")
    for recipe in (*just, *make):
        recipes.setdefault(recipe.purpose, recipe)
    tools = [tool for find in _LANGUAGES for tool in find(workspace) if tool.purpose not in recipes]
    return tuple(sorted((*recipes.values(), *tools), key=lambda found: get_args(Purpose).index(found.purpose)))


def installed_checks(workspace: Path) -> list[str]:
    """Return the detected checks whose program is installed. If `uv` and the like are missing, drop `uv run` from the
    command."""
    choices = ((check.command, check.fallback) for check in detect_checks(workspace))
    found = (next((one for one in commands if one and which(one.split()[0])), "") for commands in choices)
    return [command for command in found if command]


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
    return (DetectedCheck(f"{runner} {name}", purpose, source) for name, purpose in _RECIPES.items() if name in found)


_PYTHON_RUNNERS = {
    "uv.lock": "uv run ",
    "poetry.lock": "poetry run ",
    "pdm.lock": "pdm run ",
    "Pipfile.lock": "pipenv run ",
}


def _python(workspace: Path) -> Iterator[DetectedCheck]:
    project = _document(workspace / "pyproject.toml")
    tools = _table(project, "tool")
    runner = next((run for lock, run in _PYTHON_RUNNERS.items() if (workspace / lock).exists()), "")
    tests, source = _python_tests(workspace, project, tools)
    if tests:
        yield DetectedCheck(runner + tests, "test", source, tests if runner else "")
    for tool, (purpose, files, command) in _PYTHON_TOOLS.items():
        if source := "pyproject.toml" if tool in tools else _first(workspace, *files)[0]:
            plain = command(_table(tools, tool))
            yield DetectedCheck(runner + plain, purpose, source, plain if runner else "")


_PYTHON_TOOLS: dict[str, tuple[Purpose, tuple[str, ...], Callable[[dict[str, Any]], str]]] = {
    "ruff": ("lint", ("ruff.toml", ".ruff.toml"), lambda config: "ruff check ."),
    "mypy": (
        "types",
        ("mypy.ini", ".mypy.ini"),
        lambda config: "mypy" if {"files", "packages", "modules"} & config.keys() else "mypy .",
    ),
    "pyright": ("types", ("pyrightconfig.json",), lambda config: "pyright"),
}


def _python_tests(workspace: Path, project: dict[str, Any], tools: dict[str, Any]) -> tuple[str, str]:
    """Return how the tests are run, and the file that shows it: a setting, a dependency, or the tests themselves."""
    of_project = _table(project, "project")
    dependencies = [
        *(of_project.get(key) for key in ("dependencies", "optional-dependencies")),
        project.get("dependency-groups"),
        _table(tools, "poetry"),
        *(_table(tools, tool).get("dev-dependencies") for tool in ("uv", "pdm")),
    ]
    if "pytest" in tools or "pytest" in str(dependencies):
        return "pytest -q", "pyproject.toml"
    if source := _first(workspace, "pytest.ini", "conftest.py", "tests/conftest.py")[0]:
        return "pytest -q", source
    for name in ("requirements-dev.txt", "requirements.txt", "Pipfile", "setup.cfg", "tox.ini"):
        if "pytest" in _text(workspace / name):
            return "pytest -q", name
    for pattern in ("test_*.py", "tests/test_*.py", "tests/*/test_*.py", "test/test_*.py"):
        for path in sorted(workspace.glob(pattern)):
            inside = path.relative_to(workspace).parent.as_posix()
            uses_unittest = "import unittest" in _text(path) or "from unittest" in _text(path)
            run = f"python3 -m unittest discover -s {inside}" if uses_unittest else "pytest -q"
            return run, path.relative_to(workspace).as_posix()
    return "", ""


_NODE_RUNNERS = {"pnpm-lock.yaml": "pnpm", "yarn.lock": "yarn", "bun.lock": "bun", "bun.lockb": "bun"}
_NODE_EXECUTES = {"npm": "npx", "pnpm": "pnpm exec", "yarn": "yarn", "bun": "bunx"}


def _node(workspace: Path) -> Iterator[DetectedCheck]:
    package = _document(workspace / "package.json")
    wanted = str(package.get("packageManager", "")).partition("@")[0]
    locked = next((runner for lock, runner in _NODE_RUNNERS.items() if (workspace / lock).exists()), "npm")
    runner = wanted if wanted in _NODE_EXECUTES else locked
    found: set[Purpose] = set()
    for name, script in _table(package, "scripts").items():
        purpose = _RECIPES.get(name)
        if not purpose or purpose in found or "no test specified" in str(script) or "--watch" in str(script).split():
            continue
        found.add(purpose)
        yield DetectedCheck(
            f"{runner} test" if (runner, name) == ("npm", "test") else f"{runner} run {name}", purpose, "package.json"
        )
    if (
        "types" not in found
        and "typescript" in _table(package, "devDependencies")
        and _text(workspace / "tsconfig.json")
    ):
        yield DetectedCheck(f"{_NODE_EXECUTES[runner]} tsc --noEmit", "types", "tsconfig.json")


def _rust(workspace: Path) -> Iterator[DetectedCheck]:
    cargo = _document(workspace / "Cargo.toml")
    if not cargo:
        return
    everything = " --workspace" if "workspace" in cargo else ""
    yield DetectedCheck(f"cargo test{everything}", "test", "Cargo.toml")
    lints = _table(_table(cargo, "workspace") or cargo, "lints")
    if source := "Cargo.toml" if "clippy" in lints else _first(workspace, "clippy.toml", ".clippy.toml")[0]:
        yield DetectedCheck(f"cargo clippy{everything} -- -D warnings", "lint", source)


def _go(workspace: Path) -> Iterator[DetectedCheck]:
    if not _text(workspace / "go.mod"):
        return
    yield DetectedCheck("go test ./...", "test", "go.mod")
    linter = _first(workspace, ".golangci.yml", ".golangci.yaml", ".golangci.toml")[0]
    yield (
        DetectedCheck("golangci-lint run", "lint", linter)
        if linter
        else DetectedCheck("go vet ./...", "lint", "go.mod")
    )


_LANGUAGES: tuple[Callable[[Path], Iterator[DetectedCheck]], ...] = (_python, _node, _rust, _go)


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
        if path.suffix == ".toml":
            return tomllib.loads(_text(path))
        document = json.loads(_text(path))
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _table(document: dict[str, Any], key: str) -> dict[str, Any]:
    found = document.get(key)
    return found if isinstance(found, dict) else {}
