"""Live updates as server-sent events.

`Hub` reads and renders each topic (the board, one run, one backlog) once for all its subscribers, and only while there
are any. It sends the parts of a page that changed: the board and a backlog are checked once a second, a run as soon as
its journal grows. Nothing is rendered if only time has passed: a script on the page advances the clocks.
"""

import asyncio
import sys
import time
import traceback
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from functools import partial

from anyio import to_thread
from msgspec import Struct, field
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from ralph.errors import UserError
from ralph.show.plots import Html
from ralph.store.register import run_at
from ralph.web import board_page, run_page, work_page
from ralph.web.access import RequestRefused
from ralph.web.pieces import Frame
from ralph.web.watching import Register, WatchedRun, look_at

run_in_thread = partial(to_thread.run_sync, abandon_on_cancel=True)
"""Runs a blocking function (disk, git, rendering). Ctrl-C does not wait for it."""
MAX_STREAMS = 256
STREAMS_PER_BROWSER = 4  # a browser opens at most six connections to one host
MAX_PENDING = 1 << 20  # bytes
TICK, LONGEST_PAUSE = 0.1, 1.0  # seconds
FILES_TIMEOUT = 0.5  # seconds to wait for the list of changed files; git may hang
KEEPALIVE_INTERVAL = 15.0  # seconds; proxies close connections that stay silent
RETRY, KEEPALIVE = b"retry: 2000\n\n", b": .\n\n"
RELOAD = b"event: reload\ndata: .\n\n"
"""Tells the page to reload."""
DISCONNECT = b"event: disconnect\ndata: .\n\n"
"""Tells the page to close its stream until its tab is shown again."""


class Subscriber(Struct, eq=False, kw_only=True):
    """One open stream. `abort` closes its connection without waiting for the client."""

    topic: "TopicName"
    after: int
    browser: str
    abort: Callable[[], None]
    pending: bytearray = field(default_factory=lambda: bytearray(RETRY))
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    is_new: bool = True
    is_closed: bool = False

    async def chunks(self) -> AsyncIterator[bytes]:
        while True:
            if self.pending:
                chunk = bytes(self.pending)
                self.pending.clear()
                yield chunk
            elif self.is_closed:
                return
            else:
                self.ready.clear()
                await self.ready.wait()

    def send(self, data: bytes) -> None:
        self.pending += data
        self.ready.set()

    def close(self) -> None:
        self.is_closed = True
        self.ready.set()


class Hub:
    def __init__(self, register: Register) -> None:
        self._register = register
        self._topics: dict[TopicName, Topic] = {}
        self._subscribers: dict[Subscriber, None] = {}  # oldest first
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._last_keepalive = 0.0

    def subscribe(self, subscriber: Subscriber) -> StreamingResponse:
        """Return the stream. If the browser has too many, its oldest one ends."""
        if len(self._subscribers) >= MAX_STREAMS:
            raise RequestRefused(503, f"too many viewers: at most {MAX_STREAMS}")
        own = [one for one in self._subscribers if one.browser == subscriber.browser]
        for one in own[: max(len(own) - STREAMS_PER_BROWSER + 1, 0)]:
            self._end(one, DISCONNECT)
        self._subscribers[subscriber] = None
        self._wake.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        return EventStreamResponse(subscriber, self._subscribers)

    async def _run(self) -> None:
        """Send news until there are no subscribers."""
        while self._subscribers:
            try:
                await self._send_news()
            except Exception:  # noqa: BLE001 - a bug in one page must not end the streams of the others for good
                print("ralph: internal error in the web UI's streams:", file=sys.stderr)
                traceback.print_exc()
                self._topics.clear()
                for one in list(self._subscribers):
                    self._end(one, RELOAD)
            self._wake.clear()
            if not any(one.is_new for one in self._subscribers):
                pause = min((topic.pause for topic in self._topics.values()), default=LONGEST_PAUSE)
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), pause)
        self._topics.clear()

    async def _send_news(self) -> None:
        news = await run_in_thread(partial(self._collect, list(self._subscribers)))
        for one, fresh in news.items():
            one.is_new = False
            if fresh is None:
                self._end(one, RELOAD)
            elif fresh:
                one.send(fresh)
            if len(one.pending) > MAX_PENDING:
                self._subscribers.pop(one, None)
                one.abort()
        now = time.monotonic()
        if now - self._last_keepalive > KEEPALIVE_INTERVAL:
            self._last_keepalive = now
            for one in self._subscribers:
                one.send(KEEPALIVE)

    def _collect(self, subscribers: list[Subscriber]) -> dict[Subscriber, bytes | None]:
        """Return what each subscriber lacks, None if its page must reload. Runs in a thread."""
        news: dict[TopicName, bytes | None] = {}
        for name in {one.topic for one in subscribers}:
            try:
                if name not in self._topics:
                    self._topics[name] = open_topic(*name, self._register)
                news[name] = self._topics[name].news()
            except (UserError, RequestRefused):
                news[name] = None
        for name in [name for name in self._topics if news.get(name) is None]:
            self._topics.pop(name).close()
        newcomers = [one for one in subscribers if one.is_new and one.topic in self._topics]
        missing = {one: self._topics[one.topic].since(one.after) for one in newcomers}
        return {one: news[one.topic] for one in subscribers} | missing

    def _end(self, subscriber: Subscriber, event: bytes) -> None:
        self._subscribers.pop(subscriber, None)
        subscriber.send(event)
        subscriber.close()


