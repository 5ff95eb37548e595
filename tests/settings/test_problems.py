"""Errors in settings name the file, the line, the key, and what is valid."""

import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ralph.settings.schema import Settings
from ralph.settings.validate import describe_type, show_value

TOO_MANY_DIGITS = (
    "exceeds the limit (4300 digits) for integer string conversion: value has 5000 digits; "
    "use sys.set_int_max_str_digits() to increase the limit"
)
Refusal = Callable[[str | bytes], list[str]]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('{"guardrial": []}', ':1: guardrial: unknown key; did you mean "checks"?'),
        ('{\n  "agent": {"comand": "x"}\n}', ':2: agent.comand: unknown key; did you mean "command"?'),
        ('{"max_failure": 1}', ':1: max_failure: unknown key; did you mean "maxFailures"?'),
        (
            '{"maxFailures": 1,\n "max_failures": 2}',
            ':2: max_failures: "maxFailures" and "max_failures" are the same key: remove one of them',
        ),
        ('{"maxIterations": 1}', ':1: maxIterations: unknown key; did you mean "maximumIterations"?'),
        ('{"check": []}', ':1: check: unknown key; did you mean "checks"?'),
        (
            '{"checks": [],\n "guardrails": []}',
            ':2: guardrails: "checks" and "guardrails" are the same key: remove one of them',
        ),
        ('{"model": "x"}', ':1: model: unknown key; did you mean "agent.model"?'),
        ('{"qqq": 1}', ":1: qqq: unknown key"),
        ('{"qqq": null}', ":1: qqq: unknown key"),
        ('{"agent": {"modle": null}}', ':1: agent.modle: unknown key; did you mean "model"?'),
        ('{"scm": {"qqq": 1}}', ":1: scm.qqq: unknown key; known are command, tasks, all, agent"),
        ('{"maximumIterations": "ten"}', ':1: maximumIterations: expected a whole number, got "ten"'),
        ('{"maximumIterations": 1e2}', ":1: maximumIterations: expected a whole number, got 100.0"),
        ('{"maximumIterations": 5.0}', ":1: maximumIterations: expected a whole number, got 5.0"),
        ('{"maximumIterations": true}', ":1: maximumIterations: expected a whole number, got true"),
        (
            '{"maximumIterations": 0}',
            ':1: maximumIterations: expected 1 or more with the "guardrails" preset, got 0',
        ),
        (
            '{"maximumIterations": -1, "preset": "promise"}',
            ':1: maximumIterations: expected 0 or more with the "promise" preset, got -1',
        ),
        ('{"stall": -1}', ":1: stall: expected a whole number, 0 or more, got -1"),
        ('{"maxCost": 0}', ":1: maxCost: expected a number above 0, got 0"),
        ('{"maxCost": "5"}', ':1: maxCost: expected a number above 0, got "5"'),
        ('{"maxTokens": 0}', ":1: maxTokens: expected a whole number, 1 or more, got 0"),
        ('{"yolo": "yes"}', ':1: yolo: expected true or false, got "yes"'),
        ('{"yolo": 1}', ":1: yolo: expected true or false, got 1"),
        ('{"agent": 5}', ":1: agent: expected an object, got 5"),
        ('{"agent": {"flags": "--x"}}', ':1: agent.flags: expected a list, got "--x"'),
        ('{"agent": {"flags": ["a", null]}}', ":1: agent.flags[1]: expected text, got null"),
        ('{"guardrails": [{"command": "a"}, {}]}', ':1: guardrails[1]: "command" is missing'),
        ('{"guardrails": [{"command": null}]}', ':1: guardrails[0]: "command" is missing'),
        ('{"checks": [5]}', ":1: checks[0]: expected an object, got 5"),
        (
            '{"guardrails": [{"command": " "}]}',
            ':1: guardrails[0].command: expected text that is not blank, got " "',
        ),
        (
            '{"guardrails": [{"command": "a", "failAction": "apend"}]}',
            ':1: guardrails[0].failAction: expected one of "APPEND", "PREPEND", "REPLACE", got "apend"; '
            'did you mean "APPEND"?',
        ),
        ('{"completionResponse": ""}', ':1: completionResponse: expected text that is not blank, got ""'),
        (
            '{"preset": "gaurdrails"}',
            ':1: preset: expected one of "guardrails", "goal", "checks", "tune", "promise", "supervise", '
            'got "gaurdrails"; did you mean "guardrails"?',
        ),
        (
            '{"checkTimeout": "5 parsecs"}',
            ':1: checkTimeout: expected a duration such as 90, "90s", "5m" or "1h30m", got "5 parsecs"',
        ),
        ('{"grace": -1}', ':1: grace: expected a duration such as 90, "90s", "5m" or "1h30m", got -1'),
        ('{"grace": true}', ':1: grace: expected a duration such as 90, "90s", "5m" or "1h30m", got true'),
        ('{"maxTime": 0}', ':1: maxTime: expected a duration above 0 such as 90, "90s", "5m" or "1h30m", got 0'),
        ('{"maxLog": "big"}', ':1: maxLog: expected a size such as 500000, "512kB", "32MB" or "1GiB", got "big"'),
        ('{"maxLog": 1.5}', ':1: maxLog: expected a size such as 500000, "512kB", "32MB" or "1GiB", got 1.5'),
        (
            '{"until": ["STOP"]}',
            ':1: until[0]: expected "KIND:TEXT" with KIND one of word, response, suffix, promise, tag, file, '
            'or "checks" alone, got "STOP"',
        ),
        ('{"until": []}', ":1: until: expected at least one claim, or no run can end as done"),
        ('{"onLimit": "switch"}', ':1: onLimit: "switch" needs an agent in "then"'),
        ('{"agents": {"mine": {"prompt": "file"}}}', ':1: agents.mine: "argv" is missing'),
        ('{"agents": {"a b": {"stream": 1}}}', ":1: agents.a b.stream: expected text, got 1"),
        ('{"stall": 1,\n "stall": 2}', ":2: stall: given twice"),
        ('{"agent": {"model": "a", "model": "b"}}', ":1: model: given twice"),
        ('{"st\\u0061ll": 1, "stall": 2}', ":1: stall: given twice"),
        ('{"ä": 1}', ":1: ä: unknown key"),
        ('{"notify": ["ä\\"]}", 1]}', ":1: notify[1]: expected text that is not blank, got 1"),
    ],
)
def test_an_error_names_line_key_and_valid_values(refusal_of: Refusal, text: str, fault: str) -> None:
    assert refusal_of(text) == [f".ralph/settings.json{fault}"]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", ": the file is empty; write {} into it, or delete it"),
        (" \n", ": the file is empty; write {} into it, or delete it"),
        (b"\xef\xbb\xbf", ": the file is empty; write {} into it, or delete it"),
        ("[]", ": expected an object, got []"),
        ('"x"', ': expected an object, got "x"'),
        ('{"a": 1,\n}', ":2: not valid JSON: expecting property name enclosed in double quotes"),
        ('{"a": 1\n "b": 2}', ":2: not valid JSON: expecting ',' delimiter"),
        ('{"ä": 1 2}', ":1: not valid JSON: expecting ',' delimiter"),
        ("{'a': 1}", ":1: not valid JSON: expecting property name enclosed in double quotes"),
        ('{\n  // no\n  "a": 1}', ":2: not valid JSON: JSON has no comments"),
        ('{"a": [1,\n', ":2: not valid JSON: expecting value"),
        ("{} {}", ":1: not valid JSON: extra data"),
        ('{"stall": NaN}', ":1: stall: expected a whole number, 0 or more, got nan"),
        ('{"yolo": false,\n "stall": 1e999}', ":2: stall: expected a whole number, 0 or more, got inf"),
        ('{"stall": ' + "9" * 5000 + "}", f": not valid JSON: {TOO_MANY_DIGITS}"),
        (b'{"a":\n "\xff"}', ":2: not UTF-8 text"),
        ("{}".encode("utf-16"), ":1: not UTF-8 text"),
        ("[" * 100_000, ": nested too deeply"),
    ],
)
def test_a_file_that_is_not_a_json_object_is_refused_with_the_line(
    refusal_of: Refusal, text: str | bytes, fault: str
) -> None:
    assert refusal_of(text) == [f".ralph/settings.json{fault}"]


