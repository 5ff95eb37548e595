"""An agent writes settings for the next run: no run obeys them before a person has seen them."""

import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pexpect
import pytest

Agent = Callable[..., str]
Ralph = Callable[..., Any]

SAID = {"yolo": True, "notify": ["touch obeyed"], "claimAnywhere": True}
PLANT = f"""echo '{json.dumps(SAID)}' > .ralph/settings.local.json"""
DONE = "echo '<response>DONE</response>'"
ASKS = "nobody has accepted the change"


@pytest.fixture
def planted(agent: Agent, ralph: Ralph) -> Any:
    done = ralph("run", "g", "--agent", agent(f"{PLANT}; {DONE}"))
    assert done.code == 0
    return done


def test_settings_that_changed_during_a_run_are_reported_at_its_end(planted: Any) -> None:
    assert "the settings have changed during the run: " in planted.err
    assert ".ralph/settings.local.json" in planted.err


@pytest.mark.usefixtures("planted")
def test_without_a_terminal_changed_settings_are_refused_until_trusted(
    agent: Agent, ralph: Ralph, workspace: Path
) -> None:
    for _ in range(2):
        refused = ralph("run", "g", "--agent", agent(DONE))
        assert refused.code == 2
        assert ASKS in refused.err
        assert "`ralph trust` shows the difference" in refused.err
    assert not (workspace / "obeyed").exists()
    accepted = ralph("trust")
    assert accepted.code == 0
    assert '+{"yolo": true' in accepted.out
    assert ralph("trust").out == "no settings have changed during a run here\n"
    assert ralph("run", "g", "--agent", agent(DONE)).code == 0


@pytest.mark.parametrize("copies", ["in the tree", "auto", "plain"])
def test_an_agent_cannot_trust_its_own_settings(
    agent: Agent, ralph: Ralph, repository: Path, tmp_path: Path, copies: str
) -> None:
    """In place, the path of the user's tree leads to the copy, so the settings are planted there."""
    how = () if copies == "in the tree" else ("--worktree",)
    if copies == "plain":
        (repository / ".ralph").mkdir()
        (repository / ".ralph/settings.json").write_text('{"copies": "plain"}')
    plant = f"cd {repository}; {PLANT}; {sys.executable} -m ralph trust > {tmp_path}/trusted 2>&1; {DONE}"
    assert ralph("run", "g", *how, "--agent", agent(plant)).code == 0
    assert "an agent cannot accept settings" in (tmp_path / "trusted").read_text()
    is_planted = (repository / ".ralph/settings.local.json").exists()
    assert is_planted or copies == "auto"
    assert ralph("run", "g", "--agent", agent(DONE)).code == (2 if is_planted else 0)
    assert ralph("trust").code == 0


@pytest.mark.usefixtures("planted")
def test_settings_that_are_restored_need_no_trust(agent: Agent, ralph: Ralph, workspace: Path) -> None:
    (workspace / ".ralph" / "settings.local.json").unlink()
    assert ralph("run", "g", "--agent", agent(DONE)).code == 0


@pytest.mark.usefixtures("planted")
def test_on_a_terminal_the_difference_is_shown_and_confirmed(
    agent: Agent, environment: dict[str, str], workspace: Path
) -> None:
    words = ["-m", "ralph", "run", "g", "--agent", agent(DONE)]
    for answer, code in (("n", 2), ("y", 0)):
        screen = pexpect.spawn(sys.executable, words, cwd=str(workspace), env=environment, timeout=40, encoding="utf-8")  # type: ignore[arg-type]
        screen.expect("claimAnywhere")
        screen.expect_exact("Use them? ")
        screen.sendline(answer)
        screen.expect(pexpect.EOF)
        screen.close()
        assert screen.exitstatus == code


def test_changed_settings_are_found_even_if_the_run_was_killed(
    agent: Agent, ralph: Ralph, live: Any, workspace: Path, nap: str, eventually: Any
) -> None:
    run = live("run", "g", "--agent", agent(f"{PLANT}; sleep {nap}"))
    run.until("agent_started")
    eventually(lambda: (workspace / ".ralph" / "settings.local.json").exists())
    run.end(signal.SIGKILL)
    assert ASKS in ralph("run", "g", "--agent", agent(DONE)).err


def test_unchanged_settings_and_changes_between_runs_are_used(
    agent: Agent, ralph: Ralph, workspace: Path, environment: dict[str, str]
) -> None:
    assert ralph("run", "g", "--agent", agent(DONE)).code == 0
    (workspace / ".ralph" / "settings.json").write_text('{"stall": 3}')
    assert ralph("run", "g", "--agent", agent(DONE)).code == 0
    kept = Path(environment["HOME"]) / ".local" / "state" / "ralph" / "settings"
    assert not list(kept.glob("*/*")), "nothing to remember"


def test_settings_that_are_edited_after_a_run_could_not_start_need_no_trust(
    agent: Agent, ralph: Ralph, workspace: Path
) -> None:
    assert ralph("run", "g", "--tasks", "missing.md", "--agent", agent(DONE)).code == 2
    (workspace / ".ralph").mkdir(exist_ok=True)
    (workspace / ".ralph" / "settings.json").write_text('{"stall": 3}')
    result = ralph("run", "g", "--agent", agent(DONE))
    assert result.code == 0, result.err


