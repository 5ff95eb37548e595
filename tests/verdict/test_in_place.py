"""Commands of a copy see it at the path of the user's tree, with private copies of its dependency folders there."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ralph.errors import UserError
from ralph.git.client import git_at
from ralph.git.dependencies import find_dependencies
from ralph.git.worktree_setup import check_out_copy
from ralph.git.worktrees import Worktree, mounts_folder
from ralph.process.keeper import Keeper
from ralph.process.kept_process import KeptProcess
from ralph.process.program import CannotStart, Command
from ralph.verdict.in_place import Method, Namespace, Obstacle, find_method

Git = Callable[..., str]
Start = Callable[..., Any]
IGNORED = "node_modules/\n.venv/\nbuild/\n*.egg-info/\n_version.py\n.env\nsecret.py.key\n"


def methods() -> list[Method]:
    """Return the ways to make a namespace that this machine has."""
    has_overlays = b"--overlay-src" in subprocess.run(("bwrap", "--help"), capture_output=True, check=False).stdout
    return [*(("mount",) if os.geteuid() == 0 else ()), "user", *(("bubblewrap",) if has_overlays else ())]  # type: ignore[list-item]


USUAL = methods()[0]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has mount namespaces")


@pytest.fixture
def keeper() -> Iterator[Keeper]:
    with Keeper.start() as keeper:
        yield keeper


@pytest.fixture
def project(repository: Path, git: Git, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A repository with a dependency folder, a generated source, a build output and a secret, all of them ignored."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name, text in {
        ".gitignore": IGNORED,
        "src/app.py": "good\n",
        "node_modules/lib/index.js": "theirs\n",
        "src/_version.py": "1.0\n",
        "build/app.out": "built\n",
        ".env": "KEY=secret\n",
    }.items():
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).write_text(text)
    git("add", "-A")
    git("commit", "-qm", "project")
    return repository


class Copy:
    """A copy whose namespace is open, and a way to run shell commands there."""

    def __init__(self, worktree: Worktree, namespace: Namespace, keeper: Keeper) -> None:
        self.worktree, self.namespace, self._keeper = worktree, namespace, keeper
        self.path = Path(worktree.path)

    def run(self, *words: str, cwd: str = "", env: dict[str, str] | None = None) -> tuple[int | None, str]:
        argv = ("sh", "-c", *words) if len(words) == 1 else words
        command = Command(argv=argv, cwd=cwd or str(self.path), env={**os.environ, **(env or {})})
        output = KeptProcess(self.namespace.enter(command), keeper=self._keeper).capture(head=100_000, tail=0)
        return output.exit.code, output.head


@pytest.fixture
def open_copy(project: Path, keeper: Keeper) -> Callable[..., Any]:
    @contextmanager
    def opened(
        method: Method = USUAL, kept: tuple[str, ...] = (), setup: Callable[[Path], object] = lambda copy: None
    ) -> Iterator[Copy]:
        home = git_at(str(project))
        with check_out_copy(home, f"test{len(os.listdir(project))}", home.resolve("HEAD"), keeper) as worktree:
            setup(Path(worktree.path))
            namespace = Namespace(worktree, method, find_dependencies(home), kept)
            namespace.open()
            try:
                yield Copy(worktree, namespace, keeper)
            finally:
                namespace.close()

    return opened


@pytest.mark.parametrize("method", methods())
def test_a_command_sees_the_copy_where_the_users_tree_is(
    project: Path, open_copy: Start, git: Git, method: Method
) -> None:
    with open_copy(method) as copy:
        (copy.path / "src/app.py").write_text("bad\n")
        assert copy.run(f"cat {project}/src/app.py; pwd") == (0, f"bad\n{project}\n")
        assert copy.run("id -u; echo $PWD") == (0, f"{os.getuid()}\n{project}\n")
        assert copy.run(f"echo worse > {project}/src/app.py")[0] == 0
        assert (copy.path / "src/app.py").read_text() == "worse\n"
        assert copy.run("git status --short; git rev-parse --show-toplevel") == (0, f" M src/app.py\n{project}\n")
        assert copy.run("git -c user.name=a -c user.email=a@b commit -qam bad && git log --format=%s -1")[1] == "bad\n"
    assert (project / "src/app.py").read_text() == "good\n"
    assert git("log", "--format=%s", "-1") == "project\n"


@pytest.mark.parametrize("method", methods())
def test_a_dependency_folder_is_a_private_copy(project: Path, open_copy: Start, method: Method) -> None:
    with open_copy(method) as copy, open_copy(method) as other:
        assert copy.run("cat node_modules/lib/index.js") == (0, "theirs\n")
        assert copy.run("echo mine > node_modules/lib/index.js && touch node_modules/new")[0] == 0
        assert copy.run("cat node_modules/lib/index.js; ls node_modules")[1] == "mine\nlib\nnew\n"
        assert other.run("cat node_modules/lib/index.js; ls node_modules")[1] == "theirs\nlib\n"
        copy.run("rm -rf node_modules")  # it says "busy", because it is a mount; its content is gone
        assert copy.run("ls node_modules")[1] == ""
    assert (project / "node_modules/lib/index.js").read_text() == "theirs\n"
    assert os.listdir(project / "node_modules") == ["lib"]


def test_nothing_of_a_copy_is_left(open_copy: Start) -> None:
    with open_copy() as copy:
        copy.run("touch node_modules/new")
        beside = Path(mounts_folder(copy.worktree.path))
        assert beside.is_dir()
    assert not beside.exists()
    assert not copy.path.exists()


def test_build_outputs_and_secrets_are_not_in_a_copy(project: Path, open_copy: Start) -> None:
    """A build folder that is newer than the broken sources of the copy makes `make` do nothing: the check is green."""
    found = find_dependencies(git_at(str(project)))
    assert (found.folders, found.files) == (("node_modules",), ("src/_version.py",))
    with open_copy() as copy:
        assert copy.run("ls -A")[1].split() == [".git", ".gitignore", "README", "node_modules", "src"]


def test_folders_with_links_only_are_copied(project: Path, open_copy: Start) -> None:
    """A monorepo has hundreds of them, and each mount takes time."""
    place = project / "packages/a/node_modules"
    (place / "@scope").mkdir(parents=True)
    (place / "b").symlink_to("../../b")
    (place / "@scope/c").symlink_to("../../../c")
    (project / "packages/a/index.js").write_text("")
    strict = project / "build/__editable__.app-1.0/app"
    strict.mkdir(parents=True)
    (strict / "app.py").symlink_to(project / "src/app.py")
    subprocess.run(("git", "add", "packages"), cwd=project, check=True)
    found = find_dependencies(git_at(str(project)))
    assert found.linked == ("build/__editable__.app-1.0", "packages/a/node_modules")
    with open_copy() as copy:
        (copy.path / "src/app.py").write_text("bad\n")
        assert copy.run("cat build/__editable__.app-1.0/app/app.py") == (0, "bad\n")
        assert copy.run("readlink packages/a/node_modules/b") == (0, "../../b\n")


def test_what_setup_made_wins(project: Path, open_copy: Start) -> None:
    def setup(copy: Path) -> None:
        (copy / "node_modules").mkdir()
        (copy / "node_modules/own").touch()

    with open_copy(setup=setup) as copy:
        assert copy.run("ls node_modules")[1] == "own\n"


def test_a_link_of_setup_to_the_same_folder_does_not_lead_to_itself(project: Path, open_copy: Start) -> None:
    with open_copy(setup=lambda copy: (copy / "node_modules").symlink_to(project / "node_modules")) as copy:
        assert copy.run("cat node_modules/lib/index.js") == (0, "theirs\n")


def test_a_kept_folder_is_still_the_users(project: Path, open_copy: Start) -> None:
    run = project / ".ralph/runs/x"
    run.mkdir(parents=True)
    with open_copy(kept=(str(run), str(project / "missing"), "/usr")) as copy:
        assert copy.run(f"echo hello > {run}/file")[0] == 0
    assert (run / "file").read_text() == "hello\n"


def test_names_with_spaces_commas_and_colons_work(project: Path, git: Git, open_copy: Start) -> None:
    (project / "a b,c:d\\e/node_modules").mkdir(parents=True)
    (project / "a b,c:d\\e/index.js").touch()
    (project / "a b,c:d\\e/node_modules/x").write_text("x\n")
    git("add", "-A")
    git("commit", "-qm", "odd")
    with open_copy() as copy:
        assert copy.run("cat", "node_modules/x", cwd=f"{copy.path}/a b,c:d\\e") == (0, "x\n")


def test_a_linked_worktree_of_the_user_works(project: Path, git: Git, tmp_path: Path, keeper: Keeper) -> None:
    linked = tmp_path / "linked"
    git("worktree", "add", "-q", str(linked))
    home = git_at(str(linked))
    with check_out_copy(home, "linked", home.resolve("HEAD"), keeper) as worktree:
        namespace = Namespace(worktree, methods()[0], find_dependencies(home))
        namespace.open()
        (Path(worktree.path) / "src/app.py").write_text("bad\n")
        copy = Copy(worktree, namespace, keeper)
        assert copy.run(f"cat {linked}/src/app.py; git status --short") == (0, "bad\n M src/app.py\n")
        namespace.close()


def test_variables_that_lead_to_the_copy_or_to_git_are_translated(project: Path, open_copy: Start) -> None:
    with open_copy() as copy:
        env = {"CACHE": f"{copy.path}/.ralph/cache", "GIT_DIR": copy.worktree.git.git_dir}
        assert copy.run("echo $CACHE; git diff --stat", env=env) == (0, f"{project}/.ralph/cache\n")


def test_a_program_in_a_dependency_folder_starts_and_a_missing_one_is_an_error(project: Path, open_copy: Start) -> None:
    shutil.copy("/bin/echo", project / "node_modules/say")
    with open_copy() as copy:
        assert copy.run("node_modules/say", "hello") == (0, "hello\n")
        with pytest.raises(CannotStart, match="no such program"):
            copy.run("node_modules/missing", "hello")


def test_a_copy_that_was_made_again_is_mounted_again(project: Path, open_copy: Start) -> None:
    """A check that breaks the copy makes git check it out from scratch: another folder at the same path."""
    with open_copy() as copy:
        trash = copy.path.with_name("trash")
        copy.path.rename(trash)
        shutil.copytree(trash, copy.path, symlinks=True)
        (copy.path / "src/app.py").write_text("again\n")
        assert copy.run(f"cat {project}/src/app.py") == (0, "again\n")
        shutil.rmtree(trash)


@pytest.mark.parametrize("method", methods())
def test_a_program_dies_with_its_keeper(open_copy: Start, keeper: Keeper, method: Method) -> None:
    """Entering a user namespace clears the signal that the kernel sends then."""
    with open_copy(method) as copy:
        words = "import ctypes; n = ctypes.c_int(); ctypes.CDLL(None).prctl(2, ctypes.byref(n)); print(n.value)"
        assert copy.run(sys.executable, "-c", words) == (0, "9\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_root_keeps_its_capabilities(open_copy: Start) -> None:
    """Claude's sandbox refuses to start without them, and a check of root may start a server as another user."""
    with open_copy() as copy:
        assert copy.run("setpriv --reuid=65534 --clear-groups id -u") == (0, "65534\n")


def test_no_descriptor_of_ralph_reaches_a_command(open_copy: Start) -> None:
    with open_copy() as copy:
        assert copy.run("ls /proc/self/fd")[1].split() == ["0", "1", "2", "3"]  # 3 is that of `ls`


def test_a_namespace_that_cannot_be_made_is_an_error(
    project: Path, open_copy: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its programs exit with 1, like a red check."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/mount").write_text("#!/bin/sh\necho mount: no luck >&2\nexit 1\n")
    (tmp_path / "bin/mount").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    with pytest.raises(UserError, match=f"the copy cannot appear at {project}: mount: no luck"), open_copy():
        pass
    find_method.cache_clear()
    found = find_method(str(tmp_path / "state"))
    assert isinstance(found, Obstacle) or found == "bubblewrap"
    find_method.cache_clear()
