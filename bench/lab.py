"""Where benchmarks run: a plain installation, as a user has it, throwaway workspaces, and the loops that ralph is
compared with."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parent.parent
CACHE = ROOT / ".cache" / "bench"
MILLI = 1000.0

LIMIT, BASH, PYTHON = "C", "bash", "python3 -c pass"

BASH_LOOP = """
for ((i = 0; i < $1; i++)); do
  cat PROMPT.md | "${@:3}" >>log 2>&1
  for ((check = 0; check < $2; check++)); do sh -c true >>log 2>&1; done
done
"""


class Lab:
    """`ralph` and `python` are the installed programs; `env` is the environment they run in."""

    def __init__(self) -> None:
        # In memory where possible, so that the speed of the disk does not change the figures.
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self._scratch = Path(tempfile.mkdtemp(prefix="ralph-bench-", dir=memory))
        self.python, self.ralph = installed()
        self.limit = compiled()
        home = self.folder("home")
        self.env = {
            "HOME": str(home),
            "PATH": os.environ.get("PATH", os.defpath),
            "LANG": "C.UTF-8",
            "TERM": "xterm-256color",
            "GIT_CONFIG_GLOBAL": str(home / ".gitconfig"),
            "GIT_CONFIG_NOSYSTEM": "1",
            **{f"GIT_{who}_{what}": "bench@localhost" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
        }

    def close(self) -> None:
        shutil.rmtree(self._scratch, ignore_errors=True)

    def folder(self, name: str) -> Path:
        """Make an empty folder."""
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self._scratch))

    def workspace(self) -> Path:
        """Make a folder with a goal file in it."""
        folder = self.folder("workspace")
        (folder / "PROMPT.md").write_text("Make the tests pass.\n")
        return folder

    def script(self, name: str, text: str) -> str:
        """Write a small shell script."""
        path = self.folder("bin") / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return str(path)

    def seconds(self, argv: Sequence[str], cwd: Path | None = None, stdin: Path | None = None) -> float:
        """Return the seconds that a program takes. Its output is discarded."""
        return self.spent(argv, cwd, stdin)[0]

    def spent(self, argv: Sequence[str], cwd: Path | None = None, stdin: Path | None = None) -> tuple[float, float]:
        """Return the seconds that a program takes, and the most memory (MB) that it or one of its children used. It may
        fail: a loop that is not done exits with 1."""
        began = time.perf_counter()
        _, status, used = os.wait4(self.start(argv, cwd, stdin), 0)
        ended = time.perf_counter()
        if os.waitstatus_to_exitcode(status) not in (0, 1):
            raise SystemExit(f"bench: {' '.join(argv)} failed with status {status}")
        return ended - began, used.ru_maxrss / 1024

    def start(self, argv: Sequence[str], cwd: Path | None = None, stdin: Path | None = None, out: int = -1) -> int:
        """Start a program. Its output goes to the descriptor `out`, or is discarded."""
        sources = [os.open(stdin or os.devnull, os.O_RDONLY), os.open(os.devnull, os.O_WRONLY)]
        sink = sources[1] if out < 0 else out
        before = os.getcwd()
        os.chdir(cwd or self._scratch)
        try:
            return os.posix_spawn(
                argv[0],
                argv,
                self.env,
                file_actions=[(os.POSIX_SPAWN_DUP2, fd, to) for to, fd in enumerate((sources[0], sink, sink))],
            )
        finally:
            os.chdir(before)
            for fd in sources:
                os.close(fd)

    def timing(self, *argv: str, stdin: Path | None = None) -> Callable[[], float]:
        """Measure a program in milliseconds, each time in a new workspace."""
        return lambda: self.seconds(argv, self.workspace(), stdin) * MILLI

    def running(self, agent: str, iterations: int, *options: str) -> tuple[str, ...]:
        """Return the command line for a run with this number of iterations."""
        return (self.ralph, "run", "-f", "PROMPT.md", "--agent", agent, "-m", str(iterations), *options)

    def loops(self, agent: str, iterations: int, checks: int = 0) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Return the loops to compare with: by name, the command line for this number of iterations."""
        if self.limit and not checks:
            yield LIMIT, (self.limit, str(iterations), agent)
        bash = shutil.which("bash")
        if bash:
            yield BASH, (bash, "-c", BASH_LOOP, "bash", str(iterations), str(checks), agent)


def compiled() -> str:
    """Compile the C loop; return None if there is no compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        return ""
    CACHE.mkdir(parents=True, exist_ok=True)
    program = CACHE / "limit"
    subprocess.run([compiler, "-O2", "-o", program, Path(__file__).parent / "limit.c"], check=True)
    return str(program)


def installed() -> tuple[str, str]:
    """Make a virtual environment with ralph and its requirements, as `pip install` would. Development tools are left
    out, because their start-up hooks would be measured too. Nothing is downloaded."""
    home = CACHE / "installed"
    shutil.rmtree(home, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(home), "platbase": str(home)}))
    for name in sorted(requirements("ralph-until-done", "web")):
        _copy(name, packages)
    shutil.copytree(ROOT / "src" / "ralph", packages / "ralph", ignore=shutil.ignore_patterns("__pycache__"))
    python, script = home / "bin" / "python", home / "bin" / "ralph"
    lines = (ROOT / "bin" / "ralph").read_text().splitlines(keepends=True)
    script.write_text("".join([lines[0].replace("#!python", f"#!{python}"), *lines[1:]]))
    script.chmod(0o755)
    subprocess.run([python, "-m", "compileall", "-q", packages], check=True)
    return str(python), str(script)


def requirements(name: str, extra: str = "") -> set[str]:
    """Return the packages that one package needs to run, with one of its extras."""
    from packaging.requirements import Requirement

    needed: set[str] = set()
    for one in map(Requirement, metadata.requires(name) or ()):
        if one.marker is None or one.marker.evaluate({"extra": extra}):
            needed |= {one.name} | requirements(one.name)
    return needed


def _copy(name: str, packages: Path) -> None:
    for file in metadata.files(name) or ():
        if ".." not in file.parts and "__pycache__" not in file.parts:
            target = packages / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(Path(str(file.locate())), target)
