"""Which parts of a stream of content blocks are the agent's own answer."""

import json
from typing import Any

import pytest

from ralph.agents import module
from ralph.agents.protocol import TurnRequest
from ralph.core.events import AgentEvent, AgentProgress, AgentText, AgentUnknown, FileEdit, TodoUpdated, ToolStarted
from ralph.core.model import Exit, Turn

Line = dict[str, Any] | bytes


def said(*blocks: Any, **line: Any) -> Line:
    content = [{"type": "text", "text": block} if isinstance(block, str) else block for block in blocks]
    return {"type": "assistant", "message": {"content": content}, **line}


OVER: Line = {"type": "result", "result": ""}
TOOL = {"type": "tool_use", "id": "t", "name": "Bash", "input": {"command": "ls"}}


def read(*lines: Line, agent: str = "claude", code: int = 0, ended_by: str = "") -> tuple[list[AgentEvent], Turn]:
    parser = module(agent).parser(TurnRequest(prompt="the prompt", prompt_file="", command=(agent,)))
    events: list[AgentEvent] = []
    for line in lines:
        events += parser.feed(line if isinstance(line, bytes) else json.dumps(line).encode())
    return events, parser.turn(Exit(code=code, at=0.0, duration=0.0, ended_by=ended_by))


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        ([said("one"), said("two"), OVER], "two"),
        ([said("one", "two"), OVER], "one\ntwo"),
        ([said("one", {"type": "thinking", "thinking": "hm"}, "two", {"type": "novelty"}), OVER], "one\ntwo"),
        ([said("one", TOOL, "two"), OVER], "one\ntwo"),
        ([said("one"), said("two")], ""),
        ([said("one"), {"type": "result", "result": "the answer"}], "the answer"),
        ([{"type": "assistant", "message": {"content": "just a string"}}, OVER], "just a string"),
        ([said("own"), said("sub-agent", parent_tool_use_id="t"), OVER], "own"),
        ([said("own"), said("API Error: 529", is_api_error_message=True), OVER], "own"),
        ([said({"type": "thinking", "thinking": "hidden", "text": "hidden"})], ""),
        ([{"type": "user", "message": {"content": "an echo of the prompt"}}], ""),
        (
            [
                {
                    "type": "user",
                    "message": {"content": [{"type": "text", "text": "hook feedback"}]},
                    "isSynthetic": True,
                }
            ],
            "",
        ),
        ([{"type": "result", "result": "", "subtype": "success"}], ""),
        ([said("then a tool", TOOL), {"type": "result", "result": "", "subtype": "success"}], ""),
        ([{"type": "result", "result": "x", "is_error": True}], ""),
        ([{"type": "result", "result": "x", "subtype": "error_during_execution"}], ""),
        ([], ""),
    ],
)
def test_the_answer_is_the_last_text_of_the_agent_itself(lines: list[Line], text: str) -> None:
    assert read(*lines)[1].text == text


@pytest.mark.parametrize(("code", "ended_by"), [(143, ""), (-15, "the turn timeout")])
def test_text_before_a_tool_is_not_the_answer_of_a_turn_that_was_cut_off(code: int, ended_by: str) -> None:
    assert read(said("I am nearly done", TOOL), code=code, ended_by=ended_by)[1].text == ""
    assert read(said("I am done"), code=code, ended_by=ended_by)[1].text == "I am done"


def test_amp_reports_an_error_as_a_string_and_qwen_as_an_object() -> None:
    amp: Line = {"type": "result", "subtype": "error_during_execution", "is_error": True, "error": "Invalid API key"}
    qwen: Line = {"type": "result", "subtype": "error_during_execution", "error": {"message": "[API Error: 529 x]"}}
    for agent, line, kind in (("amp", amp, "fatal"), ("qwen", qwen, "transient")):
        failure = read(line, agent=agent, code=1)[1].failure
        assert failure is not None
        assert failure.kind == kind


def test_a_cancelled_turn_of_amp_is_an_ordinary_failure() -> None:
    line: Line = {"type": "result", "is_error": True, "error": "User cancelled (SIGTERM)"}
    failure = read(line, agent="amp", code=1, ended_by="the idle timeout")[1].failure
    assert failure is not None
    assert failure.reason == "ended by ralph: the idle timeout"


def test_qwens_text_before_a_retry_is_not_an_answer() -> None:
    retry: Line = {"type": "system", "subtype": "retry", "data": {"reason": "retry"}}
    assert read(said("half an ans"), retry, agent="qwen", code=1)[1].text == ""


def test_tool_calls_of_sub_agents_count() -> None:
    assert read(said(TOOL), said(TOOL, parent_tool_use_id="t"))[1].tool_calls == 2


def test_a_deleted_task_leaves_the_list() -> None:
    lines: list[Line] = []
    for name, result in (
        ("TaskCreate", {"task": {"id": "1", "subject": "one"}}),
        ("TaskCreate", {"task": {"id": "2", "subject": "two"}}),
        ("TaskUpdate", {"taskId": "1", "statusChange": {"to": "deleted"}}),
    ):
        lines.append(said({"type": "tool_use", "id": "t", "name": name, "input": {}}))
        content = [{"type": "tool_result", "tool_use_id": "t", "content": "ok"}]
        lines.append({"type": "user", "message": {"content": content}, "tool_use_result": result})
    lists = [event.items for event in read(*lines)[0] if isinstance(event, TodoUpdated)]
    assert [[item.text for item in items] for items in lists] == [["one"], ["one", "two"], ["two"]]


