"""Live updates as server-sent events.

Readers of the same page (the board, a run, a backlog) share a `Topic`, which reads the disk and renders the parts that
have changed. Nothing is rendered if only time has passed: a script on the page advances the clocks. A reader asks for
what it lacks after it has received the last event, so a slow one gets only the latest version of each part.
"""

import sys
import threading
import time
import traceback
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial

from anyio import sleep, to_thread
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from ralph.errors import UserError
from ralph.show.plots import Html
from ralph.store.register import Listed
from ralph.web import backlog_page, board_page, run_page
from ralph.web.access import RequestRefused
from ralph.web.pieces import Frame
from ralph.web.watching import Register, WatchedRun, look_at

run_in_thread = partial(to_thread.run_sync, abandon_on_cancel=True)
"""Runs a blocking function (disk, git, rendering). Ctrl-C does not wait for it."""
MAX_STREAMS = 256
STREAMS_PER_BROWSER = 4  # a browser opens at most six connections to one host
FILES_TIMEOUT = 0.5  # seconds to wait for the list of changed files; git may hang
KEEPALIVE_INTERVAL = 15.0  # seconds; proxies close connections that stay silent
RETRY, KEEPALIVE = b"retry: 2000\n\n", b": .\n\n"
RELOAD = b"event: reload\ndata: .\n\n"
"""Tells the page to reload."""
DISCONNECT = b"event: disconnect\ndata: .\n\n"
"""Tells the page to close its stream until its tab is shown again."""


class Topic:
    """What the readers of a page share: the page of a run or a backlog as readers of `frame` see it, else the board."""

    def __init__(self, frame: Frame, run: Listed | None, register: Register) -> None:
        self.page = frame, run.id if run else ""
        self._frame, self._run, self._register = frame, run, register
        self._watched: WatchedRun | None = None  # a run, but not a backlog
        self._lock = threading.Lock()
        self._read_at = self._next_look = 0.0
        self._known: object = None
        self._parts: dict[str, tuple[Html, int]] = {}  # each with the version that changed it
        self._version = 0
        self.is_broken = False

    @property
    def pause(self) -> float:
        """Seconds until a reader should fetch again."""
        return 0.1 if self._watched and self._watched.run.is_alive else 1.0

    def fetch(self, after: int, version: int, not_before: float) -> tuple[bytes, int, int]:
        """Return what a reader lacks, the number of the last event, and the version of the parts.

        The reader has the events up to `after` and the parts up to `version`. Read the disk unless that was done since
        `not_before`. Raise `UserError` if the page must be loaded again.
        """
        with self._lock:
            if self._read_at < not_before:
                self._read_at = time.monotonic()
                self._read()
            html, last = "", 0
            if self._watched:
                stream = self._watched.stream
                if after > stream.seq or 0 < after < stream.begin:
                    raise UserError("the page lacks events that are no longer kept")
                html, last = stream.since(after), stream.seq
            html += "".join(part for part, changed in self._parts.values() if changed > version)
            return format_event(last, html), last, self._version

    def _read(self) -> None:
        """Read new events. Look whether parts have changed twice a second, or less often if that takes long."""
        if self._run and self._run.by_kind(True, False):
            self._watched = self._watched or WatchedRun.open(self._run)
            self._watched.read_new()
        now = time.monotonic()
        if now < self._next_look:
            return
        state, render = self._look()
        if state != self._known:  # not only time has passed
            before, self._parts = self._parts, {}
            self._known, self._version = state, self._version + 1
            for name, html in render().items():
                old = before.get(name)
                self._parts[name] = old if old and old[0] == html else (html, self._version)
        self._next_look = now + max(0.5, 20 * (time.monotonic() - now))

    def _look(self) -> tuple[object, Callable[[], Mapping[str, Html]]]:
        """Return everything that the page depends on, except the time, and a function that renders its parts."""
        frame, register, watched = self._frame, self._register, self._watched
        if self._run is None:
            return register.survey(0.0), lambda: board_page.pieces(register.survey(time.time()), frame)
        run = register.find(self._run.id)
        status, result = look_at(run, 0.0), register.command_result(run.id)
        if watched is None:
            work = register.work(status), result
            return work, lambda: backlog_page.pieces(register.work(look_at(run, time.time())), frame)
        watched.run = run
        watched.load_files(FILES_TIMEOUT)
        state = status, result, watched.stream.seq, watched.history().files
        return state, lambda: run_page.pieces(register.view(watched), frame)

    def close(self) -> None:
        with self._lock:
            if self._watched:
                self._watched.close()


class EventStream(StreamingResponse):
    """The stream of one reader."""

    def __init__(self, hub: "Hub", topic: Topic, after: int, browser: str) -> None:
        super().__init__(self._events(after), headers={"X-Accel-Buffering": "no"}, media_type="text/event-stream")
        self._hub, self.topic, self.browser = hub, topic, browser
        self.is_ended = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._hub.leave(self)

    async def _events(self, after: int) -> AsyncIterator[bytes]:
        yield RETRY
        version, not_before, sent_at = 0, time.monotonic(), time.monotonic()
        while not self.is_ended:
            try:
                event, after, version = await run_in_thread(partial(self.topic.fetch, after, version, not_before))
            except Exception as error:  # noqa: BLE001 - a bug in one page must not end the streams for good
                self.topic.is_broken = True
                if not isinstance(error, UserError | RequestRefused):
                    print("ralph: internal error in the web UI's streams:", file=sys.stderr)
                    traceback.print_exc()
                yield RELOAD
                return
            if event or time.monotonic() - sent_at > KEEPALIVE_INTERVAL:
                yield event or KEEPALIVE
                sent_at = time.monotonic()
            await sleep(self.topic.pause)
            not_before = time.monotonic() - self.topic.pause
        yield DISCONNECT


class Hub:
    """All open streams, oldest first."""

    def __init__(self, register: Register) -> None:
        self._register = register
        self._streams: list[EventStream] = []

    def subscribe(self, frame: Frame, run: Listed | None, after: int, browser: str) -> EventStream:
        """Return a new stream. If the browser has too many, its oldest one ends."""
        if len(self._streams) >= MAX_STREAMS:
            raise RequestRefused(503, f"too many viewers: at most {MAX_STREAMS}")
        own = [other for other in self._streams if other.browser == browser]
        for oldest in own[: max(len(own) - STREAMS_PER_BROWSER + 1, 0)]:
            oldest.is_ended = True
            self.leave(oldest)
        topic = Topic(frame, run, self._register)
        shared = (
            other.topic for other in self._streams if other.topic.page == topic.page and not other.topic.is_broken
        )
        stream = EventStream(self, next(shared, topic), after, browser)
        self._streams.append(stream)
        return stream

    def leave(self, stream: EventStream) -> None:
        """Remove a stream that ends. Its topic is closed after its last stream, in a thread because it may be read."""
        if stream in self._streams:
            self._streams.remove(stream)
            if all(other.topic is not stream.topic for other in self._streams):
                threading.Thread(target=stream.topic.close, daemon=True).start()


def format_event(number: int, html: str) -> bytes:
    """Return HTML as one server-sent event, nothing if it is empty."""
    if not html:
        return b""
    lines = "".join(f"data: {line}\n" for line in html.replace("\r", "").split("\n"))
    return f"id: {number}\n{lines}\n".encode("utf-8", "replace")
