"""Hooks are added to an agent's settings, and removed again without leaving anything behind."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PLACES = {
    "claude": (".claude/settings.local.json", ".claude/settings.json"),
    "codex": (".codex/hooks.json", ".codex/hooks.json"),
    "gemini": (".gemini/settings.json", ".gemini/settings.json"),
}
EVENTS = {
    "claude": {"Stop", "UserPromptSubmit", "SessionStart"},
    "codex": {"Stop", "UserPromptSubmit", "SessionStart"},
    "gemini": {"AfterAgent", "BeforeAgent"},
}


def everything_below(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def stop_command(settings):
    return settings["hooks"]["Stop"][-1]["hooks"][0]["command"]


@pytest.mark.parametrize("host", PLACES)
def test_uninstall_removes_everything_that_install_added(host, ralph, workspace):
    assert ralph("hook", "install", host).code == 0
    settings = json.loads((workspace / PLACES[host][0]).read_text())
    assert set(settings["hooks"]) == EVENTS[host]
    assert ralph("hook", "uninstall", host).code == 0
    assert list(workspace.iterdir()) == []


@pytest.mark.parametrize("host", PLACES)
def test_hooks_can_be_installed_for_the_user(host, ralph, workspace, environment):
    home = environment["HOME"]
    before = everything_below(workspace.parent)
    assert ralph("hook", "install", host, "--user").code == 0
    assert os.path.exists(f"{home}/{PLACES[host][1]}")
    assert list(workspace.iterdir()) == []
    assert ralph("hook", "uninstall", host, "--user").code == 0
    assert everything_below(workspace.parent) == before


@pytest.mark.parametrize(
    ("host", "variable", "below"),
    [
        ("claude", "CLAUDE_CONFIG_DIR", "settings.json"),
        ("codex", "CODEX_HOME", "hooks.json"),
        ("gemini", "GEMINI_CLI_HOME", ".gemini/settings.json"),
    ],
)
def test_a_settings_folder_set_by_a_variable_is_used(host, variable, below, ralph, tmp_path):
    moved = tmp_path / "moved"
    assert ralph("hook", "install", host, "--user", **{variable: str(moved)}).code == 0
    assert (moved / below).exists()


ODD = (
    b'{\n\t"model": "opus",\n\t"permissions": {"allow": ["Bash(ls)"]},\n\t"na\xc3\xafve": 1.50,\n'
    b'\t"hooks": {"Stop": [{"hooks": [{"type": "command", "command": "say done"}]}]}\n}'
)


def test_install_merges_into_settings_and_uninstall_removes_only_its_entries(ralph, workspace):
    path = workspace / ".claude/settings.local.json"
    path.parent.mkdir()
    path.write_bytes(ODD)
    path.chmod(0o664)
    assert ralph("hook", "install", "claude").code == 0
    merged = json.loads(path.read_text())
    assert merged["permissions"] == {"allow": ["Bash(ls)"]}
    assert merged["hooks"]["Stop"][0] == {"hooks": [{"type": "command", "command": "say done"}]}
    assert "-m ralph hook stop claude" in stop_command(merged)
    assert "naïve" in path.read_text()
    assert "\n\t" in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o664
    assert ralph("hook", "uninstall", "claude").code == 0
    assert list(everything_below(workspace)) == [".claude/settings.local.json"]
    assert json.loads(path.read_text()) == json.loads(ODD)
    assert path.stat().st_mode & 0o777 == 0o664


def test_installing_twice_equals_installing_once(ralph, workspace):
    path = workspace / ".claude/settings.local.json"
    path.parent.mkdir()
    path.write_bytes(ODD)
    ralph("hook", "install", "claude")
    once = everything_below(workspace)
    again = ralph("hook", "install", "claude")
    assert "already" in again.out
    assert everything_below(workspace) == once
    ralph("hook", "uninstall", "claude")
    assert "no hooks" in ralph("hook", "uninstall", "claude").out


def test_edits_after_the_installation_are_kept(ralph, workspace):
    path = workspace / ".claude/settings.local.json"
    path.parent.mkdir()
    path.write_bytes(ODD)
    ralph("hook", "install", "claude")
    settings = json.loads(path.read_text())
    settings["model"] = "sonnet"
    settings["hooks"]["Stop"].insert(0, {"hooks": [{"type": "command", "command": "another"}]})
    path.write_text(json.dumps(settings))
    assert "ralph's entries removed" in ralph("hook", "uninstall", "claude").out
    rest = json.loads(path.read_text())
    assert "ralph" not in path.read_text()
    assert rest["model"] == "sonnet"
    assert [entry["hooks"][0]["command"] for entry in rest["hooks"]["Stop"]] == ["another", "say done"]
    assert set(rest) == {"model", "permissions", "naïve", "hooks"}


def test_another_hook_in_the_same_entry_is_kept(ralph, workspace):
    ralph("hook", "install", "claude")
    path = workspace / ".claude/settings.local.json"
    settings = json.loads(path.read_text())
    settings["hooks"]["Stop"][0]["hooks"].append({"type": "command", "command": "another"})
    path.write_text(json.dumps(settings))
    ralph("hook", "uninstall", "claude")
    assert json.loads(path.read_text()) == {"hooks": {"Stop": [{"hooks": [{"type": "command", "command": "another"}]}]}}


def test_the_users_own_limit_on_refusals_is_kept(ralph, workspace):
    path = workspace / ".claude/settings.local.json"
    path.parent.mkdir()
    path.write_text('{"env": {"CLAUDE_CODE_STOP_HOOK_BLOCK_CAP": "20", "A": "b"}}')
    ralph("hook", "install", "claude")
    assert json.loads(path.read_text())["env"] == {"CLAUDE_CODE_STOP_HOOK_BLOCK_CAP": "20", "A": "b"}


def test_the_hosts_default_limit_on_refusals_is_raised(ralph, workspace):
    ralph("hook", "install", "claude")
    env = json.loads((workspace / PLACES["claude"][0]).read_text())["env"]
    assert env == {"CLAUDE_CODE_STOP_HOOK_BLOCK_CAP": "0"}


def test_a_command_of_the_same_name_is_not_overwritten(ralph, workspace):
    own = workspace / ".claude/commands/ralph-loop.md"
    own.parent.mkdir(parents=True)
    own.write_text("my own loop\n")
    result = ralph("hook", "install", "claude")
    assert result.code == 2
    assert f"{own} already exists" in result.err
    ralph("hook", "uninstall", "claude")
    assert everything_below(workspace) == {".claude/commands/ralph-loop.md": b"my own loop\n"}


def test_a_link_stays_a_link(ralph, workspace, tmp_path):
    kept = tmp_path / "dotfiles.json"
    kept.write_text('{"model": "opus"}\n')
    (workspace / ".claude").mkdir()
    (workspace / ".claude/settings.local.json").symlink_to(kept)
    ralph("hook", "install", "claude")
    assert (workspace / ".claude/settings.local.json").is_symlink()
    assert "ralph" in kept.read_text()
    ralph("hook", "uninstall", "claude")
    assert json.loads(kept.read_text()) == {"model": "opus"}
    assert (workspace / ".claude/settings.local.json").is_symlink()


def test_hooks_go_into_the_local_settings_unless_shared(ralph, workspace):
    shared, own = workspace / ".claude/settings.json", workspace / ".claude/settings.local.json"
    assert ralph("hook", "install", "claude").code == 0
    assert own.exists()
    assert not shared.exists()
    refused = ralph("hook", "install", "claude", "--shared")
    assert refused.code == 2
    assert "ralph hook uninstall claude --project" in refused.err
    ralph("hook", "uninstall", "claude")
    assert ralph("hook", "install", "claude", "--shared").code == 0
    assert shared.exists()
    assert not own.exists()
    assert "--shared" in ralph("hook", "install", "claude").err
    ralph("hook", "uninstall", "claude")
    assert list(workspace.iterdir()) == []


@pytest.mark.parametrize(("first", "second"), [("--user", "--project"), ("--project", "--user")])
def test_hooks_are_not_installed_in_two_scopes(ralph, workspace, first, second):
    assert ralph("hook", "install", "codex", first).code == 0
    result = ralph("hook", "install", "codex", second)
    assert result.code == 2
    assert f"ralph hook uninstall codex {first}" in result.err


@pytest.mark.parametrize("content", ["// a comment\n{}", "{", "[]", '{"hooks": ["x"]}', '{"hooks": "x"}'])
def test_settings_that_cannot_be_parsed_are_not_changed(ralph, workspace, content):
    path = workspace / ".claude/settings.local.json"
    path.parent.mkdir()
    path.write_text(content)
    result = ralph("hook", "install", "claude")
    assert result.code == 2
    assert str(path) in result.err
    assert "Traceback" not in result.err
    assert everything_below(workspace) == {".claude/settings.local.json": content.encode()}


@pytest.mark.parametrize("agent", ["copilot", "qwen", "opencode", "pi", "cline", "amp"])
def test_an_agent_without_a_working_stop_hook_is_refused_with_an_alternative(ralph, workspace, agent):
    result = ralph("hook", "install", agent)
    assert result.code == 2
    assert f"no hooks for {agent}: " in result.err
    assert f"ralph run --preset promise --agent {agent}" in result.err
    assert list(workspace.iterdir()) == []


def test_an_unknown_agent_is_refused(ralph, workspace):
    result = ralph("hook", "install", "nonesuch")
    assert result.code == 2
    assert "claude" in result.err


@pytest.fixture
def hook_line(ralph, workspace, environment):
    """Return a function that runs the installed command as a host does: in a shell, without ralph's environment."""

    def run(event, cwd=None, shell="sh", python=sys.executable, **env):
        ralph("hook", "install", "claude")
        line = stop_command(json.loads((workspace / ".claude/settings.local.json").read_text()))
        assert sys.executable in line
        line = line.replace(sys.executable, python)
        bare = {"PATH": "/usr/bin:/bin", "HOME": environment["HOME"], **env}
        argv = [shell, "-c", line]
        return subprocess.run(
            argv, input=json.dumps(event), cwd=cwd or workspace, env=bare, capture_output=True, text=True
        )

    return run


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_the_installed_command_answers_the_host(hook_line, session, shell):
    session.start()
    run = hook_line({"session_id": session.name, "last_assistant_message": "hm"}, shell=shell)
    assert (run.returncode, run.stderr) == (0, "")
    assert json.loads(run.stdout)["decision"] == "block"


