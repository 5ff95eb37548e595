"""ralph reports an agent that may not use its tools, with the ways out, and does not continue without success."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Ralph = Callable[..., Any]
STREAM = Path(__file__).parent.parent / "agents" / "streams" / "claude" / "perm-denied.ndjson"

DENIED = ["Bash(touch a.txt)", "Write(/repo/b.txt)"]


@pytest.fixture
def denied(environment: dict[str, str], workspace: Path) -> Path:
    """Claude Code as it was recorded when it was not allowed anything; what `$DO` says comes first."""
    program = Path(environment["HOME"]) / "bin" / "claude"
    program.write_text(f'#!/bin/sh\ncat > /dev/null\neval "$DO"\ncat {STREAM}\n')
    program.chmod(0o755)
    return workspace


def test_two_turns_of_nothing_but_denials_end_the_run(ralph: Ralph, denied: Path, repository: Path) -> None:
    result = ralph("run", "make the files", "--agent", "claude", "--json")
    assert result.code == 1
    assert result.one("run_finished")["outcome"] == "failed"
    assert result.one("run_finished")["reason"].startswith(
        "the agent may not use Bash(touch a.txt), Write(/repo/b.txt), and did nothing else"
    )
    assert "--yolo" in result.one("run_finished")["reason"]
    assert [event["tool"] for event in result.all("permission_denied")] == [
        "Bash(touch a.txt)",
        "Write(/repo/b.txt)",
    ] * 2


def test_denials_end_a_run_without_git(ralph: Ralph, denied: Path) -> None:
    result = ralph("run", "make the files", "--agent", "claude", "--json")
    assert (result.code, result.one("run_finished")["iterations"]) == (1, 2)


def test_the_first_denial_names_the_tool_and_the_ways_out_and_the_others_only_the_tool(
    ralph: Ralph, denied: Path
) -> None:
    said = " ".join(ralph("run", "make the files", "--agent", "claude").err.split())
    ways = (
        "To let it: --yolo, best in a worktree (--worktree) or a sandbox (--sandbox), or its own list of what it may do"
    )
    assert (
        f"the agent was not allowed to use Bash(touch a.txt). {ways} (permissions.allow in .claude/settings.json)"
        in said
    )
    assert said.count(ways) == 1
    assert said.count("the agent was not allowed to use Write(/repo/b.txt)") == 2
    shown = " ".join(ralph("show").out.split())
    assert shown.count("2 denials") == 2
    assert f"The agent was not allowed to use Bash(touch a.txt), Write(/repo/b.txt). {ways}." in shown


def test_a_run_that_was_denied_everything_can_be_resumed_with_yolo(
    ralph: Ralph, denied: Path, environment: dict[str, str]
) -> None:
    program = Path(environment["HOME"]) / "bin" / "claude"
    result = {"type": "result", "subtype": "success", "is_error": False, "result": "<response>DONE</response>"}
    allowed = f"case \"$*\" in *--dangerously-skip-permissions*) echo '{json.dumps(result)}'; exit;; esac"
    program.write_text(program.read_text().replace('eval "$DO"', allowed))
    ended = ralph("run", "make the files", "--agent", "claude", "--check", "true")
    (step,) = [line.split()[:4] for line in ended.err.splitlines() if "allow the agent everything" in line]
    assert (ended.code, step[:2], step[3]) == (1, ["ralph", "resume"], "--yolo")
    assert ralph("resume", step[2], "--yolo").code == 0


def test_a_denial_does_not_end_a_run_that_makes_progress(
    ralph: Ralph, denied: Path, repository: Path, environment: dict[str, str]
) -> None:
    environment["DO"] = "echo more >> work.txt"
    result = ralph("run", "make the files", "--agent", "claude", "-m", "3", "--json")
    assert result.one("run_finished")["outcome"] == "exhausted"


def test_a_claim_with_green_checks_counts_despite_denials(ralph: Ralph, denied: Path) -> None:
    result = ralph("run", "make", "--agent", "claude", "--until", "word:STOP", "--check", "true", "--json")
    assert result.code == 0
    assert "allowed" not in ralph("show").out.partition("what needs you")[2]


def test_every_denial_is_in_the_record_of_its_turn(ralph: Ralph, denied: Path) -> None:
    ralph("run", "make the files", "--agent", "claude", "-m", "1")
    (journal,) = denied.glob(".ralph/runs/*/journal.ndjson")
    records = [json.loads(line)["data"] for line in journal.read_text().splitlines()]
    (turn,) = [data["record"]["turn"] for data in records if "record" in data]
    assert turn["denials"] == DENIED
