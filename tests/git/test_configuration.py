"""Commits and pushes follow the user's settings and hooks; changes of those in a run are reported."""

import os
from collections.abc import Callable
from pathlib import Path
from subprocess import CalledProcessError
from typing import Any

import pytest

Ralph = Callable[..., Any]
Git = Callable[..., str]


@pytest.fixture
def at_work(ralph: Ralph, workspace: Path, git: Git) -> Callable[[str], Any]:
    """Return a function that plays a run with --commit, whose agent runs a script and then claims to be done."""
    git("init", "-q")
    git("config", "user.name", "A Person")
    git("config", "user.email", "person@example.org")
    (workspace / "a.txt").write_text("one\n")
    git("add", "-A")
    git("commit", "-qm", "first")

    def play(script: str, *words: str) -> Any:
        path = workspace.parent / "agent.sh"
        path.write_text(f"cat > /dev/null\n{script}\necho '<response>DONE</response>'\n")
        return ralph("run", "go", "--agent", f"sh {path}", "--check", "true", "--commit", "-m", "1", *words)

    return play


def test_a_setting_that_the_agent_adds_does_not_keep_ralph_from_committing(
    at_work: Callable[..., Any], git: Git
) -> None:
    """Git refuses some settings if they are set to an empty value, so ralph cannot simply blank them."""
    added = ("core.compression 9", "status.showUntrackedFiles no", "diff.ignoreSubmodules all", "gc.auto 0")
    done = at_work("; ".join(f"git config {each}" for each in added) + "; echo two > a.txt; echo three > new.txt")
    assert done.code == 0
    assert git("log", "--format=%H").count("\n") == 2, done.err
    assert "new.txt" in git("show", "--stat", "HEAD")


def test_the_users_hooks_run_when_ralph_commits(at_work: Callable[..., Any], workspace: Path, tmp_path: Path) -> None:
    proof = tmp_path / "mine-ran"
    hook = workspace / ".git" / "hooks" / "pre-commit"
    hook.write_text(f"#!/bin/sh\necho ran >> {proof}\n")
    hook.chmod(0o755)
    done = at_work("echo two > a.txt")
    assert done.code == 0
    assert proof.read_text() == "ran\n"


BROKEN = {
    "an index that git cannot read": ("head -c 99 /dev/zero > .git/index", "bad signature"),
    "a submodule that names a program": (
        "git init -q sub; git -C sub commit -q --allow-empty -m s; git add sub;"
        " printf '[submodule \"sub\"]\\npath=sub\\nupdate=!true\\n' > .gitmodules",
        "invalid value for 'submodule.sub.update'",
    ),
    "a HEAD that is none": ("echo garbage > .git/HEAD", "git cannot work in"),
    "a repository without a working tree": ("git config core.bare true", "core.worktree or core.bare in"),
    "a repository of a later format": (
        "git config core.repositoryFormatVersion 1; git config extensions.later yes",
        "unknown repository extension found: later",
    ),
    "a repository that is gone": ("rm -rf .git", "no longer a git repository"),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_failed_commit_is_reported_and_does_not_end_the_run(
    at_work: Callable[..., Any], tmp_path: Path, broken: str
) -> None:
    how, said = BROKEN[broken]
    done = at_work(f"[ -e {tmp_path}/once ] || {{ touch {tmp_path}/once; echo two > a.txt; {how}; }}")
    assert (done.code, "commit failed" in done.err, said in done.err) == (0, True, True), done.err


@pytest.mark.parametrize("how", ["--commit", "--commit=all"])
def test_nothing_is_committed_to_an_outer_repository_if_the_inner_one_is_gone(
    at_work: Callable[..., Any], workspace: Path, git: Git, how: str
) -> None:
    """A home folder with dotfiles in git is such an outer repository."""
    git("init", "-q", str(workspace.parent))
    done = at_work("rm -rf .git; echo two > a.txt", how)
    assert "commit failed" in done.err
    assert git("-C", str(workspace.parent), "for-each-ref") == ""


def test_the_private_git_folder_is_in_the_state_folder_until_the_run_is_cleaned_up(
    at_work: Callable[..., Any], ralph: Ralph, workspace: Path, environment: dict[str, str]
) -> None:
    at_work("git clean -qfdx; echo two > a.txt")
    look = Path(environment["HOME"], ".local/state/ralph/look")
    (folder,) = look.iterdir()
    assert {path.name for path in folder.iterdir()} >= {"HEAD", "config", "index", "refs"}
    assert not [*workspace.glob(".ralph/runs/*/index*")]
    assert ralph("clean", "--older-than", "0s", "--yes").code == 0
    assert not [*look.iterdir()]


def test_a_file_named_head_can_be_committed(at_work: Callable[..., Any], git: Git) -> None:
    done = at_work("echo two > HEAD")
    assert git("show", "HEAD:HEAD", "--") == "two\n", done.err


def test_a_rewind_writes_files_through_the_users_filters(
    at_work: Callable[..., Any], ralph: Ralph, workspace: Path, git: Git
) -> None:
    git("config", "filter.shout.clean", "tr A-Z a-z")
    git("config", "filter.shout.smudge", "tr a-z A-Z")
    (workspace / ".gitattributes").write_text("*.txt filter=shout\n")
    (workspace / "a.txt").write_text("ONE\n")
    git("add", "-A")
    git("commit", "-qm", "shout")
    at_work("echo TWO > a.txt")
    done = ralph("rewind", "0")
    assert done.code == 0, done.err
    assert (workspace / "a.txt").read_text() == "ONE\n"


@pytest.mark.parametrize("command", ["accept", "discard"])
def test_a_worktree_that_leads_to_other_settings_runs_nothing(
    command: str, at_work: Callable[..., Any], ralph: Ralph, workspace: Path, tmp_path: Path
) -> None:
    """`commondir` names the folder with settings and attributes. Git leaves it to ralph to name the right one."""
    evil, pwned = tmp_path / "evil", tmp_path / "pwned"
    done = at_work("echo two > a.txt", "--worktree", "--json")
    (registered,) = (workspace / ".git" / "worktrees").iterdir()
    for name in ("objects", "refs", "HEAD"):
        (evil / name).parent.mkdir(exist_ok=True)
        (evil / name).symlink_to(workspace / ".git" / name)
    program = f'"touch {pwned}; cat"'
    core = "[core]\n\trepositoryformatversion = 0\n"
    (evil / "config").write_text(f'{core}[filter "x"]\n\tclean = {program}\n\tsmudge = {program}\n')
    (evil / "info").mkdir()
    (evil / "info" / "attributes").write_text("* filter=x\n")
    (registered / "commondir").write_text(f"{evil}\n")
    worktree = Path(done.one("run_finished")["worktree"])
    os.utime(worktree / "a.txt", (1, 1))  # git reads a file through its filter if the time has changed
    assert ralph(command).code == 0
    assert not pwned.exists()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("git config core.sshCommand evil", "core.sshcommand"),
        ("echo '*.txt filter=evil' > .git/info/attributes", "info/attributes"),
        ("echo '*.txt filter=evil' > .gitattributes", ".gitattributes"),
        ("printf '[core]\\n\\tsshCommand = evil\\n' > ../mine", "core.sshcommand"),
        ("echo evil > .git/hooks/pre-push", "hooks/pre-push"),
    ],
)
def test_changed_git_settings_hooks_and_attributes_are_reported(
    at_work: Callable[..., Any], workspace: Path, git: Git, change: str, told: str
) -> None:
    git("config", "include.path", str(workspace.parent / "mine"))
    (workspace.parent / "mine").write_text("[core]\n\tsshCommand = mine\n")
    done = at_work(f"{change}; echo two > a.txt")
    assert done.code == 0
    (said,) = [line for line in done.err.splitlines() if "hooks or attributes were changed" in line]
    assert told in said


