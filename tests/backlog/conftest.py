"""Fixtures: a repository with a backlog and branches of tasks, and a gate that merges them."""

import os
import subprocess
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import pytest
from tests.backlog.works import Works
from tests.warm import Warm

from ralph.backlog.backlog_order import BacklogOrder
from ralph.backlog.backlog_source import BacklogSource
from ralph.backlog.gate import Gate, MergeRequest
from ralph.core.backlog import FailedCheck, GateVerdict
from ralph.git.client import Git, find_git
from ralph.git.merging import Branch, changed_files
from ralph.git.remote import Remote
from ralph.settings import CheckCommand, Settings

ME = "[user]\n\tname = A Person\n\temail = person@example.org\n[init]\n\tdefaultBranch = main\n"
TARGET = "ralph/w/merged"
LIST = "# List\n\n- [ ] T1 One\n- [ ] T2 Two\n- [ ] T3 Three\n- [ ] T4 Four\n"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a home with the user's name for git, and a state folder: all gates have the same name, and must not meet."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    place = tmp_path / "home"
    place.mkdir()
    (place / ".gitconfig").write_text(ME)
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(place))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(place / ".gitconfig"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    return place


class Lab:
    """A repository with a backlog, in which tests merge branches of tasks."""

    def __init__(self, path: Path) -> None:
        self.path, self.target = path, TARGET
        self.ran: list[str] = []

    def git(self, *words: str, cwd: str | Path | None = None) -> str:
        done = subprocess.run(["git", *words], cwd=cwd or self.path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.rstrip("\n")

    def found(self) -> Git:
        repository = find_git(self.path)
        assert repository is not None
        return repository

    def branch(self, key: str, files: Mapping[str, str | None], start: str = "") -> Branch:
        """Make a task's branch with these contents of files; None deletes a file."""
        tree = self.path.parent / f"tree-{key}"
        self.git("worktree", "add", "-q", "-f", "-B", f"ralph/w/{key}", str(tree), start or self.target)
        for name, content in files.items():
            place = tree / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(content) if content is not None else place.unlink()
        self.git("add", "-A", cwd=tree)
        self.git("commit", "-q", "--allow-empty", "-m", key, cwd=tree)
        tip = self.git("rev-parse", "HEAD", cwd=tree)
        self.git("worktree", "remove", "--force", str(tree))
        return Branch(key, tip, f"{key} title", changed_files(self.found(), self.target, tip))

    def gate(
        self, *checks: str, remote: Remote | None = None, check: Callable[[str], FailedCheck | None] | None = None
    ) -> Gate:
        order = self.order(*checks, remote=remote)
        return Gate(order=order, repository=self.found(), check=check or self.check, furnish=lambda: None)

    def order(self, *checks: str, remote: Remote | None = None) -> BacklogOrder:
        return BacklogOrder(
            id="w",
            name="w",
            workspace=str(self.path),
            source=BacklogSource(name="T.md", format="boxes", paths=("T.md",)),
            settings=Settings(checks=tuple(map(CheckCommand, checks))),
            target=self.target,
            base="",
            remote=remote,
        )

    @property
    def tree(self) -> str:
        """The path of the gate's worktree."""
        return self.order().gate_worktree(self.found()).path

    def check(self, command: str) -> FailedCheck | None:
        self.ran.append(command)
        done = subprocess.run(["sh", "-c", command], cwd=self.tree, capture_output=True, text=True, check=False)
        return FailedCheck(command, f"exit code {done.returncode}", done.stdout[-500:]) if done.returncode else None

    def merge(self, *branches: Branch, checks: Collection[str] = ("true",), **more: object) -> GateVerdict:
        return self.gate(*checks).merge(MergeRequest(branches=branches, **more))  # type: ignore[arg-type]

    def show(self, name: str, commit: str = "") -> str:
        return self.git("show", f"{commit or self.target}:{name}")

    def commits(self) -> list[str]:
        return self.git("rev-list", "--first-parent", "--reverse", self.target).split()


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    path = tmp_path / "repo"
    path.mkdir()
    made = Lab(path)
    made.git("init", "-q")
    (path / "T.md").write_text(LIST)
    (path / "hot").write_text("line\n")
    made.git("add", "-A")
    made.git("commit", "-qm", "first")
    made.git("branch", TARGET)
    return made


@pytest.fixture
def works(workspace: Path, environment: dict[str, str], agent: Callable[..., str], warm: Warm) -> Iterator[Works]:
    made = Works(workspace, environment, agent, warm)
    yield made
    for process in made.started:
        with suppress(ProcessLookupError):
            process.kill()
        process.communicate()
