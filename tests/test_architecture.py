"""The structure of the source: imports point one way, functions are short, and constructors do not act."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TypeVar

SOURCE = Path(__file__).parent.parent / "src" / "ralph"
MODULES = sorted(SOURCE.rglob("*.py"))
Node = TypeVar("Node", bound=ast.AST)

FORBIDDEN_IN_CORE = {
    "os",
    "subprocess",
    "time",
    "datetime",
    "pathlib",
    "json",
    "threading",
    "signal",
    "random",
    "logging",
}

# The packages that each package may import; imports inside functions count as well.
ALLOWED = {
    "__init__": set[str](),  # imports by name
    "__main__": {"cli", "hooks"},
    "actions": {
        *("agents", "core", "errors", "history", "options", "process", "store", "git", "run", "settings", "show"),
        "verdict",
    },
    "builtin_agent": {"agents", "errors", "process"},  # a separate program, which no other package imports
    "acp": {"agents"},  # a separate program; ralph starts it like every other agent
    "agents": {"core", "errors"},
    "api": {
        *("actions", "backlog", "core", "errors", "process", "store", "run", "settings", "show", "supervise"),
        "verdict",
    },
    "backlog": {
        *("actions", "core", "errors", "forge", "history", "loop", "process", "store", "git", "run", "settings"),
        "verdict",
    },
    "cli": {
        *(
            "actions",
            "agents",
            "backlog",
            "core",
            "errors",
            "forge",
            "fleet",
            "history",
            "hooks",
            "options",
            "planning",
        ),
        *("process", "store", "git", "run", "sandbox", "settings", "show", "supervise", "tui", "verdict", "web"),
    },
    "core": set[str](),
    "errors": {"core"},
    "forge": {"core", "errors", "process", "git"},
    "files": {"errors"},
    "fleet": {"backlog", "core", "errors", "process", "store", "git", "show"},
    "history": {"core", "errors", "store", "git", "settings"},
    "hooks": {"agents", "core", "errors", "git", "loop", "options", "process", "store", "run", "settings", "verdict"},
    "loop": {"core", "errors"},
    "options": {"agents", "errors", "settings"},
    "planning": {"backlog", "core", "errors", "process", "store", "settings", "verdict"},
    "process": {"core", "errors"},
    "sandbox": {"errors", "process"},
    "store": {"core", "errors", "process"},
    "git": {"core", "errors", "process", "store"},
    "run": {
        *("agents", "core", "errors", "forge", "history", "loop", "process", "store", "git", "sandbox", "settings"),
        "verdict",
    },
    "settings": {"core", "errors"},
    "show": {"core", "errors", "history", "process", "settings", "store"},
    "supervise": {"core", "errors", "loop", "process", "store", "run", "settings", "verdict"},
    "testing": {"agents", "core"},
    "tui": {"actions", "core", "errors", "history", "options", "process", "store", "settings", "show"},
    "verdict": {"agents", "core", "errors", "process", "store", "git", "sandbox", "settings"},
    "web": {"actions", "core", "errors", "history", "process", "store", "show"},
}


@cache
def parts(path: Path) -> tuple[ast.AST, ...]:
    """Return the module's node and all nodes below it."""
    return tuple(ast.walk(ast.parse(path.read_text())))


