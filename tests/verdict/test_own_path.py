"""A copy that cannot be in place of the user's tree gets clones of its dependency folders, and variables and editable
installs lead to the copy."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ralph.errors import UserError
from ralph.git.client import git_at
from ralph.git.dependencies import find_dependencies
from ralph.git.worktree_setup import check_out_copy
from ralph.git.worktrees import Worktree
from ralph.process.keeper import Keeper
from ralph.verdict.leads import Lead, find_leads
from ralph.verdict.own_path import clone_dependencies, lead_to_copy

Git = Callable[..., str]


@pytest.fixture
def worktree(repository: Path, git: Git, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Worktree]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (repository / ".gitignore").write_text("node_modules/\n.tox/\n.venv/\nbuild/\n")
    for name in ("src/app.py", "node_modules/lib/index.js", ".tox/py/bin/x", "build/out"):
        (repository / name).parent.mkdir(parents=True)
        (repository / name).write_text("theirs\n")
    git("add", "-A")
    git("commit", "-qm", "project")
    home = git_at(str(repository))
    with Keeper.start() as keeper, check_out_copy(home, "own", home.resolve("HEAD"), keeper) as worktree:
        yield worktree


def test_dependency_folders_are_cloned_except_those_of_tox(repository: Path, worktree: Worktree) -> None:
    copy = Path(worktree.path)
    for _ in range(2):
        clone_dependencies(worktree, find_dependencies(git_at(str(repository))))
        assert sorted(os.listdir(copy)) == [".git", ".gitignore", "README", "node_modules", "src"]
        (copy / "node_modules/lib/index.js").write_text("mine\n")
    assert (copy / "node_modules/lib/index.js").read_text() == "mine\n", "it is cloned once"
    assert (repository / "node_modules/lib/index.js").read_text() == "theirs\n"


def test_variables_lead_to_what_the_copy_has(repository: Path, worktree: Worktree) -> None:
    main, copy = str(repository), worktree.path
    env = {
        "PYTHONPATH": f"{main}/src:/usr/lib",
        "ROOT": main,
        "OUTPUT": f"{main}/build/out",
        "OTHER": f"{main}-other/src",
        "GIT_DIR": f"{main}/.git",
    }
    led = lead_to_copy(env, main, copy)
    assert led == {**env, "PYTHONPATH": f"{copy}/src:/usr/lib", "ROOT": copy}


def test_the_variables_of_a_user_whose_home_is_in_the_tree_stay(repository: Path, worktree: Worktree) -> None:
    env = {"HOME": str(repository), "ROOT": f"{repository}/src"}
    assert lead_to_copy(env, str(repository), worktree.path) == env


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("__editable__.app-1.0.pth", "{main}/src\n"),
        ("conda.pth", "/elsewhere\n{main}/src/\n"),
        ("app.egg-link", "{main}/src\n../\n"),
        ("__editable___app_1_0_finder.py", "MAPPING: dict[str, str] = {{'app': '{main}/src/app'}}\n"),
    ],
)
def test_every_kind_of_editable_install_leads_to_the_copy(
    repository: Path, worktree: Worktree, tmp_path: Path, name: str, text: str
) -> None:
    main, packages = str(repository), tmp_path / "venv/lib/python3.11/site-packages"
    packages.mkdir(parents=True)
    (tmp_path / "venv/bin").mkdir()
    (tmp_path / "venv/bin/python3").touch()
    (packages / name).write_text(text.format(main=main))
    env = {"PATH": f"/usr/bin:{tmp_path}/venv/bin", "HOME": "/nowhere"}
    assert lead_to_copy(env, main, worktree.path)["PYTHONPATH"] == f"{worktree.path}/src"
    assert list(find_leads(main, worktree.path, env)) == [Lead("editable install", str(packages), f"{main}/src")]


def test_a_link_of_setup_leads_to_the_users_tree(repository: Path, worktree: Worktree) -> None:
    (Path(worktree.path) / "node_modules").symlink_to(repository / "node_modules")
    leads = list(find_leads(str(repository), worktree.path, {"HOME": "/nowhere"}))
    assert leads == [Lead("link", "node_modules", f"{repository}/node_modules")]


def test_a_folder_that_cannot_be_cloned_is_an_error(
    repository: Path, worktree: Worktree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/cp").write_text("#!/bin/sh\necho cp: no space >&2\nexit 1\n")
    (tmp_path / "bin/cp").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    with pytest.raises(UserError, match=r"cannot copy .*/node_modules: cp: no space"):
        clone_dependencies(worktree, find_dependencies(git_at(str(repository))))
    assert subprocess.run(("ls", f"{worktree.path}/node_modules"), capture_output=True, check=False).returncode != 0
