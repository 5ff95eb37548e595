"""`ralph logs` prints again what the screen showed, and follows a running run."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

Ralph = Callable[..., Any]
Agent = Callable[..., str]


def journal(workspace: Path) -> Path:
    (found,) = (workspace / ".ralph" / "runs").glob("*/journal.ndjson")
    return found


def test_logs_prints_what_the_screen_showed(ralph: Ralph, agent: Agent, repository: Path) -> None:
    fake = agent('echo "step $N"; if [ $N = 2 ]; then touch new; echo "<response>DONE</response>"; fi')
    live = ralph("run", "-p", "x", "--check", "test -f new", "--agent", fake)
    assert live.code == 0
    assert ralph("logs").out == live.err


def test_logs_json_prints_the_lines_of_the_journal(ralph: Ralph, agent: Agent) -> None:
    live = ralph("run", "-p", "x", "-m", "2", "--json", "--agent", agent("echo $N"))
    assert ralph("logs", "--json").out == live.out


def test_a_log_that_is_followed_ends_with_the_run(ralph: Ralph, start: Any, environment: Any, workspace: Path) -> None:
    run = start()
    run.in_turn()
    words = [sys.executable, "-m", "ralph", "logs", "-f", "--json"]
    with subprocess.Popen(words, cwd=workspace, env=environment, stdout=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None
        first = following.stdout.readline()
        run.let("<response>DONE</response>")
        rest = following.stdout.read()
    assert run.finish() == 0
    assert '"run_started"' in first
    assert '"run_finished"' in rest.splitlines()[-1]
    assert following.returncode == 0


def test_a_torn_line_is_left_out(ralph: Ralph, agent: Agent, workspace: Path) -> None:
    live = ralph("run", "-p", "x", "-m", "1", "--json", "--agent", agent("echo hello"))
    path = journal(workspace)
    path.write_bytes(path.read_bytes()[:-20])
    result = ralph("logs", "--json")
    assert (result.code, result.out.splitlines()) == (0, live.out.splitlines()[:-1])
    assert "hello" in ralph("logs").out
    assert "iteration 1" in ralph("show").out


def test_events_of_a_newer_version_are_skipped(ralph: Ralph, agent: Agent, workspace: Path) -> None:
    ralph("run", "-p", "x", "-m", "1", "--agent", agent("echo hello"))
    path = journal(workspace)
    lines = path.read_bytes().splitlines(keepends=True)
    new = b'{"type":"of_the_future","timestamp":"2099-01-01T00:00:00Z","run":"r","seq":2,"data":{"x":1},"more":[]}\n'
    path.write_bytes(b"".join([lines[0], new, *lines[1:]]))
    assert "hello" in ralph("logs").out
    assert ralph("show").code == 0
    assert new.decode() in ralph("logs", "--json").out


def test_a_file_that_is_not_a_journal_is_an_error(ralph: Ralph, agent: Agent, workspace: Path) -> None:
    ralph("run", "-p", "x", "-m", "1", "--agent", agent("echo hello"))
    journal(workspace).write_bytes(b"\x00\x01 not a journal\n" * 10)
    for command in ("logs", "show", "report"):
        result = ralph(command)
        assert (result.code, len(result.err.splitlines())) == (2, 2), (command, result.err)


def test_logs_says_that_a_run_was_killed(ralph: Ralph, start: Any) -> None:
    run = start()
    run.in_turn()
    run.process.kill()
    run.process.wait()
    result = ralph("logs")
    assert result.code == 0
    assert f"was killed; continue with `ralph resume {run.id}`" in result.err


def test_a_flood_is_shown_to_its_last_line(ralph: Ralph, agent: Agent, workspace: Path) -> None:
    ralph("run", "-p", "x", "-m", "1", "--agent", agent("seq 30000"))
    path = journal(workspace)
    said = b'{"type":"agent_text","timestamp":"2026-11-15T10:00:00Z","run":"r","seq":1,"data":{"text":"line %d"}}\n'
    with open(path, "ab") as file:
        file.write(b"".join(said % number for number in range(30_000)))
    shown = [line.strip() for line in ralph("logs").out.splitlines()]
    assert [line for line in shown if line.startswith("line ")] == [f"line {number}" for number in range(30_000)]


def test_logs_can_show_times(ralph: Ralph, agent: Agent) -> None:
    ralph("run", "-p", "x", "-m", "1", "--agent", agent("echo hello"))
    assert ralph("logs", "-t", TZ="UTC").out.startswith("[")


def test_a_reader_that_stops_reading_is_not_an_error(
    ralph: Ralph, agent: Agent, workspace: Path, environment: Any
) -> None:
    ralph("run", "-p", "x", "-m", "1", "--agent", agent("seq 20000"))
    shell = f"{sys.executable} -m ralph logs | head -1; {sys.executable} -m ralph logs --json | head -1"
    done = subprocess.run(
        ["sh", "-c", shell], cwd=workspace, env=environment, capture_output=True, text=True, check=True
    )
    assert len(done.stdout.splitlines()) == 2
    assert done.stderr == ""
