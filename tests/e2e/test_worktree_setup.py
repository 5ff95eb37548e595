"""A new worktree has what the work needs: submodules, the files that `.worktreeinclude` names, and `--setup`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Git = Callable[..., str]


@pytest.fixture
def play(ralph: Callable[..., Any], agent: Callable[..., str]) -> Callable[..., Any]:
    def run(script: str, *words: str) -> Any:
        fake = agent(f"({script})\necho COMPLETE")
        return ralph("loop", "T", "--worktree", "--agent", fake, "-m", "2", *words)

    return run


@pytest.fixture
def with_submodule(repository: Path, git: Git, tmp_path: Path) -> Path:
    """The repository with a submodule that has a submodule, whose remotes are gone."""
    allow = ("-c", "protocol.file.allow=always")
    for name, inside in (("deep", ""), ("lib", "deep")):
        place = tmp_path / name
        place.mkdir()
        git("-C", str(place), "init", "-q")
        (place / f"{name}.txt").write_text(f"{name}\n")
        if inside:
            git("-C", str(place), *allow, "submodule", "--quiet", "add", str(tmp_path / inside), inside)
        git("-C", str(place), "add", "-A")
        git("-C", str(place), "commit", "-qm", name)
    git(*allow, "submodule", "--quiet", "add", str(tmp_path / "lib"), "vendor/lib")
    git(*allow, "submodule", "--quiet", "update", "--init", "--recursive")
    git("commit", "-qm", "with a submodule")
    for name in ("deep", "lib"):
        (tmp_path / name).rename(tmp_path / f"{name}-gone")
    return repository


def test_submodules_are_checked_out_without_their_remotes(
    play: Callable[..., Any], ralph: Callable[..., Any], with_submodule: Path
) -> None:
    check = "cat vendor/lib/lib.txt vendor/lib/deep/deep.txt new"
    done = play("echo n > new", "--check", check)
    assert done.code == 0, done.err
    accepted = ralph("accept")
    assert accepted.code == 0, accepted.err
    assert (with_submodule / "new").exists()
    assert (with_submodule / "vendor/lib/lib.txt").read_text() == "lib\n"


@pytest.mark.parametrize(
    "change",
    ["echo x > vendor/lib/lib.txt", "echo x > vendor/lib/deep/new", "cd vendor/lib; git commit -qm x --allow-empty"],
)
@pytest.mark.parametrize("end", ["accept", "discard"])
def test_a_worktree_whose_submodule_was_changed_is_not_removed(
    play: Callable[..., Any], ralph: Callable[..., Any], with_submodule: Path, git: Git, change: str, end: str
) -> None:
    assert play(f"echo n > new; {change}", "--check", "test -f new").code == 0
    done = ralph(end)
    assert done.code in (1, 2)
    assert "vendor/lib" in done.err
    assert len(git("worktree", "list").splitlines()) == 2


def test_a_submodule_that_the_users_tree_lacks_is_reported_at_the_start(
    play: Callable[..., Any], with_submodule: Path, git: Git
) -> None:
    git("submodule", "--quiet", "deinit", "--all", "--force")
    done = play("echo n > new", "--check", "test -f new")
    assert done.code == 0, done.err
    notice = done.err.index("submodules that are not in the worktree: vendor/lib")
    assert notice < done.err.index("iteration 1"), done.err


def test_the_setup_command_runs_once_and_its_files_are_not_committed(
    play: Callable[..., Any], ralph: Callable[..., Any], repository: Path, git: Git
) -> None:
    (repository / ".gitignore").write_text(".env\nlibs\n")
    (repository / ".worktreeinclude").write_text(".env\n")
    (repository / ".env").write_text("KEY=1\n")
    git("add", "-A")
    git("commit", "-qm", "settings")
    check = 'test -f new && test "$(cat libs)" = KEY=1'
    done = play("echo n > new", "--check", check, "--setup", "cat .env >> libs")
    assert done.code == 0, done.err
    assert ralph("accept").code == 0
    assert git("show", "--format=", "--name-only", "HEAD").split() == ["new"]


SETUP = """
ln -s "$PWD" node_modules; echo local > made.txt; mkdir folder; echo deep > 'folder/a [b] *c'
echo lock > package-lock.json; rm -f gone; echo mine > conf.local
"""


@pytest.fixture
def with_lock_file(repository: Path, git: Git) -> Path:
    (repository / ".gitignore").write_text("node_modules/\n")
    (repository / "package-lock.json").write_text("{}\n")
    (repository / "gone").write_text("tracked\n")
    git("add", "-A")
    git("commit", "-qm", "lock file")
    return repository


@pytest.mark.parametrize("commit", ["true", "git add -A; git commit -qm own", "git commit -qam own"])
@pytest.mark.parametrize("squash", [(), ("--no-squash",)])
def test_what_setup_made_is_not_the_agents_work(
    play: Callable[..., Any],
    ralph: Callable[..., Any],
    with_lock_file: Path,
    git: Git,
    *,
    commit: str,
    squash: tuple[str, ...],
) -> None:
    """A pattern such as `node_modules/` doesn't cover a link, so git would commit it."""
    script = f"git status --porcelain > ../status; echo n > new; echo more >> conf.local; {commit}"
    done = play(script, "--check", "test -f new -a -L node_modules", "--setup", SETUP)
    assert done.code == 0, done.err
    assert "--setup changed tracked files, which stay out of the commits: gone, package-lock.json" in done.err
    stat = ralph("diff", "--stat").out
    assert [line.split()[1] for line in stat.splitlines()] == ["conf.local", "new"]
    assert ralph("accept", *squash).code == 0
    assert git("diff", "--name-only", "HEAD~1" if not squash else "@{1}").split() == ["conf.local", "new"]
    assert (with_lock_file / "conf.local").read_text() == "mine\nmore\n"


