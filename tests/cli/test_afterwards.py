"""`ralph accept`, `discard`, `clean`, `report` and detached runs."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ralph.actions.clean import find_leftovers
from ralph.store.folder import prepare, workspace_lock

Ralph = Callable[..., Any]
Agent = Callable[..., str]
Git = Callable[..., str]
WORKS = 'echo new > fresh; echo line >> README; echo "<response>DONE</response>"'


@pytest.fixture
def branch(ralph: Ralph, agent: Agent, repository: Path) -> str:
    """Return a finished run with its own branch."""
    check = ("--check", "test -f fresh && test ! -f red")
    result = ralph("run", "go", "--worktree", *check, "--json", "--agent", agent(WORKS))
    assert result.code == 0, result.err
    return str(result.one("run_finished")["branch"])


def trees(git: Git) -> int:
    return git("worktree", "list").count("\n")


def test_accepted_work_is_merged_and_its_worktree_is_gone(ralph: Ralph, git: Git, branch: str, workspace: Path) -> None:
    result = ralph("accept")
    assert result.code == 0, result.err
    assert "2 files changed, 1 check passed" in result.out
    assert (workspace / "fresh").read_text() == "new\n"
    assert (git("branch").split(), trees(git), git("status", "--short")) == (["*", "main"], 1, "")


def test_accept_merges_exactly_the_checked_tree(ralph: Ralph, git: Git, branch: str, workspace: Path) -> None:
    (workspace / "mine").write_text("meanwhile\n")
    git("add", "mine")
    git("commit", "-qm", "mine")
    result = ralph("accept")
    assert result.code == 0, result.err
    assert git("log", "-2", "--format=%s").split() == ["go", "mine"]
    assert (workspace / "fresh").exists()
    assert (workspace / "mine").exists()


def test_the_commit_of_accepted_work_names_goal_files_checks_and_run(
    ralph: Ralph, agent: Agent, git: Git, repository: Path
) -> None:
    goal = "Make the file fresh\n\nIt has to contain a line."
    turns = agent('echo $N > fresh; test $N = 1 || echo "<response>DONE</response>"')
    result = ralph("run", goal, "--worktree", "--check", "test -s fresh", "--json", "--agent", turns)
    run = result.events[0]["run"]
    assert ralph("accept").code == 0
    assert git("log", "--format=%s").splitlines() == ["Make the file fresh", "first"]
    body = git("log", "-1", "--format=%b")
    for text in ("It has to contain a line.", " fresh | 1 +", "- test -s fresh"):
        assert text in body
    assert git("log", "-1", "--format=%(trailers:key=Ralph-Run,valueonly)").strip() == run


def test_accept_takes_a_message_or_keeps_the_commits(ralph: Ralph, agent: Agent, git: Git, repository: Path) -> None:
    turns = agent('echo $N > fresh; test $N = 1 || echo "<response>DONE</response>"')
    work = ("run", "go", "--worktree", "--check", "test $(cat fresh) = 2", "--agent", turns)
    ralph(*work)
    both = ralph("accept", "--no-squash", "-m", "x")
    assert (both.code, "can't be combined" in both.err) == (2, True)
    assert ralph("accept", "--no-squash").code == 0
    titles = git("log", "--format=%s").splitlines()
    assert titles == ["ralph: iteration 2 (checks pass)", "ralph: iteration 1", "first"], (
        "no subject claims that checks fail"
    )
    (repository / "fresh").unlink()
    git("commit", "-qam", "again")
    ralph(*work[:-2], "--agent", agent('echo 2 > fresh; echo "<response>DONE</response>"'))
    assert ralph("accept", "-m", "My own words").code == 0
    assert git("log", "-1", "--format=%s").strip() == "My own words"
    assert "Ralph-Run: " in git("log", "-1", "--format=%b")


def test_after_a_crash_a_squashed_commit_is_recognised_by_its_trailer(
    ralph: Ralph, git: Git, branch: str, workspace: Path
) -> None:
    run = branch.removeprefix("ralph/")
    git("merge", "-q", "--squash", branch)
    git("commit", "-qm", f"go\n\nRalph-Run: {run}")
    (workspace / "fresh").write_text("changed since\n")
    git("commit", "-qam", "later")
    head = git("rev-parse", "HEAD")
    result = ralph("accept")
    assert (result.code, "has nothing to merge" in result.out) == (0, True), result.err
    assert (git("rev-parse", "HEAD"), git("branch").split(), trees(git)) == (head, ["*", "main"], 1)


def hook(repository: Path, script: str) -> None:
    path = repository / ".git" / "hooks" / "pre-commit"
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_the_output_of_a_refusing_hook_is_in_the_next_prompt_after_resume(
    ralph: Ralph, agent: Agent, git: Git, repository: Path, prompts: Callable[..., list[str]]
) -> None:
    hook(repository, 'git diff --cached --name-only; grep TODO fresh && { echo "no TODO, please"; exit 1; }; exit 0')
    work = 'if test $N = 1; then echo TODO > fresh; else echo fine > fresh; fi; echo "<response>DONE</response>"'
    ralph("run", "go", "--worktree", "--check", "test -s fresh", "--agent", agent(work))
    (repository / "mine").write_text("staged\n")
    git("add", "mine")
    before = git("rev-parse", "HEAD"), git("status", "--porcelain")
    refused = ralph("accept")
    assert refused.code == 1
    assert ("no TODO, please" in refused.err, "ralph resume" in refused.err) == (True, True)
    assert (git("rev-parse", "HEAD"), git("status", "--porcelain")) == before
    resumed = ralph("resume")
    assert resumed.code == 0, resumed.err
    assert "no TODO, please" in prompts()[1]
    assert ralph("accept").code == 0
    assert git("show", "HEAD:fresh") == "fine\n"
    assert git("status", "--porcelain") == "A  mine\n"


def test_changes_by_a_hook_are_checked_again_before_the_branch_moves(
    ralph: Ralph, agent: Agent, git: Git, repository: Path
) -> None:
    hook(repository, "echo formatted > fresh; git add fresh")
    work = agent('echo raw > fresh; echo "<response>DONE</response>"')
    ralph("run", "go", "--worktree", "--check", "test -s fresh && ! grep formatted fresh", "--agent", work)
    head = git("rev-parse", "HEAD")
    refused = ralph("accept")
    assert (refused.code, "1 of 1 check failed" in refused.err, git("rev-parse", "HEAD")) == (1, True, head)
    hook(repository, "echo better > fresh; git add fresh")
    assert ralph("accept").code == 0
    assert git("show", "HEAD:fresh") == "better\n"


def untouched(git: Git, branch: str, head: str) -> bool:
    """Return whether branch, worktree and the user's branch are unchanged."""
    tree = next(line.split()[0] for line in git("worktree", "list").splitlines() if branch in line)
    return git("rev-parse", "HEAD") == head and git("-C", tree, "status", "--porcelain", "-b").startswith(
        f"## {branch}"
    )


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("red", "", "1 of 1 check failed: test -f fresh && test ! -f red"),
        ("README", "hello\nother\n", "no longer merges: conflicts in README"),
    ],
)
def test_work_that_cannot_be_accepted_changes_nothing(
    ralph: Ralph, git: Git, branch: str, workspace: Path, file: str, text: str, said: str
) -> None:
    (workspace / file).write_text(text)
    git("add", file)
    git("commit", "-qm", "in the way")
    head = git("rev-parse", "HEAD")
    result = ralph("accept")
    assert (result.code, said in result.err, "nothing was changed" in result.err) == (1, True, True), result.err
    assert untouched(git, branch, head)