def test_work_is_not_pushed_to_a_remote_that_the_agent_changed(
    at_work: Callable[..., Any], workspace: Path, git: Git, tmp_path: Path
) -> None:
    for name in ("mine", "theirs"):
        git("init", "-q", "--bare", str(tmp_path / name))
    git("remote", "add", "origin", str(tmp_path / "mine"))
    git("push", "-q", "-u", "origin", "HEAD")
    done = at_work(f"git config remote.origin.url {tmp_path}/theirs; echo two > a.txt", "--push")
    assert "changed during this run: remote.origin.url" in done.err
    assert git("--git-dir", str(tmp_path / "theirs"), "for-each-ref") == ""


@pytest.mark.parametrize("folder", ["bin", "."])
def test_a_push_does_not_run_an_ssh_that_the_agent_put_on_the_path(
    at_work: Callable[..., Any], workspace: Path, environment: dict[str, str], git: Git, tmp_path: Path, folder: str
) -> None:
    proof = tmp_path / "it-ran"
    (workspace / "bin").mkdir()
    own = Path(environment["HOME"], "bin", "ssh")
    own.write_text("#!/bin/sh\necho my own ssh, and no network >&2\nexit 1\n")
    own.chmod(0o755)
    environment["PATH"] = f"{workspace}/bin:{folder}:{environment['PATH']}"
    git("remote", "add", "origin", "git@localhost:mine.git")
    git("config", "branch.main.remote", "origin")
    git("config", "branch.main.merge", "refs/heads/main")
    git("branch", "-qM", "main")
    planted = f"printf '#!/bin/sh\\ntouch {proof}\\n' > bin/ssh; cp bin/ssh .; chmod +x bin/ssh ssh; echo two > a.txt"
    done = at_work(planted, "--push")
    assert "my own ssh, and no network" in done.err
    assert not proof.exists()


def test_git_trace_output_is_not_taken_for_the_result(at_work: Callable[..., Any], environment: dict[str, str]) -> None:
    environment |= {"GIT_TRACE": "1", "GIT_TRACE2": "1", "GIT_TRACE_SETUP": "1"}
    assert "✓ commit: [" in at_work("echo two > a.txt").err


BEGUN = {
    "a merge": (("merge", "other"), "MERGE_HEAD"),
    "a squashed merge": (("merge", "--squash", "other"), "SQUASH_MSG"),
    "one commit of another branch": (("cherry-pick", "-n", "other"), "MERGE_MSG"),
    "a stash that does not fit": (("stash", "pop"), "index"),
}


@pytest.mark.parametrize("how", ["--commit", "--commit=all"])
@pytest.mark.parametrize("begun", BEGUN)
def test_nothing_is_committed_during_the_users_own_merge(
    at_work: Callable[..., Any], workspace: Path, git: Git, begun: str, how: str
) -> None:
    git("checkout", "-qb", "other")
    (workspace / "a.txt").write_text("other\n")
    git("commit", "-qam", "other")
    git("checkout", "-q", "-")
    (workspace / "a.txt").write_text("stashed\n")
    git("stash")
    (workspace / "a.txt").write_text("mine\n")
    git("commit", "-qam", "mine")
    words, left = BEGUN[begun]
    with pytest.raises(CalledProcessError):
        git(*words)
    done = at_work("echo new > new.txt", how)
    assert "merge is in progress" in done.err
    assert git("log", "--format=%s", "-1") == "mine\n"
    assert git("ls-files", "--unmerged")
    assert (workspace / ".git" / left).exists()
