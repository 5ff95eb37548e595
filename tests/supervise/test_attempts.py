"""What restarts the agent, what ends the task, and the files of each attempt."""

import json
import os
from collections.abc import Callable
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

Agent = Callable[..., str]
Prompts = Callable[..., list[str]]
DONE = 'echo fine > "$TASK_FOLDER/DONE"'


def seconds(stamp: str) -> float:
    return datetime.fromisoformat(stamp).timestamp()


def test_an_agent_that_leaves_done_is_started_once(task: Any, agent: Agent, prompts: Prompts) -> None:
    result = task.supervise("--agent", agent(DONE), "--prompt", "Build it.")
    assert result.returncode == 0, result.stderr
    assert prompts() == ["Build it."]
    assert [(run.status, run.exit_code) for run in task.attempts()] == [("completed", 0)]
    assert task.said()[-1] == "task completed (DONE marker present, no active children)"


def test_exit_code_zero_without_done_restarts_the_agent(task: Any, agent: Agent, prompts: Prompts) -> None:
    result = task.supervise("--agent", agent(f"[ $N -lt 3 ] || {DONE}"), "--prompt", "Build it.")
    assert result.returncode == 0
    again = "Continue working on the following:\n\nBuild it."
    assert prompts() == ["Build it.", again, again]
    assert "Attempt 1: Agent succeeded, but there is no DONE marker, restarting..." in task.said("INFO")


def test_any_exit_code_restarts_the_agent(task: Any, agent: Agent) -> None:
    fake = agent(f"case $N in 1) exit 1;; 2) exit 137;; 3) kill -9 $$;; 4) exit 0;; *) {DONE}; exit 3;; esac")
    result = task.supervise("--agent", fake, "--prompt", "x")
    assert result.returncode == 0
    assert [(run.attempt, run.status, run.exit_code) for run in task.attempts()] == [
        (1, "failed", 1),
        (2, "failed", 137),
        (3, "failed", -9),
        (4, "completed", 0),
        (5, "failed", 3),
    ]
    assert "Attempt 1: Agent failed (exit 1), restarting..." in result.stderr


@pytest.mark.parametrize(
    "trouble",
    ["Error: 503 service unavailable", "Error: connection refused", "Error: rate limit exceeded"],
)
def test_a_transient_error_is_an_attempt_like_any_other(task: Any, agent: Agent, trouble: str) -> None:
    result = task.supervise("--agent", agent(f"echo '{trouble}' >&2; exit 1"), "--prompt", "x", "--max-restarts", "12")
    assert result.returncode == 1
    assert len(task.attempts()) == 12
    assert any(trouble in said for said in task.said("WARNING"))


def test_every_step_is_posted_on_the_bus(task: Any, agent: Agent) -> None:
    task.supervise("--agent", agent(f"[ $N = 1 ] && exit 7; {DONE}"), "--prompt", "x", "--max-restarts", "5")
    first, second = task.attempts()
    assert [said.partition(" after ")[0] for said in task.said()] == [
        "Starting agent (attempt 1/5)",
        f"attempt 1: {first.agent} started as process {first.pid}",
        "attempt 1: exit code 7",
        "agent failed on restart #0: exit code 7",
        "Agent failed with exit code 7, restarting (attempt 2/5)",
        "Restarting agent (attempt 2/5)",
        f"attempt 2: {first.agent} started as process {second.pid}",
        "attempt 2: exit code 0",
        "Attempt 2: Agent succeeded",
        "task completed (DONE marker present, no active children)",
    ]


def test_too_many_restarts_fail_the_task(task: Any, agent: Agent) -> None:
    result = task.supervise("--agent", agent("exit 1"), "--prompt", "x", "--max-restarts", "3")
    assert result.returncode == 1
    assert len(task.attempts()) == 3
    assert task.said("ERROR") == ["max restarts exceeded, stopping: no DONE marker after 3 attempts"]
    assert "Attempt 3: Max restarts exceeded, stopping" in result.stderr
    assert task.said("INFO")[-1] == "Restarting agent (attempt 3/3)", "the last attempt announces no other"