def test_accept_runs_the_checks_of_the_start_even_if_the_copy_in_the_workspace_was_edited(
    ralph: Ralph, git: Git, branch: str, workspace: Path
) -> None:
    (order,) = workspace.glob(".ralph/runs/*/run.json")
    order.write_text(order.read_text().replace("test -f fresh && test ! -f red", "true"))
    (workspace / "red").touch()
    git("add", "red")
    git("commit", "-qm", "red")
    head = git("rev-parse", "HEAD")
    refused = ralph("accept")
    assert (refused.code, "1 of 1 check failed" in refused.err) == (1, True), refused.err
    assert untouched(git, branch, head)


def test_discard_and_clean_remove_files_outside_the_workspace(
    ralph: Ralph, agent: Agent, git: Git, branch: str, environment: dict[str, str]
) -> None:
    orders = Path(environment["HOME"], ".local/state/ralph/orders")
    assert len([*orders.iterdir()]) == 1
    assert ralph("discard").code == 0
    assert not [*orders.iterdir()]
    ralph("run", "go", "-m", "1", "--agent", agent("echo more"))
    assert len([*orders.iterdir()]) == 1
    assert ralph("clean", "--older-than", "0s", "--yes").code == 0
    assert not [*orders.iterdir()]


def test_accept_never_overwrites_the_users_changes(ralph: Ralph, git: Git, branch: str, workspace: Path) -> None:
    (workspace / "README").write_text("mine\n")
    head = git("rev-parse", "HEAD")
    result = ralph("accept")
    assert (result.code, "would be overwritten" in result.err) == (1, True), result.err
    assert (workspace / "README").read_text() == "mine\n"
    assert untouched(git, branch, head)


