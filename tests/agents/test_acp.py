"""ACP agents: recordings of nine real ones, the policy for permissions, and the client with a scripted agent."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ralph.acp import __main__ as client
from ralph.acp.__main__ import choose_mode, choose_option, is_allowed
from ralph.agents import acp, find
from ralph.agents.protocol import TurnRequest
from ralph.core.events import AgentEvent, AgentText, AgentUnknown, PermissionDenied, TodoUpdated, ToolStarted
from ralph.core.model import Exit, Turn
from ralph.errors import UserError

RECORDINGS = Path(__file__).parent / "acp"
SCRIPTED = Path(__file__).parent / "acp_agent.py"
AGENTS = ("claude", "codex", "copilot", "gemini", "kimi", "opencode", "pi", "qwen", "vibe")
ANSWER = "All done.\n<response>DONE</response>"


def request(agent: str = "claude", **fields: Any) -> TurnRequest:
    return TurnRequest(prompt="go", prompt_file="", command=(f"acp:{agent}",), **fields)


class Replay:
    """Return the first turn of a recording: the client's lines, and the result of the reader."""

    def __init__(self, agent: str, scenario: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lines: list[bytes] = []
        monkeypatch.setattr(client, "report", lambda line: self.lines.append(msgspec.json.encode(line)))
        connection = client.Connection(["agent"], "default", ["WORKSPACE"])
        monkeypatch.setattr(connection, "_send", lambda message: None)
        self._is_answered, methods, prompts = False, dict[object, str](), 0
        for row in map(json.loads, (RECORDINGS / agent / f"{scenario}.ndjson").read_text().splitlines()):
            line = row["line"]
            if row["from"] == "client" and isinstance(line, dict) and "method" in line:
                prompts += line["method"] == "session/prompt"
                methods[line.get("id")] = line["method"]
            elif row["from"] == "agent" and isinstance(line, dict) and "method" in line and prompts == 1:
                connection._handle(line)
            elif row["from"] == "agent" and isinstance(line, dict) and prompts <= 1:
                self._answer(methods.get(line.get("id"), ""), line)
        self.parser = acp.parser(request(agent))
        self.events: list[AgentEvent] = [event for line in self.lines for event in self.parser.feed(line)]

    def _answer(self, method: str, line: dict[str, Any]) -> None:
        result = line.get("result", {})
        if "error" in line and method in ("session/new", "session/prompt"):
            client.report({"type": "error", **line["error"]})
            self._is_answered = True
        elif method == "initialize":
            client.report({"type": "agent", "info": result.get("agentInfo")})
        elif method == "session/new":
            client.report({"type": "session", "id": result.get("sessionId")})
        elif method == "session/prompt":
            client.report({"type": "response", **result})
            self._is_answered = True

    def turn(self) -> Turn:
        code = 0 if self.parser.trouble is None else 1
        ended = Exit(code=code, at=0.0, duration=1.0) if self._is_answered else None
        return self.parser.turn(ended or Exit(code=-9, at=0.0, duration=75.0, ended_by="idle"))


@pytest.fixture
def replay(monkeypatch: pytest.MonkeyPatch):
    return lambda agent, scenario: Replay(agent, scenario, monkeypatch)


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("scenario", ["hello", "tool"])
def test_the_final_text_of_every_agent_is_its_last_message(replay, agent: str, scenario: str) -> None:
    played = replay(agent, scenario)
    turn = played.turn()
    assert (turn.text, turn.failure) == (ANSWER, None)
    assert turn.session
    assert not [event for event in played.events if isinstance(event, AgentUnknown)]


# Tool calls, and how many of them failed. Gemini and Vibe don't report that a command exited with 3.
CALLS = {
    "claude": (3, 1),
    "codex": (3, 1),
    "copilot": (3, 1),
    "gemini": (4, 0),
    "kimi": (3, 3),
    "opencode": (4, 1),
    "pi": (3, 1),
    "qwen": (3, 3),
    "vibe": (2, 0),
}


@pytest.mark.parametrize("agent", AGENTS)
def test_tool_calls_and_their_success_are_counted(replay, agent: str) -> None:
    played = replay(agent, "tool")
    assert (played.turn().tool_calls, played.parser.tool_errors) == CALLS[agent]


TOKENS = {  # input, output, cache read, of the `tool` recording
    "claude": (5000, 250, 1000),
    "codex": (3200, 200, 800),
    "copilot": (3200, 200, 800),
    "gemini": (5000, 250, 0),
    "kimi": (0, 0, 0),
    "opencode": (800, 50, 200),
    "pi": (0, 0, 0),
    "qwen": (3200, 200, 800),
    "vibe": (3200, 200, 800),
}
COSTS = {"claude": 0.0228, "opencode": 0.01575, "vibe": 0.015}


@pytest.mark.parametrize("agent", AGENTS)
def test_tokens_and_cost_come_from_the_protocol(replay, agent: str) -> None:
    usage = replay(agent, "tool").turn().usage
    assert (usage.input_tokens, usage.output_tokens, usage.cache_read_tokens) == TOKENS[agent]
    assert usage.cost_usd == COSTS.get(agent)


FAILURES = {
    "e401": dict.fromkeys(("claude", "codex", "copilot", "gemini", "kimi", "opencode", "qwen", "vibe"), "fatal")
    | {"pi": "ordinary", "auggie": "fatal"},
    "e429": {"claude": "limit", "codex": "limit", "copilot": "limit", "vibe": "limit", "pi": "transient"},
    "e529": {"claude": "transient", "codex": "transient", "copilot": "transient", "pi": "transient"},
    "cut": {"codex": "transient", "copilot": "transient", "pi": "transient", "qwen": "transient"},
    "hello": {"auggie": "fatal", "cline": "fatal", "droid": "fatal"},
}
ROWS = [(agent, scenario, kind) for scenario, rows in FAILURES.items() for agent, kind in rows.items()]


@pytest.mark.parametrize(("agent", "scenario", "kind"), [row for row in ROWS if row[:2] != ("auggie", "e401")])
def test_a_failed_request_has_the_right_kind_and_no_answer(replay, agent: str, scenario: str, kind: str) -> None:
    turn = replay(agent, scenario).turn()
    assert turn.failure is not None
    assert (turn.failure.kind, turn.text) == (kind, "")


def test_a_stated_reset_time_is_read(replay) -> None:
    failure = replay("claude", "e429").turn().failure
    assert failure.resets_at == pytest.approx(90 * 60, abs=120)


@pytest.mark.parametrize("agent", ["gemini", "kimi", "opencode"])
def test_silence_during_a_limit_is_an_ordinary_failure(replay, agent: str) -> None:
    assert replay(agent, "e429").turn().failure.kind == "ordinary"


def test_a_command_is_reported_even_if_its_folder_arrives_first(replay) -> None:
    started = [event.input for event in replay("opencode", "tool").events if isinstance(event, ToolStarted)]
    assert any(summary.startswith("echo one; echo two") for summary in started), started


def test_a_plan_is_a_todo_list(replay) -> None:
    (plan,) = [event for event in replay("claude", "tool").events if isinstance(event, TodoUpdated)]
    assert [(item.text, item.status) for item in plan.items] == [
        ("Write the file", "active"),
        ("Run the test", "pending"),
    ]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_line_makes_the_reader_fail(data: st.DataObject) -> None:
    files = sorted(RECORDINGS.glob("*/tool.ndjson"))
    lines = data.draw(st.sampled_from(files)).read_text().splitlines()
    parser = acp.parser(request())
    for line in lines:
        row = json.loads(line)["line"]
        params = row.get("params", {}) if isinstance(row, dict) else {}
        text = json.dumps({"type": "update", "update": params.get("update", row)})
        at = data.draw(st.integers(0, len(text)))
        mutated = text[:at] + data.draw(st.sampled_from(["", "null", "[]", '"x"', "\x00"])) + text[at + 1 :]
        list(parser.feed(mutated.encode()))
    assert parser.turn(Exit(code=0, at=0.0, duration=1.0))


INSIDE, OUTSIDE = {"path": "/w/a.py"}, {"path": "/etc/passwd"}


@pytest.mark.parametrize(
    ("call", "policy", "allowed"),
    [
        ({"kind": "read"}, "default", True),
        ({"kind": "search"}, "read-only", True),
        ({"kind": "think"}, "read-only", True),
        ({"kind": "execute"}, "default", True),
        ({"kind": "execute"}, "read-only", False),
        ({"kind": "edit", "locations": [INSIDE]}, "default", True),
        ({"kind": "edit", "locations": [INSIDE]}, "read-only", False),
        ({"kind": "edit", "locations": [INSIDE, OUTSIDE]}, "default", False),
        ({"kind": "edit", "content": [{"type": "diff", **OUTSIDE}]}, "default", False),
        ({"kind": "delete", "locations": [{"path": "lent/x"}]}, "default", True),
        ({"kind": "move", "locations": [{"path": "/w/../etc/x"}]}, "default", False),
        ({"kind": "edit"}, "default", False),
        ({"kind": "fetch"}, "default", False),
        ({"kind": "other"}, "default", False),
        ({"kind": "other", "toolCallId": "write_todos__1"}, "default", True),
        ({}, "default", False),
        ({"kind": "fetch"}, "yolo", True),
        ({"kind": "edit", "locations": [OUTSIDE]}, "yolo", True),
    ],
)
def test_each_kind_of_tool_call_is_allowed_or_rejected(call: dict[str, Any], policy: Any, allowed: bool) -> None:
    assert is_allowed(call, policy, ["/w", "/lent"]) is allowed


def test_ralph_never_chooses_to_allow_always() -> None:
    options = [{"optionId": "a", "kind": "allow_always"}, {"optionId": "b", "kind": "allow_once"}]
    assert choose_option([*options, {"optionId": "c", "kind": "allow_once"}], True) == "b"
    assert choose_option(options[:1], True) is None
    assert choose_option(options, False) is None


@pytest.mark.parametrize(
    ("agent", "mode"),
    [
        ("claude", ("session/set_config_option", {"configId": "mode", "value": "bypassPermissions"})),
        ("codex", ("session/set_config_option", {"configId": "mode", "value": "agent-full-access"})),
        ("copilot", ("session/set_config_option", {"configId": "allow_all", "value": "on"})),
        ("gemini", ("session/set_mode", {"modeId": "yolo"})),
        ("vibe", ("session/set_config_option", {"configId": "mode", "value": "auto-approve"})),
        ("pi", None),
    ],
)
def test_yolo_chooses_the_strongest_mode_that_is_offered(agent: str, mode: object) -> None:
    rows = map(json.loads, (RECORDINGS / agent / "tool.ndjson").read_text().splitlines())
    session = next(row["line"]["result"] for row in rows if "sessionId" in row["line"].get("result", {}))
    assert choose_mode(session, "yolo") == mode
    assert choose_mode(session, "default") is None


def test_an_agent_is_started_by_its_name_or_its_command() -> None:
    assert find("acp:claude").NAME == "acp"
    assert acp.start_words("acp:opencode") == ("opencode", "acp")
    assert acp.start_words("acp: my-agent --acp 'a b'") == ("my-agent", "--acp", "a b")
    with pytest.raises(UserError, match="unknown ACP agent: claud"):
        acp.start_words("acp:claud")
    argv = acp.invocation(request(model="m", session="s", looks_only=True, yolo=True, folders=("/x",))).argv
    assert argv[-1] == "claude-agent-acp"
    assert argv[argv.index("--policy") : argv.index("--policy") + 2] == ("--policy", "read-only")


def run_client(behaviour: str, place: Path, *options: str, prompt: str = "the work") -> list[dict[str, Any]]:
    argv = [sys.executable, "-P", "-m", "ralph.acp", *options, "--", sys.executable, str(SCRIPTED), behaviour]
    done = subprocess.run(argv, input=prompt, cwd=place, capture_output=True, text=True, timeout=60)
    assert done.returncode in (0, 1), done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def error_of(lines: list[dict[str, Any]]) -> str:
    return str(lines[-1]["message"]) if lines[-1]["type"] == "error" else ""


def texts(lines: list[dict[str, Any]]) -> str:
    parser = acp.parser(request())
    events = [event for line in lines for event in parser.feed(json.dumps(line).encode())]
    return "\n".join(event.text for event in events if isinstance(event, AgentText))


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        ("prose", "exit code 0 before it answered: Welcome to the old CLI"),
        ("dies", "exit code 3 before it answered"),
        ("login", "Authentication required: run `scripted login`"),
        ("version2", "it speaks ACP version 2; ralph speaks version 1"),
        ("limit", "API Error: 429 try again in 1h30m."),
    ],
)
def test_a_failed_acp_agent_is_reported_in_one_line(tmp_path: Path, behaviour: str, message: str) -> None:
    assert message in error_of(run_client(behaviour, tmp_path))


