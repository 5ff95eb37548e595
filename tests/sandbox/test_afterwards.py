"""Links, hooks and files that a sandboxed agent leaves behind must not make ralph or git act for it outside."""

from pathlib import Path

import pytest
from tests.conftest import Result
from tests.sandbox.conftest import KEY, Ground

SECRET = "hidden task 0815"
RECORD_PROMPT = "cat /tmp/prompt >> prompts"
AGENT = ("--agent", "claude", "--sandbox", "--json")


@pytest.fixture
def secret(ground: Ground) -> Path:
    """A file in the home that the sandbox hides. Its text is a key, a task list and a list of notes at once."""
    path = ground.home / "secret.md"
    path.write_text(f"{KEY}\n- [ ] {SECRET}\n- hidden note\n")
    ground.own(path)
    return path


@pytest.fixture
def workspace(ground: Ground) -> Path:
    """Restore the project to what was committed."""
    ground.git("checkout", "-q", "-f", "main")
    ground.git("clean", "-ffdqx")
    return ground.workspace


def write(ground: Ground, path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    ground.own(path.parent)


def seen_by_agent(workspace: Path) -> str:
    prompts = workspace / "prompts"
    return prompts.read_text() if prompts.exists() else ""


def assert_hidden(result: Result, seen: str) -> None:
    for text in (KEY, SECRET, "hidden note"):
        assert text not in seen
        assert text not in result.out


def test_a_goal_file_that_becomes_a_link_is_not_followed(ground: Ground, workspace: Path, secret: Path) -> None:
    write(ground, workspace / "PROMPT.md", "the goal")
    ground.claude(f"{RECORD_PROMPT}; ln -sf {secret} PROMPT.md")
    result = ground.ralph("run", "-f", "PROMPT.md", "--check", "false", "-m", "2", *AGENT)
    assert "the goal" in seen_by_agent(workspace)
    assert_hidden(result, seen_by_agent(workspace))
    assert result.one("run_finished")["outcome"] == "fatal"
    assert "PROMPT.md" in result.one("run_finished")["reason"]
    assert "link" in result.one("run_finished")["reason"]


def test_a_folder_that_becomes_a_link_is_not_followed_to_the_goal(
    ground: Ground, workspace: Path, secret: Path
) -> None:
    write(ground, workspace / "docs" / "secret.md", "the goal")
    ground.claude(f"{RECORD_PROMPT}; rm -r docs; ln -s {secret.parent} docs")
    result = ground.ralph("run", "--spec", "docs/secret.md", "--check", "false", "-m", "2", *AGENT)
    assert "the goal" in seen_by_agent(workspace)
    assert_hidden(result, seen_by_agent(workspace))


def test_a_goal_link_left_by_an_earlier_run_is_refused(ground: Ground, workspace: Path, secret: Path) -> None:
    (workspace / "PROMPT.md").symlink_to(secret)
    ground.claude(RECORD_PROMPT)
    result = ground.ralph("run", "-f", "PROMPT.md", "-m", "1", *AGENT)
    assert result.code == 2
    assert "hint:" in result.err
    assert_hidden(result, seen_by_agent(workspace))


def test_a_goal_link_to_a_hidden_file_of_the_workspace_is_refused(
    ground: Ground, workspace: Path, secret: Path
) -> None:
    write(ground, workspace / ".env", KEY)
    write(ground, workspace / ".ralph" / "settings.json", '{"sandbox": {"hide": [".env"]}}')
    (workspace / "PROMPT.md").symlink_to(".env")
    ground.claude(RECORD_PROMPT)
    result = ground.ralph("run", "-f", "PROMPT.md", "-m", "1", *AGENT)
    assert result.code == 2
    assert_hidden(result, seen_by_agent(workspace))


def test_a_goal_link_within_the_workspace_is_followed(ground: Ground, workspace: Path) -> None:
    write(ground, workspace / "docs" / "goal.md", "the goal")
    (workspace / "PROMPT.md").symlink_to("docs/goal.md")
    ground.claude(RECORD_PROMPT)
    result = ground.ralph("run", "-f", "PROMPT.md", "-m", "1", *AGENT)
    assert result.code == 0, result.err
    assert "the goal" in seen_by_agent(workspace)


def test_a_goal_file_outside_of_the_workspace_can_be_named(ground: Ground, workspace: Path, secret: Path) -> None:
    ground.claude(RECORD_PROMPT)
    result = ground.ralph("run", "-f", str(secret), "-m", "1", *AGENT)
    assert result.code == 0, result.err
    assert KEY in seen_by_agent(workspace)


def test_a_tasks_file_that_becomes_a_link_is_not_followed(ground: Ground, workspace: Path, secret: Path) -> None:
    write(ground, workspace / "TASKS.md", "- [ ] first task\n")
    ground.claude(f"{RECORD_PROMPT}; ln -sf {secret} TASKS.md", "COMPLETE")
    result = ground.ralph("loop", "go", "--tasks", "TASKS.md", "--check", "true", "-m", "2", *AGENT)
    assert "first task" in seen_by_agent(workspace)
    assert_hidden(result, seen_by_agent(workspace))


def test_a_task_prompt_that_becomes_a_link_is_not_followed(ground: Ground, workspace: Path, secret: Path) -> None:
    task = ground.folder / "tasks" / "shop" / "login"
    write(ground, task / "TASK.md", "the goal")
    ground.own(ground.folder / "tasks")
    ground.claude(f"{RECORD_PROMPT}; ln -sf {secret} $TASK_FOLDER/TASK.md")
    words = ("task", "--root", str(ground.folder / "tasks"), "--project", "shop", "--task", "login")
    result = ground.ralph(*words, "--max-restarts", "1", "--restart-delay", "0s", *AGENT)
    assert "the goal" in seen_by_agent(workspace)
    assert_hidden(result, seen_by_agent(workspace))
    result = ground.ralph(*words, "--max-restarts", "1", "--restart-delay", "0s", *AGENT)
    assert result.code == 2
    assert_hidden(result, seen_by_agent(workspace))


def test_a_reason_to_wait_is_not_read_through_a_link(ground: Ground, workspace: Path, secret: Path) -> None:
    task = ground.folder / "tasks" / "shop" / "wait"
    write(ground, task / "TASK.md", "the goal")
    ground.own(ground.folder / "tasks")
    ground.claude(f"ln -sf {secret} $TASK_FOLDER/WAIT_WITHOUT_RESTART")
    words = ("task", "--root", str(ground.folder / "tasks"), "--project", "shop", "--task", "wait")
    result = ground.ralph(*words, "--max-restarts", "1", *AGENT)
    assert_hidden(result, seen_by_agent(workspace))


def test_a_link_among_the_reflogs_does_not_lead_a_later_commit_elsewhere(ground: Ground, workspace: Path) -> None:
    ground.git("checkout", "-q", "-b", "feature/x")
    ground.claude("rm .git/logs/refs/heads/feature/x; ln -s $HOME/.bashrc .git/logs/refs/heads/feature/x")
    result = ground.ralph("run", "go", "-m", "1", *AGENT)
    assert result.code == 0, result.err
    ground.git("commit", "-q", "--allow-empty", "-m", "mine")
    ground.git("checkout", "-q", "main")
    assert (ground.home / ".bashrc").read_text() == "# mine\n"
    assert any("logs/refs/heads/feature/x" in notice["text"] for notice in result.all("notice"))


def test_a_link_among_the_branches_does_not_lead_a_later_commit_elsewhere(ground: Ground, workspace: Path) -> None:
    ground.git("checkout", "-q", "-b", "topic/y")
    commit = ground.git("rev-parse", "HEAD").strip()
    write(ground, ground.home / "elsewhere" / "y", f"{commit}\n")
    ground.claude("rm -r .git/refs/heads/topic; ln -s $HOME/elsewhere .git/refs/heads/topic")
    result = ground.ralph("run", "go", "-m", "1", *AGENT)
    assert result.code == 0, result.err
    ground.run("git", "commit", "-q", "--allow-empty", "-m", "mine")
    ground.git("symbolic-ref", "HEAD", "refs/heads/main")
    assert (ground.home / "elsewhere" / "y").read_text() == f"{commit}\n"


LINK_SHARED_REFLOG = """
common=$(git rev-parse --git-common-dir)
branch=$(git symbolic-ref HEAD)
logs=$common/logs/$(dirname $branch)
ln -s $HOME/.bashrc $logs/merged || { rm -f $logs/merged; ln -s $HOME/.bashrc $logs/merged; }
echo w > "$RALPH_RUN_ID.txt"; git add -A; git commit -qm w
"""


def test_a_link_among_the_shared_reflogs_does_not_lead_a_merge_elsewhere(ground: Ground, workspace: Path) -> None:
    write(ground, workspace / "TASKS.md", "- [ ] one\n- [ ] two\n")
    ground.git("add", "-A")
    ground.git("commit", "-qm", "tasks")
    ground.claude(LINK_SHARED_REFLOG, "COMPLETE")
    result = ground.ralph("work", "TASKS.md", "-j", "1", "--check", "true", *AGENT)
    assert result.code == 0, result.err
    assert (ground.home / ".bashrc").read_text() == "# mine\n"


@pytest.fixture
def pushing(ground: Ground, workspace: Path) -> Path:
    """Add a remote, and a pre-push hook that runs a script of the project."""
    remote = ground.folder / "remote.git"
    if not remote.exists():
        ground.run("git", "init", "-q", "--bare", str(remote), cwd=ground.folder)
        ground.git("remote", "add", "origin", str(remote))
    ground.git("push", "-q", "-u", "-f", "origin", "main")
    hook = workspace / ".git" / "hooks" / "pre-push"
    write(ground, hook, "#!/bin/sh\n./lint.sh\n")
    hook.chmod(0o755)
    return hook


PLANT_LINT = 'printf "#!/bin/sh\\ntouch $HOME/pwned\\n" > lint.sh; chmod +x lint.sh; echo x > "x-$RALPH_RUN_ID"'


def assert_pushed_without_hook(ground: Ground, result: Result, hook: Path, ref: str = "main") -> None:
    hook.unlink()
    assert result.code == 0, result.err + result.out
    assert not (ground.home / "pwned").exists()
    assert "lint.sh" in ground.run("git", "ls-tree", "--name-only", ref, cwd=ground.folder / "remote.git").out
    assert any("pre-push" in notice["text"] for notice in result.all("notice"))


def test_a_push_runs_no_hook_outside(ground: Ground, pushing: Path) -> None:
    ground.claude(PLANT_LINT)
    result = ground.ralph("run", "go", "--check", "true", "--commit", "--push", "-m", "1", *AGENT)
    assert_pushed_without_hook(ground, result, pushing)


def test_a_push_for_a_pull_request_runs_no_hook_outside(ground: Ground, pushing: Path) -> None:
    ground.claude(PLANT_LINT)
    result = ground.ralph("run", "go", "--check", "true", "--worktree", "--pr", "-m", "1", *AGENT)
    branch = result.one("run_finished").get("branch", "main")
    assert_pushed_without_hook(ground, result, pushing, branch)


def test_a_push_of_a_backlog_runs_no_hook_outside(ground: Ground, workspace: Path, pushing: Path) -> None:
    write(ground, workspace / "TASKS.md", "- [ ] three\n")
    ground.git("add", "-A")
    ground.git("commit", "-qm", "more tasks")
    ground.git("push", "-q", "--no-verify", "origin", "main")
    ground.claude(PLANT_LINT, "COMPLETE")
    result = ground.ralph("work", "TASKS.md", "-j", "1", "--check", "true", "--push=origin/main", *AGENT)
    assert_pushed_without_hook(ground, result, pushing)


def test_the_pre_commit_hook_of_accept_runs_inside_the_sandbox(ground: Ground, workspace: Path) -> None:
    """The hook runs a script that the agent wrote: it can change the work, but nothing outside."""
    hook = workspace / ".git" / "hooks" / "pre-commit"
    write(ground, hook, "#!/bin/sh\nsh ./format.sh; exit 0\n")
    hook.chmod(0o755)
    ground.claude(f'echo "cat {ground.home}/.ssh/id_rsa; touch {ground.home}/pwned; echo formatted > new; git add new"'
                  " > format.sh; echo raw > new")  # fmt: skip
    run = ground.ralph("run", "go", "--worktree", "-m", "1", *AGENT)
    assert run.code == 0, run.err
    accepted = ground.ralph("accept")
    hook.unlink()
    assert accepted.code == 0, accepted.err
    assert ground.git("show", "HEAD:new") == "formatted\n"
    assert not (ground.home / "pwned").exists()
    assert_hidden(accepted, accepted.err)
