"""A field of a struct with more than eight fields is explained under the field, not in the docstring of the class."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import ralph

SOURCE = Path(ralph.__file__).parent
MOST_FIELDS = 8
# The reference prints the docstrings of these classes.
PUBLIC = {"BacklogResult", "RalphConfig", "BacklogStarted", "AgentFinished", "RunFinished", "CustomAgent"}
# Structs whose fields are still explained above the fields. Remove an entry when you move its explanations.
TO_MOVE = {
    *("BacklogOrder", "BacklogTask", "Board", "Brief", "GuardedFolder", "Job", "Parts", "RunInfo"),
    *("RunRequest", "SandboxNeeds", "SandboxRequest", "SandboxView", "Summary"),
}


def explained_above(tree: ast.Module) -> Iterator[str]:
    """Yield the names of large classes whose docstring explains a field of the class."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            fields = {ast.unparse(line.target) for line in node.body if isinstance(line, ast.AnnAssign)}
            words = re.findall(r"`(\w+)`", ast.get_docstring(node) or "")
            if len(fields) > MOST_FIELDS and fields.intersection(words):
                yield node.name


def test_an_explanation_above_the_fields_is_noticed() -> None:
    fields = "".join(f"    field{number}: int\n" for number in range(9))
    assert [*explained_above(ast.parse(f'class Large:\n    """`field3` is a number."""\n{fields}'))] == ["Large"]
    assert not [*explained_above(ast.parse(f'class Large:\n    """Numbers."""\n{fields}'))]


def test_fields_of_large_structs_are_explained_under_the_field() -> None:
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in sorted(SOURCE.rglob("*.py"))]
    assert {name for tree in trees for name in explained_above(tree)} == PUBLIC | TO_MOVE