def test_accept_never_overwrites_an_ignored_file(ralph: Ralph, agent: Agent, git: Git, repository: Path) -> None:
    (repository / ".gitignore").write_text(".env\n")
    git("add", "-A")
    git("commit", "-qm", "ignored")
    (repository / ".env").write_text("mine\n")
    fake = agent('echo theirs > .env; git add -f .env; echo "<response>DONE</response>"')
    assert ralph("run", "go", "--worktree", "--agent", fake).code == 0
    result = ralph("accept")
    assert (result.code, "would be overwritten by merge: .env" in result.err) == (1, True), result.err
    assert (repository / ".env").read_text() == "mine\n"


@pytest.mark.parametrize(
    ("how", "said"),
    [(("bisect", "start", "HEAD", "HEAD^"), "a bisect is in progress"), (("checkout", "-q", "HEAD^0"), "no branch is")],
)
def test_work_is_not_accepted_without_a_checked_out_branch(
    ralph: Ralph, git: Git, branch: str, how: tuple[str, ...], said: str
) -> None:
    git("commit", "-q", "--allow-empty", "-m", "later")
    git(*how)
    head = git("rev-parse", "HEAD")
    result = ralph("accept")
    assert (result.code, said in result.err) == (1, True), result.err
    assert untouched(git, branch, head)


def test_a_run_without_changes_has_nothing_to_merge(ralph: Ralph, agent: Agent, repository: Path, git: Git) -> None:
    fake = agent("echo '<response>DONE</response>'")
    assert ralph("run", "go", "--worktree", "--check", "true", "--agent", fake).code == 0
    result = ralph("accept")
    assert (result.code, trees(git)) == (0, 1)
    assert "has nothing to merge: your branch has all of it" in result.out


def test_a_run_without_a_worktree_has_nothing_to_accept(ralph: Ralph, agent: Agent, repository: Path) -> None:
    ralph("run", "go", "--agent", agent(WORKS), "--quiet")
    for command in ("accept", "discard"):
        result = ralph(command)
        assert (result.code, "worked in your folder" in result.err) == (2, True), result.err


def test_discarding_a_symbolic_ref_leaves_the_users_branch(
    ralph: Ralph, git: Git, branch: str, workspace: Path
) -> None:
    head = git("rev-parse", "HEAD")
    git("symbolic-ref", f"refs/heads/{branch}", "refs/heads/main")
    assert ralph("discard").code == 0
    assert (git("rev-parse", "main"), git("branch").split()) == (head, ["*", "main"])


@pytest.mark.parametrize("command", [("accept",), ("discard",), ("resume", "-m", "1")])
@pytest.mark.parametrize("how", ["a link", "a .git of another"])
def test_commands_change_nothing_in_a_tree_that_replaced_the_worktree(
    ralph: Ralph, agent: Agent, git: Git, repository: Path, command: tuple[str, ...], how: str
) -> None:
    ralph("run", "go", "--worktree", "-m", "1", "--agent", agent("echo new > fresh"))
    worktree = Path(git("worktree", "list", "--porcelain").split("worktree ")[2].split("\n")[0])
    if how == "a link":
        worktree.rename(worktree.with_name("moved"))
        worktree.symlink_to(repository)
    else:
        (worktree / ".git").write_text(f"gitdir: {repository}/.git\n")
    (repository / "README").write_text("mine\n")
    before = git("rev-parse", "HEAD"), git("symbolic-ref", "HEAD"), git("status", "--porcelain")
    refused = ralph(*command)
    assert (refused.code, "is no longer the worktree of" in refused.err) == (2, True), refused.err
    assert (git("rev-parse", "HEAD"), git("symbolic-ref", "HEAD"), git("status", "--porcelain")) == before


