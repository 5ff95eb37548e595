"""§7: checks, the names of their logs, and their timeouts."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ralph.verdict.checks import slugs

Ralph = Callable[..., Any]
Agent = Callable[..., str]
Prompts = Callable[..., list[str]]


def test_no_two_checks_share_a_log() -> None:
    assert slugs(["a && b_1", "a & b", "a || b"]) == ["a_b_1", "a_b", "a_b_2"]
    assert slugs(["x", "x", "x"]) == ["x", "x_1", "x_2"]
    assert slugs(["./mvnw clean install -T 2C", "!!!", "a" * 60]) == ["mvnw_clean_install_T_2C", "check", "a" * 50]
    assert slugs(["a_1", "a", "a", "a"]) == ["a_1", "a", "a_2", "a_3"]
    assert len(set(slugs(["x"] * 100_000))) == 100_000, "quickly, even for many commands"


def test_a_check_that_takes_too_long_says_timeout_everywhere(
    ralph: Ralph, agent: Agent, workspace: Path, prompts: Prompts
) -> None:
    checks = ("--check", "echo before; sleep 60", "--check-timeout", "0.2", "-m", "2", "--max-failures", "0")
    ralph("loop", "t", *checks, "--agent", agent("echo $N"))
    assert "sleep 60: Timeout (0.2s)" in prompts()[1]
    assert "sleep 60: FAIL — Timeout (0.2s)" in (workspace / ".ralph" / "progress.md").read_text()
    result = ralph("run", "-p", "t", *checks, "--json", "--agent", agent("echo $N", "other"))
    assert 't\n\nGuardrail "echo before; sleep 60" failed: Timeout (0.2s).\nOutput file:' in prompts("other")[1]
    assert result.all("check_finished")[0]["timeout"] == 0.2


def test_every_check_runs_in_order_even_after_a_failure(ralph: Ralph, agent: Agent, workspace: Path) -> None:
    checks = [word for name in "abc" for word in ("--check", f"echo {name} >> order; exit 3")]
    assert ralph("run", "-p", "x", "-m", "1", *checks, "--agent", agent("echo hi")).code == 1
    assert (workspace / "order").read_text().split() == ["a", "b", "c"]


def test_a_run_keeps_the_checks_that_it_started_with(ralph: Ralph, agent: Agent, workspace: Path) -> None:
    (workspace / ".ralph").mkdir()
    fake = agent("echo '{}' > .ralph/settings.json; echo '<response>DONE</response>'")
    (workspace / ".ralph" / "settings.json").write_text(
        json.dumps({"agent": {"command": fake}, "guardrails": [{"command": "false"}], "maximumIterations": 2})
    )
    assert ralph("run", "-p", "x").code == 1


def test_binary_output_of_a_check_is_harmless(ralph: Ralph, agent: Agent, prompts: Prompts) -> None:
    ralph("run", "-p", "x", "-m", "2", "--check", "printf 'a\\377b\\033[31m'; false", "--agent", agent("echo $N"))
    assert prompts()[1].endswith("Output (truncated):\na\ufffdb")


def test_a_check_that_a_signal_ends_has_the_exit_code_of_a_shell(ralph: Ralph, agent: Agent) -> None:
    result = ralph("run", "g", "--agent", agent("echo hello"), "--check", "kill -9 $$", "-m", "1", "--json")
    assert result.one("check_finished")["exit_code"] == 137


def test_checks_run_one_at_a_time(ralph: Ralph, agent: Agent) -> None:
    check = "mkdir here || exit 1; sleep 0.1; rmdir here"
    words = ("--check", check, "--check", f"{check} ", "--check", f" {check}")
    assert ralph("loop", "t", *words, "-m", "1", "--agent", agent("echo COMPLETE")).code == 0


def test_a_timeout_ends_only_the_check_that_takes_too_long(ralph: Ralph, agent: Agent) -> None:
    checks = ("--check", "sleep 60", "--check", "echo fine; kill -9 $$", "--check-timeout", "1s")
    words = ("-m", "1", "--no-baseline", "--json")
    result = ralph("loop", "t", *checks, *words, "--agent", agent("echo COMPLETE"))
    slow, other = result.all("check_finished")
    assert (slow["timeout"], other.get("timeout"), other["exit_code"]) == (1, None, 137)


def test_with_fail_fast_no_check_starts_after_a_failure(ralph: Ralph, agent: Agent, workspace: Path) -> None:
    checks = [word for name in "abcd" for word in ("--check", f"echo {name} >> order; test {name} != b")]
    result = ralph("run", "-p", "x", "-m", "1", *checks, "--fail-fast", "--json", "--agent", agent("echo hi"))
    assert (workspace / "order").read_text().split() == ["a", "b"]
    assert [check["passed"] for check in result.all("check_finished")] == [True, False]
    assert result.code == 1
