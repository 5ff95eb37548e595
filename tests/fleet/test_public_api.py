"""The fleet uses only the public API of Procrastinate: none of its tables, no attribute with an underscore."""

import ast
from collections.abc import Iterator
from pathlib import Path

FLEET = Path(__file__).parents[2] / "src" / "ralph" / "fleet"


def is_own(node: ast.Attribute) -> bool:
    is_ours = isinstance(node.value, ast.Name) and node.value.id == "self"
    return is_ours or node.attr.startswith("__")


def private_uses(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "procrastinate_" in node.value:
            yield f"line {node.lineno}: {node.value[:60]!r}"
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not is_own(node):
            yield f"line {node.lineno}: .{node.attr}"
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("procrastinate"):
            yield from (f"line {node.lineno}: {name.name}" for name in node.names if name.name.startswith("_"))


def test_the_fleet_uses_only_the_public_api_of_its_engine() -> None:
    found = {path.name: [*private_uses(ast.parse(path.read_text()))] for path in FLEET.glob("*.py")}
    assert found
    assert {name: uses for name, uses in found.items() if uses} == {}


def test_a_private_use_would_be_found() -> None:
    bad = 'app.job_manager._connector\nquery = "SELECT * FROM procrastinate_jobs"\n'
    assert len([*private_uses(ast.parse(bad))]) == 2