def test_a_check_that_redirects_the_worktree_changes_nothing_elsewhere(
    ralph: Ralph, agent: Agent, git: Git, repository: Path, tmp_path: Path
) -> None:
    # In a copy that is seen in place of the user's tree, `.git` is read-only.
    leads = f"test ! -e {tmp_path}/now || {{ printf 'gitdir: %s\\n' {repository}/.git > .git; true; }}"
    work = agent("echo new > fresh; echo '<response>DONE</response>'")
    assert ralph("run", "go", "--worktree", "-m", "1", "--check", leads, "--agent", work).code == 0
    (repository / "staged").write_text("mine\n")
    git("add", "staged")
    (tmp_path / "now").touch()
    assert ralph("accept").code == 0
    assert (git("symbolic-ref", "HEAD"), git("status", "--porcelain")) == ("refs/heads/main\n", "A  staged\n")
    assert (repository / "fresh").read_text() == "new\n"


def test_clean_deletes_no_branch_that_ralph_did_not_create(
    ralph: Ralph, agent: Agent, repository: Path, git: Git
) -> None:
    ralph("run", "go", "-m", "1", "--agent", agent("echo more"))
    git("worktree", "add", "-q", "-b", "feature", str(repository.parent / "mine"))
    (state,) = repository.glob(".ralph/runs/*/state.json")
    state.write_text(json.dumps({**json.loads(state.read_text()), "branch": "*"}))
    assert "1 deleted" in ralph("clean", "--older-than", "0s", "--yes", "-C", str(repository)).out
    assert (trees(git), "feature" in git("branch")) == (2, True)


DEEP = "import os; [(os.mkdir('d' * 200), os.chdir('d' * 200)) for _ in range(25)]"


def test_work_with_folders_too_deep_for_git_can_only_be_discarded(
    ralph: Ralph, agent: Agent, git: Git, repository: Path
) -> None:
    """Git does not see these folders, but they could change the results of the checks."""
    ralph("run", "go", "--worktree", "--check", "true", "--agent", agent(f'{WORKS}; python3 -c "{DEEP}"'))
    refused = ralph("accept")
    assert refused.code == 2
    assert "not all new files in" in refused.err
    assert max(map(len, refused.err.splitlines())) < 400
    assert ralph("discard").code == 0
    assert (trees(git), git("branch").split()) == (1, ["*", "main"])
    home = Path(git("rev-parse", "--show-toplevel").strip()).parent / "home"
    assert not [*home.glob(".local/state/ralph/worktrees/*/d*")]


def test_discarded_work_can_be_restored(ralph: Ralph, git: Git, branch: str, workspace: Path) -> None:
    tip = git("rev-parse", branch)
    result = ralph("discard")
    assert result.code == 0, result.err
    assert (git("branch").split(), trees(git)) == (["*", "main"], 1)
    assert "was discarded" in ralph("accept", branch.removeprefix("ralph/")).err
    git(*result.out.rpartition("To restore it: git ")[2].split())
    assert git("rev-parse", branch) == tip
    assert not (workspace / "fresh").exists()


DIES_AT_THE_EIGHTH = """
import os, signal, sys
count = 0
def at_last(remove):
    def instead(name, *, dir_fd=None):
        global count
        caller = sys._getframe(1)
        # Every process makes and removes throwaway copies and probes of its own.
        folder = str(caller.f_locals.get("folder", ""))
        count += caller.f_code.co_name == "remove_tree" and ".copy" not in folder and "/probe-" not in folder
        if count == 8:
            os.kill(os.getpid(), signal.SIGKILL)
        return remove(name, dir_fd=dir_fd)
    return instead
os.unlink, os.rmdir = at_last(os.unlink), at_last(os.rmdir)
"""
GIT_DIES = """#!/bin/sh
case "$*" in *"worktree remove"*) for last; do :; done; rm -f "$last/.git"; kill -9 $$;; esac
exec %s "$@"
"""