def test_the_errors_of_all_files_are_reported_together(files: Any) -> None:
    files.write(user={"yolo": 1}, project=b'{"stal": 1,\n "agent": {"model": 5}}', local=b'{"a": ')
    assert files.refusal(emoji="x") == [
        "5 errors in the settings",
        f"  {files.user}:1: yolo: expected true or false, got 1",
        '  .ralph/settings.json:1: stal: unknown key; did you mean "stall"?',
        "  .ralph/settings.json:2: agent.model: expected text, got 5",
        "  .ralph/settings.local.json:1: not valid JSON: expecting value",
        '  command line: emoji: expected true or false, got "x"',
    ]


@pytest.mark.parametrize("cost", [float("inf"), float("nan"), -1.0])
def test_an_infinite_or_negative_cost_is_refused(files: Any, cost: float) -> None:
    assert files.refusal(maxCost=cost) == [f"command line: maxCost: expected a number above 0, got {cost}"]


def test_a_wrong_value_is_refused_even_if_a_higher_layer_overrides_it(files: Any) -> None:
    assert files.write(project={"stall": "x"}).refusal(stall=1)


def test_a_conflict_names_the_layer_that_sets_the_value(files: Any) -> None:
    files.write(project={"maximumIterations": 0, "onLimit": "switch"}, local={"stall": 1})
    lines = files.refusal(onLimit="switch")
    assert [line.split(": ")[0].strip() for line in lines[1:]] == [".ralph/settings.json:1", "command line"]


