"""The contract's first sentence: one engine, five presets, and every option works with every preset."""

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Ralph = Callable[..., Any]
Agent = Callable[..., str]
Git = Callable[..., str]

CLAIMS = {
    "guardrails": "echo '<response>DONE</response>'",
    "goal": "echo STOP",
    "checks": "echo COMPLETE",
    "promise": "echo '<promise>DONE</promise>'",
    "supervise": "touch DONE",
}
OPTIONS = shlex.split(
    "--yolo --agent-arg=extra --session=fresh --ultrawork --tasks=TODO.md --protect=README "
    "--min-tool-calls=1 --on-promise-no-work=reject --strict-signal --check=true --check-timeout=30s -m 3 --max-cost=9 "
    "--max-tokens=999 --max-time=1h30m --turn-timeout=5m --idle-timeout=90 --stall=2 --max-failures=2 "
    "--restart-delay=0.01 --on-limit=stop --grace=5 --worktree --commit --keep-children --max-log=1MB --json --verbose "
    "--no-stream-agent-output --no-color"
)


@pytest.mark.parametrize("preset", CLAIMS)
def test_every_option_works_with_every_preset(
    ralph: Ralph, agent: Agent, repository: Path, git: Git, environment: dict[str, str], preset: str
) -> None:
    (repository / "TODO.md").write_text("- [x] all of it\n")
    git("add", "-A")
    git("commit", "-qm", "second")
    message, work = "echo Work on it", f"echo $N > work; {CLAIMS[preset]}"
    fake = agent(f'case "$PROMPT" in *"commit message"*) {message};; *) {work};; esac')
    result = ralph("run", "the goal", "--preset", preset, *OPTIONS, "--agent", fake)
    assert result.code == 0, result.err
    finished = result.one("run_finished")
    assert (finished["outcome"], finished["verified"], finished["iterations"]) == ("done", True, 1)
    assert git("log", "--format=%s", f"main..{finished['branch']}").splitlines() == ["Work on it"]
    assert git("status", "--porcelain") == ""
    assert Path(environment["HOME"], "fake-agent.argv.1").read_text() == "extra\n"


@pytest.mark.parametrize("preset", CLAIMS)
def test_in_every_preset_a_claim_is_refused_while_a_gate_objects(ralph: Ralph, agent: Agent, preset: str) -> None:
    words = ("--preset", preset, "--check", "test $RALPH_ITERATION = 2", "--no-stall", "--restart-delay", "0", "--json")
    result = ralph("run", "the goal", *words, "--min-tool-calls", "0", "--agent", agent(CLAIMS[preset]))
    assert result.code == 0
    assert [refused["gate"] for refused in result.all("claim_rejected")] == ["checks"]
    assert result.one("run_finished")["iterations"] == 2


@pytest.mark.parametrize("preset", ["guardrails", "goal", "checks", "promise"])
def test_in_every_preset_a_repeated_claim_is_not_a_stall_if_several_are_required(
    ralph: Ralph, agent: Agent, preset: str
) -> None:
    fake = agent("cat > /dev/null; echo done; printf '\\nready\\n'")
    words = ("--preset", preset, "--until", "suffix:ready", "--min-tool-calls", "0", "--agent", fake)
    result = ralph("run", "the goal", *words, "--claims", "3", "--check", "true")
    assert result.code == 0, result.err
    assert "3 claims in a row" in result.out + result.err
    assert "claim 2 of 3" in result.out + result.err
    assert "after 3 iterations" in result.err + result.out


@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_more_claims_than_iterations_are_refused_at_the_start(
    ralph: Ralph, agent: Agent, more: tuple[str, ...]
) -> None:
    result = ralph("run", "x", "--claims", "4", "-m", "3", "--agent", agent("exit 9"), *more)
    assert result.code == 2
    assert "4 claims in a row need as many iterations, and there are 3 at most" in result.err


def test_one_shot_needs_one_claim_whatever_the_settings_say(ralph: Ralph, agent: Agent) -> None:
    assert ralph("run", "x", "--ralph", "0", "--claims", "2", "--agent", agent("echo hello")).code == 0


@pytest.mark.parametrize(
    ("preset", "text"),
    [
        ("guardrails", "I will not output <response>DONE</response> yet"),
        ("goal", "please do not STOP yet"),
        ("goal", "output STOP only when everything works"),
        ("checks", "The work is not COMPLETE"),
        ("promise", "I will not output `<promise>DONE</promise>` yet"),
    ],
)
def test_in_every_preset_talking_about_a_claim_does_not_count(
    ralph: Ralph, agent: Agent, preset: str, text: str
) -> None:
    fake = agent(f"cat <<'END'\n{text}\nEND")
    words = ("--preset", preset, "--check", "true", "--min-tool-calls", "0", "-m", "1", "--agent", fake)
    assert ralph("run", "the goal", *words).code == 1
    assert ralph("run", "the goal", *words, "--claim-anywhere").code == 0