def test_unknown_lines_are_reported_as_unknown() -> None:
    events, turn = read({"type": "novelty"}, {"type": "system", "subtype": "novelty"}, said("hello"), OVER)
    assert events[:3] == [AgentUnknown("novelty"), AgentUnknown("system/novelty"), AgentText("hello")]
    assert turn.text == "hello"


def test_compaction_and_limits_are_reported_as_progress() -> None:
    events, _ = read(
        {"type": "system", "subtype": "compact_boundary"},
        {"type": "system", "subtype": "status", "status": "compacting"},
        {"type": "rate_limit_event", "rate_limit_info": {"status": "allowed_warning", "utilization": 0.92}},
    )
    assert [event.text for event in events if isinstance(event, AgentProgress)] == [
        "the context was compacted",
        "compacting the context",
        "92% of the usage limit used",
    ]


def test_unreadable_lines_of_a_stream_are_counted() -> None:
    parser = module("claude").parser(TurnRequest(prompt="p", prompt_file="", command=("claude",)))
    for line in (
        b"npm warn",
        b"",
        b"{broken",
        b'{"type":"system"}',
        b"x",
    ):
        parser.feed(line)
    parser.turn(Exit(code=0, at=0.0, duration=0.0))
    assert parser.skipped == 3


def test_half_an_emoji_does_not_lose_the_answer() -> None:
    line = b'{"type":"assistant","message":{"content":[{"type":"text","text":"cut \\ud83d here"}]}}'
    result = b'{"type":"result","result":"done \\ud83d\\nSTOP"}'
    assert read(line, OVER)[1].text == "cut ? here"
    assert read(line, result)[1].text == "done ?\nSTOP"


def test_bytes_that_are_not_utf8_do_not_lose_the_answer() -> None:
    assert read(b'{"type":"result","result":"bad \xff byte"}')[1].text == "bad � byte"


def test_a_result_with_invalid_numbers_still_has_its_answer() -> None:
    line: Line = {
        "type": "result",
        "result": "Done.",
        "session_id": 7,
        "num_turns": "many",
        "total_cost_usd": -1,
        "usage": {"input_tokens": 1e300, "output_tokens": -5, "cache_read_input_tokens": None},
    }
    turn = read(line)[1]
    assert (turn.text, turn.usage.tokens, turn.usage.cost_usd, turn.steps) == ("Done.", 0, None, None)


def test_the_usage_of_an_older_version_is_understood() -> None:
    usage = {
        "input_tokens": 1000,
        "output_tokens": 500,
        "cache_read_input_tokens": 800,
        "cache_creation_input_tokens": 7,
    }
    told = read({"type": "result", "result": "x", "total_cost_usd": 0.05, "usage": usage})[1].usage
    assert (told.input_tokens, told.output_tokens, told.cache_read_tokens, told.cache_write_tokens) == (
        1000,
        500,
        800,
        7,
    )
    assert told.cost_usd == 0.05


def call(name: str, parent: str | None = None, **given: Any) -> Line:
    return said({"type": "tool_use", "id": name, "name": name, "input": given}, parent_tool_use_id=parent)


@pytest.mark.parametrize(
    ("given", "edit"),
    [
        ({"old_string": "a\nb\nc", "new_string": "a\nB\nc"}, FileEdit("b", "B", 1, 1)),
        ({"oldString": "a", "newString": "a\nb"}, FileEdit("", "b", 0, 1)),
        ({"old_str": "a\nb", "new_str": ""}, FileEdit("a\nb", "", 2, 0)),
        ({"content": "one\ntwo\n"}, FileEdit("", "one\ntwo", 0, 2)),
        ({"old_string": "same", "new_string": "same"}, None),
        ({"old_string": 1, "new_string": []}, None),
        ({}, None),
    ],
)
def test_an_edit_reports_the_removed_and_the_added_lines(given: dict[str, Any], edit: FileEdit | None) -> None:
    events, _ = read(call("Edit", file_path="a.py", **given))
    assert events == [ToolStarted("Edit", "Edit", "a.py", edit)]


def test_a_large_edit_is_reported_by_its_beginning_and_its_number_of_lines() -> None:
    (event,), _ = read(call("Write", file_path="a.py", content="\n".join(map(str, range(100_000)))))
    assert isinstance(event, ToolStarted)
    assert event.edit
    assert event.edit.added_lines == 100_000
    assert event.edit.added.count("\n") == 39


def test_a_call_of_a_sub_agent_names_its_parent_call() -> None:
    events, turn = read(
        call("Agent", prompt="look"), call("Grep", "Agent", pattern="x"), said("seen", parent_tool_use_id="Agent")
    )
    assert events[1:] == [ToolStarted("Grep", "Grep", "x", None, "Agent"), AgentProgress("seen")]
    assert turn.text == ""
