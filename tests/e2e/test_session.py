"""Going on in the agent's own session, and saying so where that cannot be done."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Ralph = Callable[..., Any]
Agent = Callable[..., str]


def stream(text: str, session: str) -> str:
    result = {"type": "result", "subtype": "success", "is_error": False, "result": text, "session_id": session}
    return f"echo '{json.dumps(result)}'"


def test_the_session_that_the_agent_names_is_continued(ralph: Ralph, agent: Agent, environment: dict[str, str]) -> None:
    agent(f"if [ $N = 2 ]; then {stream('<promise>DONE</promise>', 's-1')}; else {stream('hm', 's-1')}; fi", "claude")
    result = ralph("run", "goal", "--preset", "promise", "--min-tool-calls", "0", "--agent", "claude", "--json")
    assert result.code == 0
    second = Path(environment["HOME"], "claude.argv.2").read_text().split("\n")
    assert second[second.index("--resume") + 1] == "s-1"


def test_an_agent_that_names_no_session_is_not_started_afresh_in_silence(ralph: Ralph, agent: Agent) -> None:
    agent("echo '" + json.dumps({"type": "result", "is_error": False, "result": "hm"}) + "'", "claude")
    result = ralph("run", "goal", "--session", "continue", "--agent", "claude", "--json")
    assert (result.code, result.one("run_finished")["outcome"]) == (2, "fatal")
    assert "no session" in result.last_line


def test_a_turn_that_failed_before_it_named_a_session_is_taken_again(ralph: Ralph, agent: Agent) -> None:
    agent(f"if [ $N = 1 ]; then kill -9 $$; else {stream('<promise>DONE</promise>', 's-1')}; fi", "claude")
    result = ralph("run", "goal", "--preset", "promise", "--min-tool-calls", "0", "--agent", "claude", "--json")
    assert (result.code, result.one("run_finished")["iterations"]) == (0, 2)


def test_an_agent_without_headless_resume_is_refused(ralph: Ralph, agent: Agent) -> None:
    agent("echo", "cline")
    result = ralph("run", "goal", "--session", "continue", "--agent", "cline")
    assert result.code == 2
    assert "cline cannot continue a session" in result.err


def test_a_command_of_ones_own_has_no_session_to_lose(
    ralph: Ralph, agent: Agent, prompts: Callable[..., list[str]]
) -> None:
    fake = agent('if [ $N = 2 ]; then touch work; echo "<promise>DONE</promise>"; else echo no; fi')
    assert ralph("run", "goal", "--preset", "promise", "--agent", fake).code == 0
    assert prompts()[1].startswith("You attempted to end the loop")
