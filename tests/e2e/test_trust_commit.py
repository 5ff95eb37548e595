"""`--commit` commits only what the run has changed. ralph reports the user's own changes and leaves them alone."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Git = Callable[..., str]
MESSAGE = 'case "$PROMPT" in *"commit message"*) echo Message; exit;; esac'


@pytest.fixture
def play(ralph: Callable[..., Any], agent: Callable[..., str], repository: Path, git: Git) -> Callable[..., Any]:
    """A run that commits, in a tree where the user is in the middle of something."""
    (repository / "gone").write_text("gone\n")
    (repository / "half").write_text("one\n")
    git("add", "-A")
    git("commit", "-qm", "second")
    (repository / "README").write_text("edited by the user\n")
    (repository / "staged").write_text("staged by the user\n")
    git("add", "staged")
    (repository / "staged").write_text("and edited since\n")
    (repository / "untracked").write_text("of the user\n")
    (repository / "half").write_text("one\nof the user\n")

    def run(script: str, *words: str) -> Any:
        fake = agent(f'{MESSAGE}\n{script}\necho "<response>DONE</response>"')
        return ralph("run", "g", "--check", "true", "--agent", fake, "-m", "1", *(words or ("--commit",)))

    return run


def committed(git: Git) -> dict[str, str]:
    rows = git("show", "--format=", "--name-status", "--no-renames", "HEAD").split("\n")
    return {name: status for status, _, name in (row.partition("\t") for row in rows if row)}


def test_only_changes_since_the_start_of_the_run_are_committed(
    play: Callable[..., Any], git: Git, repository: Path
) -> None:
    done = play("mkdir new; echo x > 'new/a b'; echo y > ':(top)odd*'; rm gone; rm untracked")
    assert done.code == 0, done.err
    assert committed(git) == {"new/a b": "A", ":(top)odd*": "A", "gone": "D"}, done.err
    assert git("show", ":staged") == "staged by the user\n", "what was staged stays staged"
    left = git("status", "--porcelain").splitlines()
    assert left == [" M README", " M half", "AM staged"]
    (said,) = [line for line in done.err.splitlines() if "kept out of its commits" in line]
    assert all(name in said for name in ("README", "staged", "untracked", "--commit=all"))


def test_files_that_the_agent_removed_or_moved_with_git_are_committed(play: Callable[..., Any], git: Git) -> None:
    play("git rm -q gone")
    assert committed(git) == {"gone": "D"}
    play("git mv half whole; echo x >> whole")
    assert committed(git) == {"half": "D", "whole": "A"}
    assert git("show", ":staged") == "staged by the user\n", "what was staged stays staged"


REPLACED = {
    "a folder by a link": ("rm -r folder; ln -s elsewhere folder", {"folder": "A", "folder/a": "D", "folder/b": "D"}),
    "a folder by a file": ("rm -r folder; echo x > folder", {"folder": "A", "folder/a": "D", "folder/b": "D"}),
    "a file by a folder": ("rm README; mkdir README; echo x > README/a", {"README": "D", "README/a": "A"}),
}


@pytest.mark.parametrize("what", REPLACED)
def test_a_file_and_a_folder_can_take_the_place_of_each_other_in_a_commit(
    ralph: Callable[..., Any], agent: Callable[..., str], repository: Path, git: Git, what: str
) -> None:
    (repository / "folder").mkdir()
    for name in ("a", "b"):
        (repository / "folder" / name).write_text("one\n")
    git("add", "-A")
    git("commit", "-qm", "second")
    (repository / "mine").write_text("of the user\n")
    how, expected = REPLACED[what]
    fake = agent(f'{MESSAGE}\n{how}\necho "<response>DONE</response>"')
    done = ralph("run", "g", "--check", "true", "--agent", fake, "--commit")
    assert committed(git) == expected, done.err
    assert git("status", "--porcelain") == "?? mine\n"


def test_a_commit_of_very_many_files_is_reported_like_any_other(play: Callable[..., Any], git: Git) -> None:
    done = play("mkdir many; for n in $(seq 400); do echo $n > many/$n; done")
    assert f"commit: [main {git('rev-parse', '--short', 'HEAD').strip()}] Message" in done.err


def test_a_file_changed_by_user_and_agent_is_committed_and_reported(play: Callable[..., Any], git: Git) -> None:
    done = play("echo of the agent >> half")
    assert committed(git) == {"half": "M"}
    (said,) = [line for line in done.err.splitlines() if "unless the run changes it as well" in line]
    assert "half" in said


def test_commit_all_includes_changes_from_before_the_run(play: Callable[..., Any], git: Git) -> None:
    done = play("echo x > new", "--commit=all")
    assert committed(git) == {"README": "M", "half": "M", "new": "A", "staged": "A", "untracked": "A"}
    assert "kept out" not in done.err


def test_files_that_became_ignored_are_not_committed(play: Callable[..., Any], git: Git) -> None:
    play("echo x > kept; echo x > built; echo built > .gitignore")
    assert committed(git) == {"kept": "A", ".gitignore": "A"}


def test_files_ignored_before_the_run_are_not_committed_later(
    ralph: Callable[..., Any], agent: Callable[..., str], repository: Path, git: Git
) -> None:
    """The agent replaces .gitignore, and the new one no longer names the file."""
    (repository / ".gitignore").write_text(".env\n")
    git("add", "-A")
    git("commit", "-qm", "second")
    (repository / ".env").write_text("KEY=mine\n")
    fake = agent(f'{MESSAGE}\necho built > .gitignore; echo x > new; echo "<response>DONE</response>"')
    done = ralph("run", "g", "--check", "true", "--agent", fake, "--commit")
    assert committed(git) == {".gitignore": "M", "new": "A"}, done.err
    assert "so they stay out of the commits of this run: .env" in done.err


def test_changes_of_the_user_alone_are_not_committed(play: Callable[..., Any], git: Git) -> None:
    before = git("rev-parse", "HEAD")
    done = play("true")
    assert done.code == 0
    assert git("rev-parse", "HEAD") == before
    assert "nothing to commit" in done.err


def test_before_the_first_commit_the_users_files_stay_out_of_it(
    ralph: Callable[..., Any], agent: Callable[..., str], workspace: Path, git: Git
) -> None:
    git("init", "-q")
    (workspace / "mine").write_text("mine\n")
    fake = agent(f'{MESSAGE}\necho x > new\necho "<response>DONE</response>"')
    assert ralph("run", "g", "--check", "true", "--agent", fake, "--commit").code == 0
    assert git("ls-tree", "-r", "--name-only", "HEAD").split() == ["new"]


def test_an_unknown_value_of_commit_is_refused(ralph: Callable[..., Any]) -> None:
    done = ralph("run", "g", "--commit=some")
    assert done.code == 2
    assert "--commit: expected all, got 'some'" in done.err


@pytest.mark.parametrize("folder", [".", "node_modules/.bin", "{workspace}/.venv/bin"])
@pytest.mark.parametrize("words", [(), ("--sandbox",)], ids=["free", "sandboxed"])
def test_a_program_that_the_agent_puts_on_the_path_is_not_run_by_ralph(
    ralph: Callable[..., Any],
    agent: Callable[..., str],
    repository: Path,
    git: Git,
    environment: dict[str, str],
    bubblewrap: str,
    folder: str,
    words: tuple[str, ...],
) -> None:
    """A virtual environment of the workspace is on many a PATH."""
    remote, proof = repository.parent / "remote.git", repository / "proof"
    git("init", "-q", "--bare", str(remote))
    git("remote", "add", "origin", str(remote))
    git("push", "-q", "-u", "origin", "main")
    place = repository / folder.format(workspace=repository)
    place.mkdir(parents=True, exist_ok=True)
    (repository / ".git" / "info" / "exclude").write_text("node_modules\n.venv\nproof\n/git\n/ssh\n/sh\n")
    path = f"{folder.format(workspace=repository)}:{environment['PATH']}"
    plant = (
        f'for name in git ssh sh; do printf "#!/bin/sh\\n/usr/bin/env > {proof}\\nexit 0\\n" > {place}/$name; '
        f"/bin/chmod +x {place}/$name; done; echo x > new"
    )
    run = ("run", "g", "--check", "true", "-m", "1", *words, "--commit", "--push")
    done = ralph(*run, "--agent", agent(f"{MESSAGE}\n{plant}\necho '<response>DONE</response>'"), PATH=path)
    assert done.code == 0, done.err
    if not words:  # in the box, its own commit may find what it likes
        assert not proof.exists(), proof.read_text()
    proof.unlink(missing_ok=True)
    for command in ("diff", "show", "report", "rewind 0"):
        assert ralph(*command.split(), PATH=path).code == 0
        assert not proof.exists(), f"by ralph {command}"
    assert git("log", "--format=%s", "-1", "main", cwd=remote) == "Message\n"


def test_a_partial_clone_still_works_after_a_run(
    ralph: Callable[..., Any], agent: Callable[..., str], repository: Path, git: Git
) -> None:
    clone = repository.parent / "clone"
    git("config", "uploadpack.allowFilter", "true")
    git("config", "uploadpack.allowAnySHA1InWant", "true")
    (repository / "file").write_text("file\n")
    git("add", "-A")
    git("commit", "-qm", "file")
    git("clone", "-q", "--filter=blob:none", "--no-checkout", f"file://{repository}", str(clone))
    fake = agent(f"{MESSAGE}\necho more >> file; echo '<response>DONE</response>'")
    words = ("-C", str(clone), "--check", "grep file file", "-m", "1", "--worktree")
    done = ralph("run", "g", *words, "--agent", fake)
    assert done.code == 0, done.err
    git("checkout", "-q", "main", cwd=clone)
    accepted = ralph("accept", "-C", str(clone))
    assert accepted.code == 0, accepted.err
    assert (clone / "file").read_text() == "file\nmore\n"


@pytest.mark.parametrize(
    ("command", "branch"), [("git checkout -qb other", "other"), ("git checkout -q --detach", "no branch")]
)
def test_an_agent_that_switches_the_branch_is_reported(
    play: Callable[..., Any], git: Git, command: str, branch: str
) -> None:
    done = play(command)
    assert done.err.count(f"your branch was switched from main to {branch}") == 1, done.err
