"""If a sandbox cannot be created, ralph says so in one line and exits with 2 before the first turn."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from tests.conftest import Result

Ralph = Callable[..., Result]


@pytest.fixture
def sandboxed(ralph: Ralph, agent: Callable[..., str], bubblewrap: str) -> Ralph:
    def run(*words: str, **more: str) -> Result:
        return ralph("run", "do it", "--agent", agent("touch started; echo done"), "--sandbox", *words, **more)

    return run


def refused(result: Result, workspace: Path, words: str) -> None:
    assert result.code == 2, result.err
    assert words in result.err
    assert "hint:" in result.err
    assert len(result.err.strip().splitlines()) == 2
    assert not (workspace / "started").exists()


def fake(folder: Path, script: str) -> str:
    folder.mkdir()
    (folder / "bwrap").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "bwrap").chmod(0o755)
    return str(folder)


def test_a_missing_bubblewrap_is_an_error(
    ralph: Ralph, agent, workspace: Path, repository: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("git", "sh", "env", "cat"):
        path = subprocess.run(["sh", "-c", f"command -v {name}"], capture_output=True, text=True, check=True).stdout
        (tools / name).symlink_to(path.strip())
    words = ("run", "do it", "--agent", agent("touch started"), "--sandbox")
    refused(ralph(*words, PATH=str(tools)), workspace, "needs bubblewrap, which is not installed")
    (repository / "tasks.md").write_text("- [ ] A1 Make it\n")
    words = ("work", "tasks.md", "--agent", "fake-agent", "--check", "true", "--sandbox")
    refused(ralph(*words, PATH=f"{tools}:{environment['HOME']}/bin"), repository, "needs bubblewrap")


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo 'bwrap: Unknown option --unshare-cgroup' >&2; exit 1", "could not create a sandbox: Unknown option"),
        ("echo 'bwrap: Creating new namespace failed: Operation not permitted' >&2; exit 1", "namespace"),
        ("exit 0", "could not create a sandbox: it printed nothing"),
    ],
)
def test_a_bubblewrap_that_creates_no_sandbox_is_an_error(
    sandboxed: Ralph, workspace: Path, environment: dict[str, str], tmp_path: Path, script: str, words: str
) -> None:
    path = fake(tmp_path / "fake", script)
    refused(sandboxed(PATH=f"{path}:{environment['PATH']}"), workspace, words)


def test_a_bubblewrap_that_isolates_nothing_is_an_error(
    sandboxed: Ralph, workspace: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    """The fake drops all arguments up to `--` and starts the program without isolation."""
    path = fake(tmp_path / "fake", 'while [ "$1" != -- ]; do shift; done; shift; exec "$@"')
    refused(sandboxed(PATH=f"{path}:{environment['PATH']}"), workspace, "could write outside")


@pytest.mark.parametrize("place", ["/", "home", "above home"])
def test_a_workspace_that_contains_the_home_is_refused(
    sandboxed: Ralph, workspace: Path, environment: dict[str, str], place: str
) -> None:
    home = Path(environment["HOME"])
    folder = {"/": Path("/"), "home": home, "above home": home.parent}[place]
    refused(sandboxed("-C", str(folder)), workspace, "protects nothing")
    assert not (folder / ".ralph").exists()


def test_a_state_folder_that_is_a_link_is_refused(
    ralph: Ralph, agent, workspace: Path, environment: dict[str, str], bubblewrap: str
) -> None:
    home = Path(environment["HOME"])
    (home / "dotfiles").mkdir()
    (home / ".claude").symlink_to(home / "dotfiles")
    agent("touch started", "claude")
    refused(ralph("run", "x", "--agent", "claude", "--sandbox"), workspace, ".claude is a link to")


@pytest.mark.parametrize("key", ["read", "write"])
def test_a_path_of_the_settings_that_does_not_exist_is_refused(sandboxed: Ralph, workspace: Path, key: str) -> None:
    (workspace / ".ralph").mkdir()
    (workspace / ".ralph" / "settings.json").write_text(f'{{"sandbox": {{"{key}": ["~/nothing"]}}}}')
    refused(sandboxed(), workspace, "no such path: ~/nothing")


@pytest.mark.parametrize("net", ["a b", "x:y", "a.*.b"])
def test_invalid_hosts_are_refused(sandboxed: Ralph, workspace: Path, net: str) -> None:
    refused(sandboxed("--sandbox-net", net), workspace, "not a host")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to fill a file system")
def test_a_full_temp_folder_is_reported(sandboxed: Ralph, workspace: Path, tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,nr_inodes=8", "full", str(full)], check=True)
    try:
        for number in range(8):
            try:
                (full / str(number)).write_bytes(b"x" * 65536)
            except OSError:
                break
        result = sandboxed(TMPDIR=str(full))
        assert result.code == 2, result.err
        assert "the sandbox has no room for its temporary files" in result.err
        assert len(result.err.strip().splitlines()) == 2
    finally:
        subprocess.run(["umount", str(full)], check=True)


def test_keep_children_cannot_be_combined_with_a_sandbox(sandboxed: Ralph, workspace: Path) -> None:
    refused(sandboxed("--keep-children"), workspace, "nothing outlives a sandbox")


@pytest.fixture(params=["/tmp", "/dev/shm", "/var/tmp"])
def elsewhere(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A folder in a place that is empty or private inside the sandbox."""
    with TemporaryDirectory(dir=request.param) as folder:
        yield Path(folder)


