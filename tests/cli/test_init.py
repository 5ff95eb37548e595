"""`ralph init`, asked on a real terminal."""

import errno
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pexpect
import pytest

from ralph.cli.init import Dialog, initialize

AGENT = "Agent command (e.g., claude, codex, amp, or other LLM CLI): "
FLAGS = "Agent flags (comma-separated, optional): "
ITERATIONS = "Maximum iterations [10]: "
RESPONSE = "Completion response [DONE]: "
GUARDRAIL = "Add guardrail command (leave blank to finish): "
ACTION = "  Fail action (APPEND|PREPEND|REPLACE): "
HINT = "  Hint (optional, guidance for agent on failure): "
PROTECT = 'If the agent must not change your tests, add "protect": ["tests/**"] to it.'
SCM = "Configure SCM? (y/N): "
SCM_COMMAND = "  SCM command (e.g., git): "
SCM_TASKS = "  SCM tasks (comma-separated, e.g., commit,push): "
WRITTEN = "Settings written to .ralph/settings.json"

SHORTEST = [(AGENT, "claude"), (FLAGS, ""), (ITERATIONS, ""), (RESPONSE, ""), (GUARDRAIL, ""), (SCM, "n")]

Terminal = Callable[[], "pexpect.spawn[str]"]


@pytest.fixture
def terminal(environment: dict[str, str], workspace: Path) -> Iterator[Terminal]:
    """`ralph init` on a terminal of its own."""
    started: list[pexpect.spawn[str]] = []

    def start() -> "pexpect.spawn[str]":
        child = pexpect.spawn(
            sys.executable,
            ["-m", "ralph", "init"],
            cwd=str(workspace),
            env=environment,  # type: ignore[arg-type]
            encoding="utf-8",
            timeout=20,
        )
        child.delaybeforesend = None  # every answer waits for its question
        started.append(child)
        return child

    yield start
    for child in started:
        child.close(force=True)


def converse(child: "pexpect.spawn[str]", *answers: tuple[str, str]) -> None:
    for question, answer in answers:
        child.expect_exact(question)
        child.sendline(answer)


def exit_code(child: "pexpect.spawn[str]") -> int | None:
    child.expect(pexpect.EOF)
    child.close()
    return child.exitstatus


def settings(workspace: Path) -> dict[str, Any]:
    return dict(json.loads((workspace / ".ralph" / "settings.json").read_text()))


def test_the_documented_conversation_writes_the_documented_settings(terminal: Terminal, workspace: Path) -> None:
    child = terminal()
    converse(
        child,
        (AGENT, "claude"),
        (FLAGS, " --model , opus "),
        (ITERATIONS, ""),
        (RESPONSE, ""),
        (GUARDRAIL, "make lint"),
        (ACTION, "APPEND"),
        (HINT, "Fix lint errors only. Do not change behavior."),
        (GUARDRAIL, "make test"),
        (ACTION, "append"),
        (HINT, ""),
        (GUARDRAIL, ""),
        (SCM, "y"),
        (SCM_COMMAND, "git"),
        (SCM_TASKS, "commit"),
    )
    child.expect_exact(WRITTEN)
    assert exit_code(child) == 0
    assert settings(workspace) == {
        "maximumIterations": 10,
        "completionResponse": "DONE",
        "outputTruncateChars": 5000,
        "streamAgentOutput": True,
        "includeIterationCountInPrompt": False,
        "agent": {"command": "claude", "flags": ["--model", "opus"]},
        "guardrails": [
            {"command": "make lint", "failAction": "APPEND", "hint": "Fix lint errors only. Do not change behavior."},
            {"command": "make test", "failAction": "APPEND"},
        ],
        "scm": {"command": "git", "tasks": ["commit"]},
    }
    assert sorted(os.listdir(workspace / ".ralph")) == [".gitignore", "settings.json"]


def test_a_bad_answer_is_asked_for_again(terminal: Terminal, workspace: Path) -> None:
    child = terminal()
    converse(
        child,
        (AGENT, ""),
        (AGENT, "codex"),
        (FLAGS, ""),
        (ITERATIONS, "many"),
        (ITERATIONS, "0"),
        (ITERATIONS, "-3"),
        (ITERATIONS, "7"),
        (RESPONSE, "FERTIG"),
        (GUARDRAIL, "true"),
        (ACTION, ""),
        (ACTION, "delete"),
        (ACTION, "replace"),
        (HINT, ""),
        (GUARDRAIL, ""),
        (SCM, "yes"),
        (SCM_COMMAND, ""),
        (SCM_COMMAND, "git"),
        (SCM_TASKS, " , "),
        (SCM_TASKS, "commit, push"),
    )
    child.expect_exact(WRITTEN)
    assert exit_code(child) == 0
    written = settings(workspace)
    assert (written["maximumIterations"], written["completionResponse"]) == (7, "FERTIG")
    assert written["guardrails"] == [{"command": "true", "failAction": "REPLACE"}]
    assert written["scm"] == {"command": "git", "tasks": ["commit", "push"]}


def test_existing_settings_are_shown_and_kept_unless_the_person_agrees(terminal: Terminal, workspace: Path) -> None:
    folder = workspace / ".ralph"
    folder.mkdir()
    (folder / "settings.json").write_text('{"agent": {"command": "claude", "flags": ["--model opus"]}}')
    child = terminal()
    child.expect_exact('"command": "claude"')
    child.expect_exact("Loaded from .ralph/settings.json\r\n")
    converse(child, ("Overwrite? (y/N): ", ""))
    assert exit_code(child) == 0
    assert settings(workspace) == {"agent": {"command": "claude", "flags": ["--model opus"]}}


