"""What every test may use: the real command in a clean environment, a workspace, and agents that follow a script."""

import gc
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.warm import Warm

# Under `nohup` SIGHUP is ignored, and SIGINT behind a shell's `&`, here and in all that a test starts; ralph respects
# that, and a test of it would wait.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Where the machine says that no bytecode be kept, all that is tested, and each test, would be compiled again each time.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Tests make and remove more than 100,000 files: what the file system of a disk does for each is a good part of all that
# they take from the processor. Where there is enough memory, and programs may run there, it is a place like any other.
MEMORY, ENOUGH = Path("/dev/shm"), 4 << 30
if MEMORY.is_dir() and os.access(MEMORY, os.W_OK):
    found = os.statvfs(MEMORY)
    if found.f_bavail * found.f_frsize >= ENOUGH and not found.f_flag & os.ST_NOEXEC:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

# Scripts of the tests name their folders without quotes, and a browser has sockets there, whose names must be short.
if set(tempfile.gettempdir()) & set(" '\"$;&()") or len(tempfile.gettempdir()) > 60:
    os.environ["TMPDIR"], tempfile.tempdir = "/tmp", None

gc.disable()  # until all tests are known: all that is made before then is there to stay

TESTS = Path(__file__).parent
SLOW = 5.0  # seconds of the processor that a test may take, with all that it starts, before a run names it


def pytest_configure() -> None:
    from hypothesis import settings  # late: before bytecode is kept, pytest would rewrite all of it each time

    settings.register_profile("unhurried", deadline=None)  # how long an example takes depends on what else continues
    settings.register_profile("few", max_examples=10, deadline=None)  # where the lines count, not the examples
    settings.load_profile("unhurried")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Who asks for more time than the others begins first: a long test that begins last is waited for by all. So does a
    room whose tests need much around them, at the head of a worker's share: there no other worker takes them away, and
    sets it all up once more."""
    heads: dict[str, list[pytest.Item]] = {"long": [], "agent": [], "web": []}
    others = list[pytest.Item]()
    for item in items:
        is_long = item.get_closest_marker("timeout") is not None
        room = item.path.relative_to(TESTS).parts[0]
        heads.get(room, heads["long"] if is_long else others).append(item)
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    shares: list[list[pytest.Item]] = [[] for _ in range(workers)]
    for number, head in enumerate(heads.values()):
        shares[number % workers] += head
    for share in shares:
        room_left = max(0, len(items) // workers - len(share))
        share += others[:room_left]
        del others[:room_left]
    items[:] = [item for share in shares for item in share] + others


def pytest_collection_finish() -> None:
    gc.enable()
    gc.freeze()  # thousands of tests that live as long as the run: the collector need not look at them each time


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    before = Warm.spent + sum(os.times()[:4])
    try:
        return (yield)
    finally:
        item.user_properties.append(("processor", Warm.spent + sum(os.times()[:4]) - before))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What a test that failed half-way has started outlives it no longer than what one that passed has."""
    report = yield
    if report.failed and (place := getattr(item, "funcargs", {}).get("tmp_path")):
        for pid in of_place(place):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    return report


def of_place(place: Path) -> Iterator[int]:
    """Processes that work in a folder, or speak of it in their words or their environment; but not this one."""
    for pid in map(int, filter(str.isdigit, os.listdir("/proc") if sys.platform == "linux" else ())):
        with suppress(OSError):
            known = [Path(f"/proc/{pid}/{what}").read_bytes() for what in ("environ", "cmdline")]
            known.append(os.fsencode(os.readlink(f"/proc/{pid}/cwd")) + b"/")
            if pid != os.getpid() and any(bytes(place) + b"/" in told for told in known):
                yield pid


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Names the tests that are too slow, and leaves the names of what failed to `.ci/run`, which runs each alone."""
    stats = terminalreporter.stats
    called = [report for reports in stats.values() for report in reports if getattr(report, "when", "") == "call"]
    took = [(dict(report.user_properties).get("processor", 0.0), report.nodeid) for report in called]
    if slow := sorted((row for row in took if row[0] > SLOW), reverse=True):
        terminalreporter.section(f"more than {SLOW:g} s of the processor: make them faster")
        for seconds, name in slow:
            terminalreporter.line(f"{seconds:5.1f} s {name}")
    if path := os.environ.get("FAILED_TESTS"):
        names = {report.nodeid for kind in ("failed", "error") for report in stats.get(kind, ())}
        Path(path).write_text("".join(f"{name}\n" for name in sorted(names)))


class Result:
    """What one call of the real command did."""

    def __init__(self, process: "subprocess.CompletedProcess[str]") -> None:
        self.code, self.out, self.err = process.returncode, process.stdout, process.stderr

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]

    def kinds(self) -> list[str]:
        return [event["type"] for event in self.events]

    def one(self, kind: str) -> dict[str, Any]:
        (event,) = [event for event in self.events if event["type"] == kind]
        return dict(event["data"])

    def all(self, kind: str) -> list[dict[str, Any]]:
        return [event["data"] for event in self.events if event["type"] == kind]

    @property
    def last_line(self) -> str:
        return self.err.rstrip("\n").rsplit("\n", 1)[-1]


@pytest.fixture(autouse=True, scope="session")
def register_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Runs that are played inside the tests' own process are not listed by the developer's `ralph ps`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A home of its own, and nothing of the developer's."""
    home = tmp_path / "home"
    (home / "bin").mkdir(parents=True)
    return {
        "HOME": str(home),
        "PATH": f"{home}/bin:{os.path.dirname(sys.executable)}:/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "GIT_CONFIG_GLOBAL": str(home / ".gitconfig"),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_NAME": "Test",
        "GIT_AUTHOR_EMAIL": "test@localhost",
        "GIT_COMMITTER_NAME": "Test",
        "GIT_COMMITTER_EMAIL": "test@localhost",
    }