def test_zero_restarts_fail_without_an_attempt(task: Any, agent: Agent, prompts: Prompts) -> None:
    result = task.supervise("--agent", agent(DONE), "--prompt", "x", "--max-restarts=0")
    assert (result.returncode, prompts(), task.attempts()) == (1, [], [])
    assert task.said("ERROR") == ["max restarts exceeded, stopping: no DONE marker after 0 attempts"]


def test_done_on_the_last_attempt_counts(task: Any, agent: Agent) -> None:
    assert task.supervise("--agent", agent(f"{DONE}; exit 1"), "--prompt", "x", "--max-restarts", "1").returncode == 0


def test_a_task_that_is_done_already_is_not_started(task: Any, agent: Agent, prompts: Prompts) -> None:
    task.folder.path.mkdir(parents=True)
    task.folder.done.touch()
    result = task.supervise("--agent", agent("exit 1"), "--prompt", "x", "--max-restarts", "0")
    assert (result.returncode, prompts(), task.attempts()) == (0, [], [])
    assert task.said() == ["task completed (DONE marker present, no active children)"]


def test_done_that_is_a_directory_is_a_fatal_error(task: Any, agent: Agent) -> None:
    result = task.supervise("--agent", agent('mkdir "$TASK_FOLDER/DONE"'), "--prompt", "x")
    assert result.returncode == 2
    assert result.stderr.rstrip().splitlines()[-1].startswith("ralph: fatal after 1 iteration: DONE is a directory")
    assert task.said("ERROR") == ["Fatal error: DONE is a directory"]


@pytest.mark.parametrize("mode", [None, 0o644])
def test_an_agent_that_cannot_be_run_stops_the_task_at_once(task: Any, tmp_path: Path, mode: int | None) -> None:
    program = tmp_path / "agent"
    if mode is not None:
        program.write_text("#!/bin/sh\n")
        program.chmod(mode)
    result = task.supervise("--agent", str(program), "--prompt", "x")
    assert (result.returncode, task.attempts()) == (2, [])
    (told,) = task.said("ERROR")
    assert told.startswith("Fatal error: ")
    assert str(program) in told


def test_an_agent_that_disappears_between_attempts_stops_the_task(task: Any, agent: Agent) -> None:
    result = task.supervise("--agent", agent('rm "$0"; exit 1'), "--prompt", "x")
    assert result.returncode == 2
    assert [run.status for run in task.attempts()] == ["failed", "failed"]
    assert "Fatal error: " in task.said("ERROR")[0]


def test_an_agent_that_disappears_after_an_attempt_that_worked_stops_the_task(task: Any, agent: Agent) -> None:
    """A retry would count as an attempt, so that the task would end as exhausted within seconds."""
    result = task.supervise("--max-restarts", "4", "--agent", agent('rm "$0"; exit 0'), "--prompt", "x")
    assert result.returncode == 2
    assert [run.status for run in task.attempts()] == ["completed", "failed"]
    assert "Fatal error: " in task.said("ERROR")[0]


def test_a_bad_login_stops_the_task_at_once(task: Any, agent: Agent) -> None:
    result = task.supervise("--agent", agent("echo 'Error: Invalid API key' >&2; exit 1"), "--prompt", "x")
    assert (result.returncode, len(task.attempts())) == (2, 1)
    assert task.said("ERROR") == ["Fatal error: Error: Invalid API key"]


def test_there_is_a_delay_between_attempts(task: Any, agent: Agent) -> None:
    task.supervise("--agent", agent(f"[ $N -lt 3 ] || {DONE}"), "--prompt", "x", "--restart-delay", "0.4")
    runs = task.attempts()
    gaps = [seconds(later.started_at) - seconds(run.ended_at) for run, later in pairwise(runs)]
    assert len(gaps) == 2
    assert all(gap >= 0.399 for gap in gaps)


