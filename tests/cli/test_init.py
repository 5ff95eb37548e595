"""`ralph init` on a real terminal, `ralph demo` and `ralph schema`."""

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

from ralph.cli.init import Dialog, initialize, schema_text
from ralph.errors import UserError
from ralph.settings.detect_checks import installed_checks

AGENT = "Agent command (e.g., claude, codex, amp, or other LLM CLI): "
FLAGS = "Agent flags (comma-separated, optional): "
ITERATIONS = "Maximum iterations [10]: "
RESPONSE = "Completion response [DONE]: "
GUARDRAIL = "Add guardrail command (leave blank to finish): "
ACTION = "  Fail action (APPEND|PREPEND|REPLACE) [APPEND]: "
HINT = "  Hint (optional, guidance for agent on failure): "
SCM = "Configure SCM? (y/N): "
SCM_COMMAND = "  SCM command (e.g., git): "
SCM_TASKS = "  SCM tasks (comma-separated, e.g., commit,push): "
WRITTEN = "Settings written to .ralph/settings.json"

SHORTEST = [(AGENT, "claude"), (FLAGS, ""), (ITERATIONS, ""), (RESPONSE, ""), (GUARDRAIL, ""), (SCM, "n")]

Terminal = Callable[[], "pexpect.spawn[str]"]


@pytest.fixture
def terminal(environment: dict[str, str], workspace: Path) -> Iterator[Terminal]:
    """Start `ralph init` on a terminal."""
    started: list[pexpect.spawn[str]] = []

    def start() -> "pexpect.spawn[str]":
        child = pexpect.spawn(
            sys.executable,
            ["-m", "ralph", "init"],
            cwd=str(workspace),
            env=environment,  # type: ignore[arg-type]
            encoding="utf-8",
            timeout=60,
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
        "$schema": "./settings.schema.json",
        "completionResponse": "DONE",
        "outputTruncateChars": 5000,
        "streamAgentOutput": True,
        "includeIterationCountInPrompt": False,
        "agent": {"command": "claude", "flags": ["--model", "opus"]},
        "checks": [
            {"command": "make lint", "failAction": "APPEND", "hint": "Fix lint errors only. Do not change behavior."},
            {"command": "make test", "failAction": "APPEND"},
        ],
        "scm": {"command": "git", "tasks": ["commit"]},
    }
    assert sorted(os.listdir(workspace / ".ralph")) == [".gitignore", "settings.json", "settings.schema.json"]


def test_invalid_answers_are_asked_again(terminal: Terminal, workspace: Path) -> None:
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
    assert written["checks"] == [{"command": "true", "failAction": "REPLACE"}]
    assert written["scm"] == {"command": "git", "tasks": ["commit", "push"]}


def test_existing_settings_are_shown_and_overwritten_only_after_consent(terminal: Terminal, workspace: Path) -> None:
    folder = workspace / ".ralph"
    folder.mkdir()
    (folder / "settings.json").write_text('{"agent": {"command": "claude", "flags": ["--model opus"]}}')
    child = terminal()
    child.expect_exact('"command": "claude"')
    child.expect_exact("Loaded from .ralph/settings.json\r\n")
    converse(child, ("Overwrite? (y/N): ", ""))
    assert exit_code(child) == 0
    assert settings(workspace) == {"agent": {"command": "claude", "flags": ["--model opus"]}}


def test_local_settings_are_shown_merged_and_never_written(terminal: Terminal, workspace: Path) -> None:
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


def test_errors_of_existing_settings_are_shown_and_they_may_be_overwritten(terminal: Terminal, workspace: Path) -> None:
    (workspace / ".ralph").mkdir()
    (workspace / ".ralph" / "settings.json").write_text('{"stal": 1}')
    child = terminal()
    child.expect_exact('.ralph/settings.json:1: stal: unknown key; did you mean "stall"?')
    converse(child, ("Overwrite? (y/N): ", "y"), *SHORTEST)
    child.expect_exact(WRITTEN)
    assert exit_code(child) == 0


