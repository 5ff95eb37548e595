"""A home with keys, a repository, services and processes around a sandbox; for an ordinary user, and for root if the
tests run as root."""

import json
import os
import secrets
import shutil
import site
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.conftest import Result

from ralph.process.keeper import Keeper

NOBODY = 65534
KEY = "-----BEGIN NOTHING-----"


class Ground:
    """A user's home with a project, and other files, services and processes of the machine."""

    def __init__(self, folder: Path, user: int | None) -> None:
        self.folder, self.user = folder, user
        self.home, self.workspace = folder / "home", folder / "home" / "project"
        self.python, more = _interpreter(user)
        for place in (self.home / "bin", self.home / ".ssh", self.home / ".claude" / "commands", self.workspace):
            place.mkdir(parents=True)
        (self.home / ".ssh" / "id_rsa").write_text(KEY)
        (self.home / ".bashrc").write_text("# mine\n")
        (self.home / ".claude" / "settings.json").write_text("{}\n")
        (self.home / ".claude.json").write_text("{}\n")
        (self.home / ".gitconfig").write_text("[user]\n\tname = Ann\n\temail = ann@localhost\n")
        self.mark = f"3{secrets.randbelow(10**8):08}"
        self.env = {
            "HOME": str(self.home),
            "PATH": f"{self.home}/bin:{self.home}/missing:{os.path.dirname(self.python)}:/usr/local/bin:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "SSH_AUTH_SOCK": f"{self.home}/agent.sock",
            "DBUS_SESSION_BUS_ADDRESS": f"unix:path={self.home}/bus",
            "XDG_RUNTIME_DIR": str(self.home),
            "GIT_CONFIG_NOSYSTEM": "1",
            **more,
        }
        self.own(folder)
        self.git("init", "-q", "-b", "main")
        (self.workspace / "README").write_text("hello\n")
        (self.workspace / "to-key").symlink_to(self.home / ".ssh" / "id_rsa")
        self.own(folder)
        self.git("add", "-A")
        self.git("commit", "-qm", "first")

    def own(self, path: Path) -> None:
        if self.user is not None:
            for each in (path, *path.rglob("*")):
                os.chown(each, self.user, self.user, follow_symlinks=False)

    def run(self, *words: str, timeout: float = 120, cwd: Path | None = None, **more: str) -> Result:
        return Result(
            subprocess.run(
                words,
                cwd=cwd or self.workspace,
                env={**self.env, **more},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=timeout,
                user=self.user,
                group=self.user,
                extra_groups=[] if self.user is not None else None,
            )
        )

    def git(self, *words: str) -> str:
        done = self.run("git", *words)
        assert done.code == 0, done.err
        return done.out

    def ralph(self, *words: str, **more: str) -> Result:
        return self.run(self.python, "-m", "ralph", *words, **more)

    def claude(self, script: str, claim: str = "<response>DONE</response>") -> None:
        """Install a fake Claude Code that runs a shell script."""
        answer = {"type": "result", "subtype": "success", "is_error": False, "result": claim}
        path = self.home / "bin" / "claude"
        path.write_text(f"#!/bin/sh\ncat > /tmp/prompt\n{script}\necho '{json.dumps(answer)}'\n")
        path.chmod(0o755)
        self.own(path)


def _interpreter(user: int | None) -> tuple[str, dict[str, str]]:
    """Return a Python that this user may execute, and the PYTHONPATH with which it finds ralph."""
    packages = [str(Path(__file__).parents[2] / "src"), *site.getsitepackages()]
    if user is None:
        return sys.executable, {}
    for path in (os.path.realpath(sys.executable), shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin")):
        if path is None:
            continue
        more = {"PYTHONPATH": os.pathsep.join(packages), "PYTHONDONTWRITEBYTECODE": "1"}
        words = ["sh", "-c", f'exec "{path}" -c "import msgspec, ralph"']
        if subprocess.run(words, env=more, user=user, group=user, capture_output=True, check=False).returncode == 0:
            return path, more
    pytest.skip("needs a Python that others than root may start, of the same version")


@pytest.fixture(scope="module", params=["ordinary", "root"])
def ground(request: pytest.FixtureRequest, bubblewrap: str) -> Iterator[Ground]:
    is_root = os.geteuid() == 0
    if request.param == "root" and not is_root:
        pytest.skip("needs root")
    folder = Path(tempfile.mkdtemp(prefix="ralph-ground-", dir="/tmp"))
    folder.chmod(0o755)
    try:
        yield Ground(folder, NOBODY if is_root and request.param == "ordinary" else None)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def keeper() -> Iterator[Keeper]:
    with Keeper.start() as keeper:
        yield keeper


@contextmanager
def listening(path: str, stays: bool = False) -> Iterator[None]:
    """Start a service on a Unix socket; a path that begins with a zero byte is abstract. With `stays`, the caller
    removes the socket."""
    with socket.socket(socket.AF_UNIX) as service:
        service.bind(path)
        service.listen()
        try:
            if not path.startswith("\0"):
                os.chmod(path, 0o777)
            yield
        finally:
            if not stays and not path.startswith("\0"):
                os.unlink(path)
