"""A model that really thinks, if little: it streams, counts its tokens and keeps its cache as the large ones do. What
it says is forced on it, word for word, where a test needs it to say something sensible."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest


@pytest.fixture(scope="session")
def model() -> Iterator[str]:
    """The address of the model's server."""
    if find_spec("xllamacpp") is None and "CI" not in os.environ:
        pytest.skip("needs a model: make test-model installs one")
    words = [sys.executable, str(Path(__file__).with_name("serve.py"))]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.communicate()


class Prompter:
    """Stands before the model and puts words into its mouth: each of `lines` becomes the only answer that its grammar
    allows. All else is the model's own: the stream, the usage, the cache. `usage` is what it said of each answer."""

    def __init__(self, model: str) -> None:
        self.lines: list[str] = []
        self.asked: list[dict[str, Any]] = []
        self.usage: list[dict[str, Any]] = []
        outer, address = self, urlsplit(model).netloc

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.asked.append(asked)
                forced = {"grammar": grammar(outer.lines.pop(0))} if outer.lines else {}
                upstream = HTTPConnection(address, timeout=600)
                headers = {"Content-Type": "application/json"}
                upstream.request("POST", self.path, json.dumps({**asked, **forced, "temperature": 0}), headers)
                reply = upstream.getresponse()
                self.send_response(reply.status)
                self.send_header("Content-Type", reply.headers["Content-Type"])
                self.end_headers()
                for line in reply:
                    if line.startswith(b"data: {") and b'"usage":{' in line:
                        outer.usage.append(json.loads(line[6:])["usage"])
                    self.wfile.write(line)
                    self.wfile.flush()
                upstream.close()

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def grammar(text: str) -> str:
    return f"root ::= {json.dumps(text)}"


@pytest.fixture
def prompter(model: str) -> Iterator[Prompter]:
    made = Prompter(model)
    yield made
    made.close()
