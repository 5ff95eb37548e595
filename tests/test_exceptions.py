"""Lists of exceptions for tools name only what still needs an exception."""

import ast
import importlib.util
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
TOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]


def test_every_immutable_call_is_a_default_of_an_argument() -> None:
    trees = [ast.parse(path.read_text()) for path in (ROOT / "src").rglob("*.py")]
    arguments = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.arguments)]
    defaults = {
        ast.unparse(default) for node in arguments for default in (*node.defaults, *node.kw_defaults) if default
    }
    listed = TOOLS["ruff"]["lint"]["flake8-bugbear"]["extend-immutable-calls"]
    assert [name for name in listed if f"{name.rpartition('.')[2]}()" not in defaults] == []
    for module, _, name in (call.rpartition(".") for call in listed):
        assert hasattr(importlib.import_module(module), name)


def test_every_module_that_mypy_is_told_to_ignore_is_imported_somewhere() -> None:
    paths = [path for folder in ("src", "tests", "bench") for path in (ROOT / folder).rglob("*.py")]
    text = "\n".join(path.read_text() for path in paths)
    overrides = [entry for entry in TOOLS["mypy"]["overrides"] if entry.get("ignore_missing_imports")]
    modules = [name for entry in overrides for name in entry["module"]]
    assert sorted(modules) == sorted(set(modules))
    assert [name for name in modules if f"import {name}" not in text and f"from {name} import" not in text] == []
