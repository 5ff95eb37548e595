"""Continuing in the agent's own session, and saying so where that cannot be done."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

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


def test_an_agent_that_names_no_session_ends_the_run(ralph: Ralph, agent: Agent) -> None:
    agent("echo '" + json.dumps({"type": "result", "is_error": False, "result": "hm"}) + "'", "claude")
    result = ralph("run", "goal", "--session", "continue", "--agent", "claude", "--json")
    assert (result.code, result.one("run_finished")["outcome"]) == (2, "fatal")
    assert "no session" in result.last_line


def test_a_turn_that_fails_before_naming_a_session_is_repeated(ralph: Ralph, agent: Agent) -> None:
    agent(f"if [ $N = 1 ]; then kill -9 $$; else {stream('<promise>DONE</promise>', 's-1')}; fi", "claude")
    result = ralph("run", "goal", "--preset", "promise", "--min-tool-calls", "0", "--agent", "claude", "--json")
    assert (result.code, result.one("run_finished")["iterations"]) == (0, 2)


def test_an_agent_without_headless_resume_is_refused(ralph: Ralph, agent: Agent) -> None:
    agent("echo", "cline")
    result = ralph("run", "goal", "--session", "continue", "--agent", "cline")
    assert result.code == 2
    assert "cline cannot continue a session" in result.err


def test_a_custom_command_may_run_with_session_continue(
    ralph: Ralph, agent: Agent, prompts: Callable[..., list[str]]
) -> None:
    fake = agent('if [ $N = 2 ]; then touch work; echo "<promise>DONE</promise>"; else echo no; fi')
    assert ralph("run", "goal", "--preset", "promise", "--agent", fake).code == 0
    assert prompts()[1].startswith("You attempted to end the loop")


def lost(known: str, text: str) -> str:
    """An agent that knows one session, and ends with an error if it should continue another one."""
    error = {"type": "result", "subtype": "error_during_execution", "is_error": True, "session_id": "s-9"}
    error |= {"errors": ["No conversation found with session ID: s-1"]}
    asked = f"case \"$*\" in *'--resume {known}'*) : ;; *--resume*) echo '{json.dumps(error)}'; exit 1;; esac"
    return f"{asked}; {stream(text, known)}"


PROMISE = ("--preset", "promise", "--min-tool-calls", "0", "--agent", "claude", "--json")


def test_a_lost_session_is_replaced_by_a_fresh_one(ralph: Ralph, agent: Agent, environment: dict[str, str]) -> None:
    agent(stream("hm", "s-1"), "claude")
    assert ralph("run", "goal", *PROMISE, "-m", "1").code == 1
    agent(lost("s-2", "<promise>DONE</promise>"), "claude")
    resumed = ralph("resume", "-m", "3", "--json")
    assert resumed.code == 0, resumed.err
    assert "the session of claude is lost: it starts a fresh one" in [n["text"] for n in resumed.all("notice")]
    assert resumed.one("iteration_finished")["record"]["turn"]["session"] == "s-2"


REFUSALS = {
    "claude": "error: unknown option '--permission-mode'",
    "codex": "error: unexpected argument '--sandbox' found\n\nFor more information, try '--help'.",
    "copilot": "error: unexpected argument '--no-auto-update' found\n\nUsage: copilot [OPTIONS] [COMMAND]",
    "gemini": "Unknown arguments: approval-mode, approvalMode\nUsage: gemini [options]\n  -h, --help  Show help",
    "qwen": "Unknown arguments: approval-mode, approvalMode\nUsage: qwen [options]\n  -h, --help  Show help  [boolean]",
    "opencode": "opencode run [message..]\n\nOptions:\n  -h, --help  show help  [boolean]",
}
"""What each agent prints about an option that it doesn't have. Those with `-h` print their whole help."""


@pytest.mark.parametrize("name", REFUSALS)
def test_an_agent_that_lacks_an_option_should_be_updated(ralph: Ralph, agent: Agent, name: str) -> None:
    page = REFUSALS[name]
    if "-h," in page:
        page += "".join(f"\n      --option-{number}  does something" for number in range(20))
    agent(f"cat >&2 <<'PAGE'\n{page}\nPAGE\nexit 1", name)
    result = ralph("run", "goal", "--agent", name, "--json")
    assert result.code == 2
    assert re.search("unknown option|unexpected argument|Unknown arguments", result.one("run_finished")["reason"])
    assert any(f"an older {name}? update it: npm install -g" in notice["text"] for notice in result.all("notice"))


@pytest.mark.parametrize("session", ["fresh", "continue"])
def test_a_resumed_run_starts_fresh_or_continues_as_asked(
    ralph: Ralph, agent: Agent, environment: dict[str, str], session: str
) -> None:
    agent(stream("hm", "s-1"), "claude")
    before = {"fresh": "continue", "continue": "fresh"}[session]
    assert ralph("run", "goal", *PROMISE, "-m", "1", "--session", before).code == 1
    agent(stream("<promise>DONE</promise>", "s-1"), "claude")
    assert ralph("resume", "-m", "1", "--session", session).code == 0
    latest = sorted(Path(environment["HOME"]).glob("claude.argv.*"))[-1]
    assert ("--resume" in latest.read_text().split("\n")) == (session == "continue")


@pytest.mark.parametrize("command", ["{}", "{}; exit $?"])
def test_an_agent_that_worked_before_may_be_missing_for_a_moment(
    live: Callable[..., Any], agent: Agent, command: str
) -> None:
    """Its updater moves it away and puts it back."""
    path = agent("if [ $N = 1 ]; then mv $0 $0.new; echo hm; else echo '<response>DONE</response>'; fi")
    run = live("run", "goal", "--agent", command.format(path))
    assert run.until("turn_not_counted")["turn"]["failure"]["kind"] == "transient"
    Path(f"{path}.new").rename(path)
    assert run.end() == 0, run.err


def test_a_missing_agent_that_never_worked_ends_the_run_at_once(ralph: Ralph, agent: Agent) -> None:
    path = agent("echo hm")
    result = ralph("run", "goal", "--agent", f"rm {path}; {path}; exit $?", "--json")
    assert (result.code, result.one("run_finished")["outcome"]) == (2, "fatal")