@pytest.mark.parametrize("sandbox", [(), ("--sandbox",)])
def test_git_status_of_the_agent_does_not_list_what_setup_made(
    play: Callable[..., Any], with_lock_file: Path, request: pytest.FixtureRequest, sandbox: tuple[str, ...]
) -> None:
    if sandbox:
        request.getfixturevalue("bubblewrap")
    done = play("echo n > new; git status --porcelain | sed 's/^/> /'", "--check", "true", "--setup", SETUP, *sandbox)
    assert done.code == 0, done.err
    status = [line.strip() for line in (done.out + done.err).splitlines() if line.startswith("  > ")]
    assert status == [">  D gone", ">  M package-lock.json", "> ?? new"]


def test_a_rewind_keeps_what_setup_made(
    play: Callable[..., Any], ralph: Callable[..., Any], with_lock_file: Path, git: Git
) -> None:
    """The second iteration changes the setup's files; before it they are as the setup left them."""
    change = "test -f new && echo x | tee made.txt > package-lock.json; echo n >> new"
    done = play(change, "--check", "test $(wc -l < new) = 2", "--setup", SETUP)
    assert done.code == 0, done.err
    worktree = Path(git("worktree", "list").splitlines()[1].split()[0])
    assert (worktree / "made.txt").read_text() == "x\n"
    assert ralph("rewind", "1").code == 0
    assert (worktree / "made.txt").read_text() == "local\n"
    assert (worktree / "package-lock.json").read_text() == "lock\n"
    assert not (worktree / "gone").exists()
    again = ralph("rewind", "2")
    assert again.code == 0, again.err
    assert (worktree / "made.txt").read_text() == "x\n"


def test_exams_find_what_setup_makes_in_their_own_copy(
    play: Callable[..., Any], ralph: Callable[..., Any], with_lock_file: Path, tmp_path: Path
) -> None:
    """A checkpoint with the setup's link would make the setup of the copy fail: the link exists there already."""
    exam = tmp_path / "exam.sh"
    exam.write_text("test -L node_modules && test -f new\n")
    done = play("echo n > new", "--check", "true", "--setup", f"set -e; {SETUP}", "--exam", f"sh {exam}")
    assert done.code == 0, done.err


