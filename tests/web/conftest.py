"""A real `ralph serve` with runs on record, asked over raw sockets: also for what a browser would never send."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import pytest
from tests.web.scenes import Scene

FORM = "application/x-www-form-urlencoded"


class Reply:
    """What came back on a connection, until it was closed or its length was reached."""

    def __init__(self, raw: bytes) -> None:
        head, _, self.body = raw.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        self.raw = raw
        self.status = int(lines[0].split()[1]) if lines[0].startswith("HTTP/1.1 ") else 0
        self.headers = {line.partition(":")[0].lower(): line.partition(":")[2].strip() for line in lines[1:]}

    @property
    def text(self) -> str:
        return self.body.decode()


class Served:
    """A server of ours, and a browser that has been let in."""

    def __init__(self, process: "subprocess.Popen[str]", link: str, env: Mapping[str, str]) -> None:
        self.process, self.link, self.env = process, link, env
        parts = urlsplit(link)
        self.port = parts.port or 0
        self.base = parts.path.removesuffix("enter")
        self.key = parts.query.removeprefix("key=")
        self.origin = f"http://127.0.0.1:{self.port}"
        self.cookie = ""

    def exchange(self, raw: bytes, timeout: float = 20.0) -> Reply:
        """Sends these bytes as they are."""
        with self.connect() as sock:
            sock.settimeout(timeout)
            sock.sendall(raw)
            return Reply(read_reply(sock))

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port))

    def ask(
        self, method: str, path: str, body: str = "", headers: Mapping[str, str | None] | None = None, **form: str
    ) -> Reply:
        """A request as our own page would send it, less what `headers` says of None, with what else it says."""
        body = body or urlencode(form)
        said: dict[str, str | None] = {"Host": f"127.0.0.1:{self.port}", "Cookie": self.cookie, "Connection": "close"}
        if method == "POST":
            said |= {"Origin": self.origin, "Content-Type": FORM, "Content-Length": str(len(body.encode()))}
        said |= headers or {}
        lines = [f"{method} {self.base}{path} HTTP/1.1", *(f"{k}: {v}" for k, v in said.items() if v is not None)]
        return self.exchange("\r\n".join((*lines, "", body)).encode())

    def get(self, path: str = "", **headers: str | None) -> Reply:
        return self.ask("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})

    def post(self, path: str, **form: str) -> Reply:
        return self.ask("POST", path, headers={"Accept": "text/plain"}, **form)

    def another_link(self, level: str) -> str:
        words = [sys.executable, "-m", "ralph", "serve", "--link", level, "--port", str(self.port)]
        made = subprocess.run(words, env=dict(self.env), capture_output=True, text=True, check=True)
        return made.stdout.strip()

    def enter(self, key: str = "") -> str:
        """The cookie of a browser that has used a link."""
        answer = self.ask("POST", "enter", headers={"Cookie": None}, key=key or self.key)
        assert answer.status == 303, answer.text
        return answer.headers["set-cookie"].partition(";")[0]

    def enter_as(self, level: str) -> str:
        return self.enter(self.another_link(level).partition("key=")[2])


def read_reply(sock: socket.socket) -> bytes:
    raw = b""
    while True:
        try:
            chunk = sock.recv(1 << 16)
        except ConnectionResetError:
            return raw
        if not chunk:
            return raw
        raw += chunk


Serve = Callable[..., Served]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a user who has a home of their own."""
    folder = tmp_path_factory.mktemp("home")
    (folder / "bin").mkdir()
    path = f"{folder}/bin:{os.path.dirname(sys.executable)}:/usr/local/bin:/usr/bin:/bin"
    git = {f"GIT_{who}_{what}": "test@localhost" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    return {"HOME": str(folder), "PATH": path, "LANG": "C.UTF-8", "GIT_CONFIG_NOSYSTEM": "1", **git}


@pytest.fixture(scope="module")
def serve(home: dict[str, str]) -> Iterator[Serve]:
    begun: list[subprocess.Popen[str]] = []

    def start(*words: str, enters: bool = True, **env: str) -> Served:
        process = subprocess.Popen(
            [sys.executable, "-m", "ralph", "serve", *(() if "--socket" in words else ("--port", "0")), *words],
            env={**home, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        begun.append(process)
        assert process.stdout is not None
        served = Served(process, process.stdout.readline().strip(), {**home, **env})
        if enters and "--socket" not in words:
            served.cookie = served.enter()
        return served

    yield start
    for process in begun:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.communicate()


@pytest.fixture(scope="module")
def served(serve: Serve) -> Served:
    return serve()


@pytest.fixture(scope="module")
def scene(home: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Scene]]:
    made: list[Scene] = []

    def make(name: str = "k3fa", **more: object) -> Scene:
        workspace = more.pop("workspace", None) or tmp_path_factory.mktemp("workspace")
        assert isinstance(workspace, Path)
        made.append(Scene(workspace, home, f"20261115-120000-{name}", **more))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for one in made:
        one.close()


def eventually(seen: Callable[[], object], seconds: float = 20.0) -> None:
    until = time.monotonic() + seconds
    while not seen():
        assert time.monotonic() < until, "it did not come"
        time.sleep(0.02)
