"""A simulated GitHub: issues, pull requests, checks, comments, and git, over TLS with a test certificate.

Programs reach it under GitHub's real names through a proxy on loopback, which this server is as well. Merges and checks
are real: there is a bare repository, and the checks are commands that run on the pushed commit.
"""

import http.server
import json
import os
import re
import ssl
import subprocess
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

HOSTS = ("github.com", "api.github.com")
TOKEN = "gho_a1b2c3d4e5f6g7h8i9j0k1l2m3n4o5p6q7r8"


class LoopbackHost:
    """One repository, `acme/shop`. `ci` maps the names of the host's checks to their commands; `slow` is how often a
    check is reported as running before it ends."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.bare = folder, folder / "shop.git"
        self.certificate = _certificate(folder)
        subprocess.run(["git", "init", "-q", "--bare", "-b", "main", str(self.bare)], check=True)
        self.git("config", "http.receivepack", "true")
        self.issues: dict[int, dict[str, Any]] = {}
        self.comments: dict[int, list[dict[str, Any]]] = {}
        self.pulls: dict[int, dict[str, Any]] = {}
        self.ci: dict[str, str] = {}
        self.slow = 0
        self.asked: list[str] = []
        self.answers: dict[str, tuple[int, Any]] = {}
        self.after_pull: Callable[[], None] = lambda: None
        self._runs: dict[tuple[str, str], list[Any]] = {}
        self._lock = threading.RLock()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.hosted = self
        self._server.socket.setblocking(False)  # a client that has gone must not block the next one
        self._server.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._server.context.load_cert_chain(self.certificate, folder / "key.pem")
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    @property
    def env(self) -> dict[str, str]:
        """The environment that makes gh and git use this host."""
        proxy = f"http://127.0.0.1:{self._server.server_address[1]}"
        return {
            "HTTPS_PROXY": proxy,
            "https_proxy": proxy,
            "SSL_CERT_FILE": str(self.certificate),
            "GIT_SSL_CAINFO": str(self.certificate),
            "GH_TOKEN": TOKEN,
        }

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def git(self, *words: str, stdin: str = "") -> str:
        env = {**os.environ, "GIT_AUTHOR_NAME": "host", "GIT_AUTHOR_EMAIL": "host@localhost"}
        env |= {"GIT_COMMITTER_NAME": "host", "GIT_COMMITTER_EMAIL": "host@localhost"}
        command = ["git", "-C", str(self.bare), *words]
        return subprocess.run(command, check=True, capture_output=True, text=True, env=env, input=stdin).stdout.strip()

    def issue(self, number: int, title: str, body: str, *comments: str, labels: tuple[str, ...] = ()) -> None:
        self.issues[number] = {
            "number": number,
            "title": title,
            "body": body,
            "state": "open",
            "labels": list(labels),
            "comments": len(comments),
        }
        self.comments[number] = [{"user": {"login": "mallory"}, "body": text} for text in comments]

    def merge(self, number: int) -> str:
        """Merge a pull request, as a maintainer would."""
        pull = self.pulls[number]
        assert pull["state"] == "open", pull
        assert not pull["draft"], pull
        tree = self.git("merge-tree", "--write-tree", "main", pull["head"]["ref"])
        parents = ("-p", "main", "-p", pull["head"]["ref"])
        commit = self.git("commit-tree", tree, *parents, stdin=f"Merge #{number}\n")
        self.git("update-ref", "refs/heads/main", commit)
        pull.update(state="closed", merged=True)
        for closed in re.findall(r"(?:Closes|Fixes) #(\d+)", pull["body"]):
            self.issues[int(closed)]["state"] = "closed"
        return commit

    def answer(self, method: str, path: str, query: dict[str, str], body: Any) -> tuple[int, Any]:
        """Return the answer of the REST API."""
        with self._lock:
            self.asked.append(f"{method} {path}")
            if path in self.answers:
                return self.answers[path]
            for pattern, allowed, name in _ROUTES:
                if (found := re.fullmatch(pattern, path)) and method == allowed:
                    answered: tuple[int, Any] = getattr(self, f"_{name}")(*found.groups(), query=query, body=body)
                    return answered
        return 404, {"message": "Not Found"}

    def _repository(self, *, query: Any, body: Any) -> tuple[int, Any]:
        return 200, {"full_name": "acme/shop", "default_branch": "main", "permissions": {"push": True}}

    def _user(self, *, query: Any, body: Any) -> tuple[int, Any]:
        return 200, {"login": "somebody"}

    def _issue(self, number: str, *, query: Any, body: Any) -> tuple[int, Any]:
        found = self.issues.get(int(number))
        return (200, {**found, "html_url": f"https://github.com/acme/shop/issues/{number}"}) if found else _NOT_FOUND

    def _issues_of(self, *, query: Any, body: Any) -> tuple[int, Any]:
        """Return a page of the open issues that have all these labels, the newest first."""
        labels, size = {*filter(None, query.get("labels", "").split(","))}, int(query["per_page"])
        found = [one for one in self.issues.values() if one["state"] == "open" and labels <= {*one["labels"]}]
        begin = (int(query.get("page", "1")) - 1) * size
        return 200, sorted(found, key=lambda one: -int(one["number"]))[begin : begin + size]

    def _comments_of(self, number: str, *, query: Any, body: Any) -> tuple[int, Any]:
        size = int(query["per_page"])
        begin = (int(query.get("page", "1")) - 1) * size
        return 200, self.comments.get(int(number), [])[begin : begin + size]

    def _pulls_of(self, *, query: Any, body: Any) -> tuple[int, Any]:
        wanted = query.get("head", "").partition(":")[2]
        state = query.get("state", "open")
        found = [self._told(one) for one in self.pulls.values()
                 if one["head"]["ref"] == wanted and state in ("all", one["state"])]  # fmt: skip
        return 200, found

    def _new_pull(self, *, query: Any, body: Any) -> tuple[int, Any]:
        if not self._sha(body["head"]) or any(
            one["head"]["ref"] == body["head"] and one["state"] == "open" for one in self.pulls.values()
        ):
            return 422, {"message": "Validation Failed", "errors": [{"message": "A pull request already exists"}]}
        number = 1 + max((*self.issues, *self.pulls), default=0)
        self.pulls[number] = {
            "number": number,
            "node_id": f"PR_{number}",
            "title": body["title"],
            "body": body["body"],
            "draft": body.get("draft", False),
            "state": "open",
            "merged": False,
            "head": {"ref": body["head"]},
            "base": {"ref": body["base"]},
        }
        self.after_pull()
        return 201, self._told(self.pulls[number])

    def _one_pull(self, number: str, *, query: Any, body: Any) -> tuple[int, Any]:
        found = self.pulls.get(int(number))
        return (200, self._told(found)) if found else _NOT_FOUND

    def _changed_pull(self, number: str, *, query: Any, body: Any) -> tuple[int, Any]:
        self.pulls[int(number)].update(body)
        return 200, self._told(self.pulls[int(number)])

    def _graphql(self, *, query: Any, body: Any) -> tuple[int, Any]:
        node = body["variables"]["id"]
        for one in self.pulls.values():
            if one["node_id"] == node and "markPullRequestReadyForReview" in body["query"]:
                one["draft"] = False
        return 200, {"data": {"markPullRequestReadyForReview": {"clientMutationId": None}}}

    def _checks_of(self, sha: str, *, query: Any, body: Any) -> tuple[int, Any]:
        runs = [self._check(sha, name, command) for name, command in self.ci.items()]
        return 200, {"total_count": len(runs), "check_runs": runs}

    def _statuses_of(self, sha: str, *, query: Any, body: Any) -> tuple[int, Any]:
        return 200, {"state": "pending", "statuses": []}

    def _log(self, number: str, *, query: Any, body: Any) -> tuple[int, Any]:
        return next((200, run[2]) for run in self._runs.values() if run[0] == int(number))

    def _check(self, sha: str, name: str, command: str) -> dict[str, Any]:
        """Return a check of the host, run on the commit; it is reported as running at first."""
        run = self._runs.setdefault((sha, name), [900 + len(self._runs), self.slow, "", None])
        if run[1] > 0:
            run[1] -= 1
            return {"id": run[0], "name": name, "status": "in_progress", "conclusion": None}
        if run[3] is None:
            with tempfile.TemporaryDirectory(dir=self.folder) as place:
                archive = f"git -C '{self.bare}' archive {sha} | tar -x -C '{place}'"
                subprocess.run(["sh", "-c", archive], check=True)
                done = subprocess.run(["sh", "-c", command], cwd=place, capture_output=True, text=True, check=False)
            run[2] = f"2026-11-15T06:00:00.0000000Z {name} begins\n{done.stdout}{done.stderr}"
            run[3] = "success" if done.returncode == 0 else "failure"
        about = {"id": run[0], "name": name, "status": "completed", "conclusion": run[3]}
        return {**about, "details_url": f"https://github.com/acme/shop/actions/runs/7/job/{run[0]}"}

    def _told(self, pull: dict[str, Any]) -> dict[str, Any]:
        head = {**pull["head"], "sha": self._sha(pull["head"]["ref"])}
        return {**pull, "head": head, "html_url": f"https://github.com/acme/shop/pull/{pull['number']}"}

    def _sha(self, branch: str) -> str:
        command = ["git", "-C", str(self.bare), "rev-parse", "-q", "--verify", f"refs/heads/{branch}"]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


_NOT_FOUND = (404, {"message": "Not Found", "documentation_url": "https://docs.github.com/rest"})
_REPO = "/repos/acme/shop"
_ROUTES = (
    ("/user", "GET", "user"),
    ("/graphql", "POST", "graphql"),
    (_REPO, "GET", "repository"),
    (f"{_REPO}/issues", "GET", "issues_of"),
    (rf"{_REPO}/issues/(\d+)", "GET", "issue"),
    (rf"{_REPO}/issues/(\d+)/comments", "GET", "comments_of"),
    (f"{_REPO}/pulls", "GET", "pulls_of"),
    (f"{_REPO}/pulls", "POST", "new_pull"),
    (rf"{_REPO}/pulls/(\d+)", "GET", "one_pull"),
    (rf"{_REPO}/pulls/(\d+)", "PATCH", "changed_pull"),
    (rf"{_REPO}/commits/([0-9a-f]+)/check-runs", "GET", "checks_of"),
    (rf"{_REPO}/commits/([0-9a-f]+)/status", "GET", "statuses_of"),
    (rf"{_REPO}/actions/jobs/(\d+)/logs", "GET", "log"),
)


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # clients wait instead of being refused
    hosted: LoopbackHost
    context: ssl.SSLContext

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that close the connection."""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_CONNECT(self) -> None:
        """Open a tunnel to one of GitHub's names; the client then speaks TLS."""
        if self.path.partition(":")[0] not in HOSTS:
            self.send_error(403, "no way out")
            return
        self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        self.connection = self.server.context.wrap_socket(self.connection, server_side=True)
        self.rfile, self.wfile = self.connection.makefile("rb"), self.connection.makefile("wb", 0)  # type: ignore[assignment]
        self.close_connection = False

    def _answer(self) -> None:
        if self.headers.get("Expect", "").lower() == "100-continue":
            self.send_response_only(100)
            self.end_headers()
        data = self._body()
        if self.headers["Host"] == "github.com":
            self._speak_git(data)
            return
        if self.headers.get("Authorization") != f"token {TOKEN}":
            self._say(401, {"message": "Bad credentials"})
            return
        parts = urlsplit(self.path)
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        code, said = self.server.hosted.answer(self.command, parts.path, query, json.loads(data) if data else None)
        is_full = isinstance(said, list) and str(len(said)) == query.get("per_page")
        after = urlencode({**query, "page": int(query.get("page", "1")) + 1})
        self._say(code, said, f'<https://api.github.com{parts.path}?{after}>; rel="next"' if is_full else "")

    do_GET = do_POST = do_PATCH = do_PUT = _answer

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            pieces = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                pieces.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(pieces)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _say(self, code: int, said: Any, link: str = "") -> None:
        data = said.encode() if isinstance(said, str) else json.dumps(said).encode()
        self.send_response(code)
        self.send_header("Content-Type", "text/plain" if isinstance(said, str) else "application/json; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        if link:
            self.send_header("Link", link)
        self.end_headers()
        self.wfile.write(data)

    def _speak_git(self, data: bytes) -> None:
        """Serve the repository through `git http-backend`."""
        parts = urlsplit(self.path)
        env = {
            **os.environ,
            "GIT_PROJECT_ROOT": str(self.server.hosted.folder),
            "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": parts.path.removeprefix("/acme"),
            "QUERY_STRING": parts.query,
            "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            "REMOTE_USER": "somebody",
            "GIT_COMMITTER_NAME": "host",
            "GIT_COMMITTER_EMAIL": "host@localhost",
        }
        done = subprocess.run(["git", "http-backend"], input=data, capture_output=True, env=env, check=False)
        head, _, body = done.stdout.partition(b"\r\n\r\n")
        headers = [line.split(": ", 1) for line in head.decode().split("\r\n") if ": " in line]
        status = next((int(value.split()[0]) for name, value in headers if name == "Status"), 200)
        self.send_response(status)
        for name, value in headers:
            if name != "Status":
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def finish(self) -> None:
        super().finish()
        self.connection.close()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Log nothing."""


def _certificate(folder: Path) -> Path:
    names = ",".join(f"DNS:{host}" for host in HOSTS)
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
    ]
    command += ["-keyout", str(folder / "key.pem"), "-out", str(folder / "certificate.pem"), "-subj", "/CN=github.com"]
    subprocess.run([*command, "-addext", f"subjectAltName={names}"], check=True, capture_output=True)
    return folder / "certificate.pem"