def test_a_directory_or_a_broken_link_in_the_place_of_a_file_is_an_error(files: Any) -> None:
    files.project.mkdir()
    assert files.refusal() == [".ralph/settings.json: cannot be read: is a directory"]
    files.project.rmdir()
    files.project.symlink_to("nowhere")
    assert files.refusal() == [".ralph/settings.json: cannot be read: no such file or directory"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_is_an_error(files: Any) -> None:
    files.write(project={}).project.chmod(0)
    assert files.refusal() == [".ralph/settings.json: cannot be read: permission denied"]


def test_a_file_below_the_current_folder_is_named_by_its_relative_path(
    files: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(files.workspace)
    files.write(project={"x": 1})
    with pytest.raises(Exception, match=r"^\.ralph/settings\.json:1: x: unknown key"):
        files.load()


def test_a_key_with_a_line_end_is_shown_on_one_line(refusal_of: Refusal) -> None:
    assert refusal_of('{"a\\n\\u001b[31mb": 1}') == [".ralph/settings.json:1: a b: unknown key"]


def test_errors_contain_no_control_characters_and_only_the_start_of_long_values(refusal_of: Refusal) -> None:
    (line,) = refusal_of('{"yolo": "\\u001b]0;x\\u0007\\u009b31m' + "x" * 1000 + '"}')
    assert line.isprintable()
    assert len(line) < 150


@given(st.one_of(st.binary(), st.dates(), st.text(), st.integers(), st.lists(st.text())))
def test_any_value_can_be_shown_on_one_short_line(value: object) -> None:
    assert len(show_value(value)) <= 61
    assert "\n" not in show_value(value)


def test_every_field_has_a_description_of_its_type() -> None:
    import msgspec

    for field in msgspec.structs.fields(Settings):
        assert describe_type(field.type)
