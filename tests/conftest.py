"""Fixtures for all tests: the real command in a clean environment, a workspace, and agents that follow a script."""

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
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.warm import Warm

# `nohup` makes its children ignore SIGHUP, and a shell's `&` SIGINT. Every process of a test would inherit that, and
# tests that send these signals would wait for ever.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Without bytecode files, every process of a test would compile ralph again.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# The tests create and remove more than 100,000 files, which is much faster in memory than on a disk.
MEMORY, NEEDED_SPACE = Path("/dev/shm"), 4 << 30
if MEMORY.is_dir() and os.access(MEMORY, os.W_OK):
    space = os.statvfs(MEMORY)
    if space.f_bavail * space.f_frsize >= NEEDED_SPACE and not space.f_flag & os.ST_NOEXEC:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

# Scripts of the tests contain paths of temporary files without quotes, and sockets of browsers must have short paths.
if set(tempfile.gettempdir()) & set(" '\"$;&()") or len(tempfile.gettempdir()) > 60:
    os.environ["TMPDIR"], tempfile.tempdir = "/tmp", None

gc.disable()  # until all tests are collected: nothing that is created before then will be garbage

TESTS = Path(__file__).parent
MAX_PROCESSOR_TIME = 5.0  # seconds, including the processes that a test starts; slower tests are listed at the end


def pytest_configure() -> None:
    from hypothesis import settings  # not earlier: pytest would rewrite the assertions of all its modules

    settings.register_profile("unhurried", deadline=None)  # the time of an example depends on the load of the machine
    settings.register_profile("few", max_examples=10, deadline=None)  # for measuring coverage
    settings.load_profile("unhurried")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start tests with a timeout of their own first, because all workers would wait for a long test that starts last.

    The tests in `fleet`, `builtin_agent` and `web`, which share expensive fixtures, come first in the share of one
    worker each, because other workers take tests from the end of a share.
    """
    heads: dict[str, list[pytest.Item]] = {"long": [], "fleet": [], "builtin_agent": [], "web": []}
    others = list[pytest.Item]()
    for item in items:
        is_long = item.get_closest_marker("timeout") is not None
        folder = item.path.relative_to(TESTS).parts[0]
        heads.get(folder, heads["long"] if is_long else others).append(item)
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    shares: list[list[pytest.Item]] = [[] for _ in range(workers)]
    for number, head in enumerate(heads.values()):
        shares[number % workers] += head
    for share in shares:
        missing = max(0, len(items) // workers - len(share))
        share += others[:missing]
        del others[:missing]
    items[:] = [item for share in shares for item in share] + others


def pytest_collection_finish() -> None:
    gc.enable()
    gc.freeze()  # the thousands of test objects exist until the end, so the collector needn't look at them


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    before = Warm.spent + sum(os.times()[:4])
    try:
        return (yield)
    finally:
        item.user_properties.append(("processor", Warm.spent + sum(os.times()[:4]) - before))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Kill the processes that a failed test has left running."""
    report = yield
    if report.failed and (place := getattr(item, "funcargs", {}).get("tmp_path")):
        for pid in processes_of_folder(place):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    return report


