"""A disk that is full, read-only or gone ends a run with one clear line, and nothing recorded is lost."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

Ralph = Callable[..., Any]
Agent = Callable[..., str]
Git = Callable[..., str]

pytestmark = pytest.mark.slow

DONE = 'echo "<response>DONE</response>"'


@pytest.fixture
def tiny(workspace: Path) -> Iterator[Path]:
    """A workspace on a separate disk of one megabyte."""
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", workspace], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("only root may mount a disk")
    yield workspace
    subprocess.run(["umount", "-l", workspace], check=True)


def recorded(workspace: Path) -> list[int]:
    found = [path.read_bytes() for path in workspace.glob(".ralph/runs/*/journal.ndjson")]
    events = [json.loads(line) for line in b"".join(found).splitlines() if line.endswith(b"}")]
    return [event["data"]["iteration"] for event in events if event["type"] == "iteration_finished"]


def fill(folder: Path, but: int) -> Path:
    """Fill the disk until only this many bytes are free."""
    free = os.statvfs(folder)
    ballast = folder / "ballast"
    ballast.write_bytes(bytes(max(free.f_bavail * free.f_bsize - but, 0)))
    return ballast


FULL = """
import errno, os
mkdir = os.mkdir
def on_a_full_disk(path, *words, **more):
    if "ralph-at-work" in str(path) and os.path.exists("work"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
    return mkdir(path, *words, **more)
os.mkdir = on_a_full_disk
"""


def test_a_full_temp_folder_is_not_a_crash(
    agent: Agent, repository: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(FULL)
    words = ("run", "g", "--check", "true", "--commit", "--agent", agent(f"echo $N > work; {DONE}"))
    done = subprocess.run(
        [sys.executable, "-m", "ralph", *words],
        cwd=repository,
        env={**environment, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2, done.stderr
    assert "no space left for" in done.stderr
    assert "internal error" not in done.stderr


@pytest.mark.parametrize("free", range(0, 120, 12))
def test_a_disk_that_fills_up_at_any_moment(ralph: Ralph, agent: Agent, git: Git, tiny: Path, free: int) -> None:
    if free % 24:  # every other size in a repository
        git("init", "-q")
        (tiny / ".git" / "info" / "exclude").write_text("ballast\n")
    fake = agent("head -c 3000 /dev/zero >> work; echo $N")
    ballast = fill(tiny, but=free * 1024)
    result = ralph("run", "g", "-m", "9", "--check", "true", "--commit", "--json", "--agent", fake)
    assert result.code == 2, result.err
    assert "Traceback" not in result.err
    assert any(word in result.err for word in ("No space left", "space", "unable to write")), result.err
    before = recorded(tiny)
    if result.out:
        assert result.kinds()[-1] == "run_finished"
        assert result.one("run_finished")["iterations"] == len(before)
    ballast.unlink()
    again = ralph("resume" if before else "run", *([] if before else ["g", "--agent", fake]), "-m", "2")
    assert again.code == 1, again.err
    assert recorded(tiny)[: len(before)] == before
    assert sorted(set(recorded(tiny))) == list(range(1, len(before) + 3))


def test_a_file_size_limit_is_reported(
    environment: dict[str, str], workspace: Path, agent: Agent, ralph: Ralph
) -> None:
    """For users other than root, a limit on the size of files replaces a full disk."""
    fake = agent(f'head -c 6000 /dev/zero | tr "\\0" x; echo; echo; test $N -lt 9 || {DONE}')
    script = f'ulimit -f 24; exec "{sys.executable}" -B -m ralph run g -m 20 --agent "{fake}"'  # -B: no half .pyc file
    ended = subprocess.run(
        ["sh", "-c", script], cwd=workspace, env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 2, ended.stderr
    assert "File too large" in ended.stderr.splitlines()[-1]
    before = recorded(workspace)
    assert before == list(range(1, len(before) + 1))
    again = ralph("resume")
    assert again.code == 0, again.err
    after = recorded(workspace)
    assert after == list(range(1, len(after) + 1))
    assert len(after) > len(before)


def test_a_read_only_workspace_is_refused_before_the_first_turn(
    ralph: Ralph, agent: Agent, tiny: Path, prompts: Any
) -> None:
    subprocess.run(["mount", "-o", "remount,ro", tiny], check=True)
    result = ralph("run", "g", "--agent", agent(DONE))
    assert result.code == 2
    assert "Read-only file system" in result.err
    assert not prompts()


@pytest.mark.parametrize(
    "deed", ["git clean -qfdx", "rm -rf .ralph", "rm -rf .ralph/runs", "rm .ralph/runs/*/journal*"]
)
def test_an_agent_that_cleans_up_does_not_erase_the_run(
    ralph: Ralph, agent: Agent, repository: Path, deed: str
) -> None:
    fake = agent(f"echo $N >> README; if [ $N = 2 ]; then {deed}; fi; echo $N")
    result = ralph("run", "g", "-m", "3", "--protect", "*.none", "--check", "true", "--json", "--agent", fake)
    assert (result.code, result.one("run_finished")["outcome"]) == (1, "exhausted")
    (path,) = repository.glob(".ralph/runs/*/journal.ndjson")
    assert path.read_text() == result.out, "not a line is missing"
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert ralph("resume", "-m", "1").code == 1
    assert recorded(repository) == [1, 2, 3, 4]
    assert "+2" in ralph("diff", "2").out


def test_an_agent_that_cleans_up_does_not_release_the_lock(
    live: Callable[..., Any], ralph: Ralph, agent: Agent
) -> None:
    fake = agent("rm -rf .ralph; echo begun; sleep 1000")
    run = live("run", "g", "--agent", fake)
    run.until("agent_text")
    refused = ralph("run", "other", "--agent", fake)
    assert refused.code == 2
    assert run.events[0]["run"] in refused.err


def test_a_workspace_that_is_gone_ends_the_run(ralph: Ralph, agent: Agent, workspace: Path) -> None:
    fake = agent('rm -rf "$PWD"; echo $N')
    result = ralph("run", "g", "--json", "--agent", fake)
    assert (result.code, result.one("run_finished")["outcome"]) == (2, "fatal")
    assert "Traceback" not in result.err


def test_without_a_writable_runs_folder_no_run_starts(ralph: Ralph, agent: Agent, workspace: Path) -> None:
    (workspace / ".ralph").mkdir()
    (workspace / ".ralph" / "runs").write_text("a file in the way")
    result = ralph("run", "g", "--agent", agent(DONE))
    assert result.code == 2
    assert "cannot write" in result.err


def test_an_endless_agent_does_not_fill_the_disk(ralph: Ralph, agent: Agent, workspace: Path) -> None:
    line = "x" * 1000
    fake = agent(f"yes {line} | head -c 30000000; echo; echo; {DONE}; yes {line} | head -c 30000000 >&2")
    result = ralph(
        "run", "g", "--check", f"yes {line} | head -c 30000000", "--max-log", "1MB", "--quiet", "--agent", fake
    )
    assert result.code == 0
    files = {path: path.stat().st_size for path in workspace.rglob(".ralph/**/*") if path.is_file()}
    assert max(files.values()) < 6_000_000
    assert sum(files.values()) < 12_000_000


@pytest.mark.parametrize(
    "words", [("--version",), ("--help",), ("ps", "-a"), ("show",), ("logs",), ("report", "-o", "-")]
)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_an_answer_that_cannot_be_written_fails_the_command(
    ralph: Ralph, agent: Agent, environment: dict[str, str], workspace: Path, words: tuple[str, ...], unbuffered: str
) -> None:
    ralph("run", "g", "--agent", agent(DONE))
    with open("/dev/full", "w", encoding="utf-8") as full:
        result = subprocess.run(
            [sys.executable, "-m", "ralph", *words],
            cwd=workspace,
            env={**environment, "PYTHONUNBUFFERED": unbuffered},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (result.returncode, result.stderr.splitlines()[0]) == (2, "ralph: cannot write: No space left on device")
