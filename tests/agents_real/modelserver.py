"""A server on loopback that takes the place of the model: it answers the agents' requests with the steps of a script.

Every scenario gets its own address, so that a late request of an earlier agent cannot take a step of another script.
"""

import json
import socket
import struct
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from uuid import uuid4

from dialects import Dialect, Reply, dialect
from script import (
    Asked,
    Broken,
    Call,
    Cut,
    Endless,
    Fail,
    Forever,
    Hang,
    Other,
    Say,
    Step,
    Tokens,
    Torn,
    Use,
    Uses,
    offers,
    use,
)

ASIDE = Reply("A short title", (), Tokens(0, 0))


class Stage:
    """One scenario: its steps, its address, and the requests to it."""

    def __init__(self, url: str, steps: Sequence[Step]) -> None:
        self.url = url
        self.steps = list(steps)
        self.asked: list[Asked] = []  # requests of the agent's own loop, one step each
        self.asides: list[Asked] = []  # titles, summaries, memory: answered, but not part of the script
        self.bodies: list[bytes] = []  # every request verbatim
        self.headers: list[Mapping[str, str]] = []
        self.has_asides = True  # whether a request that offers no tools is an aside
        self.surplus = 0  # requests that came after the last step
        self.problems: list[str] = []
        self.over = threading.Event()
        self._lock = threading.Lock()

    def next(self, asked: Asked) -> Step:
        with self._lock:
            self.asked.append(asked)
            if not self.steps:
                self.surplus += 1
                return Say("The script is over.")
            step = self.steps[0]
            if isinstance(step, Forever):
                return step.step
            return self.steps.pop(0)

    def is_aside(self, asked: Asked) -> bool:
        """Whether a request is not a step of the work, because it offers no tool to act with."""
        return (self.has_asides and not offers(asked, "shell")) or any(mark in asked.system for mark in ASIDES)


# Beginnings of the system prompts of helpers that agents run next to the work, with separate tools.
ASIDES = ("You are now acting as the managed memory extraction subagent",)


class ModelServer:
    """The server. `stage(steps)` opens an address that plays them; requests `elsewhere` get this status."""

    def __init__(self, elsewhere: int = 404) -> None:
        self.elsewhere = elsewhere
        self.stages: dict[str, Stage] = {}
        self._http = _Http(self)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> "ModelServer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for stage in self.stages.values():
            stage.over.set()
        self._http.shutdown()
        self._http.server_close()

    @property
    def port(self) -> int:
        return self._http.server_port

    @contextmanager
    def stage(self, *steps: Step) -> Iterator[Stage]:
        token = uuid4().hex[:12]
        stage = Stage(f"http://127.0.0.1:{self.port}/{token}", steps)
        self.stages[token] = stage
        try:
            yield stage
        finally:
            stage.over.set()
            del self.stages[token]


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, model: ModelServer) -> None:
        super().__init__(("127.0.0.1", 0), _Exchange)
        self.model = model

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore an agent that is killed while it gets an answer; anything else is an error of the server."""
        error = sys.exception()
        if not isinstance(error, OSError):
            super().handle_error(request, client_address)


class _Exchange(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Http

    def log_message(self, *_: object) -> None:
        """Print nothing: the stage keeps the requests."""

    def do_GET(self) -> None:
        self._nothing()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        token, _, path = self.path.lstrip("/").partition("/")
        path = path.partition("?")[0]
        stage, spoken = self.server.model.stages.get(token), dialect(path)
        if stage and spoken:
            stage.bodies.append(body)
            stage.headers.append(dict(self.headers))
            self._model(stage, spoken, spoken.asked(path, json.loads(body)))
        elif path.endswith(("count_tokens", "countTokens")):
            self._whole(200, {"input_tokens": 100, "totalTokens": 100})
        else:
            self._nothing()

    def _nothing(self) -> None:
        self._whole(self.server.model.elsewhere, {"error": {"message": "no scenario is played here"}})

    def _model(self, stage: Stage, spoken: Dialect, asked: Asked) -> None:
        if stage.is_aside(asked):
            stage.asides.append(asked)
            self._answer(spoken, ASIDE, asked)
            return
        match stage.next(asked):
            case Say(text, tokens, cut):
                self._answer(spoken, Reply(text, (), tokens, cut), asked)
            case Uses(calls, text):
                self._answer(spoken, Reply(text, tuple(Use(*call) for call in calls), Tokens()), asked)
            case Torn(text, size, chunked):
                self._torn(b"".join(spoken.stream(Reply(text, (), Tokens()), asked))[:size], chunked)
            case Broken(text, fail):
                self._begin(spoken, text, asked)
                self._chunk(spoken.error_inside(fail))
                self._chunk(b"")
            case Endless(text):
                self._begin(spoken, text, asked, again=stage.over)
            case Other(data, kind):
                self._bytes(200, data, {"content-type": kind})
            case Call() as call:
                self._call(stage, spoken, call, asked)
            case Fail(status=status, headers=headers) as fail:
                self._whole(status, spoken.error(fail), dict(headers))
            case Cut(text):
                if text:
                    self._begin(spoken, text, asked)
                self._reset()
            case Hang(text):
                self._begin(spoken, text, asked)
                stage.over.wait()
                self._reset()

    def _call(self, stage: Stage, spoken: Dialect, call: Call, asked: Asked) -> None:
        try:
            reply = Reply(call.text, (use(call, asked),), call.tokens)
        except LookupError as error:
            stage.problems.append(str(error))
            self._whole(400, spoken.error(Fail(400, str(error))))
        else:
            self._answer(spoken, reply, asked)

    def _answer(self, spoken: Dialect, reply: Reply, asked: Asked) -> None:
        if asked.streaming:
            self._head()
            for event in spoken.stream(reply, asked):
                self._chunk(event)
            self._chunk(b"")
        else:
            self._whole(200, spoken.whole(reply, asked))

    def _begin(self, spoken: Dialect, text: str, asked: Asked, again: threading.Event | None = None) -> None:
        """Send a reply without the events that end it. Repeat its last event until `again` is set."""
        self._head()
        events = list(spoken.stream(Reply(text, (), Tokens()), asked))[: -spoken.ending]
        for event in events:
            self._chunk(event)
        deltas = [event for event in events if b"delta" in event or b"candidates" in event]
        while again and not again.is_set():
            self._chunk(deltas[-1])

    def _torn(self, data: bytes, chunked: bool) -> None:
        self._head(chunked)
        if chunked and data:
            self._chunk(data)
        elif data:
            self.wfile.write(data)
        self.wfile.flush()
        self.connection.shutdown(socket.SHUT_RDWR)
        self.close_connection = True

    def _head(self, chunked: bool = True) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header(*(("transfer-encoding", "chunked") if chunked else ("connection", "close")))
        self.end_headers()

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def _whole(self, status: int, body: object, headers: dict[str, str] | None = None) -> None:
        self._bytes(status, json.dumps(body).encode(), {"content-type": "application/json", **(headers or {})})

    def _bytes(self, status: int, data: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _reset(self) -> None:
        """End the connection with a reset, as if the line was lost."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True