def test_a_link_to_a_folder_comes_along_by_worktreeinclude(
    play: Callable[..., Any], repository: Path, git: Git
) -> None:
    """An npm workspace links its own packages: node_modules/@x/a -> ../../packages/a."""
    (repository / ".gitignore").write_text("node_modules\n")
    (repository / ".worktreeinclude").write_text("node_modules\n")
    (repository / "packages/a").mkdir(parents=True)
    (repository / "packages/a/index.js").write_text("tracked\n")
    (repository / "node_modules").mkdir()
    (repository / "node_modules/a").symlink_to("../packages/a")
    git("add", "-A")
    git("commit", "-qm", "workspace")
    done = play("echo n > new", "--check", "grep -q tracked node_modules/a/index.js")
    assert done.code == 0, done.err


def test_a_setup_command_that_fails_ends_the_run_before_anything_is_spent(
    play: Callable[..., Any], repository: Path
) -> None:
    done = play("touch ../paid", "--check", "true", "--setup", "echo no such package; exit 3")
    assert done.code == 2
    assert "--setup failed" in done.err
    assert "no such package" in done.err
    assert "iteration 1" not in done.err


RUNNER = "test -d node_modules || exit 127"  # as `npm test` does if the runner is not installed


@pytest.fixture
def node_project(repository: Path, git: Git) -> Path:
    (repository / "package.json").write_text('{"name": "x"}\n')
    (repository / "package-lock.json").write_text("{}\n")
    (repository / ".gitignore").write_text("node_modules/\n.ralph/\n")
    git("add", "-A")
    git("commit", "-qm", "node")
    return repository


@pytest.mark.parametrize("command", ["loop", "work"])
def test_a_check_without_its_dependencies_in_the_copy_names_the_setup_that_makes_them(
    ralph: Callable[..., Any], agent: Callable[..., str], node_project: Path, command: str
) -> None:
    (node_project / "TASKS.md").write_text("- [ ] T1 One\n")
    words = ("T", "--worktree") if command == "loop" else ("TASKS.md",)
    done = ralph(command, *words, "--check", RUNNER, "--agent", agent("touch ../paid; echo COMPLETE"))
    assert done.code == 2
    text = " ".join(done.err.split())
    assert f'the check "{RUNNER}" cannot start in a copy: node_modules is not in it (git ignores it)' in text
    assert '--setup "npm ci"' in text
    assert "--no-baseline" not in text
    assert "--allow-red" not in text
    setup = ("--setup", "mkdir node_modules && touch node_modules/x")
    assert "cannot start" not in ralph(command, *words, "--check", RUNNER, *setup, "--agent", agent("exit 1")).err


def test_work_says_that_a_check_that_does_not_exist_has_to_be_fixed(
    ralph: Callable[..., Any], agent: Callable[..., str], node_project: Path
) -> None:
    (node_project / "node_modules").mkdir()
    (node_project / "node_modules/x").write_text("")
    (node_project / "TASKS.md").write_text("- [ ] T1 One\n")
    done = ralph("work", "TASKS.md", "--check", "no-such-command", "--agent", agent("touch ../paid"))
    assert done.code == 2
    text = " ".join(done.err.split())
    assert 'the check "no-such-command" cannot start: command not found (exit code 127); fix --check' in text
    assert "--allow-red" not in text


def test_a_missing_module_in_a_copy_is_explained_before_the_first_turn(
    play: Callable[..., Any], node_project: Path
) -> None:
    missing = "echo \"Error: Cannot find module 'mocha'\"; exit 1"
    text = " ".join(play("echo n > new", "--check", missing).err.split())
    assert "Cannot find module 'mocha': node_modules is not in the copy (git ignores it); --setup \"npm ci\"" in text
    assert text.index("--setup") < text.index("iteration 1")