def test_ralph_gives_up_on_an_acp_command_that_prints_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "START_TIMEOUT", 0.2)
    monkeypatch.setattr(client, "EXIT_GRACE", 0.1)
    agent = client.Connection([sys.executable, str(SCRIPTED), "silent"], "default", [str(tmp_path)])
    agent.start()
    try:
        with pytest.raises(client.TurnFailed, match="does it speak ACP"):
            agent.request("initialize", {}, 0.2)
    finally:
        agent.close()


def test_a_missing_command_is_reported_in_one_line(tmp_path: Path) -> None:
    argv = [sys.executable, "-P", "-m", "ralph.acp", "--", "no-such-agent"]
    done = subprocess.run(argv, input="x", cwd=tmp_path, capture_output=True, text=True)
    assert "cannot start no-such-agent" in done.stdout


@pytest.mark.parametrize(("policy", "option"), [("default", "yes"), ("yolo", "yes"), ("read-only", "no")])
def test_edits_in_the_workspace_are_allowed_once_unless_it_only_reads(tmp_path: Path, policy: str, option: str) -> None:
    lines = run_client("edits", tmp_path, "--policy", policy)
    assert texts(lines).endswith(f"option {option}")
    assert (tmp_path / "made.txt").exists() == (option == "yes")


def test_an_edit_outside_is_rejected_and_reported(tmp_path: Path) -> None:
    lines = run_client("outside", tmp_path)
    parser = acp.parser(request())
    events = [event for line in lines for event in parser.feed(json.dumps(line).encode())]
    assert [event.tool for event in events if isinstance(event, PermissionDenied)] == ["/etc/passwd"]
    assert run_client("outside", tmp_path, "--add-dir", "/etc")[-1]["type"] == "response"


