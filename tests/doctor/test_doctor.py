"""`ralph doctor` reports what is missing and what to do about it, and leaves nothing behind."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ralph import agents

Findings = dict[str, dict[str, Any]]


@pytest.fixture
def doctor(ralph) -> Callable[..., tuple[int, Findings]]:
    """Return a function that runs `ralph doctor --json` and returns the exit code and the findings by name."""

    def run(*words: str, **env: str) -> tuple[int, Findings]:
        result = ralph("doctor", "--json", *words, **env)
        report = json.loads(result.out)
        assert report["ok"] is (result.code == 0)
        return result.code, {finding["name"]: finding for finding in report["findings"]}

    return run


@pytest.fixture
def cli(environment: dict[str, str]) -> Callable[..., Path]:
    """Return a function that puts a shell script on PATH and returns its path."""

    def make(name: str, body: str) -> Path:
        path = Path(environment["HOME"]) / "bin" / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
        return path

    return make


def test_without_any_agent_doctor_fails(doctor) -> None:
    code, found = doctor()
    assert code == 1
    assert [found[name]["state"] for name in agents.known_names()] == ["note"] * len(agents.known_names())
    assert all("npm install" in found[name]["advice"] for name in agents.programs())
    assert "OPENAI_API_KEY" in found["builtin"]["advice"]
    assert (found["agent"]["state"], "ralph demo" in found["agent"]["advice"]) == ("fail", True)


def test_each_finding_is_one_line_and_the_last_line_says_that_all_is_well(ralph, cli, repository: Path) -> None:
    cli("claude", "echo '2.1.325 (Claude Code)'")
    result = ralph("doctor", ANTHROPIC_API_KEY="made-up-for-the-tests")
    assert result.code == 0
    lines = result.out.splitlines()
    assert all(re.match(r"(✓|i|!) \w+ +\S", line) for line in lines)
    names = [line.split()[1] for line in lines]
    assert names == [
        *("ralph", "settings"),
        *agents.known_names(),
        *("acp", "agent", "git", "leftovers", "copies", "sandbox"),
    ]
    assert "✓ claude     2.1.325; login: $ANTHROPIC_API_KEY" in lines
    assert "✓ agent      runs here use claude, the first one installed" in lines
    assert result.last_line == "all is well"
    assert "made-up-for-the-tests" not in result.out
    assert not (repository / ".ralph").exists()


def test_a_sandbox_is_tested_and_its_version_shown(ralph, repository: Path, bubblewrap: str) -> None:
    (line,) = [line for line in ralph("doctor").out.splitlines() if " sandbox " in line]
    assert re.match(r"✓ sandbox    bubblewrap \d+\.\d+\.\d+; a sandbox was created and tested", line)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (None, "a sandbox needs bubblewrap, which is not installed → install it: `apt-get install bubblewrap`"),
        ("echo 'bwrap: Unknown option --x' >&2; exit 1", "could not create a sandbox: Unknown option --x"),
        (
            "echo 'bwrap: broken' >&2; exit 1",
            "bubblewrap could not create a sandbox: broken → see docs/guides/sandbox.md",
        ),
    ],
)
@pytest.mark.parametrize(("enabled", "sign"), [("false", "i"), ("true", "✗")])
def test_the_reason_why_there_is_no_sandbox_is_one_line(
    ralph, repository: Path, tmp_path: Path, script: str | None, words: str, enabled: str, sign: str
) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "git").symlink_to(shutil.which("git") or "")
    (tools / "sh").symlink_to(shutil.which("sh") or "")
    if script:
        (tools / "bwrap").write_text(f"#!/bin/sh\n{script}\n")
        (tools / "bwrap").chmod(0o755)
    (repository / ".ralph").mkdir()
    (repository / ".ralph" / "settings.json").write_text(f'{{"sandbox": {{"enabled": {enabled}}}}}')
    (line,) = [line for line in ralph("doctor", PATH=str(tools)).out.splitlines() if " sandbox " in line]
    assert line.startswith(f"{sign} sandbox ")
    assert words in line


VERSIONS = {  # the script of each agent, and the version that ralph reads from its output
    "claude": ("echo '2.1.325 (Claude Code)'", "2.1.325"),
    "codex": ("echo 'WARNING: careful 1.0' >&2; echo codex-cli 0.166.0", "0.166.0"),
    "amp": ("echo '0.0.1790142911-g7618fb (released 2026-09-23T05:55:11.000Z, 1mo ago)'", "0.0.1790142911-g7618fb"),
    "gemini": ("echo 0.61.0", "0.61.0"),
    "opencode": ("echo 1.18.33", "1.18.33"),
    "qwen": ("echo 0.24.4", "0.24.4"),
    "copilot": ("echo 'GitHub Copilot CLI 1.0.102.'; echo \"Run 'copilot update'\"", "1.0.102"),
    "pi": ("echo 0.73.1 >&2", "0.73.1"),
    "cline": ("echo nightly", "nightly"),
}
LOGINS = {
    "claude": ".claude/.credentials.json",
    "codex": ".codex/auth.json",
    "amp": ".local/share/amp/secrets.json",
    "gemini": ".gemini/oauth_creds.json",
    "opencode": ".local/share/opencode/auth.json",
    "qwen": ".qwen/oauth_creds.json",
    "copilot": ".config/gh/hosts.yml",
    "pi": ".pi/agent/auth.json",
    "cline": ".cline/data/settings/providers.json",
}


def test_versions_and_logins_of_all_nine_agents_are_found(doctor, cli, environment) -> None:
    home = Path(environment["HOME"])
    for name, (body, _) in VERSIONS.items():
        cli(name, body)
        (home / LOGINS[name]).parent.mkdir(parents=True, exist_ok=True)
        (home / LOGINS[name]).write_text('{"made": "up"}')
    _, found = doctor()
    assert {name: found[name]["detail"] for name in VERSIONS} == {
        name: f"{version}; login: ~/{LOGINS[name]}" for name, (_, version) in VERSIONS.items()
    }
    assert {found[name]["state"] for name in VERSIONS} == {"ok"}


def test_agents_that_speak_acp_are_listed(doctor, cli) -> None:
    _, before = doctor()
    assert before["acp"]["state"] == "note"
    cli("kimi", "echo 2.1.0")
    _, after = doctor()
    assert (after["acp"]["state"], after["acp"]["detail"]) == ("ok", "can be used by protocol: acp:kimi")


def test_a_missing_login_is_a_warning_that_says_how_to_log_in(doctor, cli, environment) -> None:
    cli("pi", "echo 0.73.1")
    empty = Path(environment["HOME"]) / ".pi/agent/auth.json"
    empty.parent.mkdir(parents=True)
    empty.write_text("{}")  # pi writes this at its first start
    code, found = doctor()
    assert code == 0
    assert found["pi"]["state"] == "warn"
    assert "type /login, or set ANTHROPIC_API_KEY" in found["pi"]["advice"]


def test_a_login_is_found_in_the_folder_or_variable_that_the_user_set(doctor, cli, environment, tmp_path: Path) -> None:
    cli("codex", "echo 1.0")
    cli("copilot", "echo 1.0")
    (tmp_path / "auth.json").write_text('{"made": "up"}')
    _, found = doctor(CODEX_HOME=str(tmp_path), GITHUB_TOKEN="made-up-for-the-tests")
    assert found["codex"]["detail"].endswith(f"login: {tmp_path}/auth.json")
    assert found["copilot"]["detail"].endswith("login: $GITHUB_TOKEN")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("echo 'node: too old' >&2; exit 1", "exit code 1: node: too old"),
        ("kill -9 $$", "exit code -9"),
    ],
)
def test_an_agent_whose_version_command_fails_is_a_warning_with_its_error(body: str, said: str, doctor, cli) -> None:
    path = cli("gemini", body)
    _, found = doctor("--agent", "gemini")
    assert found["gemini"]["state"] == "warn"
    assert said in found["gemini"]["detail"]
    assert str(path) in found["gemini"]["advice"]


def test_an_agent_that_is_not_executable_is_a_failure_that_names_chmod(doctor, cli) -> None:
    cli("gemini", "echo 1").chmod(0o644)
    code, found = doctor("--agent", "gemini")
    assert code == 1
    assert "chmod +x" in found["gemini"]["advice"]
    assert "chmod +x" in found["agent"]["advice"]


def test_with_an_agent_option_only_that_agent_is_checked(doctor, cli, workspace: Path) -> None:
    own = workspace / "claude"
    own.write_text("#!/bin/sh\necho 9.9\n")
    own.chmod(0o755)
    code, found = doctor("--agent", "./claude --model opus")
    assert code == 0
    assert found["claude"]["detail"].startswith("9.9; ")
    assert "codex" not in found


def test_an_agent_gets_no_prompt(ralph, agent, prompts) -> None:
    assert ralph("doctor", "--agent", agent("true")).code == 0
    assert prompts() == []


@pytest.mark.parametrize(
    ("agent", "said"),
    [
        ("no-such-agent --fast", "command not found: no-such-agent"),
        ("my 'agent", "cannot be read"),
    ],
)
def test_an_agent_that_cannot_be_started_is_a_failure(agent: str, said: str, doctor) -> None:
    code, found = doctor("--agent", agent)
    assert code == 1
    assert said in found["agent"]["detail"]
    assert found["agent"]["advice"]


def test_bad_settings_are_a_failure_that_names_file_and_line(doctor, workspace: Path, cli) -> None:
    cli("claude", "echo 1.0")
    (workspace / ".ralph").mkdir()
    (workspace / ".ralph" / "settings.json").write_text('{\n  "maximumIterations": "ten",\n  "nonsense": 1\n}')
    code, found = doctor()
    assert code == 1
    assert found["settings"]["state"] == "fail"
    assert ".ralph/settings.json:2:" in found["settings"]["detail"]
    assert "nonsense" in found["settings"]["detail"]
    assert found["agent"]["state"] == "ok"


def test_the_agent_of_the_settings_and_its_fallbacks_are_named(doctor, workspace: Path, cli) -> None:
    cli("claude", "echo 1.0")
    cli("my-agent", "cat")
    (workspace / ".ralph").mkdir()
    settings = {
        "agent": {"command": "mine"},
        "agents": {"mine": {"argv": ["my-agent"]}},
        "onLimit": "switch",
        "then": ["claude"],
    }
    (workspace / ".ralph" / "settings.json").write_text(json.dumps(settings))
    code, found = doctor()
    assert code == 0
    assert found["agent"]["detail"] == "runs here use mine; at a limit: claude"


def test_git_is_reported_without_a_repository_without_a_commit_and_broken(doctor, workspace: Path, git, cli) -> None:
    assert "is not in a repository" in doctor()[1]["git"]["detail"]
    git("init", "-q")
    assert "has no commit yet" in doctor()[1]["git"]["detail"]
    git("commit", "-q", "--allow-empty", "-m", "first")
    assert doctor()[1]["git"]["state"] == "ok"
    (workspace / ".git" / "HEAD").write_text("nonsense")
    assert doctor()[1]["git"]["state"] == "warn"


def test_no_git_is_a_warning(doctor, environment) -> None:
    _, found = doctor(PATH=f"{environment['HOME']}/bin")
    assert (found["git"]["state"], found["git"]["detail"]) == ("warn", "not installed")


def test_for_an_ascii_terminal_the_output_is_ascii(ralph) -> None:
    result = ralph("doctor", LANG="C", LC_ALL="C", PYTHONCOERCECLOCALE="0", PYTHONUTF8="0", PYTHONIOENCODING="ascii")
    assert result.out.isascii()


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-"])
def test_a_closed_standard_stream_does_not_break_doctor(closed: str, environment, workspace: Path) -> None:
    line = f"{sys.executable} -m ralph doctor {closed}"
    done = subprocess.run(
        ["sh", "-c", line], cwd=workspace, env=environment, capture_output=True, timeout=120, check=False
    )
    assert done.returncode == 1


@pytest.mark.parametrize("words", [("--frobnicate",), ("a", "word"), ("-C", "no/such/folder"), ("--agent", " ")])
def test_wrong_usage_is_an_error_without_a_traceback(words: tuple[str, ...], ralph) -> None:
    result = ralph("doctor", *words)
    assert result.code == 2
    assert result.err.startswith("ralph: ")
    assert "Traceback" not in result.err


def test_a_secret_in_a_command_is_not_printed(ralph) -> None:
    secret = "made-up-secret-of-the-tests"
    result = ralph("doctor", "--agent", f"no-such-agent --key {secret}", MY_API_KEY=secret)
    assert secret not in result.out + result.err


def test_the_line_about_copies_says_where_they_are(ralph, repository: Path) -> None:
    (repository / ".ralph").mkdir()
    lines = {}
    for copies in ("auto", "plain"):
        (repository / ".ralph/settings.json").write_text(f'{{"copies": "{copies}"}}')
        (lines[copies],) = [line for line in ralph("doctor").out.splitlines() if " copies " in line]
    assert re.match(r"✓ copies +in place \(", lines["auto"]) or re.match(
        r"i copies +at their own path: ", lines["auto"]
    )
    assert re.match(r"✓ copies +at their own path: the settings say so", lines["plain"])


def test_copies_runs_the_canary(ralph, repository: Path, git) -> None:
    (repository / "app.sh").write_text("exit 0\n")
    git("add", "-A")
    git("commit", "-qm", "source")
    (repository / ".ralph").mkdir()
    said = {}
    for check in ("sh app.sh", "true", "false"):
        (repository / ".ralph/settings.json").write_text(f'{{"checks": ["{check}"]}}')
        (said[check],) = [line for line in ralph("doctor", "--copies").out.splitlines() if " canary " in line]
    assert said["sh app.sh"].startswith("✓ canary     the checks test the copy")
    assert said["true"].startswith("! canary     the checks pass with every source file of a copy broken")
    assert said["false"].startswith("! canary     false fails in a copy of the last commit")