def installed(program: str, packages: str) -> str:
    """Where a program is. A bare machine does without the tests that need it; in CI it is installed."""
    found = shutil.which(program)
    if found is None and "CI" not in os.environ:
        pytest.skip(f"needs {program}: apt-get install {packages}")
    assert found, f"{program} is not installed"
    return found


@pytest.fixture(scope="session")
def bubblewrap() -> str:
    """The program that makes boxes."""
    return installed("bwrap", "bubblewrap")


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    return folder


@pytest.fixture
def git(environment: dict[str, str], workspace: Path) -> Callable[..., str]:
    def run(*words: str, cwd: Path | None = None) -> str:
        command = ["git", *words]
        return subprocess.run(
            command, cwd=cwd or workspace, env=environment, check=True, capture_output=True, text=True
        ).stdout

    return run


@pytest.fixture(scope="session")
def first_commit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with one commit, made once and copied: three starts of git less for each test that needs one."""
    made = tmp_path_factory.mktemp("first-commit")
    author = ("-c", "user.name=Test", "-c", "user.email=test@localhost")
    (made / "README").write_text("hello\n")
    for words in (("init", "-q", "-b", "main", "--template="), ("add", "-A"), (*author, "commit", "-qm", "first")):
        alone = {"PATH": os.environ["PATH"], "HOME": str(made), "GIT_CONFIG_NOSYSTEM": "1"}
        subprocess.run(["git", *words], cwd=made, env=alone, check=True, capture_output=True)
    (made / ".git" / "index").unlink()  # it names the files that it saw: those of this folder
    for folder in ("hooks", "info"):  # as git makes them, without the samples
        (made / ".git" / folder).mkdir()
    return made


@pytest.fixture
def repository(workspace: Path, git: Callable[..., str], first_commit: Path) -> Path:
    """The workspace as a git repository with one commit."""
    shutil.copytree(first_commit, workspace, dirs_exist_ok=True)
    git("add", "README")
    return workspace


@pytest.fixture(scope="session")
def warm() -> Iterator[Warm]:
    """Has imported what the command needs, once for all tests."""
    made = Warm()
    yield made
    made.close()


@pytest.fixture
def ralph(environment: dict[str, str], workspace: Path, warm: Warm) -> Callable[..., Result]:
    """The real command, in the workspace."""

    def run(*words: str, cwd: Path | None = None, stdin: str | None = None, timeout: float = 120, **env: str) -> Result:
        return Result(warm.run(words, cwd or workspace, {**environment, **env}, stdin, timeout))

    return run


@pytest.fixture
def agent(environment: dict[str, str]) -> Callable[..., str]:
    """Makes an executable on PATH from a shell script; `$N` is the number of the call, `$PROMPT` what it was asked."""

    def make(script: str, name: str = "fake-agent") -> str:
        home = Path(environment["HOME"])
        path = home / "bin" / name
        calls = home / f"{name}.calls"
        path.write_text(
            "#!/bin/sh\n"
            f'N=0; {{ read -r N < "{calls}"; }} 2> /dev/null; N=$((${{N:-0}} + 1)); echo $N > "{calls}"\n'
            f'PROMPT=$(cat); printf "%s" "$PROMPT" > "{home}/{name}.prompt.$N"\n'
            f'printf "%s\\n" "$@" > "{home}/{name}.argv.$N"\n{script}\n'
        )
        path.chmod(path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
        return str(path)

    return make


@pytest.fixture
def prompts(environment: dict[str, str]) -> Callable[..., list[str]]:
    """What the fake agent was asked, call by call."""

    def read(name: str = "fake-agent") -> list[str]:
        home = Path(environment["HOME"])
        files = sorted(home.glob(f"{name}.prompt.*"), key=lambda path: int(path.suffix[1:]))
        return [file.read_text() for file in files]

    return read


@pytest.fixture
def eventually() -> Callable[[Callable[[], object]], None]:
    """Waits for what happens outside of every process that a test can ask."""

    def wait(condition: Callable[[], object], patience: float = 60.0) -> None:
        looks = time.monotonic()
        deadline = looks + patience
        while not condition():
            looked = time.monotonic()
            assert looked < deadline, "it did not happen"
            time.sleep(min(max(0.01, 4 * (looked - looks)), 0.05))  # a look at all processes costs more than a moment
            looks = time.monotonic()

    return wait
