"""What an agent says about its own trouble decides what happens next: wait, retry, switch, or stop at once."""

import json
import signal
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ralph.core.model import Failure, Outcome, Run, Snapshot, Turn, Wait
from ralph.loop import Parts, run_loop
from ralph.run.policy import make_policy
from ralph.settings import Settings
from ralph.testing import FakeWorkspace, ScriptedAgent

Ralph = Callable[..., Any]
Agent = Callable[..., str]
Start = Callable[..., Any]

DONE = "echo '{}'".format(
    json.dumps({"type": "result", "subtype": "success", "is_error": False, "result": "<response>DONE</response>"})
)
CODEX_SAYS = [
    {"type": "thread.started", "thread_id": "t"},
    {"type": "item.completed", "item": {"id": "1", "type": "agent_message", "text": "{}"}},
    {"type": "turn.completed", "usage": {"input_tokens": 1}},
]


def limited(resets_at: float) -> str:
    """A script that prints what Claude Code prints when a subscription's limit is reached, and fails as it does."""
    said = "You've hit your limit · resets 7:17am (UTC)"
    lines = [
        {"type": "system", "subtype": "init", "session_id": "s"},
        {"type": "rate_limit_event", "rate_limit_info": {"status": "rejected", "resetsAt": int(resets_at)}},
        {"type": "assistant", "error": "rate_limit", "message": {"content": [{"type": "text", "text": said}]}},
        {"type": "result", "subtype": "success", "is_error": True, "api_error_status": 429, "result": said},
    ]
    return "cat <<'END'\n" + "\n".join(map(json.dumps, lines)) + "\nEND\nexit 1"


def codex(text: str) -> str:
    return "cat <<'END'\n" + "\n".join(map(json.dumps, CODEX_SAYS)).replace("{}", text) + "\nEND"


def recorded(streams: Path, name: str, code: int = 1) -> str:
    return f"cat '{streams / name}'; exit {code}"


def test_a_limit_is_waited_out_until_the_stated_moment_and_is_not_an_iteration(ralph: Ralph, agent: Agent) -> None:
    began = int(time.time())
    in_a_moment = limited(424242).replace("'END'", "END").replace("424242", "$(($(date +%s) + 3))")
    agent(f"if [ $N = 1 ]; then\n{in_a_moment}\nfi; {DONE}", "claude")
    result = ralph("run", "g", "--agent", "claude", "--json")
    assert result.code == 0
    waiting = result.one("waiting")
    assert "hit your limit" in waiting["reason"]
    resets_at = result.one("turn_not_counted")["turn"]["failure"]["resets_at"]
    assert began + 3 <= resets_at <= waiting["until"] <= resets_at + 10
    assert result.one("run_finished")["iterations"] == 1
    assert time.time() >= resets_at


def test_a_limit_may_state_a_time_of_day(live: Start, agent: Agent, streams: Path) -> None:
    agent(recorded(streams, "codex/usage-limit.ndjson"), "codex")
    run = live("run", "g", "--agent", "codex", TZ="UTC")
    until = datetime.fromtimestamp(run.until("waiting")["until"], UTC)
    assert (until.hour, until.minute) == (7, 20)
    assert run.end(signal.SIGINT) == 130


def test_a_resumed_run_waits_for_the_rest_of_the_limit(live: Start, agent: Agent) -> None:
    resets_at = int(time.time()) + 3600
    agent(limited(resets_at), "claude")
    run = live("run", "g", "--agent", "claude")
    until = run.until("waiting")["until"]
    run.end(signal.SIGKILL)
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 130), (signal.SIGHUP, 130)):
        run = live("resume")
        waiting = run.until("waiting")
        assert abs(waiting["until"] - until) < 1
        assert "agent_started" not in run.kinds(), "nobody asks an agent that is known to be limited"
        assert run.end(number) == code


def test_on_limit_stop_ends_the_run_with_the_reason(ralph: Ralph, agent: Agent) -> None:
    agent(limited(time.time() + 3600), "claude")
    result = ralph("run", "g", "--agent", "claude", "--on-limit", "stop", "--json")
    assert (result.code, result.one("run_finished")["outcome"]) == (1, "failed")
    assert "hit your limit" in result.last_line


def test_a_limit_beyond_the_total_time_is_not_waited_for(ralph: Ralph, agent: Agent) -> None:
    agent(limited(time.time() + 3600), "claude")
    result = ralph("run", "g", "--agent", "claude", "--max-time", "10m", "--json")
    assert (result.code, result.one("run_finished")["outcome"]) == (1, "timeout")
    assert "waiting" not in result.kinds()


def test_on_limit_switch_continues_with_another_agent(ralph: Ralph, agent: Agent, prompts: Any) -> None:
    agent(limited(time.time() + 3600), "claude")
    agent(f"if [ $N = 3 ]; then\n{codex('<response>DONE</response>')}\nelse\n{codex('working')}\nfi", "codex")
    words = ("--agent", "claude", "--on-limit", "switch", "--fallback-agent", "codex", "--json")
    result = ralph("run", "g", *words)
    assert result.code == 0
    assert [turn["agent"] for turn in result.all("agent_started")] == ["claude", "codex", "codex", "codex"]
    assert len(prompts("claude")) == 1
    assert "waiting" not in result.kinds()