def test_a_program_in_a_hidden_folder_is_visible_inside(ralph: Ralph, elsewhere: Path, bubblewrap: str) -> None:
    program = elsewhere / "agent.sh"
    program.write_text('#!/bin/sh\necho x >> "$0"\necho "<response>DONE</response>"\n')
    program.chmod(0o755)
    before = program.read_text()
    for command in (str(program), f"sh {program}"):
        assert ralph("run", "x", "--agent", command, "--sandbox", "-m", "1").code == 0
        assert program.read_text() == before


@pytest.mark.parametrize("link", ["../lib/node_modules/agent/cli", "../node_modules/.bin/agent"])
def test_a_program_behind_links_is_found_inside(
    ralph: Ralph, environment: dict[str, str], elsewhere: Path, bubblewrap: str, link: str
) -> None:
    """Package managers install programs like this: a link, in a folder that is itself behind a link, to a script with
    more files."""
    root = elsewhere / "node-v22"
    package = (root / "bin" / link).parent
    (root / "bin").mkdir(parents=True)
    package.mkdir(parents=True)
    (package / "more.sh").write_text("echo '<response>DONE</response>'\n")
    (package / Path(link).name).write_text('#!/bin/sh\n. "$(dirname "$(readlink -f "$0")")/more.sh"\n')
    (package / Path(link).name).chmod(0o755)
    (root / "lib").mkdir(exist_ok=True)
    (root / "bin" / "the-agent").symlink_to(link)
    current = Path(environment["HOME"]) / "tools"
    current.symlink_to(root)
    path = f"{current}/bin:{environment['PATH']}"
    for name in ("the-agent", f"{current}/bin/the-agent"):
        ran = ralph("run", "x", "--agent", name, "--sandbox", "-m", "1", PATH=path)
        assert ran.code == 0, ran.err


def test_a_path_entry_that_does_not_exist_does_not_matter(sandboxed: Ralph, environment: dict[str, str]) -> None:
    result = sandboxed("--until", "file:started", "-m", "1", PATH=f"/no/such/folder:relative::{environment['PATH']}")
    assert result.code == 0, result.err


def test_a_child_run_cannot_be_started_inside(ralph: Ralph) -> None:
    result = ralph("job", "-p", "x", RALPH_SANDBOX="1")
    assert result.code == 2
    assert "child runs can't be started in a sandbox" in result.err


def test_a_loop_inside_a_session_has_no_sandbox(ralph: Ralph) -> None:
    result = ralph("hook", "start", "--session", "s", "--sandbox", "do it")
    assert result.code == 2
    assert "no such option: --sandbox" in result.err


def test_the_sandbox_of_a_killed_run_is_cleaned_up(
    agent, environment: dict[str, str], workspace: Path, tmp_path: Path, bubblewrap: str, eventually
) -> None:
    """The keeper does it as soon as no process of the run is left."""
    script = "touch .ralph/settings.local.json /tmp/left started; exec sleep 600"
    argv = [sys.executable, "-m", "ralph", "run", "x", "--agent", agent(script, "slow"), "--sandbox", "--json"]
    env = {**environment, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(argv, cwd=workspace, env=env, stdout=subprocess.DEVNULL) as run:
        eventually((workspace / "started").exists)
        run.send_signal(signal.SIGKILL)
    eventually(lambda: not list(tmp_path.glob("ralph-2*")))
    assert not (workspace / ".ralph" / "settings.local.json").exists()