def imports(path: Path) -> Iterator[str]:
    for node in parts(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def group(path: Path) -> str:
    return path.relative_to(SOURCE).with_suffix("").parts[0]


def place(path: Path) -> str:
    return str(path.relative_to(SOURCE))


def test_imports_point_one_way() -> None:
    astray, needed = {}, {package: set[str]() for package in ALLOWED}
    for path in MODULES:
        inner = {found.split(".")[1] for found in imports(path) if found.startswith("ralph.")}
        allowed = ALLOWED[group(path)]
        needed[group(path)] |= inner & allowed
        beneath = {"files"} if "errors" in allowed else set()  # every package with errors may use files
        if more := inner - allowed - beneath - {group(path), "__version__"}:
            astray[place(path)] = more
    assert astray == {}
    assert needed == ALLOWED, "a row allows an import that its package does not need"


def test_the_table_in_the_architecture_matches() -> None:
    text = (SOURCE.parent.parent / "docs" / "architecture.md").read_text()
    rows = re.findall(r"^\| `(\w+)(?:/|\.py)` \|.*\| ([\w, ]*)\|$", text, re.MULTILINE)
    known = {package: {name.strip() for name in told.split(",")} - {""} for package, told in rows}
    packages = {path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists()} - {"core", "cli", "api"}
    assert known == {package: ALLOWED[package] - {"core", "errors"} for package in packages | {"loop"}}


def test_the_built_in_agent_stays_small() -> None:
    assert sum(path.read_text().count("\n") for path in MODULES if group(path) == "builtin_agent") <= 1210


def test_the_core_imports_no_clock_disk_or_process() -> None:
    for path in MODULES:
        worldly = {found.split(".")[0] for found in imports(path)} & FORBIDDEN_IN_CORE
        assert group(path) != "core" or not worldly, f"{place(path)}: {worldly}"


def test_every_module_has_a_docstring() -> None:
    assert [place(path) for path in MODULES if path.read_text().strip() and not ast.get_docstring(parts(path)[0])] == []


def nodes(kind: type[Node]) -> Iterator[tuple[str, Node]]:
    """Yield all nodes of this kind in the source, each with its file."""
    for path in MODULES:
        yield from ((place(path), node) for node in parts(path) if isinstance(node, kind))


def is_type_variable(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and ast.unparse(value.func) in ("TypeVar", "ParamSpec")


def test_no_two_classes_or_modules_have_the_same_name() -> None:
    """Type aliases count as classes, type variables don't. A file in cli/ may have the name of another module."""
    classes = Counter(node.name for _, node in nodes(ast.ClassDef) if not node.name.startswith("_"))
    for _, module in nodes(ast.Module):
        given = [node for node in module.body if isinstance(node, ast.Assign) and not is_type_variable(node.value)]
        names = [target.id for node in given for target in node.targets if isinstance(target, ast.Name)]
        classes.update(name for name in names if re.fullmatch("[A-Z][a-z]+([A-Z][a-z]+)*", name))
    files = Counter(path.stem for path in MODULES if path.parent.name != "cli" and not path.stem.startswith("__"))
    assert [name for name, number in (classes + files).items() if number > 1] == []


def test_no_import_cycles() -> None:
    names = {".".join(("ralph", *path.relative_to(SOURCE).with_suffix("").parts)): path for path in MODULES}
    names = {name.removesuffix(".__init__"): path for name, path in names.items()}
    below = {name: {found for found in imports(path) if found in names} - {name} for name, path in names.items()}
    while leaves := [name for name, found in below.items() if not found & below.keys()]:
        for name in leaves:
            del below[name]
    assert sorted(below) == []


def test_a_function_fits_on_a_screen() -> None:
    lengths = {
        f"{name}: {node.name}": (node.end_lineno or 0) - node.lineno + 1 for name, node in nodes(ast.FunctionDef)
    }
    assert {name: length for name, length in lengths.items() if length > 60} == {}


def test_no_possessive_groups_in_regular_expressions() -> None:
    """Before Python 3.11.5 (Debian 12 has 3.11.2) `(…)*+` may fail to match. Write an atomic group: `(?>(…)*)`."""
    possessive = re.compile(r"\)(?:[*+?]|\{[^}\s]*\})\+")
    assert [place(path) for path in MODULES if possessive.search(path.read_text())] == []


STARTS = r"os\.((posix_)?spawn\w*|fork(pty)?|exec[lv]\w*|popen|system)"


def test_only_the_package_process_starts_processes() -> None:
    """The ways are the keeper, `Process` and `DetachedProcess`."""
    known = {place(path): {found.split(".")[0] for found in imports(path)} for path in MODULES}
    known = {name: found for name, found in known.items() if not name.startswith("acp/")}  # a separate program
    assert [name for name, found in known.items() if found & {"subprocess", "multiprocessing", "pty"}] == []
    calls = [(name, ast.unparse(node.func)) for name, node in nodes(ast.Call)]
    assert [
        one for one in calls if re.fullmatch(STARTS, one[1]) and not one[0].startswith(("process/", "sandbox/"))
    ] == []
    started = {name for name, called in calls if "posix_spawn" in called}
    assert started == {"process/program.py", "process/keeper_program.py"}


ACTS = {
    *("open", "open_file", "open_own", "open_fresh", "start", "begin", "make", "run", "spawn", "fork", "pipe", "dup"),
    *("socket", "socketpair", "flock", "signal", "register_at_fork", "Popen", "TemporaryFile", "mkstemp", "mkdtemp"),
    *("posix_spawn", "posix_spawnp", "execv", "kill", "mkdir", "makedirs", "unlink", "rmdir", "rename", "symlink"),
    *("write", "write_text", "write_bytes", "write_file", "touch", "send", "prepare", "rmtree", "prctl"),
    *(
        "require_git",
        "find_git",
        "try_run",
        "stream",
        "recall",
        "read_summary",
        "read",
        "read_file",
        "read_given",
    ),
    *("listdir", "scandir", "replace_file"),
}


def test_constructors_do_not_act() -> None:
    """Constructors open, write, start and remove nothing; methods such as `open` and `start` do."""
    acting = []
    for name, made in nodes(ast.ClassDef):
        methods = {one.name: one for one in made.body if isinstance(one, ast.FunctionDef)}
        looked_at, waiting = set[str](), {"__init__", "__post_init__", "__new__"} & methods.keys()
        while waiting:
            looked_at |= waiting
            # Calls in nested functions and lambdas happen later.
            later = {id(part) for one in waiting for inner in inners(methods[one]) for part in ast.walk(inner)}
            calls = [node for one in waiting for node in ast.walk(methods[one]) if isinstance(node, ast.Call)]
            called = [ast.unparse(call.func) for call in calls if id(call) not in later]
            acting += [f"{name}: {made.name}: {call}" for call in called if call.rpartition(".")[2] in ACTS]
            waiting = {call.removeprefix("self.") for call in called if call.startswith("self.")} & methods.keys()
            waiting -= looked_at
    assert acting == []


def inners(function: ast.FunctionDef) -> Iterator[ast.AST]:
    yield from (
        node for node in ast.walk(function) if isinstance(node, ast.Lambda | ast.FunctionDef) and node != function
    )


def test_more_than_five_values_are_passed_by_name() -> None:
    """A struct with more than five fields is keyword-only; a function has at most five positional parameters."""
    long = []
    for name, node in nodes(ast.FunctionDef):
        places = [one.arg for one in (*node.args.posonlyargs, *node.args.args) if one.arg not in ("self", "cls")]
        long += [f"{name}: {node.name}"] if len(places) > 5 else []
    assert long == []
    loose = [
        node.name
        for _, node in nodes(ast.ClassDef)
        if any(ast.unparse(base).endswith("Struct") for base in node.bases)
        and sum(isinstance(line, ast.AnnAssign) for line in node.body) > 5
        and not any(word.arg == "kw_only" for word in node.keywords)
    ]
    assert loose == []