@pytest.mark.parametrize("key", ["\x03", "\x04"], ids=["ctrl-c", "end of file"])
def test_aborting_writes_nothing(terminal: Terminal, workspace: Path, key: str) -> None:
    child = terminal()
    converse(child, *SHORTEST[:4])
    child.expect_exact(GUARDRAIL)
    child.send(key)
    child.expect_exact("Aborted.")
    assert exit_code(child) == 130
    assert not (workspace / ".ralph").exists()


def test_without_a_terminal_init_is_refused(environment: dict[str, str], workspace: Path) -> None:
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


def test_init_aborts_if_the_terminal_is_gone(workspace: Path) -> None:
    class Gone(io.StringIO):
        def readline(self, *_: object) -> str:
            raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(EOFError):
        initialize(workspace, Dialog(Gone(), io.StringIO()))
    assert not (workspace / ".ralph").exists()


def test_tests_may_be_adapted_unless_the_person_protects_them(workspace: Path) -> None:
    (workspace / "tests").mkdir()
    said = answered(workspace, "claude", "", "", "", "make test", "append", "", "", "n")
    assert "rotect" not in said
    assert "protect" not in settings(workspace)


def test_a_blank_number_of_iterations_keeps_the_default_of_each_preset(
    workspace: Path, ralph: Callable[..., Any]
) -> None:
    answered(workspace, "true", "", "", "", "make test", "", "", "", "n")
    assert "maximumIterations" not in settings(workspace)
    assert "at most  25 iterations" in ralph("loop", "G", "--dry-run").out
    assert "at most  10 iterations" in ralph("run", "G", "--dry-run").out


def test_the_written_settings_and_the_next_command_are_shown(workspace: Path) -> None:
    said = answered(workspace, "claude", "", "", "", "make test", "", "", "", "n")
    assert (workspace / ".ralph" / "settings.json").read_text() in said
    assert 'Next: ralph loop "' in said
    assert 'Next: ralph run "' in answered(workspace, "y", "claude", "", "", "", "", "n")


def test_the_written_settings_match_the_schema_that_they_name(workspace: Path, ralph: Callable[..., Any]) -> None:
    import jsonschema

    answered(workspace, "claude", "", "7", "", "make test", "", "", "", "n")
    schema = json.loads((workspace / ".ralph" / settings(workspace)["$schema"]).read_text())
    jsonschema.validate(settings(workspace), schema)


def test_detected_checks_are_accepted_with_enter(workspace: Path) -> None:
    (workspace / "Makefile").write_text("test:\n\ttrue\nlint:\n\tfalse\n")
    said = answered(workspace, "claude", "", "", "", "", "", "", "", "", "", "", "n")
    assert "Add guardrail command (leave blank to finish) [make test]: " in said
    assert [one["command"] for one in settings(workspace)["checks"]] == ["make test", "make lint"]
    answered(workspace, "y", "claude", "", "", "", "-", "n")
    assert settings(workspace)["checks"] == []


def test_a_check_whose_program_is_not_installed_is_not_offered(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workspace / "go.mod").write_text("module a\n")
    monkeypatch.setenv("PATH", str(tmp_path / "no-programs"))
    assert "go test" not in answered(workspace, "claude", "", "", "", "", "n")
    assert settings(workspace)["checks"] == []