def test_local_settings_are_shown_merged_and_never_touched(terminal: Terminal, workspace: Path) -> None:
    folder = workspace / ".ralph"
    folder.mkdir()
    local = '{"agent": {"flags": ["--verbose"]}}'
    (folder / "settings.json").write_text('{"agent": {"command": "claude", "flags": ["--model opus"]}}')
    (folder / "settings.local.json").write_text(local)
    (folder / ".gitignore").write_text("mine\n")
    child = terminal()
    child.expect_exact('"--verbose"')
    child.expect_exact("Loaded from .ralph/settings.json (with local overlay from settings.local.json)")
    converse(child, ("Overwrite? (y/N): ", "y"), *SHORTEST)
    child.expect_exact(WRITTEN)
    assert exit_code(child) == 0
    assert settings(workspace)["agent"] == {"command": "claude", "flags": []}
    assert (folder / "settings.local.json").read_text() == local
    assert (folder / ".gitignore").read_text() == "mine\n"


def test_broken_settings_are_named_and_may_be_overwritten(terminal: Terminal, workspace: Path) -> None:
    (workspace / ".ralph").mkdir()
    (workspace / ".ralph" / "settings.json").write_text('{"stal": 1}')
    child = terminal()
    child.expect_exact('.ralph/settings.json:1:2: stal: unknown key; did you mean "stall"?')
    converse(child, ("Overwrite? (y/N): ", "y"), *SHORTEST)
    child.expect_exact(WRITTEN)
    assert exit_code(child) == 0


@pytest.mark.parametrize("key", ["\x03", "\x04"], ids=["ctrl-c", "end of file"])
def test_giving_up_writes_nothing(terminal: Terminal, workspace: Path, key: str) -> None:
    child = terminal()
    converse(child, *SHORTEST[:4])
    child.expect_exact(GUARDRAIL)
    child.send(key)
    child.expect_exact("Aborted.")
    assert exit_code(child) == 130
    assert not (workspace / ".ralph").exists()


def test_without_a_terminal_it_says_so(environment: dict[str, str], workspace: Path) -> None:
    for stdin in (subprocess.DEVNULL, None):
        words = [sys.executable, "-m", "ralph", "init"]
        closed = ["sh", "-c", 'exec "$@" <&-', "sh", *words] if stdin is None else words
        result = subprocess.run(closed, cwd=workspace, env=environment, stdin=stdin, capture_output=True, text=True)
        assert (result.returncode, result.stdout) == (2, "")
        assert "needs a terminal" in result.stderr
        assert "Traceback" not in result.stderr


def answered(workspace: Path, *answers: str) -> str:
    said = io.StringIO()
    initialize(workspace, Dialog(io.StringIO("".join(f"{answer}\n" for answer in answers)), said))
    return said.getvalue()


def test_a_terminal_that_is_gone_has_given_up(workspace: Path) -> None:
    class Gone(io.StringIO):
        def readline(self, *_: object) -> str:
            raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(EOFError):
        initialize(workspace, Dialog(Gone(), io.StringIO()))
    assert not (workspace / ".ralph").exists()


def test_where_there_are_tests_it_says_how_to_protect_them(workspace: Path) -> None:
    (workspace / "tests").mkdir()
    said = answered(workspace, "claude", "", "", "", "make test", "append", "", "", "n")
    assert f"Settings written to .ralph/settings.json\n{PROTECT}\n" in said


def test_where_there_can_be_a_box_it_is_offered(
    workspace: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "tools"))
    assert "sandbox" not in answered(workspace, "claude", "", "", "", "", "n")
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "bwrap").touch(0o755)
    (workspace / ".ralph" / "settings.json").unlink()
    said = answered(workspace, "claude", "", "", "", "", "n")
    assert said.endswith('add "sandbox": {"enabled": true} to it.\n')


def test_without_guardrails_there_is_nothing_to_protect_them_from(workspace: Path) -> None:
    (workspace / "tests").mkdir()
    assert "protect" not in answered(workspace, "claude", "", "", "", "", "n")


def test_installed_agents_are_named(
    workspace: Path, agent: Callable[..., str], environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    agent("true", "codex")
    monkeypatch.setenv("PATH", f"{environment['HOME']}/bin")
    assert answered(workspace, "", "codex", "", "", "", "", "").startswith("Installed here: codex\n" + AGENT)


def test_what_is_typed_survives_as_it_is(workspace: Path) -> None:
    answered(workspace, 'my-agent "{prompt}" \\ ä 🎉', "", "", "", "grep -q 'a\\b' \"x\"", "append", 'ü\t"q"', "", "n")
    written = settings(workspace)
    assert written["agent"]["command"] == 'my-agent "{prompt}" \\ ä 🎉'
    assert written["guardrails"][0] == {"command": "grep -q 'a\\b' \"x\"", "failAction": "APPEND", "hint": 'ü\t"q"'}


def test_what_it_writes_is_what_git_keeps(repository: Path, git: Callable[..., str]) -> None:
    answered(repository, "claude", "", "", "", "", "n")
    (repository / ".ralph" / "settings.local.json").write_text("{}")
    (repository / ".ralph" / "runs").mkdir()
    (repository / ".ralph" / "runs" / "x").write_text("x")
    git("add", "-A")
    assert git("diff", "--cached", "--name-only").split() == [".ralph/settings.json"]


def test_a_place_that_cannot_be_written_is_an_error_and_leaves_nothing(workspace: Path) -> None:
    from ralph.errors import UserError

    target = workspace / ".ralph" / "settings.json"
    (target / "in-the-way").mkdir(parents=True)
    with pytest.raises(UserError, match=r"cannot write .*settings\.json"):
        answered(workspace, "y", "claude", "", "", "", "", "n")
    assert sorted(os.listdir(workspace / ".ralph")) == [".gitignore", "settings.json"]