def test_done_is_noticed_while_the_next_attempt_is_waited_for(task: Any, agent: Agent) -> None:
    words = ("--restart-delay", "600", "--poll-interval", "0.1", "--json")
    process = task.start("--agent", agent("exit 1"), "--prompt", "x", *words)
    assert any(json.loads(line)["type"] == "waiting" for line in process.stdout)
    task.folder.done.touch()
    events = [json.loads(line)["type"] for line in process.stdout]
    assert process.wait() == 0
    assert len(task.attempts()) == 1
    assert "waiting" not in events, "one wait is reported once, however often ralph looks"


def test_each_attempt_has_a_folder(task: Any, agent: Agent) -> None:
    fake = agent(f'echo "answer $N"; echo "trouble $N" >&2; [ $N -lt 3 ] || {DONE}')
    task.supervise("--agent", fake, "--prompt", "Build it.")
    runs = task.attempts()
    assert len(runs) == 3
    for number, run in enumerate(runs, 1):
        folder = task.folder.runs / run.run_id
        files = {path.name: path.read_text() for path in folder.iterdir()}
        assert files["agent-stdout.txt"] == f"answer {number}\n"
        assert files["agent-stderr.txt"] == f"trouble {number}\n"
        assert files["output.md"] == f"answer {number}"
        assert files["prompt.md"].endswith("Build it.")
        assert set(files) == {"agent-stdout.txt", "agent-stderr.txt", "output.md", "prompt.md", "run-info.yaml"}
        assert (run.owner_pid, run.pid > 0) == (0, True)
        assert seconds(run.started_at) <= seconds(run.ended_at)


def test_an_output_file_that_the_agent_wrote_is_kept(task: Any, agent: Agent) -> None:
    task.supervise("--agent", agent(f'echo talk; echo report > "$RUN_FOLDER/output.md"; {DONE}'), "--prompt", "x")
    (run,) = task.attempts()
    assert task.output(run) == "report\n"


def test_the_agent_finds_its_task_in_its_environment(task: Any, agent: Agent) -> None:
    task.supervise("--agent", agent(f'env > "$RUN_FOLDER/env"; pwd; {DONE}'), "--prompt", "x")
    (run,) = task.attempts()
    folder = task.folder.runs / run.run_id
    env = dict(line.split("=", 1) for line in (folder / "env").read_text().splitlines() if "=" in line)
    expected = {
        "PROJECT_ID": "shop",
        "TASK_ID": "login",
        "RUN_ID": run.run_id,
        "PARENT_ID": "",
        "TASK_FOLDER": str(task.folder.path),
        "RUN_FOLDER": str(folder),
        "RUNS_DIR": str(task.folder.runs),
        "MESSAGE_BUS": task.folder.bus.path,
    }
    assert {name: env[name] for name in expected} == expected
    assert {name: env[f"JRUN_{name}"] for name in expected} == expected
    assert env["JRUN_ID"] == run.run_id
    assert (folder / "output.md").read_text() == str(task.workspace), "it works in the current folder"


def test_with_json_only_events_are_on_stdout(task: Any, agent: Agent) -> None:
    result = task.supervise("--agent", agent(f"[ $N = 2 ] && {DONE}"), "--prompt", "x", "--json")
    events = [json.loads(line) for line in result.stdout.splitlines()]
    assert [event["data"]["iteration"] for event in events if event["type"] == "ralph_iteration_started"] == [1, 2]
    assert events[-1]["type"] == "run_finished"
    assert events[-1]["data"]["outcome"] == "done"
    assert events == task.journal()
    assert {event["data"].get("task") for event in events if event["type"] == "run_started"} == {str(task.folder.path)}


def test_an_existing_done_is_checked(task: Any, agent: Agent, prompts: Prompts) -> None:
    task.folder.path.mkdir(parents=True)
    task.folder.done.touch()
    result = task.supervise("--agent", agent("touch fixed"), "--prompt", "x", "--check", "test -f fixed")
    assert (result.returncode, len(prompts())) == (0, 1)
    assert "The checks have not been run yet." in prompts()[0]


