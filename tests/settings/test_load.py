"""The layers of settings, how they are merged, and the presets."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from ralph.errors import UserError
from ralph.settings import PRESETS, CheckCommand, Settings, load
from ralph.settings.load import merge, settings_files
from ralph.settings.validate import metas_of


def test_without_settings_files_the_defaults_of_the_guardrails_preset_apply(files: Any) -> None:
    assert files.load() == msgspec.structs.replace(files.load(), settings=Settings(), sources=())


@pytest.mark.parametrize(
    ("preset", "claim", "cap", "stall", "check_timeout", "pause", "tool_calls", "session"),
    [
        ("guardrails", "response:DONE", 10, 0, None, 0, 0, "fresh"),
        ("goal", "word:STOP", 10, 1, None, 0, 0, "fresh"),
        ("checks", "tag:COMPLETE", 25, 0, 120, 0, 0, "fresh"),
        ("promise", "promise:DONE", 100, 0, None, 0, 1, "continue"),
        ("supervise", "file:DONE", 100, 0, None, 1, 0, "fresh"),
    ],
)
def test_each_preset_sets_its_defaults(
    files: Any,
    preset: str,
    claim: str,
    cap: int,
    stall: int,
    check_timeout: float | None,
    pause: float,
    tool_calls: int,
    session: str,
) -> None:
    settings = files.load(preset=preset).settings
    assert (settings.preset, settings.until, settings.maximum_iterations) == (preset, (claim,), cap)
    assert (settings.stall, settings.check_timeout, settings.restart_delay) == (stall, check_timeout, pause)
    assert (settings.min_tool_calls, settings.session) == (tool_calls, session)


def test_a_higher_layer_overrides_a_lower_one(files: Any) -> None:
    layers = {"user": 1, "project": 2, "local": 3}
    for name, count in layers.items():
        files.write(**{name: {"maximumIterations": count, f"{'stall' if name == 'user' else 'maxFailures'}": count}})
    assert files.load().settings.maximum_iterations == 3
    assert files.load(maximumIterations=4).settings.maximum_iterations == 4
    assert files.load().settings.stall == 1
    assert files.load().sources == (files.user, files.project, files.local)


def test_any_layer_may_choose_the_preset_and_every_layer_overrides_it(files: Any) -> None:
    files.write(user={"preset": "checks"}, project={"checkTimeout": 7})
    assert files.load().settings.check_timeout == 7
    assert files.load().settings.maximum_iterations == 25
    assert files.load(preset="goal").settings.until == ("word:STOP",)
    assert files.load(preset=None).settings.preset == "guardrails"


def test_objects_are_merged_and_lists_replaced(files: Any) -> None:
    files.write(
        project={"agent": {"command": "claude", "flags": ["--model opus"]}, "guardrails": [{"command": "a"}]},
        local={"agent": {"flags": ["--verbose"]}, "guardrails": [{"command": "b"}, {"command": "c"}]},
    )
    settings = files.load().settings
    assert (settings.agent.command, settings.agent.flags) == ("claude", ("--verbose",))
    assert [guardrail.command for guardrail in settings.checks] == ["b", "c"]


def test_null_removes_the_value_of_a_lower_layer(files: Any) -> None:
    files.write(
        project={
            "preset": "checks",
            "checkTimeout": 5,
            "maxCost": 3,
            "scm": {"tasks": ["commit"]},
            "agent": {"model": "x"},
        },
        local={"checkTimeout": None, "maxCost": None, "scm": None, "agent": {"model": None}},
    )
    settings = files.load().settings
    assert (settings.check_timeout, settings.max_cost, settings.scm, settings.agent.model) == (120, None, None, "")


def test_null_in_a_check_means_the_default(files: Any) -> None:
    files.write(project={"guardrails": [{"command": "a", "failAction": None, "hint": None}]})
    assert files.load().settings.checks == (CheckCommand("a"),)


@pytest.mark.parametrize(
    ("project", "local", "flags", "until"),
    [
        ({"completionResponse": "FIN"}, {}, {}, ["response:FIN"]),
        ({"completionResponse": "FIN", "until": ["word:STOP"]}, {}, {}, ["word:STOP"]),
        ({"until": ["word:STOP"]}, {"completionResponse": "FIN"}, {}, ["response:FIN"]),
        ({"completionResponse": "FIN"}, {"until": ["word:STOP"]}, {}, ["word:STOP"]),
        ({"completionResponse": "FIN"}, {"completionResponse": None}, {}, ["response:DONE"]),
        ({"completionResponse": "FIN"}, {}, {"until": ["tag:X"]}, ["tag:X"]),
        ({"completionResponse": "FIN"}, {}, {"preset": "checks"}, ["tag:COMPLETE"]),
        ({"completionResponse": "FIN", "preset": "goal"}, {}, {}, ["word:STOP"]),
        ({"until": ["file:OK"]}, {}, {"preset": "checks"}, ["file:OK"]),
    ],
)
def test_the_completion_response_is_a_claim_of_the_guardrails_preset(
    files: Any, project: dict[str, Any], local: dict[str, Any], flags: dict[str, Any], until: list[str]
) -> None:
    assert list(files.write(project=project, local=local).load(**flags).settings.until) == until


@pytest.mark.parametrize("low", ["checks", "guardrails"])
@pytest.mark.parametrize("high", ["checks", "guardrails"])
def test_checks_and_guardrails_are_one_key_in_every_file(files: Any, low: str, high: str) -> None:
    assert files.write(user={low: ["a", {"command": "b"}]}).load().settings.checks == (
        CheckCommand("a"),
        CheckCommand("b"),
    )
    assert files.write(project={high: ["c"]}).load().settings.checks == (CheckCommand("c"),)
    assert files.write(local={low: None}).load().settings.checks == ()


@pytest.mark.parametrize("low", [{"setup": "a"}, {"work": {"setup": "a", "jobs": 3}}])
@pytest.mark.parametrize("high", [{"setup": "b"}, {"work": {"setup": "b"}}])
def test_setup_in_work_is_the_setup_of_every_copy(files: Any, low: Any, high: Any) -> None:
    assert files.write(user=low).load().settings.setup == "a"
    assert files.write(project=high).load().settings.setup == "b"
    files.write(project={**high, "setup": "c", "work": {"setup": "b"}})
    with pytest.raises(UserError, match=r'"setup" and "work\.setup" are the same key: remove one of them'):
        files.load()


def test_an_agent_may_be_just_its_command(files: Any) -> None:
    files.write(project={"agent": "claude"}, local={"agent": {"model": "opus"}})
    agent = files.load().settings.agent
    assert (agent.command, agent.model) == ("claude", "opus")


def test_fail_actions_may_be_in_lower_case_and_default_to_append(files: Any) -> None:
    guardrails = [
        {"command": "a", "failAction": "prepend"},
        {"command": "b", "failAction": "Replace"},
        {"command": "c"},
    ]
    given = {"guardrails": guardrails}
    expected = (CheckCommand("a", "PREPEND"), CheckCommand("b", "REPLACE"), CheckCommand("c", "APPEND"))
    assert files.write(project=given).load().settings.checks == expected
    assert files.load(**given).settings.checks == expected
    assert guardrails[0]["failAction"] == "prepend", "what the caller gave must not change"


PARSED = [
    field.encode_name
    for field in msgspec.structs.fields(Settings)
    if any(meta.extra and "parse" in meta.extra for meta in metas_of(field.type))
]


@pytest.mark.parametrize("name", PARSED)
def test_durations_and_sizes_may_be_numbers_or_text(files: Any, name: str) -> None:
    field = next(field.name for field in msgspec.structs.fields(Settings) if field.encode_name == name)
    text = "2kB" if name == "maxLog" else "33m20s"
    assert getattr(files.load(**{name: text}).settings, field) == 2000
    assert getattr(files.write(project={name: 2000}).load().settings, field) == 2000
    assert getattr(files.write(project={field: text}).load().settings, field) == 2000, "in snake case"


def test_without_prompts_there_is_one_review_of_the_change(files: Any) -> None:
    for reviews, names in (
        ({}, ["change"]),
        ({"prompts": []}, ["change"]),
        ({"prompts": [{"name": "a", "prompt": "b"}]}, ["a"]),
    ):
        settings = files.write(project={"reviews": reviews}).load().settings
        assert [prompt.name for prompt in settings.reviews.asked] == names
    assert files.write(project={}).load().settings.reviews is None


def test_a_removed_key_is_refused_with_a_hint(files: Any) -> None:
    with pytest.raises(UserError, match="reviewAfter: removed: reviews take place at every claim"):
        files.write(project={"reviews": {"reviewAfter": 5}}).load()


def test_the_key_schema_is_allowed_for_editors(files: Any) -> None:
    assert files.write(project={"$schema": "./schema.json", "stall": 2}).load().settings.stall == 2


def test_a_byte_order_mark_is_ignored(files: Any) -> None:
    assert files.write(project=b'\xef\xbb\xbf{"stall": 2}').load().settings.stall == 2


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"XDG_CONFIG_HOME": "/x", "HOME": "/h"}, "/x/ralph/settings.json"),
        ({"HOME": "/h"}, "/h/.config/ralph/settings.json"),
        ({"XDG_CONFIG_HOME": "", "HOME": "/h"}, "/h/.config/ralph/settings.json"),
        ({"XDG_CONFIG_HOME": "relative", "HOME": "/h"}, "/h/.config/ralph/settings.json"),
        ({}, None),
    ],
)
def test_the_users_own_settings_are_found(env: dict[str, str], expected: str | None) -> None:
    found = [str(path) for path in settings_files(Path("/w"), env)]
    project = ["/w/.ralph/settings.json", "/w/.ralph/settings.local.json"]
    assert found == ([expected, *project] if expected else project)


def test_settings_are_the_same_after_encoding_and_decoding(files: Any) -> None:
    files.write(
        project={"agents": {"mine": {"argv": ["x"]}}, "scm": {}, "reviews": {}, "maxTime": "2h", "maxLog": "1MB"}
    )
    settings = files.load(preset="promise").settings
    assert msgspec.json.decode(msgspec.json.encode(settings), type=Settings) == settings


def test_every_preset_row_is_valid_and_every_claim_kind_can_be_set(files: Any) -> None:
    for row in (preset.defaults for preset in PRESETS.values()):
        assert msgspec.convert(row, Settings)
    claims = [*(f"{kind}:X" for kind in ("word", "response", "suffix", "promise", "tag", "file")), "checks"]
    assert files.load(until=claims).settings.until == tuple(claims)


def test_merging_does_not_change_its_arguments() -> None:
    low, high = {"a": {"b": 1, "c": [1]}}, {"a": {"b": None, "d": 2}}
    assert merge(low, high) == {"a": {"c": [1], "d": 2}}
    assert (low, high) == ({"a": {"b": 1, "c": [1]}}, {"a": {"b": None, "d": 2}})


def test_a_missing_workspace_has_no_settings_files(tmp_path: Path) -> None:
    assert load(tmp_path / "nowhere", {}, env={}).sources == ()
