"""`ralph diff` and `ralph rewind`."""

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Ralph = Callable[..., Any]
Agent = Callable[..., str]
Git = Callable[..., str]


@pytest.fixture
def run(ralph: Ralph, agent: Agent, repository: Path) -> str:
    """Make a run of three iterations that changed, created and deleted files; return its id."""
    (repository / "old").write_text("old\n")
    fake = agent(
        "echo $N >> README; echo new $N > new$N; rm -f old; mkdir -p .hidden; echo $N > .hidden/x; echo $N", "worker"
    )
    result = ralph("run", "g", "-m", "3", "--json", "--agent", fake)
    assert result.code == 1
    return str(result.events[0]["run"])


def test_an_iteration_is_shown_by_its_number(ralph: Ralph, run: str) -> None:
    result = ralph("diff", "2")
    assert result.code == 0
    assert "+new 2" in result.out
    assert "new1" not in result.out
    assert "deleted" not in result.out
    assert result.out == ralph("diff", run, "2").out == ralph("diff", run[-4:], "2").out


def test_without_a_number_the_whole_run_is_shown(ralph: Ralph, run: str) -> None:
    names = re.findall(r"^\w (\S+)", ralph("diff", "--stat").out, re.MULTILINE)
    assert names == [".hidden/x", "README", "new1", "new2", "new3", "old"]
    assert "D old (+0 -1)" in ralph("diff", "--stat", run).out


def test_the_printed_patch_can_be_applied(ralph: Ralph, run: str, repository: Path, git: Git, tmp_path: Path) -> None:
    patch = ralph("diff", run).out
    git("worktree", "add", "-q", str(tmp_path / "elsewhere"), "HEAD")
    (tmp_path / "elsewhere" / "old").write_text("old\n")
    subprocess.run(["git", "apply"], cwd=tmp_path / "elsewhere", input=patch, text=True, check=True)
    assert (tmp_path / "elsewhere" / "new3").read_text() == "new 3\n"


def test_rewind_restores_the_files_and_nothing_else(ralph: Ralph, run: str, repository: Path, git: Git) -> None:
    (repository / "README").write_text("edited since\n")
    git("add", "README")
    before = (git("rev-parse", "HEAD"), git("symbolic-ref", "HEAD"), git("diff", "--cached"), git("stash", "list"))
    result = ralph("rewind", "1")
    assert result.code == 0
    assert (repository / "README").read_text() == "hello\n1\n"
    assert sorted(path.name for path in repository.glob("new*")) == ["new1"]
    after = (git("rev-parse", "HEAD"), git("symbolic-ref", "HEAD"), git("diff", "--cached"), git("stash", "list"))
    assert after == before
    (kept,) = re.findall(r"saved as (\S+?)\.?$", result.err, re.MULTILINE)
    assert git("show", f"{kept}:README") == "edited since\n", "the state before the rewind is saved"


@pytest.mark.parametrize("there", [(), ("-C", ".")])
def test_the_folder_name_may_be_invalid_unicode(
    ralph: Ralph, agent: Agent, repository: Path, there: tuple[str, ...]
) -> None:
    odd = repository.rename(os.fsdecode(bytes(repository) + b"\xff\xfe"))
    assert ralph("run", "g", "-m", "2", "--agent", agent("echo $N >> README"), cwd=odd).code == 1
    assert "+2" in ralph("diff", "2", *there, cwd=odd).out
    assert ralph("rewind", "1", *there, cwd=odd).code == 0
    assert (odd / "README").read_text() == "hello\n1\n"


def test_a_copy_of_a_workspace_is_rewound_and_the_first_one_is_not(ralph: Ralph, run: str, repository: Path) -> None:
    copy = shutil.copytree(repository, repository.with_name("copy"), symlinks=True)
    before = (repository / "README").read_text()
    assert ralph("rewind", "1", cwd=copy).code == 0
    assert (copy / "README").read_text() == "hello\n1\n"
    assert (repository / "README").read_text() == before


def test_rewinding_can_be_undone(ralph: Ralph, run: str, repository: Path) -> None:
    before = {path.name: path.read_text() for path in repository.glob("*[!.]*") if path.is_file()}
    ralph("rewind", run, "0")
    assert (repository / "old").read_text() == "old\n"
    ralph("rewind", run, "3")
    assert {path.name: path.read_text() for path in repository.glob("*[!.]*") if path.is_file()} == before


def test_work_that_cannot_be_saved_is_not_overwritten(ralph: Ralph, run: str, repository: Path) -> None:
    """A nested repository is now in the place of a file of iteration 1."""
    (repository / "new1").unlink()
    subprocess.run(["git", "init", "-q", "new1"], cwd=repository, check=True)
    (repository / "new1" / "precious").write_text("precious\n")
    result = ralph("rewind", "1")
    assert result.code == 2
    assert "new1" in result.err
    assert (repository / "new1" / "precious").read_text() == "precious\n"
    assert (repository / "new3").exists(), "it is all or nothing"


def test_a_run_in_a_worktree_is_rewound_there(ralph: Ralph, agent: Agent, repository: Path) -> None:
    fake = agent("echo $N > work; echo $N", "worker")
    result = ralph("run", "g", "-m", "2", "--worktree", "--json", "--agent", fake)
    worktree = Path(result.one("run_finished")["worktree"])
    assert "+2" in ralph("diff", "2").out
    assert ralph("rewind", "1").code == 0
    assert (worktree / "work").read_text() == "1\n"
    assert not (repository / "work").exists()
    assert ralph("discard").code == 0
    refused = ralph("rewind", "1")
    assert refused.code == 2
    advice = refused.err.splitlines()[-1].partition("ralph ")[2]
    assert "+2" in ralph(*advice.split()).out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("diff", "9"), "no checkpoint 9"),
        (("diff", "0"), "no checkpoint before 0"),
        (("diff", "nosuch"), "no such run: 'nosuch'"),
        (("diff", "1", "2"), "too many words"),
        (("rewind",), "no iteration given"),
        (("rewind", "9"), "no checkpoint 9"),
    ],
)
def test_a_missing_run_or_iteration_is_a_one_line_error(
    ralph: Ralph, run: str, words: tuple[str, ...], said: str
) -> None:
    result = ralph(*words)
    assert result.code == 2
    assert said in result.err.splitlines()[0]


def test_a_run_that_changed_nothing_says_so(ralph: Ralph, agent: Agent, repository: Path) -> None:
    ralph("run", "-p", "x", "-m", "1", "--agent", agent("echo hello"))
    said = ralph("diff")
    assert (said.code, said.out, said.err) == (0, "", "no changes\n")


@pytest.mark.parametrize("command", ["diff", "rewind"])
def test_without_git_there_is_no_diff(ralph: Ralph, agent: Agent, command: str) -> None:
    ralph("run", "g", "-m", "1", "--agent", agent("echo $N"))
    result = ralph(command, "1")
    assert result.code == 2
    assert "git" in result.err


def test_a_rewind_names_files_that_were_not_saved_at_the_start(
    ralph: Ralph, agent: Agent, repository: Path, git: Git
) -> None:
    """A file that is too large and a nested repository are not saved."""
    with (repository / "huge").open("wb") as file:
        file.truncate(60_000_000)
    (repository / "inside").mkdir()
    for words in (
        ("init", "-q"),
        ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m1"),
    ):
        subprocess.run(["git", *words], cwd=repository / "inside", check=True)
    ralph("run", "go", "-m", "1", "--agent", agent("rm -r huge inside; echo small > huge"))
    done = ralph("rewind", "0")
    assert done.code == 0
    assert "a nested repository: huge, inside/." in done.err
