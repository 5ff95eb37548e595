import os
import shutil
import subprocess
from pathlib import Path

import pytest

from ralph.git.client import Git, find_git
from ralph.git.index import PrivateIndex

ME = "[user]\n\tname = A Person\n\temail = person@example.org\n[init]\n\tdefaultBranch = main\n"


class Repo:
    """A repository for a test, which the test drives with the real git as a user would."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def git(self, *words: str, check: bool = True) -> str:
        done = subprocess.run(("git", "-C", self.path, *words), capture_output=True, check=False)
        assert done.returncode == 0 or not check, done.stderr.decode()
        return done.stdout.decode("utf-8", "replace").strip()

    def write(self, name: str | bytes, content: str | bytes = "text\n") -> Path:
        path = Path(os.fsdecode(os.path.join(os.fsencode(self.path), os.fsencode(name))))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def commit(self, message: str = "work") -> str:
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", message)
        return self.git("rev-parse", "HEAD")

    def config(self, name: str, value: str) -> None:
        self.git("config", name, value)

    def hook(self, name: str, script: str) -> None:
        path = self.write(f".git/hooks/{name}", f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def found(self, folder: str = "") -> Git:
        repository = find_git(self.path / folder)
        assert repository is not None
        return repository

    def index(self, folder: str = "") -> PrivateIndex:
        index = PrivateIndex(self.found(folder), str(self.path.parent / "private"))
        index.begin()
        return index

    def state(self) -> tuple[object, ...]:
        """Return everything that belongs to the user: index, branch, stash, refs, settings."""
        index = self.path / ".git" / "index"
        return (
            index.read_bytes() if index.exists() else b"",
            (self.path / ".git" / "HEAD").read_bytes(),
            (self.path / ".git" / "config").read_bytes(),
            self.git("for-each-ref", "refs/heads", "refs/tags", "refs/remotes", "refs/stash"),
            self.git("stash", "list"),
        )

    def files(self) -> dict[str, bytes]:
        """Return every file outside `.git`, with its content."""
        paths = (path for path in self.path.rglob("*") if ".git" not in path.parts and path.is_file())
        return {str(path.relative_to(self.path)): path.read_bytes() for path in paths}


@pytest.fixture(autouse=True)
def _at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give every test an empty home folder, and no variables of a git that runs the tests."""
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    home = tmp_path / "home"
    home.mkdir()
    (home / ".gitconfig").write_text(ME)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / ".config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(home / ".state"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")


@pytest.fixture
def empty(tmp_path: Path) -> Repo:
    """A repository without a commit."""
    path = tmp_path / "repo"
    path.mkdir()
    repo = Repo(path)
    repo.git("init", "-q")
    return repo


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with one commit, made once. Copying it saves each test three git commands."""
    home, path = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("made-once")
    (home / ".gitconfig").write_text(ME)
    first = Repo(path)
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("GIT_")]:
            patch.delenv(name)
        patch.setenv("HOME", str(home))
        patch.setenv("XDG_CONFIG_HOME", str(home / ".config"))
        patch.setenv("GIT_CONFIG_NOSYSTEM", "1")
        first.git("init", "-q")
        first.write("a.txt", "one\n")
        first.write("folder/b.txt", "two\n")
        first.write(".gitignore", "*.ignored\n")
        first.commit("first")
    return path


@pytest.fixture
def repo(tmp_path: Path, made_once: Path) -> Repo:
    """A repository with one commit."""
    made = Repo(shutil.copytree(made_once, tmp_path / "repo"))
    made.git("update-index", "-q", "--refresh")  # it knows the files that it saw: those that were copied
    return made
