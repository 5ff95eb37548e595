"""§10: what another program reads, whatever ends the run."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

Ralph = Callable[..., Any]
Agent = Callable[..., str]
DONE = "echo '<response>DONE</response>'"


@pytest.fixture(scope="session")
def schema() -> Any:
    from ralph.cli.init import events_schema

    return jsonschema.Draft202012Validator(events_schema())


RUNS: dict[str, tuple[tuple[str, ...], str, str]] = {
    "done": (("--check", "true"), DONE, "done"),
    "exhausted": (("-m", "2"), "echo $N", "exhausted"),
    "stalled": (("--stall", "1"), "echo same", "stalled"),
    "timeout": (("--max-time", "0.3"), "sleep 60", "timeout"),
    "failed": ((), "exit 3", "failed"),
    "fatal": (("--done-file", "D"), "mkdir D", "fatal"),
    "refused": (("--agent", "no-such-agent"), "true", "fatal"),
    "refused place": (("--worktree",), "true", "fatal"),
    "reviewed": (("--check", "true", "-m", "1"), "echo APPROVE; echo; echo '<response>DONE</response>'", "done"),
    "one shot": (("--ralph", "0"), "echo fine", "done"),
}


@pytest.mark.parametrize("name", RUNS)
def test_every_line_is_valid_and_the_last_one_is_the_only_end(
    ralph: Ralph, agent: Agent, workspace: Path, schema: Any, name: str
) -> None:
    words, script, outcome = RUNS[name]
    if name == "reviewed":
        (workspace / ".ralph").mkdir()
        (workspace / ".ralph" / "settings.json").write_text('{"reviews": {}}')
    result = ralph("run", "-p", "goal", "--json", "--agent", agent(script), *words)
    for event in result.events:
        schema.validate(event)
        assert set(event) == {"type", "timestamp", "run", "seq", "data"}
    assert [event["seq"] for event in result.events] == list(range(1, len(result.events) + 1))
    assert result.kinds().count("run_finished") == 1
    assert result.kinds()[-1] == "run_finished"
    finished = result.one("run_finished")
    assert (finished["outcome"], finished["exit_code"]) == (outcome, result.code)
    assert not finished["verified"] or outcome == "done"
    journals = [*(workspace / ".ralph").glob("runs/*/journal.ndjson")]
    assert [journal.read_text() for journal in journals] in ([], [result.out])


def test_the_lifecycle_comes_in_order(ralph: Ralph, agent: Agent) -> None:
    result = ralph("run", "-p", "goal", "--check", "true", "--json", "--agent", agent(DONE))
    assert [kind for kind in result.kinds() if kind != "notice"] == [
        "run_started",
        "ralph_iteration_started",
        "agent_started",
        "agent_text",
        "agent_finished",
        "check_started",
        "check_finished",
        "iteration_finished",
        "ralph_converged",
        "run_finished",
    ]
    assert result.one("ralph_iteration_started") == {"iteration": 1, "max_iterations": 10, "goal": "goal"}
    assert result.one("ralph_converged") == {"iteration": 1, "signal": "DONE"}


def test_one_shot_is_no_loop_and_says_why_it_failed(ralph: Ralph, agent: Agent) -> None:
    result = ralph("run", "--print", "goal", "--ralph", "0", "--json", "--agent", agent("echo oops >&2; exit 3"))
    assert not [kind for kind in result.kinds() if kind.startswith("ralph_")]
    finished = result.one("run_finished")
    assert (result.code, finished["outcome"], finished["reason"]) == (
        1,
        "failed",
        "the agent failed: exit code 3: oops",
    )


def test_no_event_contains_a_character_that_breaks_lines(ralph: Ralph, agent: Agent) -> None:
    strange = "a\u2028b\u2029c\x85d"
    result = ralph("run", "-p", strange, "--json", "--agent", agent(f"echo 'said {strange}'; {DONE}"))
    assert len(result.out.splitlines()) == result.out.count("\n")
    assert result.one("run_started")["goal"] == strange
    assert result.all("agent_text")[0]["text"] == f"said {strange}"


def test_json_and_quiet_leave_one_line_for_people(ralph: Ralph, agent: Agent) -> None:
    result = ralph("run", "-p", "goal", "--json", "--quiet", "--agent", agent(DONE))
    assert result.events
    assert len(result.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("redirection", "code"),
    [(">&-", 0), (">/dev/full", 2), ("| true", 0), (">/dev/null 2>&-", 0), ("<&- >/dev/null", 0)],
)
def test_a_closed_stdout_is_not_reported_as_a_bug(
    agent: Agent, workspace: Path, environment: dict[str, str], redirection: str, code: int
) -> None:
    command = f"{sys.executable} -m ralph run -p goal --json --quiet --agent {agent(DONE)} {redirection}"
    process = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], cwd=workspace, env=environment, capture_output=True, text=True
    )
    assert process.returncode == code
    assert "internal error" not in process.stderr
    (journal,) = (workspace / ".ralph").glob("runs/*/journal.ndjson")
    last = json.loads(journal.read_text().splitlines()[-1])
    assert (last["type"], last["data"]["exit_code"]) == ("run_finished", code)