def test_yolo_and_the_model_are_chosen_in_the_session(tmp_path: Path) -> None:
    run_client("answers", tmp_path, "--policy", "yolo", "--model", "large")
    assert (tmp_path / "options").read_text() == "mode=yolo\nmodel=large\n"
    assert "model huge is not offered: it stays at small" in error_of(
        run_client("answers", tmp_path, "--model", "huge")
    )


def test_an_unknown_request_is_answered_at_once(tmp_path: Path) -> None:
    assert texts(run_client("unknown-request", tmp_path)) == "code -32601"


def test_half_an_emoji_does_not_break_the_turn(tmp_path: Path) -> None:
    assert "an emoji" in texts(run_client("surrogate", tmp_path))


def test_a_session_is_resumed_or_replaced_by_a_new_one(tmp_path: Path) -> None:
    resumed = run_client("resumes", tmp_path, "--session", "old")
    assert [line["id"] for line in resumed if line["type"] == "session"] == ["old"]
    lost = run_client("answers", tmp_path, "--session", "old")
    assert [line["reason"] for line in lost if line["type"] == "session_lost"] == ["Session not found"]
    assert "an old answer" not in texts(lost)


def test_an_agent_that_hangs_is_ended_with_its_children(ralph, workspace: Path) -> None:
    agent = f"acp: {sys.executable} {SCRIPTED} hangs"
    assert ralph("run", "the work", "--agent", agent, "-m", "1", "--turn-timeout", "5s").code == 1
    for pid in (workspace / "hanging").read_text().split():
        assert not Path(f"/proc/{pid}").exists()


def test_a_run_with_an_acp_agent_ends_as_done(ralph, workspace: Path) -> None:
    agent = f"acp: {sys.executable} {SCRIPTED} answers"
    done = ralph("loop", "the work", "--check", "true", "--agent", agent, "-m", "2", "--json")
    assert done.code == 0, done.err
    assert done.one("run_finished")["outcome"] == "done"


def test_an_acp_agent_that_is_not_installed_says_what_to_type(ralph, workspace: Path) -> None:
    done = ralph("run", "x", "--agent", "acp:vibe")
    assert done.code == 2
    assert "pipx install mistral-vibe" in done.err
    assert ralph("run", "x", "--agent", "acp:nope").code == 2
