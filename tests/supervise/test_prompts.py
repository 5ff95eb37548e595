"""Where the prompt comes from, and what is added to it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Agent = Callable[..., str]
Pipe = Callable[[str], Any]
Prompts = Callable[..., list[str]]
DONE = 'echo fine > "$TASK_FOLDER/DONE"'


def test_the_first_prompt_becomes_task_md(task: Any, agent: Agent, prompts: Prompts) -> None:
    fake = agent(DONE)
    task.supervise("--agent", fake, "--prompt", "First.\n")
    assert task.folder.prompt.read_text() == "First.\n"
    task.folder.done.unlink()
    task.supervise("--agent", fake, "--prompt", "Second.")
    task.folder.done.unlink()
    task.supervise("--agent", fake)
    assert task.folder.prompt.read_text() == "First.\n", "it is never written over"
    assert prompts() == ["First.", "Second.", "First."], "a prompt that is given wins for its run"


def test_task_md_is_read_again_before_every_attempt(task: Any, agent: Agent, prompts: Prompts) -> None:
    task.folder.path.mkdir(parents=True)
    task.folder.prompt.write_text("one")
    task.supervise("--agent", agent(f'printf two > "$TASK_FOLDER/TASK.md"; [ $N = 1 ] || {DONE}'))
    assert prompts() == ["one", "Continue working on the following:\n\ntwo"]


def test_a_prompt_file_is_the_prompt(task: Any, agent: Agent, prompts: Prompts) -> None:
    (task.workspace / "P.md").write_text("from a file")
    task.supervise("--agent", agent(DONE), "--prompt-file", "P.md")
    assert (prompts(), task.folder.prompt.read_text()) == (["from a file"], "from a file")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ((), "TASK.md is missing"),
        (("--prompt", "  "), "the goal is empty"),
        (("--prompt", "a", "--prompt-file", "b"), "two goals"),
        (("--prompt", "a", "--max-restarts", "-1"), "--max-restarts"),
        (("--prompt", "a", "--poll-interval", "0"), "--poll-interval"),
        (("--prompt", "a", "--wait-timeout", "soon"), "--wait-timeout"),
        (("--prompt", "a", "--nonsense"), "--nonsense"),
    ],
)
def test_an_invalid_command_line_is_a_one_line_error(task: Any, words: tuple[str, ...], complaint: str) -> None:
    result = task.supervise("--agent", "true", *words)
    assert result.returncode == 2
    assert complaint in result.stderr
    assert "Traceback" not in result.stderr
    assert task.attempts() == []


@pytest.mark.parametrize("name", ["../up", "a/b", "", ".hidden", "-x"])
def test_a_task_cannot_be_outside_its_root(ralph: Callable[..., Any], tmp_path: Any, name: str) -> None:
    result = ralph("task", f"--root={tmp_path}/root", "--project=p", f"--task={name}", "-p", "x", "--agent", "true")
    assert (result.code, (tmp_path / "root").exists()) == (2, False)
    assert "not a name for a task" in result.err


def test_a_task_must_be_named_in_full(ralph: Callable[..., Any]) -> None:
    result = ralph("task", "--project", "p", "-p", "x", "--agent", "true")
    assert result.code == 2
    assert "no task named: missing --root, --task" in result.err


def test_a_known_agent_gets_explanations_that_its_prompt_lacks(task: Any, agent: Agent, prompts: Prompts) -> None:
    agent(DONE, "claude")
    task.supervise("--agent", "claude", "--prompt", "Build it.")
    (asked,) = prompts("claude")
    assert asked.startswith("Build it.\n\n")
    assert f"create the file {task.folder.done}; until it is there, you are started again" in asked
    assert "ralph bus post" in asked
    assert "ralph job --prompt" in asked
    said = f"Build it, then create {task.folder.done}; say so on the bus; use `ralph job`."
    task.folder.done.unlink()
    task.supervise("--agent", "claude", "--prompt", said)
    assert prompts("claude")[1] == said


def test_a_known_agent_gets_the_path_of_its_task(task: Any, agent: Agent, prompts: Prompts) -> None:
    agent(DONE, "claude")
    task.supervise("--agent", "claude", "--prompt", "Then create $TASK_FOLDER/DONE; no bus, no ralph job.")
    assert prompts("claude") == [
        f"Then create $TASK_FOLDER/DONE; no bus, no ralph job.\n\nThe folder of the task, $TASK_FOLDER, is "
        f"{task.folder.path}: write its name out."
    ]


@pytest.mark.parametrize(
    ("name", "words"), [("claude", ["--add-dir"]), ("codex", ["--add-dir"]), ("gemini", ["--include-directories"])]
)
def test_an_agent_may_write_in_the_folder_of_its_task(
    name: str, words: list[str], task: Any, agent: Agent, environment: dict[str, str]
) -> None:
    agent(DONE, name)
    task.supervise("--agent", name, "--prompt", "x")
    argv = (Path(environment["HOME"]) / f"{name}.argv.1").read_text().splitlines()
    assert argv[argv.index(words[0]) + 1] == str(task.folder.path)


def test_done_that_a_check_refused_does_not_count(task: Any, agent: Agent) -> None:
    words = ("--agent", agent(DONE), "--prompt", "x", "--check", "test -f fixed", "--max-restarts", "1")
    assert task.supervise(*words).returncode == 1
    assert task.folder.done.exists()
    refused = "the DONE marker is not accepted after 1 attempt"
    assert task.said("ERROR") == [f"max restarts exceeded, stopping: {refused}"]
    (task.workspace / "fixed").touch()
    assert task.supervise(*words).returncode == 0