@pytest.fixture
def only_pytest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a PATH with a pytest that passes, and without uv."""
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "pytest").write_text("#!/bin/sh\n")
    (tmp_path / "tools" / "pytest").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "tools"))


@pytest.mark.usefixtures("only_pytest")
def test_without_uv_plain_pytest_is_proposed(workspace: Path) -> None:
    (workspace / "uv.lock").write_text("version = 1\n")
    (workspace / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    answered(workspace, "claude", "", "", "", "", "", "", "", "n")
    assert [one["command"] for one in settings(workspace)["checks"]] == ["pytest -q"]


@pytest.mark.usefixtures("only_pytest")
def test_a_loop_proposes_only_checks_that_are_installed(workspace: Path) -> None:
    (workspace / "uv.lock").write_text("version = 1\n")
    (workspace / "pyproject.toml").write_text("[tool.pytest.ini_options]\n[tool.ruff]\n")
    assert installed_checks(workspace) == ["pytest -q"]


def test_the_questions_name_the_command_that_they_are_for(workspace: Path) -> None:
    said = answered(workspace, "claude", "", "", "", "", "n")
    iterations, response = said.index(ITERATIONS), said.index(RESPONSE)
    assert "10 for `ralph run`, 25 for `ralph loop`" in said[:iterations]
    assert "For `ralph run`: what the agent writes" in said[iterations:response]


def test_yes_asks_nothing_and_uses_what_is_detected(
    workspace: Path, ralph: Callable[..., Any], agent: Callable[..., str]
) -> None:
    agent("true", "codex")
    (workspace / "Makefile").write_text("test:\n\ttrue\n")
    (workspace / "tests").mkdir()
    result = ralph("init", "--yes")
    assert result.code == 0
    written = settings(workspace)
    assert (written["agent"]["command"], "protect" in written) == ("codex", False)
    assert written["checks"] == [{"command": "make test", "failAction": "APPEND"}]
    before = (workspace / ".ralph" / "settings.json").read_bytes()
    assert ralph("init", "--yes").code == 0
    assert (workspace / ".ralph" / "settings.json").read_bytes() == before, "what is there stays"


def test_yes_without_an_installed_agent_is_an_error(workspace: Path, ralph: Callable[..., Any]) -> None:
    result = ralph("init", "--yes", PATH="/nowhere")
    assert result.code == 2
    assert "no coding agent is installed" in result.err
    assert not (workspace / ".ralph" / "settings.json").exists()


def test_the_sandbox_is_mentioned_if_it_is_available(
    workspace: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "tools"))
    assert "sandbox" not in answered(workspace, "claude", "", "", "", "", "n")
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "bwrap").touch(0o755)
    (workspace / ".ralph" / "settings.json").unlink()
    said = answered(workspace, "claude", "", "", "", "", "n")
    assert said.endswith("To keep the agent away from your home and keys, add --sandbox.\n")
    assert all(len(line) < 80 for line in said.splitlines() if not line.endswith(": "))


def test_installed_agents_are_named(
    workspace: Path, agent: Callable[..., str], environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    agent("true", "codex")
    monkeypatch.setenv("PATH", f"{environment['HOME']}/bin")
    said = answered(workspace, "", "", "", "", "", "")
    assert "Installed here: codex\n" in said
    assert "or other LLM CLI) [codex]: " in said
    assert settings(workspace)["agent"]["command"] == "codex"


def test_answers_are_written_verbatim(workspace: Path) -> None:
    answered(workspace, 'my-agent "{prompt}" \\ ä 🎉', "", "", "", "grep -q 'a\\b' \"x\"", "append", 'ü\t"q"', "", "n")
    written = settings(workspace)
    assert written["agent"]["command"] == 'my-agent "{prompt}" \\ ä 🎉'
    assert written["checks"][0] == {"command": "grep -q 'a\\b' \"x\"", "failAction": "APPEND", "hint": 'ü\t"q"'}


def test_git_tracks_the_written_settings(repository: Path, git: Callable[..., str]) -> None:
    answered(repository, "claude", "", "", "", "", "n")
    (repository / ".ralph" / "settings.local.json").write_text("{}")
    (repository / ".ralph" / "runs").mkdir()
    (repository / ".ralph" / "runs" / "x").write_text("x")
    git("add", "-A")
    assert git("diff", "--cached", "--name-only").split() == [".ralph/settings.json"]


def test_a_folder_that_cannot_be_written_is_an_error(workspace: Path) -> None:

    target = workspace / ".ralph" / "settings.json"
    (target / "in-the-way").mkdir(parents=True)
    with pytest.raises(UserError, match=r"cannot write .*settings\.json"):
        answered(workspace, "y", "claude", "", "", "", "", "n")
    assert sorted(os.listdir(workspace / ".ralph")) == [".gitignore", "settings.json"]


def test_the_demo_shows_a_refused_claim_a_failed_exam_and_an_untested_part(
    ralph: Callable[..., Any], tmp_path: Path
) -> None:
    result = ralph("demo", TMPDIR=str(tmp_path))
    assert result.code == 0, result.err
    folder, exam = sorted(tmp_path.glob("ralph-demo-*"))
    assert exam.name == f"{folder.name}-exam"
    told = json.loads(ralph("show", "--json", "-C", str(folder)).out)
    assert [one["result"] for one in told["iterations"]] == ["refused", "refused", "done"]
    assert [[refusal["gate"] for refusal in one["refused"]] for one in told["iterations"]] == [["checks"], ["exam"], []]
    assert [part["place"] for part in told["proof"]["untested"]] == ["cart.py:11 in shipping"]
    assert "untested: cart.py:11 in shipping (every check passes without it); 1 of 2 parts" in result.err
    own = result.err.partition("ralph loop · ")[0] + result.err.partition("\nThree times ")[2]
    assert [line for line in own.splitlines() if len(line) > 80 and str(folder) not in line] == []
    assert "so far" not in result.err, "nothing is spent, so nothing is estimated"


def test_the_demo_names_a_command_that_can_be_typed(ralph: Callable[..., Any], tmp_path: Path) -> None:
    bare = f"{tmp_path}:/usr/bin:/bin"
    said = ralph("demo", TMPDIR=str(tmp_path), PATH=bare).err
    (line,) = [line for line in said.splitlines() if line.endswith("# iteration by iteration")]
    assert os.access(line.split()[0], os.X_OK)


@pytest.mark.parametrize("kind", ["settings", "events"])
def test_a_schema_is_json_that_names_its_dialect(kind: str) -> None:
    text = schema_text(kind)
    assert text.endswith("}\n")
    assert json.loads(text)["$schema"].startswith("https://json-schema.org/")


def test_the_command_prints_the_schema_and_nothing_else(ralph: Callable[..., Any]) -> None:
    for kind in ("settings", "events", "judgement"):
        assert (ralph("schema", kind).code, ralph("schema", kind).out) == (0, schema_text(kind))
    refused = ralph("schema", "nonsense")
    assert (refused.code, "ralph schema events, or ralph schema judgement" in refused.err) == (2, True)


@pytest.fixture
def node_project(repository: Path, git: Callable[..., str], environment: dict[str, str]) -> Path:
    """A project whose check needs a folder that git ignores and no copy gets; `npm` is a stand-in."""
    npm = Path(environment["HOME"], "bin/npm")
    npm.write_text("#!/bin/sh\ncase $1 in ci) echo made > installed;; *) sh ./check.sh;; esac\n")
    npm.chmod(0o755)
    (repository / "package.json").write_text('{"scripts": {"test": "sh check.sh"}}')
    (repository / "package-lock.json").write_text("{}")
    (repository / "check.sh").write_text("test -f installed\n")
    (repository / ".gitignore").write_text("installed\n.ralph/\n")
    git("add", "-A")
    git("commit", "-qm", "node")
    (repository / "installed").write_text("")
    return repository


def test_init_writes_the_setup_that_the_checks_need_in_a_copy(ralph: Any, agent: Any, node_project: Path) -> None:
    agent("true", name="claude")
    result = ralph("init", "--yes")
    assert result.code == 0, result.err
    assert "In a copy of your last commit the checks need a setup: npm ci" in result.out
    assert settings(node_project)["setup"] == "npm ci"


def test_init_writes_no_setup_if_the_checks_need_none_or_are_red(
    ralph: Any, agent: Any, node_project: Path, git: Callable[..., str]
) -> None:
    agent("true", name="claude")
    git("add", "-f", "installed")
    git("commit", "-qm", "tracked")
    result = ralph("init", "--yes")
    assert "The checks pass in a copy of your last commit as well." in result.out
    assert "setup" not in settings(node_project)
    (node_project / ".ralph/settings.json").unlink()
    (node_project / "installed").unlink()
    result = ralph("init", "--yes")
    assert "Not tried in a copy: the checks do not all pass here yet." in result.out
    assert "setup" not in settings(node_project)


def test_the_copy_is_tried_only_with_the_users_consent(
    terminal: Terminal, node_project: Path, environment: dict[str, str]
) -> None:
    child = terminal()
    offered = GUARDRAIL.replace(": ", " [npm test]: ")
    converse(child, *SHORTEST[:4], (offered, ""), (ACTION, ""), (HINT, ""), (GUARDRAIL, ""), (SCM, "n"))
    converse(child, ("Try them in a copy (takes as long as the checks, twice or more)? (Y/n): ", "n"))
    assert exit_code(child) == 0
    assert "setup" not in settings(node_project)
