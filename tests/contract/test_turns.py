"""§5, §9 and §11: what an agent gets, what ralph keeps of its turn, and that no end of a turn hangs the loop."""

import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Ralph = Callable[..., Any]
Agent = Callable[..., str]
Git = Callable[..., str]
DONE = "echo '<response>DONE</response>'"
RESULT = '{"type":"result","subtype":"success","is_error":false,"result":"<response>DONE</response>","session_id":"s"}'


def test_an_agent_gets_its_own_keys_and_the_id_of_the_run(
    ralph: Ralph, agent: Agent, environment: dict[str, str], workspace: Path
) -> None:
    agent(f"env > seen; cat \"$RALPH_PROMPT_FILE\" > read; echo '{RESULT}'", "claude")
    foreign = dict.fromkeys(("OPENAI_API_KEY", "GEMINI_API_KEY", "AMP_API_KEY", "CLAUDECODE"), "x")
    result = ralph("run", "-p", "the goal", "--json", ANTHROPIC_API_KEY="mine", OTHER="kept", **foreign)
    assert result.code == 0
    seen = dict(line.split("=", 1) for line in (workspace / "seen").read_text().splitlines() if "=" in line)
    assert not set(foreign) & set(seen)
    assert (seen["ANTHROPIC_API_KEY"], seen["OTHER"], seen["RALPH_ITERATION"]) == ("mine", "kept", "1")
    assert seen["RALPH_RUN_ID"] == result.events[0]["run"]
    assert (workspace / "read").read_text() == "the goal"


@pytest.mark.parametrize(
    "script",
    [
        f"{DONE}; exec >&- 2>&-; sleep 0.2",
        f"sleep 600 & {DONE}",
        f"setsid sleep 600 & {DONE}",
        f"(trap '' TERM; sleep 600) & {DONE}",
        "printf '<response>DONE</response>'",
        "printf 'fine.\\r\\n<response>DONE</response>  \\r\\n'",
        f"printf '\\377\\376\\000\\033[31m\\n'; {DONE}",
        f"head -c 3000000 /dev/zero | tr '\\0' e >&2; {DONE}",
    ],
    ids=["closed", "background", "setsid", "stubborn", "no newline", "crlf", "binary", "stderr"],
)
def test_the_agents_exit_ends_its_turn(ralph: Ralph, agent: Agent, script: str) -> None:
    assert ralph("run", "-p", "x", "--agent", agent(script)).code == 0


@pytest.mark.parametrize(
    "script",
    [
        f"{DONE} >&2",
        f"{DONE}; kill -9 $$",
        f"{DONE}; exit 1",
        "cat <<END\n{}\nEND".format(RESULT.replace("false", "true")),
    ],
    ids=["stderr", "killed", "exit 1", "error"],
)
def test_only_the_final_answer_can_be_a_claim(ralph: Ralph, agent: Agent, script: str) -> None:
    result = ralph("run", "-p", "x", "-m", "1", "--json", "--agent", agent(script))
    assert (result.code, result.one("run_finished")["outcome"]) == (1, "exhausted")


@pytest.mark.parametrize("command", ["{agent}", "{agent} {{prompt_file}}", "cat | {agent}"])
def test_a_prompt_of_five_megabytes_reaches_the_agent(
    ralph: Ralph, agent: Agent, workspace: Path, command: str
) -> None:
    (workspace / "P").write_text("é" * 2_500_000)
    fake = agent("", "unused")
    Path(fake).write_text(f'#!/bin/sh\ncat "${{1:--}}" | wc -c\necho\n{DONE}\n')
    result = ralph("run", "-f", "P", "--json", "--agent", command.format(agent=fake))
    assert result.code == 0
    assert result.all("agent_text")[0]["text"].strip() == "5000000"


def test_files_of_a_run_are_private_and_ignored_by_git(ralph: Ralph, agent: Agent, repository: Path, git: Git) -> None:
    assert ralph("run", "-p", "x", "-m", "2", "--check", "true", "--agent", agent("true")).code == 1
    (run,) = (repository / ".ralph" / "runs").iterdir()
    kept = {"prompt.md", "stdout.log", "stderr.log", "output.md"}
    assert {file.name for file in (run / "iterations" / "002").iterdir()} == kept
    folders = [run.parent, run, *(path for path in run.rglob("*") if path.is_dir())]
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in folders} == {0o700}
    assert git("status", "--porcelain") == ""


def test_a_folder_at_the_path_of_the_progress_file_is_reported(ralph: Ralph, agent: Agent, workspace: Path) -> None:
    (workspace / ".ralph" / "progress.md").mkdir(parents=True)
    result = ralph("run", "g", "--agent", agent("echo $N"))
    assert result.code == 2
    assert f"cannot write {workspace}/.ralph/progress.md: Is a directory" in result.err


def test_the_progress_file_is_only_about_this_run(ralph: Ralph, agent: Agent, workspace: Path) -> None:
    for _ in range(2):
        ralph("loop", "t", "--check", "echo no; false", "--check", "true", "-m", "2", "--agent", agent("echo $N"))
    text = (workspace / ".ralph" / "progress.md").read_text()
    assert text.count("## Iteration") == 2
    first, second = text.split("\n\n")
    assert [line.partition(":")[0] for line in first.splitlines()] == [
        "## Iteration 1 — FAIL",
        "- Steps",
        "- Cost",
        "- Duration",
        "- Checks",
        "  - echo no; false",
        "  - true",
    ]
    assert "echo no; false: FAIL — no" in second


def test_the_prompt_for_a_commit_message_is_not_printed(ralph: Ralph, agent: Agent, repository: Path) -> None:
    result = ralph("run", "-p", "x", "--commit", "-V", "--agent", agent(f"date > made; {DONE}"))
    assert [line for line in result.err.splitlines() if "[ralph] Prompt: " in line] == ["[ralph] Prompt: x"]


def test_a_fail_action_that_changes_the_prompt_is_shown(ralph: Ralph, agent: Agent) -> None:
    for command, shown in (("run", True), ("loop", False)):
        result = ralph(command, "-p", "x", "-m", "1", "--check", "false", "--agent", agent("echo hi"))
        assert ("→ APPEND, .ralph/guardrail" in result.err) == shown


@pytest.mark.parametrize("stream", ["", '{"type":"assistant","message":{"content":[{"type":"text","text":"hm"}]}}'])
def test_an_error_in_json_is_quoted_verbatim(ralph: Ralph, agent: Agent, stream: str) -> None:
    error = '{"type":"error","message":"the model is on fire"}'
    result = ralph("run", "-p", "x", "-m", "1", "--json", "--agent", agent(f"echo '{stream}'; echo '{error}'; exit 1"))
    assert result.one("agent_finished")["reason"] == "the model is on fire"
