"""Build a set-up in a user's tree, and try its check in ralph's copies of the tree."""

import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from io import BytesIO
from pathlib import Path
from typing import Literal

from msgspec.structs import replace
from packaging.requirements import Requirement
from tests.system.copies.setups import SetUp, Verdict

from ralph.core import events
from ralph.errors import UserError
from ralph.git.client import require_git
from ralph.process.keeper import Keeper
from ralph.process.signals import Deadline, Interrupt
from ralph.settings import CheckCommand, Settings
from ralph.store.folder import RunFolder, prepare
from ralph.verdict.checks import Checks
from ralph.verdict.context import Context
from ralph.verdict.copies import open_copy

Mode = Literal["in-place", "plain"]
CANARY = ("with every source file of the copy broken", "may read your tree, which is named in")
# What pip, uv, tox and nox install into the environments that they make, with all that it needs.
WHEELS = ("pytest", "hatchling", "editables")
RUNNER = r"""#!/usr/bin/env node
const fs = require('fs'), path = require('path'), os = require('os')
globalThis.it = globalThis.test = (name, body) => body()
const called = path.basename(process.argv[1])
if (called === 'vitest') {
  fs.mkdirSync('node_modules/.vite/vitest', { recursive: true })
  fs.writeFileSync('node_modules/.vite/vitest/results.json', '{}')
}
if (called === 'jest') fs.mkdirSync(path.join(os.tmpdir(), 'jest_x'), { recursive: true })
const folder = fs.existsSync('test') ? 'test' : '.'
for (const name of fs.readdirSync(folder).filter(name => name.endsWith('.js') && name !== 'index.js'))
  require(path.resolve(folder, name))
"""
RUNNER_PACKAGE = """{"name": "little-runner", "version": "1.0.0",
  "bin": {"mocha": "runner.js", "jest": "runner.js", "vitest": "runner.js"}}"""


def make_tools(folder: Path) -> Path:
    """Make what the set-ups need from a registry: wheels of the packages that are installed here, and a test runner for
    Node."""
    names = [*WHEELS]
    for name in names:  # grows
        package = metadata.distribution(name)
        _write_wheel(folder, package)
        needed = [Requirement(text) for text in package.requires or ()]
        names += [other.name for other in needed if other.name not in names and _is_needed(other)]
    with tarfile.open(folder / "little-runner.tgz", "w:gz") as archive:
        for path, text in {"package.json": RUNNER_PACKAGE, "runner.js": RUNNER}.items():
            info = tarfile.TarInfo(f"package/{path}")
            info.size, info.mode = len(text.encode()), 0o755
            archive.addfile(info, BytesIO(text.encode()))
    return folder


def _is_needed(requirement: Requirement) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": ""})


def _write_wheel(folder: Path, package: metadata.Distribution) -> None:
    """Pack an installed package, which consists of Python files only, as a wheel again."""
    name = f"{package.metadata['Name'].replace('-', '_').lower()}-{package.version}-py3-none-any.whl"
    with zipfile.ZipFile(folder / name, "w") as archive:
        for file in package.files or ():
            if ".." not in file.parts and file.suffix != ".pyc":
                archive.write(str(file.locate()), str(file))


def make_environment(folder: Path) -> None:
    """Make a virtual environment that has the packages of the tests, and only their pytest on PATH."""
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python3*/site-packages")
    (packages / "tests.pth").write_text(f"{metadata.distribution('pytest').locate_file('')}\n")
    pytest = folder / "bin/pytest"
    pytest.write_text(f"#!{folder}/bin/python\nimport sys\nimport pytest\n\nsys.exit(pytest.main())\n")
    pytest.chmod(0o755)