def test_if_all_agents_are_limited_the_run_waits_for_the_first(live: Start, agent: Agent) -> None:
    soon = datetime.now(UTC) + timedelta(minutes=30)
    said = {"type": "turn.failed", "error": {"message": f"You’ve hit your usage limit. try again at {soon:%I:%M %p}."}}
    agent(limited(time.time() + 7200), "claude")
    agent(f"echo '{json.dumps(said)}'; exit 1", "codex")
    run = live("run", "g", "--agent", "claude", "--on-limit", "switch", "--fallback-agent", "codex", TZ="UTC")
    assert abs(run.until("waiting")["until"] - soon.timestamp()) < 70
    assert run.end(signal.SIGINT) == 130


def test_on_limit_switch_needs_another_agent(ralph: Ralph, agent: Agent) -> None:
    result = ralph("run", "g", "--agent", agent("echo"), "--on-limit", "switch")
    assert result.code == 2
    assert 'needs an agent in "then"' in result.err


def test_a_temporary_failure_is_retried_and_is_not_an_iteration(ralph: Ralph, agent: Agent, streams: Path) -> None:
    agent(f"if [ $N = 1 ]; then {recorded(streams, 'claude/e529.ndjson')}; fi; {DONE}", "claude")
    result = ralph("run", "g", "--agent", "claude", "--json")
    assert result.code == 0
    assert result.one("turn_not_counted")["turn"]["failure"]["kind"] == "transient"
    assert result.one("run_finished")["iterations"] == 1


def test_a_lasting_failure_ends_the_run_early_with_its_reason() -> None:
    """The same fault again and again; time passes as the loop waits."""
    now, waits = 1000.0, list[float]()

    def wait(asked: Wait, run: Run) -> None:
        nonlocal now
        now += asked.seconds
        waits.append(asked.seconds)

    class Overloaded(ScriptedAgent):
        def take_turn(self, prompt: str, run: Run, purpose: str = "work") -> Turn:
            super().take_turn(prompt, run, purpose)
            return Turn(text="", failure=Failure("transient", "529 Overloaded"), ended_at=now)

    class Clock(FakeWorkspace):
        def look(self, run: Run) -> Snapshot:
            return Snapshot(at=now, elapsed=now - 1000)

    agent = Overloaded("")
    rules = make_policy(Settings()).rules
    run, stop = run_loop(
        Parts(agent=agent, workspace=Clock(), rules=rules, compose=lambda run, notes: "p", wait=wait),
        Run(id="r"),
    )
    assert (stop.outcome, len(run.iterations)) == (Outcome.FAILED, 0)
    assert "529 Overloaded" in stop.reason
    assert 3 < len(agent.prompts) <= 10
    assert waits[-1] > waits[0], "the pauses grow"


@pytest.mark.parametrize("name", ["claude/e401.ndjson", "codex/e401.ndjson", "opencode/e401.ndjson"])
def test_a_bad_login_stops_at_once(ralph: Ralph, agent: Agent, streams: Path, name: str) -> None:
    program = name.partition("/")[0]
    agent(recorded(streams, name), program)
    result = ralph("run", "g", "--agent", program, "--json")
    assert (result.code, result.one("run_finished")["outcome"]) == (2, "fatal")
    assert len(result.all("agent_started")) == 1


def test_a_run_whose_turns_all_fail_is_not_done(ralph: Ralph, agent: Agent) -> None:
    result = ralph("run", "g", "--json", "--agent", agent('echo "<response>DONE</response>"; exit 1'))
    assert (result.code, result.one("run_finished")["outcome"]) == (1, "failed")
    assert result.one("run_finished")["iterations"] == 3
    assert "exit code 1" in result.last_line


@pytest.mark.parametrize(
    "text",
    [
        "I added the package ratelimit and a test for 429 Too Many Requests. <response>DONE</response>",
        "The usage limit reached page now says: You've hit your limit. <response>DONE</response>",
        "Fixed: API Error: 529 Overloaded is retried now. <response>DONE</response>",
    ],
)
def test_an_answer_about_limits_is_not_a_limit(ralph: Ralph, agent: Agent, text: str) -> None:
    lines = [
        {"type": "user", "message": {"content": [{"type": "tool_result", "tool_use_id": "1", "content": text}]}},
        {"type": "assistant", "message": {"content": [{"type": "text", "text": text}]}},
        {"type": "result", "subtype": "success", "is_error": False, "result": text},
    ]
    agent("cat <<'END'\n" + "\n".join(map(json.dumps, lines)) + "\nEND", "claude")
    result = ralph("run", "g", "--agent", "claude", "--json")
    assert result.code == 0
    assert "turn_not_counted" not in result.kinds()


def test_a_plain_agent_may_report_a_limit_in_words(ralph: Ralph, agent: Agent) -> None:
    fake = agent('echo "diff: + import ratelimit  # rate limit exceeded"; echo; echo "<response>DONE</response>"')
    assert ralph("run", "g", "--agent", fake).code == 0
