"""§4: exactly one goal, and which folder is meant."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Ralph = Callable[..., Any]
Agent = Callable[..., str]
Prompts = Callable[..., list[str]]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("G", "-p", "H"), "two goals"),
        (("--print", "G", "-p", "H"), "two goals"),
        (("G", "-f", "README"), "two goals"),
        (("-p", "G", "-f", "README"), "two goals"),
        ((), "no goal"),
        (("--print",), "no goal"),
        (("",), "the goal is empty"),
        (("-p", "\n "), "the goal is empty"),
        (("-f", "-"), "the goal is empty"),
        (("-f", "empty"), "the goal is empty"),
        (("-f", "nowhere"), "cannot read"),
        (("-p", "G", "--wat"), "--wat"),
        (("-p", "G", "--model", ""), "--model is empty"),
        (("-p", "G", "--review-agent", " "), "--review-agent is empty"),
        (("G", "H"), "folder not found: H\nhint: name a folder, or quote a goal of several words"),
    ],
)
def test_a_wrong_goal_is_a_one_line_error(
    ralph: Ralph, agent: Agent, workspace: Path, words: tuple[str, ...], said: str
) -> None:
    (workspace / "README").write_text("x")
    (workspace / "empty").write_text("\n")
    result = ralph("run", *words, "--agent", agent("echo STOP"))
    assert result.code == 2
    assert said in result.err
    assert not (workspace / ".ralph").exists(), "nothing is made for a run that cannot begin"


@pytest.mark.parametrize(
    ("words", "goal"),
    [
        (("-p", "G", "{folder}"), "G"),
        (("G", "{folder}"), "G"),
        (("--print", "G", "{folder}"), "G"),
        (("--print=G", "-C", "{folder}"), "G"),
        (("--print", "home", "{folder}"), "home"),
        (("--spec", "spec.md", "{folder}"), "the spec"),
        (("--spec", "spec.md", "G", "{folder}"), "the spec"),
        (("--spec=spec.md", "-p", "G", "{folder}"), "the spec"),
        (("-f", "spec.md", "-C", "{folder}"), "the spec"),
        (("-f", "{folder}/spec.md", "-C{folder}"), "the spec"),
        (("--", "-p", "{folder}"), "-p"),
        (("--", "--print=G", "{folder}"), "--print=G"),
        (("-p", "--print=G", "{folder}"), "--print=G"),
        (("-Vp", "G", "--", "{folder}"), "G"),
    ],
)
def test_the_goal_and_the_workspace_are_found(
    ralph: Ralph, agent: Agent, workspace: Path, tmp_path: Path, prompts: Prompts, words: tuple[str, ...], goal: str
) -> None:
    (workspace / "spec.md").write_text("the spec")
    fake = agent("pwd > where; echo '<response>DONE</response>'")
    given = [word.format(folder=workspace) for word in words]
    assert ralph("run", "--agent", fake, *given, cwd=tmp_path).code == 0
    assert [prompt.partition("\n\nWhen all of it")[0] for prompt in prompts()] == [goal]
    assert (workspace / "where").read_text().strip() == str(workspace)


def test_after_print_a_goal_may_have_the_name_of_a_folder(
    ralph: Ralph, agent: Agent, workspace: Path, prompts: Prompts
) -> None:
    (workspace / "docs").mkdir()
    assert ralph("run", "--print", "docs", "--ralph", "1", "--agent", agent("echo STOP")).code == 0
    assert prompts() == ["docs"]


@pytest.mark.parametrize("words", [("-",), ("-f", "-"), ("--print", "-")])
def test_a_dash_means_the_goal_is_on_standard_input(
    ralph: Ralph, agent: Agent, prompts: Prompts, words: tuple[str, ...]
) -> None:
    fake = agent("echo '<response>DONE</response>'")
    assert ralph("run", *words, "--agent", fake, stdin="the goal\n").code == 0
    assert prompts() == ["the goal"]
    assert ralph("run", *words, "--agent", fake, stdin="").code == 2


@pytest.mark.parametrize("rest", ["", " --with words", " | cat"])
def test_a_relative_path_of_an_agent_is_relative_to_the_current_folder(
    ralph: Ralph, agent: Agent, workspace: Path, tmp_path: Path, rest: str
) -> None:
    here = tmp_path / "my agents"
    here.mkdir()
    (here / "fake").symlink_to(agent("pwd > where; echo '<response>DONE</response>'"))
    assert ralph("run", "g", "-C", str(workspace), "--agent", f"./fake{rest}", cwd=here).code == 0
    assert (workspace / "where").read_text().strip() == str(workspace)


def test_an_untracked_agent_script_works_in_a_worktree(ralph: Ralph, agent: Agent, repository: Path) -> None:
    (repository / "fake").symlink_to(agent("echo '<response>DONE</response>'"))
    assert ralph("run", "g", "--worktree", "--agent", "./fake").code == 0
    (repository / ".ralph" / "settings.json").write_text('{"worktree": true}')
    assert ralph("run", "g", "--agent", "./fake").code == 0


@pytest.mark.parametrize("place", [(), ("--worktree",)])
def test_git_clean_by_the_agent_does_not_end_the_run(
    ralph: Ralph, agent: Agent, repository: Path, place: tuple[str, ...]
) -> None:
    words = (
        "--check",
        "echo tested",
        "--agent",
        agent("git clean -fdxq; [ $N = 2 ] && echo '<response>DONE</response>'"),
    )
    ended = ralph("run", "g", *place, *words)
    assert ended.code == 0, ended.err
    assert "cannot write" not in ended.err


def test_a_tasks_file_is_looked_up_in_the_workspace_then_here(
    ralph: Ralph, agent: Agent, workspace: Path, tmp_path: Path
) -> None:
    words = (
        "run",
        "g",
        "-C",
        str(workspace),
        "--tasks",
        "TASKS.md",
        "--agent",
        agent("echo '<response>DONE</response>'"),
    )
    (tmp_path / "TASKS.md").write_text("- [x] here\n")
    assert ralph(*words, cwd=tmp_path).code == 0
    (workspace / "TASKS.md").write_text("- [ ] there\n")
    assert ralph(*words, "-m", "1", cwd=tmp_path).code == 1


def test_a_spec_in_the_settings_is_a_goal(ralph: Ralph, agent: Agent, workspace: Path, prompts: Prompts) -> None:
    (workspace / ".ralph").mkdir()
    (workspace / ".ralph" / "settings.json").write_text('{"spec": "docs/spec.md"}')
    (workspace / "docs").mkdir()
    (workspace / "docs" / "spec.md").write_text("the spec")
    assert ralph("run", "--agent", agent("echo '<response>DONE</response>'")).code == 0
    assert prompts() == ["the spec"]


@pytest.mark.parametrize(
    "goal", [b"{{x}} $(touch no) `id` $& \\1 ---\n---", "ünï 🎉\ttab".encode(), b"--print", b"  x\r\n\n"]
)
def test_a_goal_reaches_the_agent_byte_for_byte(
    ralph: Ralph, agent: Agent, workspace: Path, environment: dict[str, str], goal: bytes
) -> None:
    (workspace / "goal").write_bytes(goal)
    fake = agent("true", "unused")
    Path(fake).write_text('#!/bin/sh\ncat > "$HOME/got"; echo STOP\n')
    assert ralph("run", "-f", "goal", "--ralph", "1", "--agent", fake).code == 0
    assert (Path(environment["HOME"]) / "got").read_bytes() == goal
    assert ralph("run", "--prompt=" + os.fsdecode(goal), "--ralph", "1", "--agent", fake).code == 0
    assert (Path(environment["HOME"]) / "got").read_bytes() == goal


def test_a_dry_run_runs_nothing(ralph: Ralph, agent: Agent, workspace: Path) -> None:
    fake = agent("touch ran")
    result = ralph("loop", "make it", "--check", "make test", "--max-time", "90m", "--dry-run", "--agent", fake)
    assert (result.code, result.err) == (0, "")
    assert "1h30m" in result.out
    assert "# Task\n\nmake it\n" in result.out
    assert not list(workspace.iterdir())
    assert ralph("run", "make it", "--dry-run", "--json", "--agent", fake).out == "", "stdout holds only NDJSON"


@pytest.mark.parametrize("words", [("loop",), ("loop", "--until", "word:STOP"), ("run",), ("run", "--ralph", "0")])
def test_a_dry_run_shows_when_the_run_will_be_done(words: tuple[str, ...], ralph: Ralph, agent: Agent) -> None:
    words = (*words, "make it", "--check", "true", "--agent", agent("echo COMPLETE STOP"))
    (planned,) = [line for line in ralph(*words, "--dry-run").out.splitlines() if "done when" in line]
    (shown,) = [line for line in ralph(*words).err.splitlines() if "done when" in line]
    assert planned.split() == shown.split()


def test_a_missing_current_folder_is_a_one_line_error(
    agent: Agent, tmp_path: Path, environment: dict[str, str]
) -> None:
    fake = agent("true")
    command = f"mkdir gone && cd gone && rmdir ../gone && {sys.executable} -m ralph run -p x --agent {fake}"
    process = subprocess.run(["sh", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert process.returncode == 2
    assert "ralph: the current folder was deleted" in process.stderr


@pytest.mark.parametrize(
    ("words", "preset", "cap"),
    [
        (("run", "G"), "guardrails", 10),
        (("run", "G", "--ralph", "5"), "goal", 5),
        (("run", "G", "--ralph=-1"), "goal", None),
        (("run", "G", "--ralph", "5", "-m", "50"), "goal", 5),
        (("run", "G", "--ralph", "5", "--preset", "checks", "--check", "true"), "checks", 5),
        (("loop", "G", "--check", "true", "--ralph", "5"), "checks", 5),
        (("loop", "G", "--check", "true"), "checks", 25),
        (("run", "G", "--preset", "promise", "-m", "3"), "promise", 4),
        (("run", "G", "--preset", "supervise", "--done-file", "F"), "supervise", 100),
    ],
)
def test_each_preset_sets_its_defaults(
    ralph: Ralph, agent: Agent, words: tuple[str, ...], preset: str, cap: int | None
) -> None:
    claim = "touch F; echo STOP COMPLETE '<response>DONE</response><promise>DONE</promise>'"
    result = ralph(*words, "--claim-anywhere", "--json", "--min-tool-calls", "0", "--agent", agent(claim))
    assert result.code == 0
    started = result.one("run_started")
    assert (started["preset"], started["max_iterations"]) == (preset, cap)