def processes_of_folder(folder: Path) -> Iterator[int]:
    """Yield the processes, except this one, that work in a folder or have it in their command line or environment."""
    for pid in map(int, filter(str.isdigit, os.listdir("/proc") if sys.platform == "linux" else ())):
        with suppress(OSError):
            facts = [Path(f"/proc/{pid}/{name}").read_bytes() for name in ("environ", "cmdline")]
            facts.append(os.fsencode(os.readlink(f"/proc/{pid}/cwd")) + b"/")
            if pid != os.getpid() and any(bytes(folder) + b"/" in fact for fact in facts):
                yield pid


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List the tests that are too slow and what the lab of set-ups has seen, and write the names of failed tests to the
    file that `.ci/run` asks for."""
    stats = terminalreporter.stats
    called = [report for reports in stats.values() for report in reports if getattr(report, "when", "") == "call"]
    times = [(dict(report.user_properties).get("processor", 0.0), report.nodeid) for report in called]
    if slow := sorted((row for row in times if row[0] > MAX_PROCESSOR_TIME), reverse=True):
        terminalreporter.section(f"more than {MAX_PROCESSOR_TIME:g} s of the processor: make them faster")
        for seconds, name in slow:
            terminalreporter.line(f"{seconds:5.1f} s {name}")
    if copies := [
        dict(row)["copies"] for row in (report.user_properties for report in called) if "copies" in dict(row)
    ]:
        terminalreporter.section(f"{len(copies)} set-ups, by what a check in a copy tests")
        for mode in copies[0]:
            counts = Counter(verdicts[mode] for verdicts in copies)
            terminalreporter.line(f"{mode:8} {', '.join(f'{counts[verdict]} {verdict}' for verdict in sorted(counts))}")
    if path := os.environ.get("FAILED_TESTS"):
        names = {report.nodeid for kind in ("failed", "error") for report in stats.get(kind, ())}
        Path(path).write_text("".join(f"{name}\n" for name in sorted(names)))


class Result:
    """The exit code and output of the real command."""

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
def state_folder_for_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep runs that play inside the test process out of the developer's `ralph ps`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Return an environment with an empty home and nothing of the developer's."""
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
    """Return the path of a program. If it is missing, skip the test, but fail in CI, where it must be installed."""
    found = shutil.which(program)
    if found is None and "CI" not in os.environ:
        pytest.skip(f"needs {program}: apt-get install {packages}")
    assert found, f"{program} is not installed"
    return found


@pytest.fixture(scope="session")
def bubblewrap() -> str:
    """Return the path of bubblewrap."""
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
    """Return a repository with one commit, for tests to copy: that is faster than running git three times."""
    made = tmp_path_factory.mktemp("first-commit")
    author = ("-c", "user.name=Test", "-c", "user.email=test@localhost")
    (made / "README").write_text("hello\n")
    for words in (("init", "-q", "-b", "main", "--template="), ("add", "-A"), (*author, "commit", "-qm", "first")):
        alone = {"PATH": os.environ["PATH"], "HOME": str(made), "GIT_CONFIG_NOSYSTEM": "1"}
        subprocess.run(["git", *words], cwd=made, env=alone, check=True, capture_output=True)
    (made / ".git" / "index").unlink()  # it describes the files of this folder, not of the copies
    for folder in ("hooks", "info"):  # which git creates as well, with samples
        (made / ".git" / folder).mkdir()
    return made


@pytest.fixture
def repository(workspace: Path, git: Callable[..., str], first_commit: Path) -> Path:
    """Return the workspace, which is a git repository with one commit."""
    shutil.copytree(first_commit, workspace, dirs_exist_ok=True)
    git("add", "README")
    return workspace


@pytest.fixture(scope="session")
def warm() -> Iterator[Warm]:
    """Yield a process that has imported ralph, and forks for each call of the command."""
    made = Warm()
    yield made
    made.close()


@pytest.fixture
def ralph(environment: dict[str, str], workspace: Path, warm: Warm) -> Callable[..., Result]:
    """Return a function that runs the real command in the workspace."""

    def run(*words: str, cwd: Path | None = None, stdin: str | None = None, timeout: float = 120, **env: str) -> Result:
        return Result(warm.run(words, cwd or workspace, {**environment, **env}, stdin, timeout))

    return run


@pytest.fixture
def agent(environment: dict[str, str]) -> Callable[..., str]:
    """Return a function that makes an agent on PATH from a shell script and returns its path.

    In the script, `$N` is the number of the call and `$PROMPT` is the prompt.
    """

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
    """Return a function that returns the prompts of a scripted agent, in the order of its calls."""

    def read(name: str = "fake-agent") -> list[str]:
        home = Path(environment["HOME"])
        files = sorted(home.glob(f"{name}.prompt.*"), key=lambda path: int(path.suffix[1:]))
        return [file.read_text() for file in files]

    return read


@pytest.fixture
def eventually() -> Callable[[Callable[[], object]], None]:
    """Return a function that waits until a condition is true: for changes that no process announces."""

    def wait(condition: Callable[[], object], timeout: float = 60.0) -> None:
        began = time.monotonic()
        deadline = began + timeout
        while not condition():
            ended = time.monotonic()
            assert ended < deadline, "the condition did not become true"
            time.sleep(min(max(0.01, 4 * (ended - began)), 0.05))  # longer if checking the condition is expensive
            began = time.monotonic()

    return wait
