"""YAML files for `ralph loop -c FILE`: the section `ralph_loop`, its own names, and keys in snake case."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ralph.errors import UserError
from ralph.settings import CheckCommand, load

EXAMPLE = """\
ralph_loop:
  max_iterations: 25        # 1-100
  max_cost: null            # USD, null = no limit
  max_time: null            # seconds, null = no limit
  completion_tag: "COMPLETE" # tag the agent emits
  agent: build              # default agent
"""


@pytest.fixture
def config(files: Any) -> Path:
    path: Path = files.workspace / "loop.yaml"
    return path


def test_the_documented_example_equals_the_defaults_of_the_checks_preset(files: Any, config: Path) -> None:
    config.write_text(EXAMPLE)
    assert files.load(config, preset="checks").settings == files.load(preset="checks").settings
    assert files.load(config).sources == (config,)


def test_max_iterations_completion_tag_and_snake_case_are_read(files: Any, config: Path) -> None:
    config.write_text(
        "ralph_loop:\n  max_iterations: 7\n  max_cost: 2.5\n  max_time: 10m\n  completion_tag: FERTIG\n"
        "  agent: {command: codex, model: o3}\n  spec: spec.md\n  worktree: true\n  check_timeout: 30\n"
        "  checks:\n    - pytest\n    - command: ruff check\n      fail_action: prepend\n"
    )
    loaded = files.load(config, preset="checks").settings
    assert (loaded.maximum_iterations, loaded.max_cost, loaded.max_time) == (7, 2.5, 600)
    assert (loaded.until, loaded.agent.command, loaded.agent.model) == (("tag:FERTIG",), "codex", "o3")
    assert loaded.checks == (CheckCommand("pytest"), CheckCommand("ruff check", "PREPEND"))
    assert (loaded.spec, loaded.worktree, loaded.check_timeout) == ("spec.md", True, 30)


@pytest.mark.parametrize(
    "text",
    [
        "maximum_iterations: 3\nagent: {command: amp, max_turns: 4}\non_limit: stop\nscm: {tasks: [commit]}\n",
        "maximumIterations: 3\nagent: {command: amp, maxTurns: 4}\nonLimit: stop\nscm: {tasks: [commit]}\n",
        "ralph_loop: {onLimit: stop, maximum_iterations: 3, agent: {command: amp, max_turns: 4}, "
        "scm: {tasks: [commit]}}",
        '{"maximumIterations": 3, "agent": {"command": "amp", "maxTurns": 4}, "onLimit": "stop",\n'
        '"scm": {"tasks": ["commit"]}}',
    ],
)
def test_keys_may_be_in_snake_case_or_camel_case(files: Any, config: Path, text: str) -> None:
    config.write_text(text)
    loaded = files.load(config).settings
    assert (loaded.maximum_iterations, loaded.agent.command, loaded.agent.max_turns) == (3, "amp", 4)
    assert loaded.on_limit == "stop"
    assert loaded.scm.tasks == ("commit",)


def test_the_file_overrides_the_local_settings_and_the_command_line_overrides_the_file(
    files: Any, config: Path
) -> None:
    files.write(local={"stall": 1, "maxCost": 1, "agent": {"command": "claude"}})
    config.write_text("stall: 2\nmax_cost: null\nagent: build\n")
    loaded = files.load(config).settings
    assert (loaded.stall, loaded.max_cost, loaded.agent.command) == (2, None, "claude")
    assert files.load(config, stall=3).settings.stall == 3


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", ": the file is empty; write {} into it, or delete it"),
        ("# nothing", ": expected an object, got null"),
        ("- a", ': expected an object, got ["a"]'),
        ("ralph_loop: 5", ":1: ralph_loop: expected an object, got 5"),
        ("ralph_loop: false", ":1: ralph_loop: expected an object, got false"),
        (
            "ralph_loop:\n  max_iterations: 101",
            ":2: ralph_loop.max_iterations: expected a whole number from 1 to 100, got 101",
        ),
        (
            "ralph_loop:\n  max_iterations: 0",
            ":2: ralph_loop.max_iterations: expected a whole number from 1 to 100, got 0",
        ),
        (
            "ralph_loop:\n  max_iterations: true",
            ":2: ralph_loop.max_iterations: expected a whole number from 1 to 100, got true",
        ),
        ("ralph_loop:\n  max_cots: 3", ':2: ralph_loop.max_cots: unknown key; did you mean "maxCost"?'),
        ("ralph_loop:\n  max_cost: .inf\n  max_cost: 3", ":3: ralph_loop.max_cost: given twice"),
        (
            "ralph_loop:\n  completion_tag: 5",
            ":2: ralph_loop.completion_tag: expected text that is not blank, got 5",
        ),
        (
            "ralph_loop:\n  completion_tag: ''",
            ':2: ralph_loop.completion_tag: expected text that is not blank, got ""',
        ),
        ("ralph_loop:\n  checks: [a, 7]", ":2: ralph_loop.checks[1]: expected an object, got 7"),
        ("ralph_loop:\n  checks: ['']", ':2: ralph_loop.checks[0].command: expected text that is not blank, got ""'),
        ("ralph_loop:\n  checks: pytest", ':2: ralph_loop.checks: expected a list, got "pytest"'),
        ("ralph_loop:\n  agent: [x]", ':2: ralph_loop.agent: expected an object, got ["x"]'),
        ("scm:\n  taks: [x]", ':2: scm.taks: unknown key; did you mean "tasks"?'),
        (
            "max_time: 2024-01-01",
            ':1: max_time: expected a duration above 0 such as 90, "90s", "5m" or "1h30m", got "2024-01-01"',
        ),
        ("a: [1", ":1: not valid YAML: while parsing a flow sequence: expected ',' or ']', but got '<stream end>'"),
        (
            "a: 1\n---\nb: 2",
            ":2: not valid YAML: expected a single document in the stream: but found another document",
        ),
        ("a: &a [*a]", ":1: not valid YAML: aliases of lists and mappings are not supported"),
        ("a: !!bool xx", ": not valid YAML: a value doesn't match its tag"),
        ("? [a]\n: b", ":1: not valid YAML: while constructing a mapping: found unhashable key"),
        ("5: b", ":1: 5: unknown key"),
        ("a: \x07", ": not valid YAML: unacceptable character #x0007: special characters are not allowed"),
        ("x: " + "[" * 5000, ": nested too deeply"),
    ],
)
def test_an_error_names_the_line_and_the_key_as_the_file_spells_it(
    files: Any, config: Path, text: str, problem: str
) -> None:
    config.write_text(text)
    assert files.refusal(config) == [f"loop.yaml{problem}"]


def test_tags_that_would_run_code_are_refused(files: Any, config: Path) -> None:
    config.write_text("a: !!python/object/apply:os.mkdir [pwned]")
    assert "not valid YAML: could not determine a constructor for the tag" in files.refusal(config)[0]
    assert not (files.workspace / "pwned").exists()


def test_a_missing_file_is_an_error(files: Any, config: Path) -> None:
    assert files.refusal(config) == ["loop.yaml: cannot be read: no such file or directory"]


ALPHABET = st.sampled_from("ab:-[]{}&*!#|>'\"\n ,?%@01.~\t") | st.characters()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.text(ALPHABET), st.booleans())
def test_any_text_is_loaded_or_refused_with_a_user_error(tmp_path: Path, text: str, in_section: bool) -> None:
    path = tmp_path / "any.yaml"
    path.write_text(f"ralph_loop:\n  {text}" if in_section else text, "utf-8", "replace")
    with suppress(UserError):
        load(tmp_path, {}, env={}, config=path)


def test_keys_next_to_the_section_are_ignored_even_if_ralph_has_such_settings(files: Any, config: Path) -> None:
    config.write_text("agents: {build: {max_steps: 5}}\nchecks: [make lint]\nralph_loop: {checks: [make test]}\n")
    loaded = files.load(config)
    assert [one.command for one in loaded.settings.checks] == ["make test"]
    assert not loaded.settings.agents


def test_a_file_of_more_than_256_KB_is_refused_in_one_line(files: Any, config: Path) -> None:
    config.write_text("".join(f"a{number}: 1\n" for number in range(30_000)))
    with pytest.raises(UserError, match="cannot be read: it is larger than 256 KB"):
        files.load(config)
