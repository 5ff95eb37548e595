"""A PostgreSQL server for tests, on loopback and in a temporary folder, and a relay that can cut its connections."""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from contextlib import suppress
from glob import glob
from pathlib import Path
from typing import Any

import pytest

HERE = "127.0.0.1"
# Tests kill the server, but not the machine: nothing has to reach a disk.
HASTY = ("fsync=off", "full_page_writes=off")


def needed(name: str, package: str) -> str:
    """Return the path of a program. Without it the test is skipped or, in CI, fails."""
    found = program(name)
    if not found:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"needs {name}: apt-get install {package}")
    return found


def program(name: str) -> str:
    """Return the path of a program, also one in the folders that Debian leaves out of PATH; empty if not found."""
    found = [*sorted(glob(f"/usr/lib/postgresql/*/bin/{name}"), reverse=True)]
    return next(filter(None, (*found, shutil.which(name), shutil.which(name, path="/usr/sbin"))), "")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HERE, 0))
        return int(probe.getsockname()[1])


class Postgres:
    """The server. It refuses to run as root, so root starts it as another user."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ralph-pg-", dir=os.environ.get("PYTEST_DEBUG_TEMPROOT")))
        self.data, self.port = self.folder / "data", free_port()
        self._as: dict[str, Any] = {}
        if os.geteuid() == 0:
            known = {entry.pw_name for entry in pwd.getpwall()}
            user = pwd.getpwnam("postgres" if "postgres" in known else "nobody")
            os.chown(self.folder, user.pw_uid, user.pw_gid)
            self._as = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        self._process: subprocess.Popen[bytes] | None = None
        words = (
            needed("initdb", "postgresql"),
            "-D",
            str(self.data),
            "-U",
            "ralph",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--no-sync",
        )
        subprocess.run(words, check=True, capture_output=True, cwd="/", **self._as)
        with open(self.data / "postgresql.conf", "a", encoding="utf-8") as file:
            file.write(f"listen_addresses='{HERE}'\nunix_socket_directories=''\nport={self.port}\n")
            file.write("shared_buffers=32MB\nmax_connections=60\nlc_messages='C'\nautovacuum=off\n")
            file.write("\n".join((*HASTY, "")))
        (self.data / "pg_hba.conf").write_text(
            f"host all locked {HERE}/32 scram-sha-256\nhost all all {HERE}/32 trust\n"
        )
        self.start()

    def start(self) -> None:
        log = open(self.folder / "log", "ab")  # noqa: SIM115 (the server writes to it)
        words = (program("postgres"), "-D", str(self.data))
        self._process = subprocess.Popen(words, stdout=log, stderr=log, cwd="/", **self._as)
        log.close()
        deadline = time.monotonic() + 30
        while True:
            with suppress(OSError), socket.create_connection((HERE, self.port), 1):
                if self._answers():
                    return
            assert time.monotonic() < deadline, (self.folder / "log").read_text()[-2000:]
            time.sleep(0.02)

    def _answers(self) -> bool:
        import psycopg

        with suppress(psycopg.OperationalError), psycopg.connect(self.url("postgres"), connect_timeout=2):
            return True
        return False

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop the server: SIGINT closes all connections, SIGQUIT is like a crash."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(30)
            self._process = None

    def spent(self) -> float:
        """Return the CPU seconds that the server has used so far."""
        assert self._process is not None
        total = 0
        for pid in [self._process.pid, *self._backends(self._process.pid)]:
            with suppress(OSError):
                fields = Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()
                total += sum(map(int, fields[11:15] if pid == self._process.pid else fields[11:13]))
        return total / os.sysconf("SC_CLK_TCK")

    def _backends(self, parent: int) -> list[int]:
        return [int(pid) for pid in Path("/proc", str(parent), "task", str(parent), "children").read_text().split()]

    def url(self, name: str) -> str:
        return f"postgresql://ralph@{HERE}:{self.port}/{name}"

    def database(self) -> str:
        """Create a database; return its URL."""
        name = f"f{os.getpid()}_{time.monotonic_ns()}"
        self._do(f"CREATE DATABASE {name}")
        return self.url(name)

    def forget(self, url: str) -> None:
        """Drop a database: each takes as much disk space as an empty server."""
        self._do(f"DROP DATABASE IF EXISTS {url.rpartition('/')[2]} WITH (FORCE)")

    def _do(self, statement: str) -> None:
        import psycopg

        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(statement)

    def close(self) -> None:
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self.folder, ignore_errors=True)


class Relay:
    """Forwards connections to a server. While it is cut, nothing passes, but the connections stay open."""

    def __init__(self, port: int, at: int = 0) -> None:
        self._to = port
        self._listener = socket.create_server((HERE, at))
        self.port = int(self._listener.getsockname()[1])
        self._open = threading.Event()
        self._open.set()
        self._over = False
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        self._open.clear()

    def restore(self) -> None:
        self._open.set()

    def close(self) -> None:
        self._over = True
        self._open.set()
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while not self._over:
                near, _ = self._listener.accept()
                with suppress(OSError):
                    far = socket.create_connection((HERE, self._to))
                    for source, sink in ((near, far), (far, near)):
                        threading.Thread(target=self._carry, args=(source, sink), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                self._open.wait()
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.close()
