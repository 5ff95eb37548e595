"""Each parser reads in each recorded stream what a person reads in it."""

import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ralph.agents import module
from ralph.agents.protocol import TurnRequest
from ralph.core.events import (
    AgentProgress,
    AgentResult,
    AgentText,
    AgentUnknown,
    PermissionDenied,
    TodoItem,
    TodoUpdated,
    ToolFinished,
    ToolStarted,
)
from ralph.core.model import Usage

EXPECTED: dict[str, dict[str, Any]] = tomllib.loads((Path(__file__).parent / "expected.toml").read_text())
UNICODE = 'Ünïcödé ✓ 日本語 🚀\n\n- línea 1\n- línea 2 «fin»\n```py\nprint("ok")\\n\n```\n\ttab \u2028 sep\nSTOP'
PLAIN = {"text": "All done.\nSTOP", "tools": 0, "errors": 0, "tokens": [0, 0], "session": True}


def test_every_recording_has_a_row_and_every_row_a_recording(recorded) -> None:
    assert set(recorded) == {f"{agent}/{file}" for agent, rows in EXPECTED.items() for file in rows}


def test_every_recorded_stream_is_read_as_a_person_read_it(recording, reading) -> None:
    said = EXPECTED[recording.agent][recording.file]
    row = {**PLAIN, **said}
    read = reading(recording)
    turn = read.turn
    if "starts" in said:
        assert turn.text.startswith(row["starts"])
        assert turn.text.endswith(row.get("ends", ""))
    else:
        assert turn.text == (UNICODE if row["text"] == "@unicode" else row["text"])
    assert (turn.failure.kind if turn.failure else None) == row.get("failure")
    assert turn.tool_calls == (None if row["tools"] == "unknown" else row["tools"])
    assert read.parser.tool_errors == row["errors"]
    assert [turn.usage.input_tokens, turn.usage.output_tokens] == row["tokens"]
    assert bool(turn.session) is row["session"]
    assert list(turn.denials) == row.get("denials", [])
    assert [event.tool for event in read.events if isinstance(event, PermissionDenied)] == list(turn.denials)


def test_every_line_of_a_stream_is_understood(recording, reading) -> None:
    read = reading(recording)
    assert not [event for event in read.events if isinstance(event, AgentUnknown)]
    if not recording.is_text and recording.agent != "amp":
        assert read.parser.skipped == 0


def test_a_tool_ends_once_with_the_name_it_started_with(recording, reading) -> None:
    events = reading(recording).events
    started = {event.id: event.name for event in events if isinstance(event, ToolStarted)}
    finished = [event for event in events if isinstance(event, ToolFinished)]
    assert all(count == 1 for count in Counter(event.id for event in finished).values())
    assert all(started.get(event.id) == event.name for event in finished)
    assert all(event.input for event in events if isinstance(event, ToolStarted) and event.name not in EMPTY_INPUT)


def test_the_agent_is_waiting_from_the_start_of_a_tool_to_its_end(recording) -> None:
    """An agent that is silent while a tool runs is not idle; one that is silent at another time is."""
    parser = module(recording.agent).parser(TurnRequest(prompt="", prompt_file="", command=(recording.agent,)))
    working: set[str] = set()
    for line in recording.lines:
        for event in parser.feed(line):
            if isinstance(event, ToolStarted):
                working.add(event.id)
            elif isinstance(event, ToolFinished):
                working.discard(event.id)
        assert parser.is_waiting == bool(working)
    assert parser.is_heard == (recording.agent != "opencode")


EMPTY_INPUT = {"TaskList", "TodoWrite", "todowrite", "write_todos"}


def test_text_of_the_agent_is_never_the_prompt_nor_an_error(recording, reading) -> None:
    for event in () if recording.is_text else reading(recording).events:
        if isinstance(event, AgentText):
            assert event.text not in ("make the files", "do the task", "again", "more")
            assert "API Error" not in event.text
            assert "Stop hook feedback" not in event.text
            assert "Let me think" not in event.text


@pytest.mark.parametrize("agent", [agent for agent in EXPECTED if agent not in ("amp", "copilot", "builtin")])
def test_the_cost_of_a_turn_is_reported_once_at_its_end(agent, recorded, reading) -> None:
    read = reading(recorded[f"{agent}/text.ndjson"])
    results = [event for event in read.events if isinstance(event, AgentResult)]
    assert len(results) == 1
    assert (results[0].input_tokens, results[0].cost_usd) == (read.turn.usage.input_tokens, read.turn.usage.cost_usd)


def test_the_cost_of_the_built_in_agent_is_reported_with_each_reply(recorded, reading) -> None:
    read = reading(recorded["builtin/cached.ndjson"], flags=("--model", "ollama:lab"))
    results = [event for event in read.events if isinstance(event, AgentResult)]
    assert [(event.input_tokens, event.cache_read_tokens) for event in results] == [
        (200, 800),
        (400, 1800),
        (400, 1800),
    ]
    assert read.turn.usage == Usage(
        input_tokens=400, output_tokens=100, cache_read_tokens=1800, cache_write_tokens=0, cost_usd=0.0
    )


@pytest.mark.parametrize("stream", ["claude/todo", "opencode/todo"])
def test_a_todo_list_is_reported(stream, recorded, reading) -> None:
    lists = [event.items for event in reading(recorded[f"{stream}.ndjson"]).events if isinstance(event, TodoUpdated)]
    assert lists[0] == (TodoItem("First thing", "active"), TodoItem("Second thing", "pending"))
    assert lists[-1][0] == TodoItem("First thing", "done")