class Lab:
    """One set-up, built in `outside`/main."""

    def __init__(self, set_up: SetUp, outside: Path, tools: Path, keeper: Keeper) -> None:
        self.set_up, self.outside, self.main, self._tools, self._keeper = (
            set_up,
            outside,
            outside / "main",
            tools,
            keeper,
        )
        self._base = _base_environment(outside, tools)
        self.env = {**self._base, **{name: self.fill(text) for name, text in set_up.env.items()}}

    def fill(self, text: str) -> str:
        """Return the text with the paths of this set-up."""
        places = {"main": self.main, "outside": self.outside, "tools": self._tools, "python": sys.executable}
        for name, value in {**places, "PATH": self._base["PATH"]}.items():
            text = text.replace(f"{{{name}}}", str(value))
        return text

    def build(self) -> None:
        """Build the user's tree: its files, its dependencies, and a commit."""
        self.main.mkdir(parents=True)
        Path(self._base["HOME"]).mkdir()
        for name, text in self.set_up.files.items():
            path = Path(os.path.normpath(self.main / name))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self.fill(text))
        if self.set_up.environment:
            make_environment(Path(os.path.normpath(self.main / self.set_up.environment)))
        self.run("git init -q -b main --template= .", self._base)
        if command := self.fill(self.set_up.prepare):
            self.run(f"set -e\n{command}", {**self._base, **self._unless_active()})
        self.run("git add -A && git commit -qm base", self._base)
        prepare(self.main / self.set_up.folder)

    def _unless_active(self) -> Mapping[str, str]:
        """Return the variables that are set when dependencies are installed: all but those of an environment."""
        names = self.set_up.env.keys() - {"PATH", "VIRTUAL_ENV", "PYTHONPATH", "BUNDLE_GEMFILE"}
        return {name: self.env[name] for name in names}

    def run(self, command: str, env: Mapping[str, str]) -> None:
        done = subprocess.run(["sh", "-c", command], cwd=self.main, env=env, capture_output=True, text=True)
        assert done.returncode == 0, f"{self.set_up.name}: {command}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"

    @contextmanager
    def serve(self) -> Iterator[None]:
        """Run the server of the set-up in the user's tree, if it has one."""
        if not self.set_up.server:
            yield
            return
        words = [sys.executable, "-c", self.set_up.server]
        with subprocess.Popen(words, cwd=self.main, env=self._base, stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout
                assert server.stdout.readline() == "ready\n"
                yield
            finally:
                server.kill()

    def try_copy(self, mode: Mode, *, canary: bool) -> tuple[Verdict, str]:
        """Return what the check is worth in a copy, and the last that it printed or ralph reported."""
        notices: list[str] = []
        context = self._context(mode, canary, notices)
        repository = require_git(Path(context.workspace), context.deadline)
        with open_copy(context, repository, repository.resolve("HEAD")) as copy:
            is_named = False
            try:
                (result,) = Checks(copy.context, context.settings.checks).run(0) or ()
            except UserError as error:
                if CANARY[0] not in error.message:
                    raise
                is_named = True
                notices.append(error.advice)
            else:
                if not result.passed:
                    return "cannot start", result.tail
            is_named = is_named or any(words in text for text in notices for words in CANARY)
            path, text, other = Path(copy.worktree.path, self.set_up.broken[0]), *self.set_up.broken[1:]
            assert text in path.read_text()
            path.write_text(path.read_text().replace(text, other))
            (result,) = Checks(replace(copy.context, canary=None), context.settings.checks).run(1) or ()
        if is_named:
            assert result.passed, f"a false alarm: {notices}"
            return "named", notices[-1]
        return ("wrong" if result.passed else "right"), result.tail

    def _context(self, mode: Mode, canary: bool, notices: list[str]) -> Context:
        def tell(*happened: events.Event) -> None:
            notices.extend(event.text for event in happened if isinstance(event, events.Notice))

        setup, check = self.fill(self.set_up.setup), CheckCommand(self.fill(self.set_up.check))
        folder = RunFolder(self.main / self.set_up.folder / ".ralph", f"lab-{mode}")
        folder.make()
        return Context(
            root=self.main / self.set_up.folder,
            workspace=str(self.main / self.set_up.folder),
            settings=Settings(copies=mode, setup=setup, checks=(check,), canary=canary, check_timeout=120.0),
            folder=folder,
            keeper=self._keeper,
            deadline=Deadline(Interrupt()),
            tell=tell,
            env=self.env,
        )

    def files(self) -> dict[str, tuple[int, int]]:
        """Return time and size of every file of the user's tree, apart from what git and ralph keep there."""
        times = {}
        for folder, folders, names in os.walk(self.main):
            folders[:] = [name for name in folders if name not in (".git", ".ralph")]
            for name in names:
                info = os.lstat(path := os.path.join(folder, name))
                times[os.path.relpath(path, self.main)] = (info.st_mtime_ns, info.st_size)
        return times


def _base_environment(outside: Path, tools: Path) -> dict[str, str]:
    """Return an environment in which nothing is read from the developer's home or from a network."""
    home = os.path.expanduser("~")
    author = {f"GIT_{who}_{what}": "lab@localhost" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    programs = dict.fromkeys(os.path.dirname(path) for name in ("node", "go", "cargo") if (path := shutil.which(name)))
    return {
        "HOME": str(outside / "home"),
        "PATH": ":".join([os.path.dirname(sys.executable), *programs, "/usr/local/bin", "/usr/bin", "/bin"]),
        "LANG": "C.UTF-8",
        "XDG_STATE_HOME": os.environ["XDG_STATE_HOME"],
        "GIT_CONFIG_NOSYSTEM": "1",
        **author,
        "CI": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PIP_NO_COMPILE": "1",
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(tools),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "UV_OFFLINE": "1",
        "UV_NO_INDEX": "1",
        "UV_FIND_LINKS": str(tools),
        "UV_PYTHON": sys.executable,
        "npm_config_offline": "true",
        "npm_config_update_notifier": "false",
        "GOCACHE": str(tools / "go"),
        "COMPOSER_ALLOW_SUPERUSER": "1",
        "RUSTUP_HOME": os.environ.get("RUSTUP_HOME", f"{home}/.rustup"),
    }
