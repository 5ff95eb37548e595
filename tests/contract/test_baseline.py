"""The baseline: the checks run once before the first turn, so that a mistyped check costs nothing and `done` says what
the work has changed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ralph import RalphConfig, RalphLoop

Ralph = Callable[..., Any]
Agent = Callable[..., str]
Prompts = Callable[..., list[str]]
FIXES = "touch made; echo COMPLETE"


def test_the_outcome_says_which_checks_were_red_before(ralph: Ralph, agent: Agent, prompts: Prompts) -> None:
    checks = ("--check", "test -e made", "--check", "true")
    result = ralph("loop", "make it", *checks, "--json", "--agent", agent(FIXES))
    assert result.code == 0
    baseline = result.one("baseline")["checks"]
    assert [(check["name"], check["passed"]) for check in baseline] == [("test -e made", False), ("true", True)]
    done = "2 checks pass (1 was red before) and the agent said COMPLETE"
    assert result.one("run_finished")["reason"] == done
    assert f"done after 1 iteration: {done}" in result.last_line
    assert "before the first turn 1 of 2 checks fails: test -e made" in result.err
    assert "test -e made: exit code" not in prompts()[0], "the first prompt is that of seed 004"
    before = "before the first turn 1 of 2 checks fails: test -e made"
    assert before in ralph("show").out
    assert before in ralph("report", "-o", "-").out.lower()
    assert [check["passed"] for check in json.loads(ralph("report", "--json", "-o", "-").out)["baseline"]] == [
        False,
        True,
    ]


def test_green_checks_before_the_first_turn_are_reported(ralph: Ralph, agent: Agent) -> None:
    result = ralph("loop", "x", "--check", "true", "--agent", agent(FIXES))
    assert "every check passes before the first turn: green checks won't show that this goal is met" in result.err
    assert "1 check passes (no check was red before) and the agent said COMPLETE" in result.last_line
    result = ralph("loop", "x", "--check", "true", "--until", "checks", "--agent", agent("echo working"))
    assert "every check passes (no check was red before)" in result.last_line


@pytest.mark.parametrize(("command", "code"), [("no-such-command-here", 127), ("./not-executable", 126)])
def test_a_check_that_cannot_start_ends_the_run_before_anything_is_spent(
    ralph: Ralph, agent: Agent, workspace: Path, command: str, code: int
) -> None:
    (workspace / "not-executable").write_text("#!/bin/sh\n")
    result = ralph("loop", "x", "--check", command, "--json", "--agent", agent("exit 9"))
    assert result.code == 2
    assert not result.all("agent_started")
    reason = result.one("run_finished")["reason"]
    assert reason.startswith(f'the check "{command}" cannot start: ')
    assert f"exit code {code}" in reason
    assert "--check" in reason
    assert "--no-baseline" in reason


def test_a_check_that_the_agent_creates_needs_no_baseline(ralph: Ralph, agent: Agent) -> None:
    creates = agent("printf '#!/bin/sh\\n' > check; if [ $N = 3 ]; then chmod +x check; fi; echo COMPLETE")
    result = ralph("loop", "x", "--check", "./check", "--no-baseline", "--json", "--agent", creates)
    assert result.code == 0
    assert not result.all("baseline")
    assert result.one("run_finished")["reason"] == "1 check passes and the agent said COMPLETE"


def test_a_run_can_be_resumed_after_a_check_could_not_start(ralph: Ralph, agent: Agent, workspace: Path) -> None:
    assert ralph("loop", "x", "--check", "./check", "--agent", agent("echo COMPLETE")).code == 2
    (workspace / "check").write_text("#!/bin/sh\n")
    (workspace / "check").chmod(0o700)
    result = ralph("resume", "--json")
    assert result.code == 0, result.err
    assert not result.all("baseline")


def test_a_check_that_times_out_names_the_option(ralph: Ralph, agent: Agent) -> None:
    result = ralph(
        "loop", "x", "--check", "sleep 60", "--check-timeout", "0.2s", "-m", "1", "--agent", agent("echo hm")
    )
    assert "before the first turn the check fails: sleep 60" in result.err
    assert "--check-timeout" in result.err


def test_the_baseline_is_kept_when_the_run_is_resumed(ralph: Ralph, agent: Agent) -> None:
    fixes_later = agent("if [ $N = 2 ]; then touch made; fi; echo COMPLETE")
    assert ralph("loop", "x", "--check", "test -e made", "-m", "1", "--agent", fixes_later).code == 1
    result = ralph("resume", "-m", "3", "--json")
    assert result.code == 0
    assert not result.all("baseline")
    assert result.one("run_finished")["reason"] == "1 check passes (1 was red before) and the agent said COMPLETE"


@pytest.mark.parametrize("preset", ["guardrails", "goal", "promise", "supervise"])
def test_other_presets_have_a_baseline_only_if_asked(ralph: Ralph, agent: Agent, preset: str) -> None:
    words = ("run", "x", "--preset", preset, "--check", "true", "-m", "1", "--restart-delay", "0", "--json")
    assert not ralph(*words, "--agent", agent("echo hm")).all("baseline")
    assert ralph(*words, "--baseline", "--agent", agent("echo hm")).one("baseline")


def test_the_setting_turns_the_baseline_off(ralph: Ralph, agent: Agent, workspace: Path) -> None:
    (workspace / ".ralph").mkdir()
    (workspace / ".ralph/settings.json").write_text(json.dumps({"baseline": False}))
    result = ralph("loop", "x", "--check", "true", "--json", "--agent", agent(FIXES))
    assert not result.all("baseline")


def test_without_a_baseline_a_check_that_never_starts_ends_the_run_after_two_turns(ralph: Ralph, agent: Agent) -> None:
    fake = agent("echo $N; echo; echo '<response>DONE</response>'")
    result = ralph("run", "x", "--check", "no-such-command-here", "--json", "--agent", fake)
    assert result.code == 2
    assert len(result.all("agent_started")) == 2
    reason = result.one("run_finished")["reason"]
    assert 'the check "no-such-command-here" cannot start: command not found (exit code 127) twice in a row' in reason
    result = ralph("run", "x", "--check", "no-such-command-here", "--no-baseline", "-m", "3", "--json", "--agent", fake)
    assert result.one("run_finished")["outcome"] == "exhausted"


def test_a_check_that_has_started_once_may_exit_with_127(ralph: Ralph, agent: Agent) -> None:
    result = ralph(
        "run",
        "x",
        "--check",
        "test -e ok; exit $((127 * (RALPH_ITERATION > 1)))",
        "-m",
        "4",
        "--json",
        "--agent",
        agent("echo $N"),
    )
    assert result.one("run_finished")["outcome"] == "exhausted"


class Echo:
    def run(self, prompt: str) -> str:
        return "COMPLETE"


def test_the_python_api_has_a_baseline_only_if_asked(workspace: Path) -> None:
    config = RalphConfig(task="x", checks=["no-such-command-here"], max_iterations=3)
    result = RalphLoop(config, Echo, workspace).run()
    assert (result.stop_reason, result.total_iterations) == ("max_iterations", 3)
    config.baseline = True
    result = RalphLoop(config, Echo, workspace).run()
    assert (result.stop_reason, result.total_iterations) == ("fatal", 0)
