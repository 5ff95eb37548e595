"""A test that cannot fail proves nothing: no test has a placeholder that nothing fills, an assertion that is always
true, or a loop over nothing.

Issue 54: the search for an exam's text looked for the literal `{token}` from its first commit on."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef
TESTS = Path(__file__).parent
PLACEHOLDER = re.compile(r"(?<![$^{\\])\{([A-Za-z_]\w*)\}(?!\})")  # not `${name}`, `main^{tree}`, `{{name}}`
NESTED = re.compile(r"""\bf["']""")  # a program in a string, with its own f-strings
FILLED_BY_RALPH = {"prompt", "prompt_file", "model", "session"}
# Text that must stay as it is.
LITERAL = {
    "backlog/test_formats.py": {"x"},
    "forge/test_issue.py": {"text", "nonce"},
    "show/test_safety.py": {"markup"},
    "supervise/test_task.py": {"y"},
    # Filled by system/copies/setups.py
    "system/copies/node_setups.py": {"tools", "main", "outside"},
    "system/copies/other_setups.py": {"main", "outside"},
    "system/copies/python_setups.py": {"main", "outside", "python", "PATH"},
}
SEARCHES = {"glob", "rglob", "iterdir", "listdir", "scandir", "walk", "findall", "finditer"}
ALWAYS_TRUE = ast.Constant | ast.Dict | ast.GeneratorExp | ast.JoinedStr | ast.Lambda | ast.List | ast.Set | ast.Tuple


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def files() -> list[Path]:
    paths = [path for path in sorted(TESTS.rglob("*.py")) if path != Path(__file__)]
    assert len(paths) > 100
    return paths


def texts(module: ast.Module) -> Iterator[ast.Constant]:
    """Yield the strings that are neither docstrings nor parts of f-strings."""
    formatted = [part for node in ast.walk(module) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)]
    skipped = {id(node) for node in formatted}
    skipped |= {id(node.value) for node in ast.walk(module) if isinstance(node, ast.Expr)}
    for node in ast.walk(module):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            yield node


def filled_names(module: ast.Module) -> set[str]:
    """Return the names that any `format` or `replace` of the file fills in."""
    names = set[str]()
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr == "format":
                names |= {keyword.arg for keyword in node.keywords if keyword.arg}
            elif node.func.attr == "replace" and node.args:
                names |= set(PLACEHOLDER.findall(ast.unparse(node.args[0])))
    return names


def unfilled(module: ast.Module) -> Iterator[tuple[int, str]]:
    names = filled_names(module) | FILLED_BY_RALPH
    for text in texts(module):
        if not NESTED.search(str(text.value)):
            yield from ((text.lineno, name) for name in PLACEHOLDER.findall(str(text.value)) if name not in names)


def literal(node: ast.expr) -> object:
    """Return the value of a literal, or True for everything that is none."""
    try:
        return ast.literal_eval(node)
    except ValueError:
        return True


def always_true(module: ast.Module) -> Iterator[int]:
    """Yield the lines of assertions about a display, a generator or text; `assert False` may stay."""
    for node in ast.walk(module):
        if isinstance(node, ast.Assert) and isinstance(node.test, ALWAYS_TRUE) and literal(node.test):
            yield node.lineno


def is_empty(iterable: ast.expr, searches: set[str]) -> bool:
    """Whether a loop over this may do nothing: it is empty, or the result of a search."""
    name = ast.unparse(iterable)
    return not literal(iterable) or name == "range(0)" or name in searches or is_search(iterable)


def is_search(node: ast.AST) -> bool:
    """Whether it is a call of a search, perhaps in `sorted` or `list`."""
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Name) and node.func.id in ("sorted", "list", "tuple", "set", "enumerate"):
        return any(is_search(argument) for argument in node.args)
    return isinstance(node.func, ast.Attribute) and node.func.attr in SEARCHES


def is_vacuous(function: ast.AST) -> bool:
    """Whether all assertions of a test are in loops that may do nothing."""
    searches = {
        ast.unparse(target)
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and is_search(node.value)
        for target in node.targets
    }
    loops = [node for node in ast.walk(function) if isinstance(node, ast.For) and is_empty(node.iter, searches)]
    inner = {id(part) for loop in loops for part in ast.walk(loop)}
    assertions = [node for node in ast.walk(function) if isinstance(node, ast.Assert)]
    return bool(assertions) and all(id(node) in inner or asserts_all(node, searches) for node in assertions)


def asserts_all(node: ast.Assert, searches: set[str]) -> bool:
    """Whether it is `assert all(… for x in …)` over what may be empty."""
    call = node.test
    if not (isinstance(call, ast.Call) and ast.unparse(call.func) == "all" and call.args):
        return False
    return any(is_empty(part.iter, searches) for part in getattr(call.args[0], "generators", ()))


def vacuous_tests(module: ast.Module) -> Iterator[int]:
    for node in ast.walk(module):
        if isinstance(node, FUNCTION) and node.name.startswith("test_") and is_vacuous(node):
            yield node.lineno


def test_every_placeholder_of_a_test_is_filled() -> None:
    problems, unused = [], {name: set(words) for name, words in LITERAL.items()}
    for path in files():
        place = path.relative_to(TESTS).as_posix()
        for line, name in unfilled(parse(path)):
            unused.get(place, set()).discard(name)
            if name not in LITERAL.get(place, ()):
                problems.append(f"{place}:{line}: nothing fills {{{name}}}: is an `f` missing?")
    assert not problems, "\n".join(problems)
    assert not any(unused.values()), f"no longer needed: {unused}"


def test_no_assertion_is_always_true() -> None:
    problems = [f"{path.relative_to(TESTS)}:{line}" for path in files() for line in always_true(parse(path))]
    assert not problems, "\n".join(problems)


def test_no_test_only_asserts_in_a_loop_over_nothing() -> None:
    problems = [f"{path.relative_to(TESTS)}:{line}" for path in files() for line in vacuous_tests(parse(path))]
    assert not problems, "assert first that there is something to loop over:\n" + "\n".join(problems)


@pytest.mark.parametrize(
    ("code", "is_wrong"),
    [
        ("TOKEN = 'zq'\nSEARCH = 'grep -r {token} .'", True),
        ("SEARCH = 'grep -r {token} .'\nrun(SEARCH.format(token='zq'))", False),
        ("SEARCH = 'grep -r {token} .'\nrun(SEARCH.replace('{token}', 'zq'))", False),
        ("SEARCH = f'grep -r {token} .'", False),
        ("'echo ${token} {{token}} main^{token}'.strip()", False),
        ("def test_x(): assert (found == [], 'left over')", True),
        ("def test_x(): assert (file.exists() for file in files)", True),
        ("def test_x(): assert f'{found}'", True),
        ("def test_x(): assert found == []", False),
        ("def test_x(): assert False, 'never called'", False),
        ("def test_x():\n for file in folder.glob('*'): assert file.exists()", True),
        ("def test_x():\n files = sorted(folder.glob('*'))\n for file in files: assert file.exists()", True),
        ("def test_x():\n assert all(file.exists() for file in folder.iterdir())", True),
        ("def test_x():\n for file in (): assert file.exists()", True),
        ("def test_x():\n files = [*folder.glob('*')]\n assert files\n for file in files: assert file.exists()", False),
        ("def test_x():\n for file in (first, second): assert file.exists()", False),
    ],
)
def test_the_lint_knows_the_mistakes(code: str, is_wrong: bool) -> None:
    module = ast.parse(code)
    assert bool([*unfilled(module), *always_true(module), *vacuous_tests(module)]) is is_wrong