def test_done_counts_whatever_claims_the_project_sets(task: Any, agent: Agent) -> None:
    settings = task.workspace / ".ralph" / "settings.json"
    settings.parent.mkdir()
    settings.write_text('{"preset": "goal", "until": ["word:STOP"]}')
    assert task.supervise("--agent", agent(f"[ $N = 1 ] || {DONE}"), "--prompt", "x").returncode == 0
    task.folder.done.unlink()
    assert task.supervise("--agent", agent("echo STOP", "b"), "--until", "word:STOP").returncode == 0


@pytest.mark.parametrize(
    "gone", ['rm -rf "$RUN_FOLDER"', 'rm "$RUN_FOLDER/run-info.yaml"', 'echo : > "$RUN_FOLDER/run-info.yaml"']
)
def test_a_task_continues_if_the_agent_removes_its_run_folder(task: Any, agent: Agent, gone: str) -> None:
    result = task.supervise("--agent", agent(f"{gone}; [ $N = 1 ] || {DONE}"), "--prompt", "x", "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout.splitlines()[-1])["data"]["iterations"] == 2
    assert str(task.folder.runs) in result.stderr, "it is said"


def test_done_does_not_count_while_a_check_fails(task: Any, agent: Agent, prompts: Prompts) -> None:
    fake = agent(f"{DONE}; [ $N = 2 ] && touch fixed; :")
    result = task.supervise("--agent", fake, "--prompt", "x", "--check", "test -f fixed", "--json")
    assert result.returncode == 0
    assert len(prompts()) == 2
    assert 'Guardrail "test -f fixed" failed with exit code 1.' in prompts()[1]
    assert list(task.folder.path.glob(".ralph/guardrail_00?_test_f_fixed.log"))
    assert not (task.workspace / ".ralph").exists(), "the workspace is the agent's alone"


def test_each_completion_is_posted_once_on_the_projects_bus(task: Any, agent: Agent) -> None:
    words = ("--agent", agent(DONE), "--prompt", "x")
    assert task.supervise(*words).returncode == 0
    (fact,) = task.facts()
    assert fact.startswith("task shop/login completed: DONE at ")
    assert task.supervise(*words).returncode == 0
    assert task.facts() == [fact]
    task.folder.done.unlink()
    assert task.supervise(*words).returncode == 0
    assert len(task.facts()) == 2


def test_a_project_bus_that_cannot_be_written_is_only_a_warning(task: Any, agent: Agent) -> None:
    task.folder.path.mkdir(parents=True)
    Path(task.folder.project_bus.path).mkdir()
    result = task.supervise("--agent", agent(DONE), "--prompt", "x")
    assert result.returncode == 0
    (warning,) = task.said("WARNING")
    assert "cannot use the message bus" in warning
    assert "cannot use the message bus" in result.stderr


def test_a_bus_that_is_not_a_file_is_refused_before_the_agent_starts(task: Any, agent: Agent) -> None:
    task.folder.path.mkdir(parents=True)
    Path(task.folder.bus.path).mkdir()
    result = task.supervise("--agent", agent(DONE), "--prompt", "x")
    assert (result.returncode, task.attempts()) == (2, [])
    assert "cannot use the message bus" in result.stderr


def test_keys_are_redacted_on_the_bus(task: Any, agent: Agent) -> None:
    key = "sk-ant-api03-" + "x9" * 30
    task.supervise("--agent", agent(f"echo 'Error: {key} is bad' >&2; exit 1"), "--prompt", "x", "--max-restarts", "1")
    assert key not in Path(task.folder.bus.path).read_text()
    for run in task.attempts():
        assert key not in (task.folder.runs / run.run_id / "run-info.yaml").read_text()


def test_many_quick_restarts_lose_no_message(task: Any, agent: Agent) -> None:
    result = task.supervise("--agent", "false", "--prompt", "x", "--max-restarts", "150", "--quiet")
    assert result.returncode == 1
    runs = task.attempts()
    assert [run.attempt for run in runs] == list(range(1, 151))
    assert len(task.said("RUN_START")) == len(task.said("RUN_STOP")) == 150
    assert len(os.listdir(task.folder.runs)) == 150
