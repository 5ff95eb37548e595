"""The ways to start a run from the command line: default command, piped goals, tasks files, odd encodings."""

import codecs
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Ralph = Callable[..., Any]
Agent = Callable[..., str]
Prompts = Callable[..., list[str]]

DONE = "echo '<response>DONE</response>'"


@pytest.mark.parametrize(
    "words", [("make it work",), ("-p", "make it work"), ("--prompt=make it work",), ("-v", "-p", "make it work")]
)
def test_without_a_command_a_goal_or_an_option_means_run(
    ralph: Ralph, agent: Agent, prompts: Prompts, words: tuple[str, ...]
) -> None:
    assert ralph(*words, "--agent", agent(DONE)).code == 0
    assert prompts()[0].startswith("make it work")


def test_a_single_word_is_an_unknown_command_and_says_how_to_run_it_as_a_goal(ralph: Ralph, workspace: Path) -> None:
    result = ralph("xylophone")
    assert result.code == 2
    assert 'ralph run "xylophone' in result.err
    (workspace / "PROMPT.md").write_text("Make it work")
    assert ralph("PROMPT.md").err.endswith("ralph run -f PROMPT.md\n")


@pytest.mark.parametrize("words", [("run",), ("run", "."), ("run", "-")])
@pytest.mark.parametrize("is_pipe", [True, False])
def test_a_goal_is_read_from_a_pipe_or_a_redirected_file(
    agent: Agent,
    prompts: Prompts,
    workspace: Path,
    environment: dict[str, str],
    words: tuple[str, ...],
    is_pipe: bool,
) -> None:
    (workspace / "PROMPT.md").write_text("the piped goal\n")
    line = 'cat PROMPT.md | "$@"' if is_pipe else '"$@" < PROMPT.md'
    command = ["sh", "-c", line, "sh", sys.executable, "-m", "ralph", *words, "--agent", agent(DONE)]
    done = subprocess.run(command, cwd=workspace, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert prompts() == ["the piped goal"]


def test_empty_standard_input_is_not_a_goal(ralph: Ralph, agent: Agent) -> None:
    result = ralph("run", "--agent", agent(DONE))
    assert (result.code, result.err.splitlines()[0]) == (2, "ralph: no goal")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("prd.json", json.dumps({"userStories": [{"id": "S1", "title": "Login", "passes": False}]}), '"passes": true'),
        ("TODO.md", "- [ ] Login\n", "Tick a task in the file"),
    ],
)
def test_a_tasks_file_can_be_the_goal(
    ralph: Ralph, agent: Agent, prompts: Prompts, workspace: Path, name: str, text: str, said: str
) -> None:
    (workspace / name).write_text(text)
    ralph("loop", "--tasks", name, "--check", "true", "-m", "1", "--agent", agent("echo COMPLETE"))
    assert name in prompts()[0]
    assert said in prompts()[0]


@pytest.mark.parametrize("command", ["run", "loop"])
def test_a_missing_tasks_file_is_named(ralph: Ralph, agent: Agent, command: str) -> None:
    result = ralph(command, "x", "--tasks", "missing.md", "--agent", agent(DONE))
    assert (result.code, result.err.splitlines()[0]) == (2, "ralph: tasks file not found: missing.md")


@pytest.mark.parametrize(
    "data",
    [
        codecs.BOM_UTF16_LE + "größer ✓".encode("utf-16-le"),
        codecs.BOM_UTF16_BE + "größer ✓".encode("utf-16-be"),
        codecs.BOM_UTF8 + "größer ✓".encode(),
    ],
    ids=["utf-16-le", "utf-16-be", "utf-8 with a mark"],
)
def test_a_prompt_file_may_have_a_byte_order_mark(
    ralph: Ralph, agent: Agent, prompts: Prompts, workspace: Path, data: bytes
) -> None:
    (workspace / "PROMPT.md").write_bytes(data)
    assert ralph("run", "-f", "PROMPT.md", "--agent", agent(DONE)).code == 0
    assert prompts() == ["größer ✓"]


def test_a_prompt_file_that_is_not_utf_8_is_refused_in_one_line(ralph: Ralph, agent: Agent, workspace: Path) -> None:
    (workspace / "PROMPT.md").write_bytes("größer".encode("latin-1"))
    result = ralph("run", "-f", "PROMPT.md", "--agent", agent(DONE))
    assert result.code == 2
    assert result.err.splitlines()[0].endswith("PROMPT.md is not UTF-8 text")
    assert result.err.splitlines()[1].startswith("hint: convert it, for example: iconv -f latin1 -t utf-8 ")


@pytest.mark.parametrize("words", [("--model", "opus"), ("--session", "continue")])
def test_an_option_without_effect_on_a_plain_command_is_refused(
    ralph: Ralph, agent: Agent, words: tuple[str, ...]
) -> None:
    result = ralph("run", "x", *words, "--agent", agent(DONE))
    assert result.code == 2
    assert result.err.startswith(f"ralph: {words[0]} has no effect: ")


@pytest.mark.parametrize("text", ['{"maximumIterations": "ten"}', '{"agent": 5}'])
def test_settings_of_the_wrong_type_are_reported_even_if_an_option_overrides_them(
    ralph: Ralph, agent: Agent, workspace: Path, text: str
) -> None:
    (workspace / ".ralph").mkdir()
    (workspace / ".ralph" / "settings.json").write_text(text)
    result = ralph("run", "x", "-m", "1", "--until", "word:STOP", "--agent", agent(DONE))
    assert result.code == 2
    assert ".ralph/settings.json:1: " in result.err.splitlines()[0]


def test_the_help_of_task_states_its_defaults(ralph: Ralph) -> None:
    help_text = " ".join(ralph("task", "--help").out.split())
    for said in ("at most N times (default: 100)", "between two turns (default: 1s)", "its agent (default: 5m)"):
        assert said in help_text


def test_the_help_states_the_defaults_of_its_own_command(ralph: Ralph) -> None:
    for command, said in (("run", "(default: 10)"), ("loop", "(default: 25)"), ("loop", "(default: tag:COMPLETE)")):
        assert said in " ".join(ralph(command, "--help").out.split())
