"""Which checks does a project have already? Its own files say how it is tested; nothing of it is run here.

A recipe of the project's own (just, make) stands for its purpose; else each language's own tools do."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args

from msgspec import Struct

from ralph.files import read_given

Purpose = Literal["test", "lint", "types"]

_LARGEST = 1 << 20  # bytes of a file that is worth reading
_RECIPES: dict[str, Purpose] = {
    **dict.fromkeys(("test", "tests", "check"), "test"),
    "lint": "lint",
    **dict.fromkeys(("typecheck", "type-check", "types"), "types"),
}
"""Names that mean the same everywhere; where several mean one thing, the first is taken."""


class Proposal(Struct, frozen=True):
    """A command that could be a check, and the file that says so."""

    command: str
    purpose: Purpose
    source: str


def proposed_checks(workspace: Path) -> tuple[Proposal, ...]:
    """What verifies work in this project, most telling first: its tests, then its linters, then its types."""
    recipes: dict[Purpose, Proposal] = {}
    just = _recipes(workspace, "just", "justfile", "Justfile", ".justfile")
    make = _recipes(workspace, "make", "GNUmakefile", "makefile", "Makefile")
    for recipe in (*just, *make):
        recipes.setdefault(recipe.purpose, recipe)
    tools = [tool for find in _LANGUAGES for tool in find(workspace) if tool.purpose not in recipes]
    return tuple(sorted((*recipes.values(), *tools), key=lambda found: get_args(Purpose).index(found.purpose)))


def _recipes(workspace: Path, runner: str, *files: str) -> Iterator[Proposal]:
    """Those that can be named alone: of just, one with a word that must be given cannot."""
    source, text = _first(workspace, *files)
    there: set[str] = set()
    for line in text.splitlines():
        head, colon, rest = line.partition(":")
        names = head.removeprefix("@").split()
        if not colon or rest.lstrip(":").startswith("=") or line[:1].isspace():
            continue
        if runner == "make":
            there.update(names)
        elif all("=" in word or word.startswith("*") for word in names[1:]):
            there.update(names[:1])
    return (Proposal(f"{runner} {name}", purpose, source) for name, purpose in _RECIPES.items() if name in there)


_PYTHON_RUNNERS = {
    "uv.lock": "uv run ",
    "poetry.lock": "poetry run ",
    "pdm.lock": "pdm run ",
    "Pipfile.lock": "pipenv run ",
}


def _python(workspace: Path) -> Iterator[Proposal]:
    project = _document(workspace / "pyproject.toml")
    tools = _table(project, "tool")
    runner = next((run for lock, run in _PYTHON_RUNNERS.items() if (workspace / lock).exists()), "")
    tests, source = _python_tests(workspace, project, tools)
    if tests:
        yield Proposal(runner + tests, "test", source)
    for tool, (purpose, files, command) in _PYTHON_TOOLS.items():
        if source := "pyproject.toml" if tool in tools else _first(workspace, *files)[0]:
            yield Proposal(runner + command(_table(tools, tool)), purpose, source)


_PYTHON_TOOLS: dict[str, tuple[Purpose, tuple[str, ...], Callable[[dict[str, Any]], str]]] = {
    "ruff": ("lint", ("ruff.toml", ".ruff.toml"), lambda said: "ruff check ."),
    "mypy": (
        "types",
        ("mypy.ini", ".mypy.ini"),
        lambda said: "mypy" if {"files", "packages", "modules"} & said.keys() else "mypy .",
    ),
    "pyright": ("types", ("pyrightconfig.json",), lambda said: "pyright"),
}


def _python_tests(workspace: Path, project: dict[str, Any], tools: dict[str, Any]) -> tuple[str, str]:
    """How the tests are run, and the file that shows it: settings, a dependency, or tests that bear pytest's names."""
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


def _node(workspace: Path) -> Iterator[Proposal]:
    package = _document(workspace / "package.json")
    asked = str(package.get("packageManager", "")).partition("@")[0]
    locked = next((runner for lock, runner in _NODE_RUNNERS.items() if (workspace / lock).exists()), "npm")
    runner = asked if asked in _NODE_EXECUTES else locked
    found: set[Purpose] = set()
    for name, script in _table(package, "scripts").items():
        purpose = _RECIPES.get(name)
        if not purpose or purpose in found or "no test specified" in str(script) or "--watch" in str(script).split():
            continue
        found.add(purpose)
        yield Proposal(
            f"{runner} test" if (runner, name) == ("npm", "test") else f"{runner} run {name}", purpose, "package.json"
        )
    if (
        "types" not in found
        and "typescript" in _table(package, "devDependencies")
        and _text(workspace / "tsconfig.json")
    ):
        yield Proposal(f"{_NODE_EXECUTES[runner]} tsc --noEmit", "types", "tsconfig.json")


def _rust(workspace: Path) -> Iterator[Proposal]:
    cargo = _document(workspace / "Cargo.toml")
    if not cargo:
        return
    everything = " --workspace" if "workspace" in cargo else ""
    yield Proposal(f"cargo test{everything}", "test", "Cargo.toml")
    lints = _table(_table(cargo, "workspace") or cargo, "lints")
    if source := "Cargo.toml" if "clippy" in lints else _first(workspace, "clippy.toml", ".clippy.toml")[0]:
        yield Proposal(f"cargo clippy{everything} -- -D warnings", "lint", source)


def _go(workspace: Path) -> Iterator[Proposal]:
    if not _text(workspace / "go.mod"):
        return
    yield Proposal("go test ./...", "test", "go.mod")
    linter = _first(workspace, ".golangci.yml", ".golangci.yaml", ".golangci.toml")[0]
    yield Proposal("golangci-lint run", "lint", linter) if linter else Proposal("go vet ./...", "lint", "go.mod")


_LANGUAGES: tuple[Callable[[Path], Iterator[Proposal]], ...] = (_python, _node, _rust, _go)


def _first(workspace: Path, *names: str) -> tuple[str, str]:
    """The first of these files that is there, and what it says."""
    return next(((name, text) for name in names if (text := _text(workspace / name))), ("", ""))


def _text(path: Path) -> str:
    """What a file says; nothing, if it cannot be read or is too large to be what its name says."""
    try:
        return read_given(path, _LARGEST).decode("utf-8", "replace")
    except OSError:
        return ""


def _document(path: Path) -> dict[str, Any]:
    """What a TOML or JSON file says; nothing, if it says nothing that can be understood: a proposal is all that is
    lost."""
    try:
        if path.suffix == ".toml":
            import tomllib

            return tomllib.loads(_text(path))
        import json

        said = json.loads(_text(path))
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def _table(said: dict[str, Any], key: str) -> dict[str, Any]:
    found = said.get(key)
    return found if isinstance(found, dict) else {}
