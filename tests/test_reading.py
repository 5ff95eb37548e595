"""Is everything from outside read through one door, which waits for nobody and takes no more than there is room for?

What an agent can write it can also make a pipe, a link to one, or without end. `ralph.files` is the door; the time that
a text of bounded size takes is bounded by `tests/fuzz/test_time.py`, whose expressions and readers all are linear."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import ralph
from ralph.files import read_head

ROOT = Path(ralph.__file__).parent
DOOR = "files.py"
OPENED = {"open_file", "open_given", "open_fresh", "open_own", "_open", "os.open", "sys.stdin.fileno"}
OF_THE_SYSTEM = ("/proc/", "/sys/", "devnull", "ttyname")
# Whoever opens a file otherwise says why.
OTHERWISE = {
    "agent": "a program of its own, which does what its model says",
    "agents/demo.py": "the demo's agent, in a folder of its own",
    "show/report.py": "a part of ralph itself",
    "web/routes.py": "a part of ralph itself",
    "fleet/database.py": "a part of ralph itself",
    "steering/mailbox.py": "called by the agent itself, in its box",
    "processes/box.py": "settings of the kernel",
    "processes/descendants.py": "what the kernel tells of processes",
    "processes/sandbox.py": "a file that was made a moment ago, to see whether a box holds",
    "doctor/machine.py": "the log of a trial of its own, in a folder that it made",
    "processes/streams.py": "a log that was opened before",
}


def calls(path: Path) -> Iterator[ast.Call]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            yield node


def is_reading(call: ast.Call) -> bool:
    """Whether a call opens a file by its name, to read it, and may wait or take without end."""
    called, words = ast.unparse(call.func), ast.unparse(call)
    if called.endswith((".read_text", ".read_bytes")):
        return True
    if called == "os.open":
        return not any(sign in words for sign in ("O_NONBLOCK", "O_DIRECTORY", "O_CREAT", "O_WRONLY", *OF_THE_SYSTEM))
    if called != "open" or not call.args or any(place in words for place in OF_THE_SYSTEM):
        return False
    first, *rest = call.args
    is_open = ast.unparse(first) in ("fd", "log") or (isinstance(first, ast.Call) and _name(first) in OPENED)
    return not is_open and not any(ast.unparse(word).strip("'")[:1] in ("w", "x") for word in rest)


def _name(call: ast.Call) -> str:
    return ast.unparse(call.func)


def otherwise(path: Path) -> bool:
    name = path.relative_to(ROOT).as_posix()
    return name == DOOR or name in OTHERWISE or name.partition("/")[0] in OTHERWISE


def test_everything_from_outside_is_read_through_one_door() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{call.lineno}: {ast.unparse(call)[:80]}"
        for path in sorted(ROOT.rglob("*.py"))
        if not otherwise(path)
        for call in calls(path)
        if is_reading(call)
    ]
    assert not found, "\n".join(found)


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="what the kernel tells is read from /proc")
def test_what_the_kernel_tells_in_parts_is_read_to_its_end() -> None:
    with open("/proc/self/smaps", "rb", buffering=0) as file:
        part = len(file.read(1 << 20))
    assert part < len(read_head("/proc/self/smaps", 1 << 20)) <= 1 << 20


def test_nobody_waits_for_a_lock_without_end() -> None:
    """A lock is tried, and asked for again until patience ends: whoever holds it may be stopped, or hostile."""
    found = [
        f"{path.relative_to(ROOT)}:{call.lineno}"
        for path in sorted(ROOT.rglob("*.py"))
        for call in calls(path)
        if ast.unparse(call.func) == "fcntl.flock" and "LOCK_NB" not in ast.unparse(call)
    ]
    assert not found
