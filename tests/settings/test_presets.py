"""Presets are data: a sixth one is a row in `settings/presets.py`, and no other file has to know its name."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import ralph
from ralph.settings.presets import DEFAULT_PRESET, PRESETS, find_preset

SOURCE = Path(ralph.__file__).parent
FILES = [path for path in sorted(SOURCE.rglob("*.py")) if path != SOURCE / "settings" / "presets.py"]


def names_in(node: ast.AST | None) -> set[str]:
    """Return the names of presets among the constants of an expression."""
    constants = {part.value for part in ast.walk(node) if isinstance(part, ast.Constant)} if node else set()
    return {name for name in PRESETS if name in constants}


def names_a_preset(table: ast.Dict) -> bool:
    """Whether a dict chooses a preset under the key `preset`, or has presets as its keys or values."""
    pairs = zip(table.keys, table.values, strict=True)
    chosen = [value for key, value in pairs if isinstance(key, ast.Constant) and key.value == "preset"]
    columns = (set().union(*map(names_in, column)) for column in (table.keys, table.values))
    return any(map(names_in, chosen)) or any(len(column) > 2 for column in columns)


def named_presets(source: str) -> Iterator[str]:
    """Yield each place where code compares a preset with a name, chooses one by its name, or has a table of them."""
    for node in ast.walk(ast.parse(source)):
        text = ast.unparse(node) if isinstance(node, ast.expr | ast.keyword | ast.match_case) else ""
        match node:
            case ast.Compare() | ast.Subscript() if "preset" in text.lower() and names_in(node) - {"checks"}:
                yield text
            case ast.Compare() if "preset" in ast.unparse(node.left) and names_in(node):
                yield text
            case ast.keyword(arg="preset") if names_in(node.value):
                yield text
            case ast.Call(args=[ast.Constant(value="preset"), *rest]) if any(map(names_in, rest)):
                yield text
            case ast.Dict() if names_a_preset(node):
                yield text
            case ast.JoinedStr() | ast.Constant(value=str()) if re.search(rf"--preset ({'|'.join(PRESETS)})\b", text):
                yield text


@pytest.mark.parametrize(
    "source",
    [
        "settings.preset == 'tune'",
        "settings.preset in ('promise', 'checks')",
        "history.preset != 'checks'",
        "PRESETS['promise']",
        "replace(settings, preset='guardrails')",
        "document.setdefault('preset', 'goal')",
        "{'preset': 'supervise'}",
        "{'checks': 1, 'tune': 2, 'supervise': 3}",
        "f'ralph run --preset promise --agent {name}'",
    ],
)
def test_each_way_to_name_a_preset_is_noticed(source: str) -> None:
    assert list(named_presets(source))


def test_no_other_file_names_a_preset() -> None:
    places = {str(path.relative_to(SOURCE)): [*named_presets(path.read_text())] for path in FILES}
    assert {place: texts for place, texts in places.items() if texts} == {}


def test_a_journal_with_an_unknown_preset_can_be_read() -> None:
    assert find_preset("of a later version") == PRESETS[DEFAULT_PRESET]
