"""Everything from outside is read with `ralph.files`, which never waits for a pipe and reads only as much as it has
room for: an agent can replace a file by a pipe, a link to one, or an endless file.

`tests/fuzz/test_time.py` checks that expressions and readers take time linear in the size of the text."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from msgspec import DecodeError

import ralph
from ralph.errors import UNREADABLE
from ralph.files import read_head

ROOT = Path(ralph.__file__).parent
DOOR = "files.py"
OPENED = {"open_file", "open_given", "open_fresh", "open_own", "_open", "os.open", "sys.stdin.fileno"}
DECODERS = ("loads", "safe_load", "raw_decode")
# These decode nothing nested, or their callers handle endless nesting.
FLAT = {
    *("backlog/json_backlogs.py:spans", "backlog/trackers.py:_pages", "sandbox/network.py:_read_first_pid"),
    *("process/keeper_program.py:receive", "process/keeper_program.py:fork_and_exec"),
}
OF_THE_SYSTEM = ("/proc/", "/sys/", "devnull", "ttyname")
# Modules that open files in other ways, and why.
OTHERWISE = {
    "builtin_agent": "a separate program, which does what its model says",
    "agents/demo.py": "the demo's agent, in a separate folder",
    "show/report.py": "a part of ralph itself",
    "web/application.py": "a part of ralph itself",
    "store/mailbox.py": "called by the agent itself, in its box",
    "process/descendants.py": "what the kernel tells of processes",
    "sandbox/sandbox.py": "a file that was made a moment ago, to see whether a box holds",
}


@cache
def calls(path: Path) -> tuple[ast.Call, ...]:
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return tuple(node for node in nodes if isinstance(node, ast.Call))


def is_reading(call: ast.Call) -> bool:
    """Whether a call opens a file by its name, to read it, and may wait or take without end."""
    called = ast.unparse(call.func)
    if called.endswith((".read_text", ".read_bytes")):
        return True
    if called not in ("open", "os.open"):
        return False
    words = ast.unparse(call)
    if called == "os.open":
        return not any(sign in words for sign in ("O_NONBLOCK", "O_DIRECTORY", "O_CREAT", "O_WRONLY", *OF_THE_SYSTEM))
    if not call.args or any(place in words for place in OF_THE_SYSTEM):
        return False
    first, *rest = call.args
    is_open = ast.unparse(first) in ("fd", "log") or (isinstance(first, ast.Call) and _name(first) in OPENED)
    return not is_open and not any(ast.unparse(word).strip("'")[:1] in ("w", "x") for word in rest)


def _name(call: ast.Call) -> str:
    return ast.unparse(call.func)


def exception_for(path: Path) -> str:
    """Return the key of `OTHERWISE` for a module: its package or its own name."""
    name = path.relative_to(ROOT).as_posix()
    package = name.partition("/")[0]
    return package if package in OTHERWISE else name


def test_only_one_module_reads_data_from_outside() -> None:
    readers: dict[str, list[str]] = {}
    for path in sorted(ROOT.rglob("*.py")):
        for call in calls(path):
            if is_reading(call):
                readers.setdefault(exception_for(path), []).append(f"{call.lineno}: {ast.unparse(call)[:80]}")
    assert {name: lines for name, lines in readers.items() if name not in (DOOR, *OTHERWISE)} == {}
    assert OTHERWISE.keys() - readers.keys() == set(), "these modules don't need to be an exception any more"


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="what the kernel tells is read from /proc")
def test_data_that_the_kernel_returns_in_parts_is_read_completely() -> None:
    with open("/proc/self/smaps", "rb", buffering=0) as file:
        part = len(file.read(1 << 20))
    assert part < len(read_head("/proc/self/smaps", 1 << 20)) <= 1 << 20


def test_every_wait_for_a_lock_has_a_limit() -> None:
    """A lock is tried, and asked for again until patience ends: anyone who holds it may be stopped, or hostile."""
    found = [
        f"{path.relative_to(ROOT)}:{call.lineno}"
        for path in sorted(ROOT.rglob("*.py"))
        for call in calls(path)
        if ast.unparse(call.func) == "fcntl.flock" and "LOCK_NB" not in ast.unparse(call)
    ]
    assert not found


def is_by_msgspec(call: ast.Call) -> bool:
    called = ast.unparse(call.func)
    return called.endswith(("json.decode", "_DECODER.decode", "_ENTRIES.decode", "_TABLE.decode"))


def is_decoding(call: ast.Call) -> bool:
    return is_by_msgspec(call) or ast.unparse(call.func).rpartition(".")[2] in DECODERS


def unguarded(function: ast.FunctionDef) -> Iterator[int]:
    """Yield the lines of a function that decode something without handling endless nesting, or msgspec's errors."""
    guards = {
        id(call): caught
        for node in ast.walk(function)
        for caught in ([ast.unparse(node)] if isinstance(node, ast.With) else _caught(node))
        if "RecursionError" in caught or "UNREADABLE" in caught
        for part in node.body  # type: ignore[attr-defined]
        for call in ast.walk(part)
    }
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and is_decoding(node):
            guard = guards.get(id(node), "")
            if not guard or (is_by_msgspec(node) and "UNREADABLE" not in guard):
                yield node.lineno


def _caught(node: ast.AST) -> list[str]:
    if not isinstance(node, ast.Try):
        return []
    return [ast.unparse(handler.type) for handler in node.handlers if handler.type]


def test_decoding_outside_data_handles_every_error_of_the_decoder() -> None:
    """A decoder at its depth limit raises no ValueError, nor does msgspec before 0.21 for a malformed line: one such
    line ended every command."""
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted(ROOT.rglob("*.py"))
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(function, ast.FunctionDef) and f"{path.relative_to(ROOT)}:{function.name}" not in FLAT
        for line in unguarded(function)
    ]
    assert not found, "\n".join(found)
    assert DecodeError in UNREADABLE
