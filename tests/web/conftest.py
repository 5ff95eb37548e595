"""A real `ralph serve` with recorded runs, and clients on raw sockets that can send what no browser would."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest
from tests.web.scenes import Scene

FORM = "application/x-www-form-urlencoded"


class Reply:
    """The response on a connection, until it was closed."""

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
    """A running server, and a browser with access."""

    def __init__(self, process: "subprocess.Popen[str]", link: str, env: Mapping[str, str]) -> None:
        self.process, self.link, self.env = process, link, env
        parts = urlsplit(link)
        self.port = parts.port or 0
        self.base = parts.path.removesuffix("enter")
        self.key = parts.query.removeprefix("key=")
        self.origin = f"http://127.0.0.1:{self.port}"
        self.cookie = ""

    def exchange(self, raw: bytes, timeout: float = 20.0) -> Reply:
        """Send these bytes unchanged."""
        with self.connect() as sock:
            sock.settimeout(timeout)
            sock.sendall(raw)
            return Reply(read_reply(sock))

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port))

    def ask(
        self, method: str, path: str, body: str = "", headers: Mapping[str, str | None] | None = None, **form: str
    ) -> Reply:
        """Send a request as our own pages do. `headers` adds and replaces headers; None removes one."""
        body = body or urlencode(form)
        sent: dict[str, str | None] = {"Host": f"127.0.0.1:{self.port}", "Cookie": self.cookie, "Connection": "close"}
        if method == "POST":
            sent |= {"Origin": self.origin, "Content-Type": FORM, "Content-Length": str(len(body.encode()))}
        sent |= headers or {}
        lines = [f"{method} {self.base}{path} HTTP/1.1", *(f"{k}: {v}" for k, v in sent.items() if v is not None)]
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
        """Use a link; return the cookie."""
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


class StreamClient:
    """A page's stream, as a browser keeps it: it knows the number of the last event that it has received."""

    def __init__(self, served: Served, query: str, after: str = "") -> None:
        self._served, self._query, self.last = served, query, after
        self.events: list[tuple[str, str]] = []
        self.connect()

    def connect(self) -> None:
        self._sock = self._served.connect()
        self._sock.settimeout(20)
        lines = [f"GET {self._served.base}events{self._query} HTTP/1.1", "Host: 127.0.0.1"]
        lines += [f"Cookie: {self._served.cookie}"] + ([f"Last-Event-ID: {self.last}"] if self.last else [])
        self._sock.sendall("\r\n".join((*lines, "", "")).encode())
        self._raw, self._rest = b"", ""
        while b"\r\n\r\n" not in self._raw:
            self._raw += self._sock.recv(1 << 16)
        head, _, self._raw = self._raw.partition(b"\r\n\r\n")
        assert b"200 OK" in head
        assert b"chunked" in head.lower()

    def receive(self) -> None:
        content = self._dechunk()  # some of it may have arrived together with the head
        if not content:
            received = self._sock.recv(1 << 16)
            assert received, "the stream has ended"
            self._raw += received
            content = self._dechunk()
        self._rest += content.decode("utf-8", "surrogateescape")
        *events, self._rest = self._rest.split("\n\n")
        for event in events:
            fields = [line.partition(": ") for line in event.split("\n")]
            data = "\n".join(value for name, _, value in fields if name == "data")
            kind = next((value for name, _, value in fields if name == "event"), "message")
            self.last = next((value for name, _, value in fields if name == "id"), self.last)
            if data:
                self.events.append((kind, data))

    def _dechunk(self) -> bytes:
        """Take the chunks that have arrived completely."""
        content = b""
        while b"\r\n" in self._raw:
            size, _, rest = self._raw.partition(b"\r\n")
            length = int(size, 16)
            if len(rest) < length + 2:
                break
            content += rest[:length]
            self._raw = rest[length + 2 :]
        return content

    def until(self, text: str) -> None:
        while text not in self.all:
            self.receive()

    @property
    def all(self) -> str:
        return "\n".join(data for _, data in self.events)

    def close(self) -> None:
        self._sock.close()


Serve = Callable[..., Served]
SERVE = (sys.executable, "-m", "ralph", "serve")
IMPATIENT = """
import sys
from ralph.web import listening
listening.serve(listening.ServeOptions(port=0, client_timeout=1), sys.stdout)
"""
"""A server whose clients have one second, not ten, to send a request and to read the answer."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a user with an empty home folder."""
    folder = tmp_path_factory.mktemp("home")
    (folder / "bin").mkdir()
    path = f"{folder}/bin:{os.path.dirname(sys.executable)}:/usr/local/bin:/usr/bin:/bin"
    git = {f"GIT_{who}_{what}": "test@localhost" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    return {"HOME": str(folder), "PATH": path, "LANG": "C.UTF-8", "GIT_CONFIG_NOSYSTEM": "1", **git}


@pytest.fixture(scope="module")
def serve(home: dict[str, str]) -> Iterator[Serve]:
    begun: list[subprocess.Popen[str]] = []

    def start(*words: str, enters: bool = True, command: Sequence[str] = SERVE, **env: str) -> Served:
        process = subprocess.Popen(
            [*command, "--port", "0", *words],
            env={**home, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        begun.append(process)
        assert process.stdout is not None
        served = Served(process, process.stdout.readline().strip(), {**home, **env})
        if enters:
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
def impatient(serve: Serve) -> Served:
    return serve(command=(sys.executable, "-c", IMPATIENT))


@pytest.fixture
def subscribe(served: Served) -> Any:
    made: list[StreamClient] = []

    def listen(query: str, after: str = "", to: Served | None = None) -> StreamClient:
        made.append(StreamClient(to or served, query, after))
        return made[-1]

    yield listen
    for one in made:
        one.close()


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


def eventually(is_true: Callable[[], object], seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    before = time.monotonic()
    while not is_true():
        now = time.monotonic()
        assert now < until, "timed out"
        time.sleep(min(max(0.02, now - before), 0.5))  # asking a browser for a whole page takes a while
        before = time.monotonic()
