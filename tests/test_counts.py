"""Speed, by what can be counted on any machine in any mood: imports, processes, writes, memory that does not grow."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="counted by /proc")

# Plays the command in its own process, and tells what it did. An audit hook hears of every process that is started.
COUNTING = """
import os, sys
record = sys.argv.pop(1)
def number(path, name):
    return next(int(line.split()[1]) for line in open(path) if line.startswith(name))
held = number("/proc/self/status", "RssAnon")
GIT = {"status", "update-ref", "update-index", "write-tree", "commit-tree", "diff-tree", "rev-parse", "rm"}
STARTS = {"os.posix_spawn", "os.fork", "os.forkpty", "os.exec", "os.system", "subprocess.Popen"}
counts = {"opened": 0, "folders": 0}
def hook(event, args):
    if event == "open":
        counts["opened"] += bool(args[2] & os.O_NOFOLLOW)
        counts["folders"] += bool(args[2] & os.O_PATH)
    if event == "os.fork":
        counts.setdefault("forked", sorted(set(sys.modules) - bare))
    if event in STARTS:
        program = os.path.basename(os.fsdecode(args[0])) if args else "keeper"
        program += "".join(f" {word}" for word in (args[1] if program == "git" else ()) if word in GIT)
        fd = os.open(record, os.O_WRONLY | os.O_APPEND | os.O_CREAT)  # anew: the keeper closes what is open
        os.write(fd, f"{program}\\n".encode())
        os.close(fd)
sys.addaudithook(hook)
bare = set(sys.modules)
from ralph.__main__ import main
from ralph.processes.keeper import Keeper
spawn, close = Keeper.spawn, Keeper.close
def spawning(*args):
    counts.setdefault("modules", sorted(set(sys.modules) - bare))
    counts.setdefault("held", number("/proc/self/status", "RssAnon") - held)
    return spawn(*args)
def closing(keeper):  # before it is gone: the system adds to our numbers those of a child that has ended
    counts["written"], counts["writes"] = (number("/proc/self/io", name) for name in ("wchar", "syscw"))
    close(keeper)
