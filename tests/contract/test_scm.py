"""§8: green work is committed in the agent's words, which are an argument and never a command."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.hostile_text import EVIL

Ralph = Callable[..., Any]
Agent = Callable[..., str]
Git = Callable[..., str]

ASKED = "Provide a short imperative commit message for the changes. Output only the message, no explanation."


def committer(agent: Agent, said: str) -> str:
    """An agent that works, and says `said` when it is asked for a message."""
    work = "echo x > new; echo '<response>DONE</response>'"
    return agent(f'case "$PROMPT" in "{ASKED}") cat <<\'END\'\n{said}\nEND\n;; *) {work};; esac')


@pytest.mark.parametrize(
    ("said", "subject"),
    [
        ("Add it", "Add it"),
        ("\n\n  Add it  \nbecause", "Add it"),
        ("Sure!\n<response>Add it</response>", "Add it"),
        ("<response>Add it\n\nAnd say why.</response>", "Add it"),
        ('Fix "a" & $(touch hack) `touch hack`; rm -rf .', 'Fix "a" & $(touch hack) `touch hack`; rm -rf .'),
        ("--amend --no-edit", "--amend --no-edit"),
        ("# a heading", "# a heading"),
        ("Línea 🎉", "Línea 🎉"),
    ],
)
def test_a_commit_message_is_used_verbatim(
    ralph: Ralph, agent: Agent, repository: Path, git: Git, said: str, subject: str
) -> None:
    assert ralph("run", "-p", "x", "--commit", "--check", "true", "--agent", committer(agent, said)).code == 0
    assert git("log", "--format=%s").splitlines() == [subject, "first"]
    assert "new" in git("show", "--stat", "HEAD"), "new files are included"
    assert git("status", "--porcelain") == ""


@pytest.mark.parametrize("said", ["   ", "<response> </response>"])
def test_without_a_message_nothing_is_committed_and_the_run_continues(
    ralph: Ralph, agent: Agent, repository: Path, git: Git, said: str
) -> None:
    result = ralph("run", "-p", "x", "--push", "--json", "--agent", committer(agent, said))
    assert result.code == 0
    assert result.one("scm_finished")["detail"] == "the agent gave no commit message"
    assert git("log", "--format=%s").splitlines() == ["first"]


def test_no_message_is_asked_for_when_there_is_nothing_to_commit(
    ralph: Ralph, agent: Agent, repository: Path, git: Git
) -> None:
    (repository / "mine").write_text("changed before the run\n")
    commits = "echo x > new; git add new; git commit -qm own; echo '<response>DONE</response>'"
    fake = agent(f'case "$PROMPT" in "{ASKED}") echo Paid;; *) {commits};; esac')
    result = ralph("run", "-p", "x", "--commit", "--check", "true", "--json", "--agent", fake)
    assert result.code == 0
    assert [told.get("purpose", "work") for told in result.all("agent_started")] == ["work"]
    assert result.one("scm_finished") == {"iteration": 1, "task": "commit", "ok": True, "detail": "nothing to commit"}
    assert git("log", "--format=%s").splitlines() == ["own", "first"]


@pytest.mark.parametrize("shown", [(), ("--no-stream-agent-output", "--max-cost", "9")])
def test_the_cost_of_a_message_counts(ralph: Ralph, agent: Agent, repository: Path, shown: tuple[str, ...]) -> None:
    """Claude states its costs only in its structured stream."""
    result = {"type": "result", "subtype": "success", "is_error": False, "total_cost_usd": 0.4, "session_id": "s"}
    done, message = (json.dumps(result | {"result": text}) for text in ("<response>DONE</response>", "Add it"))
    agent(
        f"""case "$*" in *stream-json*) A='{message}' B='{done}';; *) A='Add it' B='<response>DONE</response>';; esac
        case "$PROMPT" in "{ASKED}") echo "$A";; *) echo x > new; echo "$B";; esac""",
        "claude",
    )
    ran = ralph("run", "-p", "x", "--commit", "--check", "true", "--json", "--agent", "claude", *shown)
    assert ran.code == 0
    assert ran.one("run_finished")["cost_usd"] == 0.8
    assert ran.one("scm_finished")["detail"].endswith("Add it")


def test_the_output_of_a_failed_turn_is_not_a_commit_message(
    ralph: Ralph, agent: Agent, repository: Path, git: Git
) -> None:
    broken = 'case "$PROMPT" in *"commit message"*) echo Traceback; exit 1;; *) echo x > new; echo STOP;; esac'
    result = ralph("run", "x", "--ralph", "1", "--commit", "--json", "--agent", agent(broken))
    assert result.code == 0
    assert result.one("scm_finished") == {"iteration": 1, "task": "commit", "ok": False, "detail": "exit code 1"}
    assert git("log", "--format=%s").splitlines() == ["first"]


def test_a_push_goes_to_the_given_branch(
    ralph: Ralph, agent: Agent, repository: Path, git: Git, tmp_path: Path
) -> None:
    git("init", "-q", "--bare", str(tmp_path / "theirs"))
    git("remote", "add", "origin", str(tmp_path / "theirs"))
    done = ralph("run", "-p", "x", "--push=origin/feature/x", "--json", "--agent", committer(agent, "Add it"))
    assert [told["ok"] for told in done.all("scm_finished")] == [True, True]
    assert git("ls-remote", "origin").split() == [git("rev-parse", "HEAD").strip(), "refs/heads/feature/x"]


@pytest.mark.parametrize("word", ["main", "origin/", "/main", "--all/x"])
def test_a_push_without_remote_and_branch_is_refused(ralph: Ralph, agent: Agent, word: str) -> None:
    result = ralph("run", "-p", "x", f"--push={word}", "--agent", agent("exit 9"))
    assert result.code == 2
    assert f"--push={word}: expected REMOTE/BRANCH" in result.err


def test_a_failed_push_is_reported_and_does_not_end_the_run(
    ralph: Ralph, agent: Agent, repository: Path, git: Git
) -> None:
    result = ralph("run", "-p", "x", "--push", "--json", "--agent", committer(agent, "Add it"))
    assert result.code == 0
    assert [(told["task"], told["ok"]) for told in result.all("scm_finished")] == [("commit", True), ("push", False)]


def test_a_hook_that_refuses_the_commit_is_a_failed_check(
    ralph: Ralph, agent: Agent, repository: Path, git: Git, prompts: Callable[..., list[str]]
) -> None:
    hook = repository / ".git" / "hooks" / "pre-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\ngrep -l TODO new && { echo no TODO allowed; exit 1; }; echo checked; exit 0\n")
    hook.chmod(0o755)
    done = 'echo "<response>DONE</response>"'
    fake = agent(f"""case "$PROMPT" in
        *"commit message"*) echo "Add it";;
        *"no TODO allowed"*) echo fine > new; {done};;
        *) echo TODO > new; git add README; {done};;
    esac""")
    (repository / "README").write_text("mine\n")
    refused = ralph("run", "-p", "x", "--commit", "-m", "1", "--json", "--agent", fake)
    assert (refused.code, refused.one("claim_rejected")["gate"]) == (1, "commit")
    assert git("status", "--porcelain").split() == ["M", "README", "??", "new"], "the index is as the agent left it"
    (repository / "new").unlink()
    result = ralph("run", "-p", "x", "--commit", "--json", "--agent", fake)
    assert result.code == 0, result.err
    scm = [(told["ok"], told["detail"].splitlines()[-1]) for told in result.all("scm_finished")]
    assert scm[0] == (False, "no TODO allowed")
    assert (scm[1][0], scm[1][1].startswith("[main "), "Add it" in scm[1][1]) == (True, True, True)
    assert git("show", "HEAD:new") == "fine\n"


def test_the_scm_can_be_any_program_with_any_tasks(ralph: Ralph, agent: Agent, workspace: Path) -> None:
    tool = agent("", "scm")
    Path(tool).write_text('#!/bin/sh\nprintf "[%s]" "$@" >> called; echo >> called\n')
    (workspace / ".ralph").mkdir()
    scm = '{"scm": {"command": "scm --flag", "tasks": ["commit", "push origin \'a b\'", "tag"]}}'
    (workspace / ".ralph" / "settings.json").write_text(scm)
    assert ralph("run", "-p", "x", "--agent", committer(agent, "Add it")).code == 0
    assert (workspace / "called").read_text().splitlines() == [
        "[--flag][commit][-am][Add it]",
        "[--flag][push][origin][a b]",
        "[--flag][tag]",
    ]


@pytest.mark.parametrize(
    ("checks", "subject"),
    [((), "ralph: iteration 1"), (("--check", "true"), "ralph: iteration 1 (checks pass)")],
)
def test_a_commit_in_a_worktree_mentions_checks_only_if_there_are_any(
    ralph: Ralph, agent: Agent, repository: Path, git: Git, checks: tuple[str, ...], subject: str
) -> None:
    fake = agent("echo x > made; echo '<response>DONE</response>'")
    assert ralph("run", "g", "--agent", fake, "--worktree", *checks, cwd=repository).code == 0
    assert git("log", "-1", "--format=%s", "--branches=ralph/*").strip() == subject


def test_control_characters_of_the_goal_stay_out_of_commit_messages(
    ralph: Ralph, agent: Agent, repository: Path, git: Git
) -> None:
    fake = agent("echo x > made; echo '<response>DONE</response>'")
    assert ralph("run", f"goal {EVIL}", "--agent", fake, "--worktree", cwd=repository).code == 0
    assert git("log", "-1", "--format=%b", "--branches=ralph/*").strip() == "goal xy"


@pytest.mark.parametrize("kept", [(), ("--commit",), ("--worktree",), ("--commit", "--worktree")])
def test_commits_do_not_delay_the_detection_of_a_stall(
    ralph: Ralph, agent: Agent, repository: Path, kept: tuple[str, ...]
) -> None:
    fake = agent("echo x > made; echo 'the same answer'")
    result = ralph("run", "g", "--agent", fake, "--stall", "1", "--check", "true", "-m", "5", "--json", *kept)
    assert (result.one("run_finished")["outcome"], result.one("run_finished")["iterations"]) == ("stalled", 2)


CUT_OFF = """kill -HUP $(grep -o '"pid":[0-9]*' "$RALPH_RUN_FOLDER/state.json" | cut -d: -f2); sleep 99"""


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo hello", "Nothing was changed on branch ralph/"),
        ("touch new", "The work is on branch ralph/"),
        ("git commit -q --allow-empty -m mine", "The work is on branch ralph/"),
        (CUT_OFF, "Nothing was changed on branch ralph/"),
        (f"touch new; {CUT_OFF}", "The work is on branch ralph/"),
    ],
)
def test_a_merge_is_suggested_only_if_the_worktree_was_changed(
    ralph: Ralph, agent: Agent, repository: Path, script: str, said: str
) -> None:
    result = ralph("run", "g", "-m", "1", "--agent", agent(script), "--worktree", cwd=repository)
    assert said in result.err
    assert ("ralph accept" in ralph("show", cwd=repository).out) == (
        said.startswith("The work") and CUT_OFF not in script
    )


def test_a_failed_push_is_reported_even_if_sigchld_is_ignored(
    agent: Agent, repository: Path, environment: dict[str, str]
) -> None:
    words = ["-m", "ralph", "run", "-p", "x", "--push", "--json", "--agent", committer(agent, "Add it")]
    process = subprocess.run(
        [sys.executable, *words],
        cwd=repository,
        env=environment,
        capture_output=True,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN),
    )
    assert process.returncode == 0, process.stderr
    events = [json.loads(line) for line in process.stdout.splitlines()]
    assert [event["data"]["ok"] for event in events if event["type"] == "scm_finished"] == [True, False]
