"""The house keeps its shape: imports point inward, the core knows nothing of the world, start-up stays light."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "ralph"
MODULES = sorted(SOURCE.rglob("*.py"))

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

# What each group may import. Imports point one way: cli → wiring → {agents, world, show, settings, loop} → core.
ALLOWED = {
    "core": {"core"},
    "agents": {"core", "agents", "errors"},
    "world": {"core", "world", "errors", "agents", "loop"},
    "show": {"core", "show", "errors"},
    "settings": {"core", "settings", "errors"},
    "hosts": {"core", "agents", "world", "settings", "errors", "loop", "hosts", "hook", "charter", "wiring", "policy"},
    "ui": {"core", "world", "show", "settings", "errors", "ui", "cli"},
    "loop": {"core", "errors"},
    "reviews": {"core", "loop"},
    "policy": {"core", "settings", "errors"},
    "choices": {"agents", "world", "settings", "errors"},
    "errors": set(),
}

# The rooms of the world, and the parts of the world that each may know beside itself.
ROOMS = {
    "processes": set[str](),
    "records": {"processes"},
    "repository": {"processes", "records", "site"},
    "steering": {"processes", "records", "site"},
    "supervision": {"processes", "records", "marker"},
}


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            if node.module == "ralph":
                yield from (f"ralph.{alias.name}" for alias in node.names)


def group(path: Path) -> str:
    return path.relative_to(SOURCE).with_suffix("").parts[0]


@pytest.mark.parametrize(
    "path", [path for path in MODULES if group(path) in ALLOWED], ids=lambda path: str(path.relative_to(SOURCE))
)
def test_imports_point_inward(path: Path) -> None:
    inner = {name.split(".")[1] for name in imports(path) if name.startswith("ralph.") and name.count(".") >= 1}
    assert inner <= ALLOWED[group(path)] | {"__version__"}


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_of_the_world_knows_only_what_lies_below_it(room: str) -> None:
    inside = [name for path in (SOURCE / "world" / room).glob("*.py") for name in imports(path)]
    known = {name.split(".")[2] for name in inside if name.startswith("ralph.world.")}
    assert known <= ROOMS[room] | {room}


@pytest.mark.parametrize("path", [path for path in MODULES if group(path) == "core"], ids=lambda path: path.name)
def test_the_core_decides_without_the_world(path: Path) -> None:
    assert not {name.split(".")[0] for name in imports(path)} & FORBIDDEN_IN_CORE


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_every_module_says_which_question_it_answers(path: Path) -> None:
    text = path.read_text()
    assert not text.strip() or ast.get_docstring(ast.parse(text))


def imported_by(*arguments: str) -> set[str]:
    code = (
        f"import sys; sys.argv[1:] = {list(arguments)!r}; from ralph.__main__ import main; main(); print(*sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(result.stdout.splitlines()[-1].split())


def test_the_version_is_told_without_importing_anything_heavy() -> None:
    heavy = {"msgspec", "click", "rich", "json", "subprocess", "typing", "dataclasses", "argparse", "asyncio"}
    before = set(
        subprocess.run(
            [sys.executable, "-c", "import sys; print(*sys.modules)"], capture_output=True, text=True, check=True
        ).stdout.split()
    )
    assert not (imported_by("--version") - before) & heavy