@pytest.mark.usefixtures("planted")
def test_a_resumed_run_keeps_its_first_settings(agent: Agent, ralph: Ralph, workspace: Path) -> None:
    (workspace / ".ralph" / "settings.local.json").unlink()
    first = ralph("run", "g", "-m", "1", "--agent", agent(f"{PLANT}; echo more"))
    assert first.code == 1
    agent(DONE)
    assert ralph("resume", "-m", "1").code == 0
    assert not (workspace / "obeyed").exists()


def test_hooks_do_not_use_changed_settings(planted: Any, ralph: Ralph) -> None:
    refused = ralph("hook", "start", "a task", CLAUDE_CODE_SESSION_ID="around")
    assert refused.code == 2
    assert ASKS in refused.err


def test_settings_that_changed_during_a_session_loop_need_trust(ralph: Ralph, workspace: Path) -> None:
    session = {"CLAUDE_CODE_SESSION_ID": "around"}
    assert ralph("hook", "start", "a task", **session).code == 0
    assert ralph("run", "g", "-m", "1", "--agent", "true").code == 1, "another run, before anything has changed"
    (workspace / ".ralph" / "settings.local.json").write_text(json.dumps(SAID))
    assert ASKS in ralph("run", "g", "--agent", "true").err
    assert ralph("hook", "cancel", **session).code == 0
    assert "settings were changed during the loop: " in (workspace / ".ralph" / "hook" / "log").read_text()
    assert ASKS in ralph("run", "g", "--agent", "true").err
    assert ralph("trust").code == 0
    assert ralph("run", "g", "-m", "1", "--agent", "true").code == 1


@pytest.mark.usefixtures("planted")
def test_doctor_does_not_use_changed_settings(ralph: Ralph, workspace: Path) -> None:
    said = {"agent": {"command": "touch obeyed"}}
    (workspace / ".ralph" / "settings.local.json").write_text(json.dumps(said))
    refused = ralph("doctor")
    assert refused.code in (1, 2)
    assert ASKS in refused.out + refused.err
    assert not (workspace / "obeyed").exists()


def test_settings_in_accepted_work_need_trust(agent: Agent, ralph: Ralph, repository: Path) -> None:
    commit = f"mkdir -p .ralph; {PLANT}; git add -f .ralph/settings.local.json; git commit -qm settings"
    assert ralph("run", "go", "--worktree", "--check", "true", "--agent", agent(f"{commit}; {DONE}")).code == 0
    accepted = ralph("accept")
    assert accepted.code == 0
    assert "the work of the run has changed the settings: " in accepted.err
    refused = ralph("run", "g", "--agent", agent(DONE))
    assert refused.code == 2
    assert ASKS in refused.err
    assert not (repository / "obeyed").exists()


def test_settings_restored_by_a_rewind_need_trust(
    agent: Agent, ralph: Ralph, git: Callable[..., str], repository: Path
) -> None:
    local = repository / ".ralph" / "settings.local.json"
    local.parent.mkdir()
    local.write_text("{}")
    git("add", "-f", str(local))
    git("commit", "-qm", "settings")
    hidden = f"if [ -e there ]; then git checkout -q -- {local}; else touch there; {PLANT}; fi"
    assert ralph("run", "go", "-m", "2", "--agent", agent(hidden)).code == 1
    assert local.read_text() == "{}"
    rewound = ralph("rewind", "1")
    assert rewound.code == 0
    assert "the work of the run has changed the settings: " in rewound.err
    refused = ralph("run", "g", "--agent", agent(DONE))
    assert (refused.code, ASKS in refused.err) == (2, True)
    assert not (repository / "obeyed").exists()
    assert ralph("rewind", "0").code == 0
    assert ralph("run", "g", "--agent", agent(DONE)).code == 0


def test_a_settings_file_given_by_option_needs_trust_after_a_change(
    agent: Agent, ralph: Ralph, workspace: Path
) -> None:
    told = "ralph_loop:\n  checks: ['true']\n"
    (workspace / "loop.yaml").write_text(told)
    plant = "echo '  max_iterations: 3' >> loop.yaml; echo COMPLETE"
    done = ralph("loop", "g", "--config", "loop.yaml", "--agent", agent(plant))
    assert "the settings have changed during the run: " in done.err, done.err
    assert ASKS in ralph("loop", "g", "--config", "loop.yaml", "--agent", agent(plant)).err
    (workspace / "loop.yaml").write_text(told)
    assert ralph("loop", "g", "--config", "loop.yaml", "--agent", agent("echo COMPLETE")).code == 0


def test_changed_settings_of_other_tools_are_reported(agent: Agent, ralph: Ralph, workspace: Path) -> None:
    """A hook in an agent's settings would run in the user's next session."""
    (workspace / "opencode.json").write_text("{}")
    (workspace / ".envrc").write_text("export A=b\n")
    (workspace / ".vscode").mkdir()
    planted = "mkdir .claude; echo '{\"hooks\": {}}' > .claude/settings.json; echo evil >> .envrc"
    planted = f"{planted}; echo '{{}}' > .vscode/tasks.json"
    done = ralph("run", "g", "--agent", agent(f"{planted}; {DONE}"))
    (said,) = [line for line in done.err.splitlines() if "read by agents or tools that you start here later" in line]
    assert [name in said for name in (".claude/settings.json", ".envrc", ".vscode/tasks.json")] == [True] * 3
    assert "opencode.json" not in said
    assert ".envrc" in ralph("show").out