def test_the_installed_command_judges_a_promise(hook_line, session):
    session.start("--check", "echo red; false")
    session.works()
    event = {"session_id": session.name, "last_assistant_message": "<promise>DONE</promise>"}
    run = hook_line({**event, "transcript_path": str(session.transcript)})
    assert (run.returncode, run.stderr) == (0, "")
    assert "red" in json.loads(run.stdout)["reason"]


def test_the_installed_command_finds_a_loop_from_a_subfolder(hook_line, session, workspace):
    session.start()
    deep = workspace / "a b" / "c"
    deep.mkdir(parents=True)
    run = hook_line({"session_id": session.name, "last_assistant_message": "hm"}, cwd=deep)
    assert json.loads(run.stdout)["decision"] == "block"


def test_the_installed_command_finds_the_project_by_its_variable(hook_line, session, workspace):
    session.start()
    run = hook_line({"session_id": session.name}, cwd="/", CLAUDE_PROJECT_DIR=str(workspace))
    assert json.loads(run.stdout)["decision"] == "block"


def test_the_installed_command_uses_the_ralph_on_the_path_of_another_machine(hook_line, session, environment):
    session.start()
    ralph = Path(environment["HOME"], "bin", "ralph")
    ralph.write_text(f'#!/bin/sh\nexec {sys.executable} -m ralph "$@"\n')
    ralph.chmod(0o755)
    event = {"session_id": session.name, "last_assistant_message": "hm"}
    run = hook_line(event, python="/nowhere/python", PATH=f"{ralph.parent}:/usr/bin:/bin")
    assert json.loads(run.stdout)["decision"] == "block"


def test_the_installed_command_is_silent_without_any_ralph(hook_line, session):
    session.start()
    run = hook_line({"session_id": session.name}, python="/nowhere/python")
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


@pytest.mark.parametrize("cwd", ["/", "workspace"])
def test_without_a_loop_the_installed_command_does_not_start_python(hook_line, workspace, cwd):
    (workspace / ".ralph/hook").mkdir(parents=True)
    place = workspace if cwd == "workspace" else cwd
    run = hook_line({"session_id": "s"}, cwd=place, python="/nowhere/python")
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