def test_the_todo_list_of_gemini_is_reported(recorded, reading) -> None:
    lists = [event.items for event in reading(recorded["gemini/todo.ndjson"]).events if isinstance(event, TodoUpdated)]
    assert lists[-1] == (TodoItem("First thing", "done"), TodoItem("Second thing", "active"))


def test_tasks_that_arrive_one_by_one_become_a_list(recorded, reading) -> None:
    lists = [event.items for event in reading(recorded["claude/tasks.ndjson"]).events if isinstance(event, TodoUpdated)]
    assert lists == [
        (TodoItem("First thing"),),
        (TodoItem("First thing"), TodoItem("Second thing")),
        (TodoItem("First thing", "active"), TodoItem("Second thing")),
        (TodoItem("First thing", "done"), TodoItem("Second thing")),
    ]


@pytest.mark.parametrize(
    ("stream", "name", "told", "output", "lines"),
    [
        ("claude/tools", "Bash", "echo hi > a.txt; ls", "README.md\na.txt", 2),
        ("codex/tools", "shell", "echo hi > a.txt; ls", "README.md\na.txt\n", 2),
        ("gemini/tools", "run_shell_command", "echo hi > a.txt; ls", "README.md\na.txt", 2),
        ("opencode/tools", "bash", "echo hi > a.txt; ls", "README.md\na.txt\n", 2),
        ("pi/tools", "bash", "echo hi > a.txt; ls", "README.md\na.txt\n", 2),
        ("cline/tools", "run_commands", "echo hi > a.txt; ls", "README.md\na.txt\n", 2),
        ("qwen/lateerr", "run_shell_command", "echo hi > a.txt; ls", "README.md\na.txt", 2),
    ],
)
def test_a_tool_is_reported_with_its_command_and_the_beginning_of_its_output(
    stream, name, told, output, lines, recorded, reading
) -> None:
    events = reading(recorded[f"{stream}.ndjson"]).events
    started = next(event for event in events if isinstance(event, ToolStarted))
    finished = next(event for event in events if isinstance(event, ToolFinished))
    assert (started.name, started.input) == (name, told)
    assert (finished.ok, finished.output, finished.lines, finished.chars) == (True, output, lines, len(output))


@pytest.mark.parametrize("agent", ["claude", "codex", "gemini", "opencode", "pi", "copilot", "cline"])
def test_a_read_file_is_reported_by_its_path(agent, recorded, reading) -> None:
    events = reading(recorded[f"{agent}/tools.ndjson"]).events
    assert "/repo/b.txt" in [event.input for event in events if isinstance(event, ToolStarted)]


@pytest.mark.parametrize(
    ("stream", "words"), [("claude/e529ok", "529"), ("codex/cutok", "Reconnecting"), ("pi/e529", "529")]
)
def test_a_retry_is_reported_as_progress(stream, words, recorded, reading) -> None:
    told = [event.text for event in reading(recorded[f"{stream}.ndjson"]).events if isinstance(event, AgentProgress)]
    assert any(words in text for text in told)


def test_a_usage_limit_says_when_it_ends(recorded, reading, monkeypatch) -> None:
    import time

    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    failure = reading(recorded["codex/usage-limit.ndjson"]).turn.failure
    assert failure.resets_at == 1794727200.0  # 7:20 in the morning of the recording
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("stream", "before"),
    [
        ("codex/resume-last", Usage(input_tokens=2000, output_tokens=100)),
        ("qwen/resume-2", Usage(input_tokens=2000, output_tokens=100)),
        ("qwen/continue", Usage(input_tokens=4000, output_tokens=200)),
    ],
)
def test_only_this_turns_share_of_a_sessions_total_counts(stream, before, recorded, reading) -> None:
    recording = recorded[f"{stream}.ndjson"]
    turn = reading(recording, session="the session", usage_before=before).turn
    whole = reading(recording).turn.usage
    assert turn.usage.tokens == whole.tokens - before.tokens
    assert turn.usage.tokens > 0


def test_a_total_that_is_less_than_before_is_the_usage_of_one_turn(recorded, reading) -> None:
    turn = reading(
        recorded["codex/text.ndjson"], session="s", usage_before=Usage(input_tokens=90000, output_tokens=5000)
    ).turn
    assert (turn.usage.input_tokens, turn.usage.output_tokens) == (1000, 50)


def test_the_reply_of_gemini_is_reported_line_by_line(recorded, reading) -> None:
    told = [event.text for event in reading(recorded["gemini/unicode.ndjson"]).events if isinstance(event, AgentText)]
    assert told[0] == "Premier message ✓"
    assert "\n".join(told[1:]) == UNICODE


def test_the_reason_of_a_failure_is_text_without_json(recorded, reading) -> None:
    assert (
        reading(recorded["codex/e400.ndjson"]).turn.failure.reason
        == "prompt is too long: 213345 tokens > 200000 maximum"
    )
    assert reading(recorded["pi/e401.ndjson"]).turn.failure.reason == "401 invalid x-api-key"
    assert reading(recorded["gemini/e403.ndjson"]).turn.failure.reason == "API Error: Your account does not have access"


def test_the_failure_of_a_turn_that_ralph_ended_names_the_limit_and_the_last_error(recorded, reading) -> None:
    reason = reading(recorded["codex/e429.ndjson"]).turn.failure.reason
    assert reason.startswith("ended by ralph: the turn timeout; last heard: Reconnecting... 4/5")