@pytest.mark.slow
@pytest.mark.parametrize("words", [("discard",), ("accept",), ("clean", "--older-than", "0s", "--yes", "-C", ".")])
def test_a_discard_that_is_killed_again_and_again_can_be_finished(
    words: tuple[str, ...], git: Git, branch: str, repository: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    """It makes no difference whether ralph or its git is killed."""
    if words[0] == "clean":
        git("merge", "-q", branch)
    (tmp_path / "sitecustomize.py").write_text(DIES_AT_THE_EIGHTH)
    own_git = Path(environment["HOME"]) / "bin" / "git"
    own_git.write_text(GIT_DIES % shutil.which("git"))
    own_git.chmod(0o755)
    codes = list[int]()
    while not codes or (codes[-1] == -signal.SIGKILL and len(codes) < 20):
        again = subprocess.run(
            [sys.executable, "-m", "ralph", *words],
            cwd=repository,
            env={**environment, "PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
        )
        codes.append(again.returncode)
    assert (codes[0], codes[-1]) == (-signal.SIGKILL, 0), again.stderr
    assert (git("branch").split(), trees(git)) == (["*", "main"], 1)
    assert not [*Path(environment["HOME"]).glob(".local/state/ralph/worktrees/[!.]*")]
    assert len([*repository.glob(".ralph/runs/*")]) == (words[0] != "clean")


def test_a_half_checked_out_worktree_of_a_killed_git_is_not_work(
    ralph: Ralph, git: Git, branch: str, repository: Path, environment: dict[str, str]
) -> None:
    (repository / "mine").write_text("meanwhile\n")
    git("add", "mine")
    git("commit", "-qm", "mine")
    own_git = Path(environment["HOME"]) / "bin" / "git"
    dies = 'rm "$GIT_WORK_TREE/README"; cp "$GIT_WORK_TREE/fresh" "$GIT_WORK_TREE/mine"; kill -9 $$'
    own_git.write_text(
        f'#!/bin/sh\ncase "$*" in *"checkout -q --detach"*) {dies};; esac\nexec {shutil.which("git")} "$@"\n'
    )
    own_git.chmod(0o755)
    assert ralph("accept").code == 2
    own_git.unlink()
    again = ralph("accept")
    assert again.code == 0, again.err
    assert (repository / "mine").read_text() == "meanwhile\n"


def test_locks_of_a_killed_git_do_not_prevent_the_removal_of_a_run(
    ralph: Ralph, git: Git, branch: str, repository: Path
) -> None:
    kept = f"refs/{branch}"
    for name in ("packed-refs", f"refs/heads/{branch}", f"{kept}/discarded", f"{kept}/1"):
        lock = repository / ".git" / f"{name}.lock"
        lock.touch()
        os.utime(lock, (0, 0))
    assert ralph("discard").code == 0
    assert git("branch").split() == ["*", "main"]
    assert ralph("clean", "--older-than", "0s", "--yes", "-C", str(repository)).code == 0
    assert git("for-each-ref", "refs/ralph") == ""
    assert not [*(repository / ".git").rglob("*.lock")]


def test_clean_lists_first_what_it_would_delete(ralph: Ralph, agent: Agent, repository: Path, git: Git) -> None:
    ralph("run", "go", "--agent", agent(WORKS), "--quiet")
    assert "nothing to delete" in ralph("clean", "-C", str(repository)).out
    said = ralph("clean", "-C", str(repository), "--older-than", "0s")
    assert "nothing was deleted" in said.out
    assert len(list((repository / ".ralph" / "runs").iterdir())) == 1
    done = ralph("clean", "-C", str(repository), "--older-than", "0s", "--yes")
    assert "1 deleted" in done.out
    assert not list((repository / ".ralph" / "runs").iterdir())
    assert git("for-each-ref", "refs/ralph") == ""
    assert "no runs on this machine yet" in ralph("ps", "-a").err


def test_clean_deletes_folders_of_any_depth(ralph: Ralph, agent: Agent, repository: Path) -> None:
    """One is deeper than Python's recursion limit and the longest path; another has no permissions."""
    down = "import os; [(os.mkdir('d'), os.chdir('d')) for _ in range(3000)]; open('f', 'w').close(); os.chmod('.', 0)"
    assert (
        ralph("run", "go", "-m", "1", "--agent", agent(f'cd .ralph/runs/*/; "{sys.executable}" -c "{down}"')).code == 1
    )
    cleaned = ralph("clean", "-C", str(repository), "--older-than", "0s", "--yes")  # not the demos of other tests
    assert (cleaned.code, "1 deleted" in cleaned.out) == (0, True), cleaned.out + cleaned.err
    assert not [*repository.glob(".ralph/runs/*")]


def test_clean_deletes_the_files_of_a_run_outside_the_workspace(
    ralph: Ralph, agent: Agent, repository: Path, environment: dict[str, str]
) -> None:
    state = Path(environment["HOME"]) / ".local" / "state" / "ralph"
    for _ in range(2):
        assert ralph("run", "go", "--agent", agent(WORKS), "--quiet").code == 0
    first = min(run.name for run in (repository / ".ralph" / "runs").iterdir())
    shutil.rmtree(repository / ".ralph" / "runs" / first)  # by a person
    assert len(list(state.rglob(f"{first}*"))) == 3
    ralph("clean", "-C", str(repository), "--older-than", "0s", "--yes")
    assert not [path for path in state.rglob("*") if not path.is_dir() and path.parent.name != "settings"]


def test_clean_deletes_temporary_files_of_killed_runs(ralph: Ralph, tmp_path: Path) -> None:
    old, young, anothers = (tmp_path / name for name in ("ralph-at-work-a", "ralph-at-work-b", "ralph-notes"))
    for folder in (old, young, anothers):
        folder.mkdir()
        (folder / "index").write_text("left")
        os.utime(folder, (0, 0) if folder != young else None)
    assert "1 deleted" in ralph("clean", "--older-than", "0s", "--yes", TMPDIR=str(tmp_path)).out
    assert (old.exists(), young.exists(), anothers.exists()) == (False, True, True)


def test_clean_ignores_files_that_disappear_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other runs delete their own temporary files, possibly while `clean` looks at them."""
    there = os.listdir
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))  # without runs of other tests
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(os, "listdir", lambda folder: [*there(folder), "ralph-at-work-gone"])
    assert find_leftovers(0.0) == []


def test_clean_never_deletes_unmerged_work(ralph: Ralph, git: Git, branch: str, repository: Path) -> None:
    said = ralph("clean", "--older-than", "0s", "--yes", "-C", str(repository))
    assert "has commits that are not merged" in said.out
    assert (trees(git), branch in git("branch")) == (2, True)
    git("merge", "-q", branch)
    assert "1 deleted" in ralph("clean", "--older-than", "0s", "--yes", "-C", str(repository)).out
    assert (trees(git), branch in git("branch")) == (1, False)


def test_clean_keeps_a_running_run(
    ralph: Ralph, agent: Agent, repository: Path, eventually: Callable[..., None]
) -> None:
    waits = agent(f'while [ ! -f "{repository}/go-on" ]; do sleep 0.1; done; echo "<response>DONE</response>"')
    started = ralph("run", "go", "--agent", waits, "--detach")
    assert started.code == 0, started.err
    assert "nothing to delete" in ralph("clean", "--older-than", "0s", "--yes", "-C", str(repository)).out
    (repository / "go-on").touch()
    eventually(lambda: "no run is running" in ralph("ps").err)
    assert "unverified" in ralph("ps", "-a").out


def test_a_detached_run_continues_and_can_be_followed(ralph: Ralph, agent: Agent, repository: Path) -> None:
    started = ralph("run", "go", "--agent", agent(WORKS), "--detach", "--check", "test -f fresh")
    assert started.code == 0, started.err
    name = started.out.split()[1]
    assert f"ralph logs -f {name.rpartition('-')[2]}" in started.out
    assert ralph("logs", "-f", name).out.splitlines()[-1].startswith("ralph: done after 1 iteration")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--agent", "no-such-agent"), "command not found: no-such-agent"),
        (("--agent", "true", "--json"), "--detach can't be combined with --json"),
        (("--agent", "true", "-f", "-"), "can't read the goal from standard input"),
    ],
)
def test_a_run_that_cannot_be_detached_says_why(
    ralph: Ralph, workspace: Path, words: tuple[str, ...], said: str
) -> None:
    goal = () if "-f" in words else ("go",)
    result = ralph("run", *goal, *words, "--detach")
    assert (result.code, said in result.err) == (2, True), result.err


def test_a_run_that_ps_could_not_list_is_not_detached(ralph: Ralph, workspace: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = ralph("run", "go", "--agent", "true", "--detach", XDG_STATE_HOME=str(tmp_path / "file"))
    assert (result.code, "XDG_STATE_HOME" in result.err) == (2, True), result.err
    assert not (workspace / ".ralph" / "runs").exists()


def test_the_report_opens_in_a_browser(
    ralph: Ralph, agent: Agent, repository: Path, environment: dict[str, str]
) -> None:
    ralph("run", "go", "--agent", agent(WORKS), "--quiet")
    browser = agent("true", "browser")
    assert ralph("report", "--open", BROWSER=browser).code == 0
    opened = (Path(environment["HOME"]) / "browser.argv.1").read_text()
    assert opened.startswith("file:///")
    assert opened.strip().endswith("/report.html")
    assert "--open needs an HTML file" in ralph("report", "--open", "--json").err


def test_ctrl_c_while_the_checks_run_merges_nothing(
    ralph: Ralph,
    agent: Agent,
    git: Git,
    repository: Path,
    tmp_path: Path,
    environment: dict[str, str],
    eventually: Callable[..., None],
) -> None:
    begun, slow = tmp_path / "begun", tmp_path / "slow"
    check = f'if [ -f "{slow}" ]; then touch "{begun}"; sleep 60; fi'
    done = ralph("run", "go", "--worktree", "--check", check, "--json", "--agent", agent(WORKS))
    head, branch = git("rev-parse", "HEAD"), str(done.one("run_finished")["branch"])
    slow.touch()
    command = [sys.executable, "-m", "ralph", "accept"]
    with subprocess.Popen(command, cwd=repository, env=environment, stderr=subprocess.PIPE) as process:
        eventually(begun.exists)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    assert untouched(git, branch, head)


def run_in_worktree(ralph: Ralph, agent: Agent, check: str, work: str, *words: str) -> Path:
    """Play a run in a worktree; return the worktree."""
    fake = agent(f'{work}; echo "<response>DONE</response>"')
    result = ralph("run", "go", "--worktree", "--check", check, *words, "--json", "--agent", fake)
    assert result.code == 0, result.err
    return Path(result.one("run_finished")["worktree"])


@pytest.fixture
def ignoring(repository: Path, git: Git) -> Path:
    """Return a repository that ignores `out/`, dependencies and the files of a build."""
    (repository / ".gitignore").write_text("out/\nnode_modules\nbuild/\n*.pyc\n.env\n")
    git("add", "-A")
    git("commit", "-qm", "ignore")
    return repository


PRECIOUS = "mkdir -p out node_modules build; echo precious | tee out/report.txt node_modules/it build/it it.pyc"


def test_a_check_that_needs_an_ignored_file_fails_at_accept_which_names_it_and_removes_nothing(
    ralph: Ralph, agent: Agent, git: Git, ignoring: Path, prompts: Callable[..., list[str]]
) -> None:
    worktree = run_in_worktree(ralph, agent, "test -f out/report.txt", f"{PRECIOUS}; echo new > fresh")
    head = git("rev-parse", "HEAD")
    for _ in range(2):
        refused = ralph("accept")
        assert refused.code == 1, refused.err
        assert "only the run's worktree has out/report.txt, node_modules/" in refused.err
        assert (worktree / "out/report.txt").read_text() == "precious\n"
        assert untouched(git, f"ralph/{worktree.name[-20:]}", head)
    assert "guardrail_000" not in refused.err  # a log that is gone
    assert ralph("resume").code == 0, "the hint can be typed"
    assert prompts()[1].count("The worktree has files that are in no commit: out/report.txt, node_modules/") == 1


@pytest.mark.parametrize("commits", [True, False])
def test_accept_keeps_a_worktree_with_ignored_work(
    ralph: Ralph, agent: Agent, git: Git, ignoring: Path, commits: bool
) -> None:
    """Whether or not there is something to merge, and without what a tool, the setup or a check makes again."""
    (ignoring / ".env").write_text("mine\n")
    (ignoring / ".worktreeinclude").write_text(".env\n")
    setup, check = "mkdir -p out; echo made > out/by-setup", "mkdir -p out; touch out/by-check"
    work = f"{PRECIOUS}; {'echo new > fresh' if commits else 'true'}"
    worktree = run_in_worktree(ralph, agent, check, work, "--setup", setup)
    accepted = ralph("accept")
    assert accepted.code == 0, accepted.err
    assert ("is merged: 1 file changed" if commits else "has nothing to merge") in accepted.out
    only = "out/report.txt" if commits else "out/by-check, out/report.txt"  # nothing to merge: no check ran
    assert f"Its worktree stays, because only it has {only}: {worktree};" in accepted.out
    assert (worktree / "out/report.txt").exists()
    again = ralph("accept")
    assert (again.code, "has nothing to merge" in again.out) == (0, True), again.err
    assert ralph("discard").code == 0
    assert (git("branch").split(), trees(git), worktree.exists()) == (["*", "main"], 1, False)


def test_a_worktree_with_nothing_but_caches_is_removed(ralph: Ralph, agent: Agent, git: Git, ignoring: Path) -> None:
    run_in_worktree(
        ralph, agent, "true", "mkdir -p build node_modules/a; touch build/x node_modules/a/b c.pyc; touch f"
    )
    accepted = ralph("accept")
    assert "Its worktree and its branch are gone" in accepted.out, accepted.err
    assert (git("branch").split(), trees(git)) == (["*", "main"], 1)


def test_checks_and_hook_of_an_accept_see_a_copy_that_the_setup_prepared(
    ralph: Ralph, agent: Agent, git: Git, ignoring: Path
) -> None:
    hook(
        ignoring, "test -f node_modules/tool && ! test -f out/report.txt && git diff --cached --name-only > /dev/stderr"
    )
    work = "echo new > fresh; mkdir -p out; touch out/report.txt"
    run_in_worktree(
        ralph, agent, "test -f node_modules/tool", work, "--setup", "mkdir node_modules; touch node_modules/tool"
    )
    accepted = ralph("accept")
    assert accepted.code == 0, accepted.err
    assert git("show", "--stat=80", "--format=", "HEAD").split()[0] == "fresh"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_accept_that_is_ended_in_the_pre_commit_hook_can_be_repeated(
    ralph: Ralph,
    git: Git,
    branch: str,
    repository: Path,
    tmp_path: Path,
    environment: dict[str, str],
    eventually: Callable[..., None],
    number: signal.Signals,
) -> None:
    begun, slow = tmp_path / "begun", tmp_path / "slow"
    hook(repository, f'if [ -f "{slow}" ]; then touch "{begun}"; sleep 60; fi')
    head = git("rev-parse", "HEAD")
    slow.touch()
    command = [sys.executable, "-m", "ralph", "accept"]
    with subprocess.Popen(command, cwd=repository, env=environment, stderr=subprocess.PIPE, text=True) as process:
        eventually(begun.exists)
        process.send_signal(number)
        printed = process.communicate(timeout=30)[1]
    if number == signal.SIGKILL:
        eventually(lambda: trees(git) == 2)  # the keeper removes the copy
    else:
        assert (process.returncode, "ralph: interrupted\n" in printed) == (130, True), printed
    assert untouched(git, branch, head)
    slow.unlink()
    again = ralph("accept")
    assert again.code == 0, again.err
    assert (git("branch").split(), trees(git)) == (["*", "main"], 1)


def test_a_worktree_that_an_earlier_version_left_half_accepted_is_restored(
    ralph: Ralph, git: Git, branch: str, workspace: Path
) -> None:
    """No branch is checked out in it, and the whole work is staged on top of the user's branch."""
    (workspace / "mine").write_text("mine\n")
    git("add", "mine")
    git("commit", "-qm", "mine")
    tree = Path(git("worktree", "list", "--porcelain").split("worktree ")[2].split("\n")[0])
    git("checkout", "-q", "--detach", "main", cwd=tree)
    git("merge", "-q", "--squash", branch, cwd=tree)
    assert ralph("accept").code == 0
    assert ((workspace / "fresh").exists(), trees(git)) == (True, 1)


@pytest.mark.parametrize("place", [".", "below"])
def test_in_the_worktree_of_a_run_commands_mean_this_run(
    ralph: Ralph, agent: Agent, git: Git, repository: Path, place: str
) -> None:
    worktree = run_in_worktree(ralph, agent, "true", "mkdir -p below; echo 1 > below/first")
    other = run_in_worktree(ralph, agent, "true", "echo 2 > second")
    folder, run = worktree / place, worktree.name.removeprefix("workspace-")
    assert run in ralph("show", cwd=folder).out.splitlines()[0]
    assert "+++ b/below/first" in ralph("diff", cwd=folder).out
    assert "+++ b/second" in ralph("diff", "-C", str(other), cwd=folder).out
    accepted = ralph("accept", cwd=folder)
    assert accepted.code == 0, accepted.err
    assert f"ralph/{run} is merged" in accepted.out
    assert "is gone" in ralph("discard", cwd=other).out
    assert (git("branch").split(), trees(git), (repository / "below/first").exists()) == (["*", "main"], 1, True)


def test_clean_keeps_the_exam_of_a_demo_that_is_running(ralph: Callable[..., Any], tmp_path: Path) -> None:
    demo, exam = tmp_path / "ralph-demo-1", tmp_path / "ralph-demo-1-exam"
    demo.mkdir()
    exam.mkdir()
    with workspace_lock(prepare(demo), "someone"):
        assert ralph("clean", "--older-than", "0s", "--yes", TMPDIR=str(tmp_path)).code == 0
        assert exam.exists()
    assert ralph("clean", "--older-than", "0s", "--yes", TMPDIR=str(tmp_path)).code == 0
    assert not exam.exists()