class EventStreamResponse(StreamingResponse):
    """The stream of a subscriber, who is removed from all `subscribers` when it ends."""

    def __init__(self, subscriber: Subscriber, subscribers: dict[Subscriber, None]) -> None:
        super().__init__(subscriber.chunks(), headers={"X-Accel-Buffering": "no"}, media_type="text/event-stream")
        self._subscriber, self._subscribers = subscriber, subscribers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._subscribers.pop(self._subscriber, None)


TopicName = tuple[Frame, str]
"""A page as some readers see it: of a run, or the board if the name of the run is empty."""
TopicLook = tuple[object, Callable[[], Mapping[str, Html]]]
"""Everything that a page depends on, except the time, and a function that renders its parts."""


def open_topic(frame: Frame, run: str, register: Register) -> "Topic":
    if run and register.find(run).facts.kind != "work":
        return RunTopic(WatchedRun.open(register.find(run)), register, frame)

    def look_at_board() -> TopicLook:
        return register.survey(0.0), lambda: board_page.pieces(register.survey(time.time()), frame)

    def look_at_backlog() -> TopicLook:
        listed = register.find(run)
        known = register.work(look_at(listed, 0.0)), register.command_result(run)
        return known, lambda: work_page.pieces(register.work(look_at(listed, time.time())), frame)

    return Topic(look_at_backlog if run else look_at_board)


class Topic:
    """A page whose parts are checked every `interval` seconds, or less often if that takes long."""

    interval = 1.0

    def __init__(self, look: Callable[[], TopicLook]) -> None:
        self._look = look
        self._next_look = 0.0
        self._known: object = None
        self._parts: Mapping[str, Html] = {}

    @property
    def pause(self) -> float:
        """Seconds until `news` should be called again."""
        return min(max(self._next_look - time.monotonic(), TICK), LONGEST_PAUSE)

    def news(self) -> bytes:
        """Return what changed since the last call, for all subscribers. Raise `UserError` if they must reload."""
        return format_event(0, self._changed_parts())

    def since(self, after: int) -> bytes:
        """Return all parts, and the events after number `after`, for a new subscriber."""
        return format_event(0, "".join(self._parts.values()))

    def close(self) -> None:
        """Close what the topic reads, when its last reader has left."""

    def _changed_parts(self) -> str:
        now = time.monotonic()
        if now < self._next_look:
            return ""
        known, render = self._look()
        before = self._parts
        if known != self._known:  # not only time has passed
            self._known, self._parts = known, render()
        self._next_look = now + max(self.interval, 20 * (time.monotonic() - now))
        return "".join(html for name, html in self._parts.items() if before and before.get(name) != html)


class RunTopic(Topic):
    """The page of a run. What its agent says and does is sent as soon as its journal grows."""

    interval = 0.5

    def __init__(self, watched: WatchedRun, register: Register, frame: Frame) -> None:
        super().__init__(self._look_at_run)
        self._watched, self._register, self._frame = watched, register, frame
        self._seq = watched.stream.seq

    def _look_at_run(self) -> TopicLook:
        watched, register = self._watched, self._register
        run = run_at(watched.run.place)
        if run is None:
            raise UserError(f"run {watched.run.id} was removed")
        watched.run = run
        watched.load_files(FILES_TIMEOUT)
        known = look_at(run, 0.0), watched.stream.seq, watched.history().files, register.command_result(run.id)
        return known, lambda: run_page.pieces(register.view(watched), self._frame)

    @property
    def pause(self) -> float:
        return TICK if self._watched.run.is_alive else super().pause

    def news(self) -> bytes:
        self._watched.read_new()
        html = self._watched.stream.since(self._seq)
        self._seq = self._watched.stream.seq
        return format_event(self._seq, html + self._changed_parts())

    def since(self, after: int) -> bytes:
        stream = self._watched.stream
        if after > self._seq or 0 < after < stream.begin:
            return RELOAD
        return format_event(self._seq, stream.since(after) + "".join(self._parts.values()))

    def close(self) -> None:
        self._watched.close()


def format_event(number: int, html: str) -> bytes:
    """Return HTML as one server-sent event, nothing if it is empty."""
    if not html:
        return b""
    lines = "".join(f"data: {line}\n" for line in html.replace("\r", "").split("\n"))
    return f"id: {number}\n{lines}\n".encode("utf-8", "replace")