Keeper.spawn, Keeper.close = spawning, closing
main()
counts["peak"] = number("/proc/self/status", "VmHWM")
counts["faults"] = int(open("/proc/self/stat").read().rpartition(")")[2].split()[7])
counts["open"] = len(os.listdir("/proc/self/fd"))
import json
print(json.dumps(counts), flush=True)
"""

# What a run may import before its agent starts, besides ralph itself.
NEEDED = {
    *("__future__", "_collections", "_datetime", "_functools", "_operator", "_socket", "_sre", "_typing"),
    *("collections", "contextlib", "copyreg", "enum", "errno", "fcntl", "functools", "gc"),
    *("itertools", "keyword", "msgspec", "operator", "pathlib", "re", "reprlib", "select", "shlex", "types"),
    "_blake2",
    *("_contextvars", "contextvars", "math", "typing"),
    *(("fnmatch", "importlib") if sys.version_info[:2] == (3, 12) else ()),  # of pathlib's
    *(("glob", "grp", "pwd") if sys.version_info >= (3, 13) else ()),  # of pathlib's
}
# What is there when the keeper is forked.
KEPT = {"__future__", "_socket", "errno", "gc", "select", "types"}
MOST_OF_OURS = 70

LOOKED = {"git status", "git update-ref"}
SAVED = LOOKED | {"git update-index", "git write-tree", "git commit-tree"}


class Counts:
    """What one call of ralph did. `started` are the processes, by the names of their programs."""

    def __init__(self, told: dict[str, Any], started: list[str]) -> None:
        self.modules, self.forked, self.started = set(told["modules"]), set(told["forked"]), Counter(started)
        self.written, self.writes, self.peak, self.open = (told[k] for k in ("written", "writes", "peak", "open"))
        self.faults, self.held = told["faults"], told["held"]
        self.opened, self.folders = told["opened"], told["folders"]


@pytest.fixture
def count(environment: dict[str, str], workspace: Path, tmp_path: Path) -> Callable[..., Counts]:
    """Plays a run in the workspace, and counts."""

    def run(*words: str, **env: str) -> Counts:
        record = tmp_path / "started"
        record.unlink(missing_ok=True)
        command = [sys.executable, "-c", COUNTING, record, "run", "goal", *words]
        done = subprocess.run(
            command, cwd=workspace, env={**environment, **env}, capture_output=True, text=True, check=True
        )
        return Counts(json.loads(done.stdout.splitlines()[-1]), record.read_text().splitlines())

    return run


def test_the_version_is_told_by_the_interpreter_and_next_to_nothing() -> None:
    code = "bare = set(sys.modules); from ralph.__main__ import main; main(); print(*set(sys.modules) - bare)"
    command = [sys.executable, "-c", f"import sys; sys.argv[1:] = ['--version']; {code}"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert set(told[-1].split()) == {"ralph", "ralph.__main__"}


def test_the_keeper_is_the_interpreter_and_next_to_nothing(count: Callable[..., Counts]) -> None:
    """It is a copy of what ralph is when it is forked, and stays as large as that all night."""
    held = count("--agent", "true", "-m", "1").forked
    assert {name for name in held if name.split(".")[0] != "ralph"} <= KEPT
    assert {name.split(".")[1] for name in held if "." in name} == {"__main__", "cli", "errors", "processes", "run"}


def test_before_the_agent_starts_only_what_it_needs_is_imported(count: Callable[..., Counts]) -> None:
    imported = count("--agent", "true", "-m", "1").modules
    ours = {name for name in imported if name.split(".")[0] == "ralph"}
    assert {name.split(".")[0] for name in imported - ours} <= NEEDED
    assert len(ours) <= MOST_OF_OURS


def test_a_loop_that_waits_for_its_agent_holds_little(count: Callable[..., Counts], tmp_path: Path) -> None:
    """All night. Most of it is code: whatever is imported before it is needed is held by every loop."""
    compiled = {"PYTHONPYCACHEPREFIX": str(tmp_path / "compiled"), "PYTHONDONTWRITEBYTECODE": ""}
    count("--agent", "true", "-m", "1", **compiled)  # to compile takes more memory than all else
    assert count("--agent", "true", "-m", "1", **compiled).held < 6300, "kB, beyond the interpreter itself"


@pytest.mark.parametrize(
    ("words", "in_git", "expected"),
    [
        ("--agent true", False, {"true": 1}),
        ("--agent true --check true --check :", False, {"true": 1, "sh": 2}),
        ("--agent true", True, {"true": 1, **dict.fromkeys(LOOKED, 1)}),
        ("--agent writer", True, {"writer": 1, **dict.fromkeys(SAVED, 1)}),
        (
            "--agent writer --preset checks --check false",
            True,
            {"writer": 1, "sh": 1, "git diff-tree": 1, **dict.fromkeys(SAVED, 1)},
        ),
    ],
)
def test_an_iteration_starts_no_process_in_vain(
    count: Callable[..., Counts],
    words: str,
    in_git: bool,
    expected: dict[str, int],
    environment: dict[str, str],
    git: Callable[..., str],
) -> None:
    writer = Path(environment["HOME"]) / "bin" / "writer"
    writer.write_text('#!/bin/sh\necho "$RALPH_RUN_ID $RALPH_ITERATION" > new\n')
    writer.chmod(0o755)
    if in_git:
        git("init", "-q")
        git("commit", "-q", "--allow-empty", "-m", "the first")  # before that, git has to be asked what is checked out
        git("pack-refs", "--all")
        count(*words.split(), "-m", "1")
    few, many = (count(*words.split(), "-m", most).started for most in ("2", "4"))
    assert many - few == Counter({name: 2 * times for name, times in expected.items()})


@pytest.mark.parametrize(("checks", "files", "writes"), [((), 6, 11), (("--check", "true"), 7, 15)])
def test_an_iteration_opens_and_writes_no_file_in_vain(
    count: Callable[..., Counts], checks: tuple[str, ...], files: int, writes: int
) -> None:
    """Opened: the prompt, two logs, the answer, the progress, the log of a check, and the prompt once more for the
    report; the folder of the turn when it is made, and for the report. Written: six events at five times and two for a
    check, what is shown of them, where the run stands, the prompt on disk and for the agent, the progress, and outside
    of the workspace that an iteration is about to be counted, and that it was."""
    count("--agent", "true", "-m", "1")
    few, many = (count("--agent", "true", *checks, "-m", most) for most in ("2", "6"))
    assert (many.opened - few.opened) / 4 == files
    assert (many.folders - few.folders) / 4 == 2
    now_and_then = 1  # where the run stands is also written when half a second has passed
    assert (many.writes - few.writes) / 4 <= writes + now_and_then


def test_no_descriptor_is_left_open_by_an_iteration(count: Callable[..., Counts]) -> None:
    few, many = (count("--agent", "true", "--check", "true", "-m", most).open for most in ("1", "5"))
    assert few == many


def test_what_is_written_about_an_event_is_little_more_than_the_event(
    count: Callable[..., Counts], agent: Callable[..., str]
) -> None:
    """As it came in the log, with an envelope in the journal, in words on the screen."""
    text, times = "x" * 100, 2000
    line = json.dumps({"type": "assistant", "message": {"content": [{"type": "text", "text": text}]}})
    agent("true", "claude")
    silent = count("--agent", "claude", "-m", "1")
    agent(f"yes '{line}' | head -n {times}", "claude")
    talks = count("--agent", "claude", "-m", "1")
    envelope, margin = 120, 20
    assert (talks.written - silent.written) / times < len(line) + len(text) + envelope + len(text) + margin
    assert talks.writes - silent.writes < times / 4, "what comes at once is written at once"


def test_memory_does_not_grow_with_what_an_agent_prints(
    count: Callable[..., Counts], agent: Callable[..., str], tmp_path: Path
) -> None:
    text = "The quick brown fox jumps over the lazy dog, and then it reads the file again. " * 50
    lines = [
        {"type": "assistant", "message": {"content": [{"type": "text", "text": text}]}},
        {"type": "assistant", "message": {"content": [{"type": "tool_use", "id": "t", "name": "Read", "input": {}}]}},
        {"type": "user", "message": {"content": [{"type": "tool_result", "tool_use_id": "t", "content": text}]}},
    ]
    some = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "megabyte").write_text(some * (1_000_000 // len(some)))
    few, many = 10, 100
    counts = []
    for megabytes in (few, many):
        agent(f"i=0; while [ $i -lt {megabytes} ]; do cat {tmp_path}/megabyte; i=$((i + 1)); done", "claude")
        counts.append(count("--agent", "claude", "-m", "1", "--max-log", "4MB"))
    assert counts[1].peak - counts[0].peak < 6000, "kB: a few chunks, where there are 90,000 kB more"
    assert counts[1].faults - counts[0].faults < 50 * (many - few), "what is freed is used again, not given back"
