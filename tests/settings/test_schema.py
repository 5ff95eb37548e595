"""The JSON Schemas match what the program accepts and writes."""

from functools import cache
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ralph.cli.init import events_schema, schema_text, settings_schema
from ralph.core import backlog_events, events
from ralph.core.model import Iteration, Outcome, Turn
from ralph.settings import PRESETS, Settings
from ralph.settings.load import merge, resolve

SEED = {
    "maximumIterations": 10,
    "completionResponse": "DONE",
    "outputTruncateChars": 5000,
    "streamAgentOutput": True,
    "includeIterationCountInPrompt": False,
    "agent": {"command": "claude", "flags": ["--model opus", "--no-auto-compact"]},
    "guardrails": [
        {"command": "make lint", "failAction": "APPEND", "hint": "Fix lint errors only. Do not change behavior."},
        {"command": "make test", "failAction": "APPEND"},
    ],
    "scm": {"command": "git", "tasks": ["commit", "push"]},
}


@cache
def validator(kind: str) -> Any:
    jsonschema = pytest.importorskip("jsonschema")
    schema = msgspec.json.decode(schema_text(kind))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_every_setting_is_in_the_schema_with_a_description() -> None:
    schema = settings_schema()
    for name, definition in {"Settings": schema, **schema["$defs"]}.items():
        assert definition["additionalProperties"] is False, name
        assert all(field["description"] for field in definition["properties"].values()), name
    keys = [field.encode_name for field in msgspec.structs.fields(Settings)]
    assert list(schema["properties"]) == ["$schema", *keys, "guardrails"]


@pytest.mark.parametrize(
    "document",
    [
        {},
        SEED,
        {"$schema": "x"},
        {"agent": "claude", "checks": ["make test", {"command": "make lint", "hint": "Fix lint errors only."}]},
        {"agent": None, "scm": None, "reviews": {"prompts": []}, "agent.x": None} | {"agent": {"model": None}},
        {"checkTimeout": "5m", "maxTime": 60, "maxLog": "32MB", "grace": 0},
        {"agents": {"mine": {"argv": ["x", "{prompt}"], "prompt": "argument"}}},
        *(preset.defaults for preset in PRESETS.values()),
    ],
)
def test_good_settings_pass_the_schema(document: dict[str, Any]) -> None:
    document.pop("agent.x", None)
    validator("settings").validate(document)


@pytest.mark.parametrize(
    "document",
    [
        {"x": 1},
        {"maximumIterations": "ten"},
        {"preset": "gaol"},
        {"guardrails": [{}]},
        {"checks": [" "]},
        {"agent": 5},
        {"guardrails": [{"command": " "}]},
        {"until": ["STOP"]},
        {"until": ["word: "]},
        {"checkTimeout": -1},
        {"checkTimeout": "soon"},
        {"maxTime": 0},
        {"maxLog": 1.5},
        {"agent": {"x": 1}},
        {"agents": {"mine": {"prompt": "fax"}}},
    ],
)
def test_bad_settings_do_not_pass_the_schema(document: dict[str, Any]) -> None:
    assert not validator("settings").is_valid(document)


@given(
    st.fixed_dictionaries(
        {}, optional={"stall": st.integers(), "yolo": st.none() | st.booleans(), "maxCost": st.floats(allow_nan=False)}
    )
)
def test_settings_that_the_schema_allows_are_accepted(document: dict[str, Any]) -> None:
    if validator("settings").is_valid(document):
        assert resolve([merge(document)])


def test_defaults_in_the_schema_are_the_defaults() -> None:
    schema, plain = settings_schema(), msgspec.to_builtins(Settings())
    for name, field in schema["properties"].items():
        if "default" in field:
            assert msgspec.to_builtins(field["default"]) == plain[name]


SAMPLES: tuple[Any, ...] = (
    events.RunStarted(goal="g", preset="goal", agent="claude", workspace="/w", max_iterations=None),
    events.ToolFinished(id="1", name="Read", ok=True),
    events.TodoUpdated((events.TodoItem("x"),)),
    events.IterationFinished(1, Iteration(number=1, turn=Turn(text="hi"))),
    events.RunFinished(
        outcome=Outcome.DONE, reason="because", iterations=1, cost_usd=None, duration_s=1.0, exit_code=0
    ),
)


def test_real_events_pass_the_schema_and_others_do_not() -> None:
    check = validator("events")
    for number, event in enumerate(SAMPLES):
        told = events.Told(events.NAMES[type(event)], "2026-01-01T00:00:00Z", "r", number, event)
        line = msgspec.json.decode(msgspec.json.encode(told))
        check.validate(line)
        assert not check.is_valid({**line, "type": "nonsense"})
        assert not check.is_valid({key: value for key, value in line.items() if key != "run"})


def test_every_kind_of_event_is_in_the_schema() -> None:
    schema = events_schema()
    assert [one["properties"]["type"]["const"] for one in schema["oneOf"]] == [
        *events.NAMES.values(),
        *backlog_events.NAMES.values(),
    ]
    assert schema["required"] == ["type", "timestamp", "run", "seq", "data"]
