"""Every time limit ends the whole tree, says why, and counts as promised."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ralph import RalphConfig, RalphLoop
from ralph.core import limits

Ralph = Callable[..., Any]
Agent = Callable[..., str]
Alive = Callable[[str], list[int]]

# It leaves its group and keeps the pipe open.
ESCAPING = "setsid sh -c 'sleep {0} & wait' & sleep {0}"


@pytest.mark.parametrize(
    ("option", "script", "reason"),
    [
        ("--turn-timeout", "while :; do echo working; sleep 0.1; done", "turn-timeout"),
        ("--idle-timeout", "echo begun; sleep 4711", "idle-timeout"),
    ],
)
def test_a_turn_that_takes_too_long_is_a_failed_iteration(
    ralph: Ralph, agent: Agent, option: str, script: str, reason: str
) -> None:
    fake = agent(f'if [ $N = 1 ]; then {script}; fi; echo "<response>DONE</response>"')
    result = ralph("run", "g", option, "1", "--max-failures", "0", "--json", "--agent", fake)
    assert result.code == 0
    # On a busy machine the second turn may take too long as well: then it is taken again.
    first, *again, last = [turn.get("ended_by", "") for turn in result.all("agent_finished")]
    assert ({first, *again}, last) == ({reason}, "")
    failure = result.all("iteration_finished")[0]["record"]["turn"]["failure"]
    assert reason in failure["reason"]
    assert failure["kind"] == "ordinary"


def test_the_next_prompt_says_that_the_turn_took_too_long(ralph: Ralph, agent: Agent, prompts: Any) -> None:
    fake = agent('if [ $N = 1 ]; then sleep 4711; fi; echo "<response>DONE</response>"')
    ralph("run", "g", "--turn-timeout", "1", "--max-failures", "0", "--agent", fake)
    assert "The previous turn failed: ended by ralph: turn-timeout" in prompts()[1]


def test_output_keeps_a_turn_from_being_idle(ralph: Ralph, agent: Agent) -> None:
    fake = agent('for i in 1 2 3 4 5 6 7 8 9; do echo $i; sleep 0.6; done; echo; echo "<response>DONE</response>"')
    assert ralph("run", "g", "--idle-timeout", "5", "--agent", fake).code == 0


INIT = {"type": "system", "subtype": "init", "session_id": "s"}
CALL = {"type": "tool_use", "id": "t", "name": "Bash", "input": {"command": "make"}}
CALLED = {"type": "assistant", "message": {"content": [CALL]}}
DONE = {"type": "result", "subtype": "success", "result": "<response>DONE</response>"}


def saying(*lines: dict[str, Any]) -> str:
    return "\n".join(f"echo '{json.dumps(line)}'" for line in lines)


def test_an_agent_that_waits_for_its_own_tool_is_not_idle(ralph: Ralph, agent: Agent) -> None:
    agent(f"{saying(INIT, CALLED)}\nsleep 6\n{saying(DONE)}", "claude")
    assert ralph("run", "g", "--agent", "claude", "--idle-timeout", "5", "-m", "1").code == 0
    agent(f"{saying(INIT)}\nsleep 4711", "claude")
    result = ralph("run", "g", "--agent", "claude", "--idle-timeout", "1", "-m", "1", "--json")
    assert result.one("agent_finished")["ended_by"] == "idle-timeout"


@pytest.mark.parametrize(
    ("name", "script", "ended_by"),
    [
        ("claude", saying(INIT), "idle-timeout"),
        ("claude", ":", "idle-timeout"),
        ("plain", "echo begun", "turn-timeout"),
        ("opencode", ":", "turn-timeout"),
        ("speaks-claude", saying(INIT), "idle-timeout"),
    ],
)
def test_the_default_idle_timeout_applies_to_agents_that_report_everything(
    agent: Agent, workspace: Path, monkeypatch: pytest.MonkeyPatch, name: str, script: str, ended_by: str
) -> None:
    """Half an hour, made shorter for the test."""
    assert limits.IDLE_TIMEOUT == 1800
    monkeypatch.setattr(limits, "IDLE_TIMEOUT", 0.4)
    (workspace / ".ralph").mkdir()
    turn = 3 if ended_by == "turn-timeout" else 60
    (workspace / ".ralph" / "settings.json").write_text(f'{{"turnTimeout": {turn}}}')
    config = RalphConfig("t", ["true"], max_iterations=1)
    loop = RalphLoop(config, agent=agent(f"{script}\nsleep 4711", name), workspace_root=workspace)
    assert loop.run().iterations[0].error == f"ended by ralph: {ended_by}"


@pytest.mark.parametrize("option", ["--turn-timeout", "--idle-timeout", "--max-time"])
def test_nothing_of_the_turn_survives_its_time_limit(
    ralph: Ralph, agent: Agent, alive: Alive, nap: str, option: str
) -> None:
    fake = agent(ESCAPING.format(nap))
    result = ralph("run", "g", option, "4", "--max-failures", "1", "--json", "--agent", fake)
    assert result.code == 1
    assert result.one("agent_finished")["leftovers"] > 0
    assert not alive(nap)


def test_the_total_time_ends_the_run_in_the_middle_of_a_turn(ralph: Ralph, agent: Agent) -> None:
    result = ralph("run", "g", "--max-time", "5", "--check", "touch checked", "--json", "--agent", agent("sleep 4711"))
    assert result.code == 1
    assert result.one("run_finished")["outcome"] == "timeout"
    assert result.one("agent_finished")["ended_by"] == "max-time"
    assert result.one("iteration_finished")["record"]["checked"] is False
    assert "check_started" not in result.kinds(), "there was no time left for checks"


def test_the_total_time_ends_the_run_in_the_middle_of_a_check(
    ralph: Ralph, agent: Agent, alive: Alive, nap: str
) -> None:
    fake = agent('echo "<response>DONE</response>"')
    result = ralph("run", "g", "--max-time", "6", "--check", f"sleep {nap}", "--json", "--agent", fake)
    assert result.code == 1
    assert result.one("run_finished")["outcome"] == "timeout"
    assert result.one("check_finished")["passed"] is False
    assert not alive(nap)


def test_a_check_that_takes_too_long_has_failed_and_leaves_nothing(
    ralph: Ralph, agent: Agent, alive: Alive, nap: str, prompts: Any
) -> None:
    fake = agent('if [ $N = 2 ]; then touch quick; fi; echo "<response>DONE</response>"')
    check = f"test -f quick || {{ {ESCAPING.format(nap)}; }}"
    result = ralph("run", "g", "--check-timeout", "2", "--check", check, "--json", "--agent", fake)
    assert result.code == 0
    first, *_, last = result.all("check_finished")  # on a busy machine another one may take too long
    assert (first["passed"], first["timeout"], last["passed"]) == (False, 2.0, True)
    assert "Timeout (2s)" in prompts()[1]
    assert not alive(nap)


def test_a_background_child_that_holds_stdout_does_not_hang_the_turn(
    ralph: Ralph, agent: Agent, alive: Alive, nap: str
) -> None:
    fake = agent(f'sleep {nap} & echo "<response>DONE</response>"')
    result = ralph("run", "g", "--json", "--agent", fake)
    assert result.code == 0
    assert result.one("agent_finished")["leftovers"] == 1
    assert not alive(nap)


def test_a_child_may_be_kept(ralph: Ralph, agent: Agent, alive: Alive, nap: str, eventually: Any) -> None:
    fake = agent(f'sleep {nap} & echo "<response>DONE</response>"')
    assert ralph("run", "g", "--keep-children", "--agent", fake).code == 0
    eventually(lambda: len(alive(nap)) == 1)  # it may not yet have become what it is to be


def test_the_time_limit_also_counts_waits_between_turns(ralph: Ralph, agent: Callable[..., str]) -> None:
    fake = agent("echo 'API Error: 529 overloaded_error' >&2; exit 1")
    result = ralph("run", "g", "--max-time", "5", "--json", "--agent", fake)
    assert result.code == 1
    ended = result.one("run_finished")
    assert ended["outcome"] == "timeout"
    assert ended["duration_s"] < 60
