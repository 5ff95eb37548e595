"""Who looks, and what is new for them? One thread owns all streams: it reads and renders once for everybody, and sends
without waiting for anybody; while nobody looks, it does nothing. What is sent are pieces of the page that differ from
what was sent last: of the board and a work once a second, of a run as soon as its journal grows. Nothing is rendered
where nothing has changed but the time: clocks go on by themselves."""

import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Protocol

from msgspec import Struct

from ralph.errors import UserError
from ralph.records.register import listed
from ralph.show.plots import Html
from ralph.web import board_page, run_page, work_page
from ralph.web.access import LEVELS, NotServed
from ralph.web.pieces import Frame, fingerprint
from ralph.web.server import Live
from ralph.web.watching import Register, WatchedRun, WatchedRuns, mail_of, seen, view_of

MOST_STREAMS = 256
MOST_PER_BROWSER = 4  # of the six connections that a browser allows itself
MOST_BEHIND = 1 << 20
KERNEL_HOLDS = 1 << 16  # bytes for one who does not read; by itself it would hold megabytes
TICK, LONGEST_PAUSE = 0.05, 1.0
SIGN_OF_LIFE = 15.0
_BEGIN = b"retry: 2000\n\n"
AGAIN = b"event: again\ndata: .\n\n"
"""Asks the page to load itself anew."""
HUSH = b"event: hush\ndata: .\n\n"
"""Asks the page to listen no longer, until somebody looks at it again."""


class Topic(Protocol):
    """What can be looked at: the board, or one run."""

    @property
    def pause(self) -> float:
        """Seconds until there may be something new that must not come later."""
        ...

    def news(self) -> bytes:
        """What is new since this was asked last, for everybody."""
        ...

    def since(self, live: Live) -> bytes:
        """What one who comes now lacks, up to the last news."""
        ...


class Follower(Struct, eq=False):
    sock: socket.socket
    live: Live
    pending: bytearray


class Hub(threading.Thread):
    def __init__(self, open_topic: Callable[[str], Topic]) -> None:
        super().__init__(name="streams", daemon=True)
        self._open_topic = open_topic
        self._topics: dict[str, Topic] = {}
        self._streams: dict[Follower, None] = {}  # oldest first
        self._newcomers: list[Follower] = []
        self._lock = threading.Lock()
        self._somebody = threading.Event()
        self._spoke = self._listened = 0.0

    def take(self, sock: socket.socket, live: Live) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, KERNEL_HOLDS)
        with self._lock:
            self._newcomers.append(Follower(sock, live, bytearray(_BEGIN)))
        self._somebody.set()

    def refuse_too_many(self) -> None:
        if len(self._streams) + len(self._newcomers) >= MOST_STREAMS:
            raise NotServed(503, "Too many look at this.")

    def run(self) -> None:
        while True:
            if self._somebody.wait(self._pause()):
                self._somebody.clear()
                time.sleep(TICK)  # more may come at the same time
            try:
                self.tick()
            except Exception:  # noqa: BLE001 - one thread serves everybody: whatever happens, it goes on
                import traceback

                print("ralph: internal error while telling what is new:", file=sys.stderr)
                traceback.print_exc()
                self._topics.clear()
                for one in list(self._streams):
                    self._drop(one)

    def _pause(self) -> float | None:
        """Seconds until the next look, None while nobody looks. Who comes is not kept waiting for it."""
        if not self._streams:
            return None
        if any(one.pending for one in self._streams):
            return TICK
        return min((topic.pause for topic in self._topics.values()), default=LONGEST_PAUSE)

    def tick(self) -> None:
        with self._lock:
            newcomers, self._newcomers = self._newcomers, []
        for one in newcomers:
            self._welcome(one)
        news = {name: self._news(name) for name in {one.live.topic for one in self._streams}}
        for one in list(self._streams):
            fresh = news[one.live.topic]
            if fresh is not None and one in newcomers:
                fresh = self._topics[one.live.topic].since(one.live)
            self._send(one, AGAIN if fresh is None else fresh)
            if fresh is None:
                self._drop(one)
        self._topics = {name: topic for name, topic in self._topics.items() if news.get(name) is not None}
        self._listen_and_sign(time.monotonic())

    def _welcome(self, newcomer: Follower) -> None:
        """A browser that looks at too many pages at once has its oldest one fall silent."""
        mine = [one for one in self._streams if one.live.browser == newcomer.live.browser]
        for one in mine[: max(len(mine) - MOST_PER_BROWSER + 1, 0)]:
            self._send(one, HUSH)
            self._drop(one)
        self._streams[newcomer] = None

    def _news(self, name: str) -> bytes | None:
        """None where there is nothing to look at any more."""
        try:
            if name not in self._topics:
                self._topics[name] = self._open_topic(name)
            return self._topics[name].news()
        except (UserError, NotServed):
            return None

    def _send(self, one: Follower, data: bytes) -> None:
        one.pending += data
        if not one.pending or one not in self._streams:
            return
        try:
            sent = one.sock.send(one.pending)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._drop(one)
            return
        del one.pending[:sent]
        if len(one.pending) > MOST_BEHIND:
            self._drop(one)

    def _listen_and_sign(self, now: float) -> None:
        """Notices those who have gone, and lets proxies see that a quiet stream lives."""
        if now - self._spoke > SIGN_OF_LIFE:
            self._spoke = now
            for one in list(self._streams):
                self._send(one, b": .\n\n")
        if now - self._listened <= 1:
            return
        self._listened = now
        poll = select.poll()
        known = {one.sock.fileno(): one for one in self._streams}
        for fd in known:
            poll.register(fd, select.POLLIN)
        for fd, _ in poll.poll(0):
            try:
                is_gone = not known[fd].sock.recv(1 << 16)
            except OSError:
                is_gone = True
            if is_gone:
                self._drop(known[fd])

    def _drop(self, one: Follower) -> None:
        self._streams.pop(one, None)
        with suppress(OSError):
            one.sock.shutdown(socket.SHUT_RDWR)
        one.sock.close()


def frame(seq: int, html: str) -> bytes:
    """Pieces of HTML as one event; nothing where there are none."""
    if not html:
        return b""
    lines = "".join(f"data: {line}\n" for line in html.replace("\r", "").split("\n"))
    return f"id: {seq}\n{lines}\n".encode("utf-8", "replace")


OFTEN, SELDOM = 0.25, 1.0  # seconds between two looks at what may change without the journal, or is long
SILENT, RESTING = 3.0, 0.1  # of a run that has been silent for so many seconds, the journal is looked at so often


def topic_name(level: str, run: str = "") -> str:
    """Those of different levels see different pages."""
    return f"{level}/{run}"


def open_topic(name: str, base: str, register: Register, watching: WatchedRuns) -> Topic:
    level, _, run = name.partition("/")
    made = Frame(base, LEVELS[level])
    if not run:
        return SlowTopic(partial(_look_at_all, register, made))
    if register.find(run).facts.kind == "work":
        return SlowTopic(partial(_look_at_a_work, register, run, made))
    return RunTopic(watching.of(run), made)


TopicLook = tuple[object, Callable[[], dict[str, Html]]]
"""What is known, and how it is rendered where that has changed."""


def _look_at_all(register: Register, made: Frame) -> TopicLook:
    glance = register.glance()
    return glance, lambda: board_page.pieces(register.survey(glance), made)


def _look_at_a_work(register: Register, run: str, made: Frame) -> TopicLook:
    work = register.work(seen(register.find(run), time.time()))
    known = work.seen.run, work.seen.mail, work.history.last, work.loops
    return known, partial(work_page.pieces, work, made)


class SlowTopic:
    """What is looked at once a second."""

    def __init__(self, look: Callable[[], TopicLook]) -> None:
        self._look = look
        self._next = 0.0
        self._known: object = None
        self._pieces: dict[str, str] = {}
        self._sent: dict[str, int] = {}

    @property
    def pause(self) -> float:
        return min(max(self._next - time.monotonic(), TICK), LONGEST_PAUSE)

    def news(self) -> bytes:
        now = time.monotonic()
        if now < self._next:
            return b""
        known, render = self._look()
        self._next = now + max(SELDOM, 20 * (time.monotonic() - now))
        if known == self._known:  # nothing has changed but the time
            return b""
        self._known = known
        self._pieces = dict(render())
        fresh, self._sent = _changed(self._pieces, self._sent)
        return frame(fingerprint(self._pieces), fresh)

    def since(self, live: Live) -> bytes:
        now = fingerprint(self._pieces)
        return b"" if live.has == now else frame(now, "".join(self._pieces.values()))


class RunTopic:
    def __init__(self, watched: WatchedRun, made: Frame) -> None:
        self._watched, self._frame = watched, made
        self._stream, self._seq = watched.stream, watched.stream.seq
        self._light: dict[str, str] = {}
        self._heavy: dict[str, str] = {}
        self._sent: dict[str, int] = {}
        self._looked = self._asked = self._weighed = 0.0
        self._heard = time.monotonic()
        self._known: object = None
        self._version = -1

    @property
    def pause(self) -> float:
        """An agent's words are wanted at once; one that thinks for minutes does not begin to speak with a shout."""
        if not self._watched.run.is_alive and self._version == self._watched.version:
            return SELDOM
        return TICK if time.monotonic() - self._heard < SILENT else RESTING

    def news(self) -> bytes:
        watched, now = self._watched, time.monotonic()
        if now - self._asked >= OFTEN:
            self._asked = now
            run = listed(watched.run.place)
            if run is None:
                raise UserError(f"run {watched.run.id} is no longer on record")
            watched.run = run
        watched.look()
        with watched.lock:
            if watched.stream is not self._stream:
                raise UserError(f"run {watched.run.id} begins anew")  # who looks loads the page again
            made = ""
            if watched.stream.seq != self._seq:
                made = watched.stream.since(self._seq)
                self._seq, self._heard = watched.stream.seq, now
            if not self._render(now):
                return frame(self._seq, made)
        fresh, self._sent = _changed(self._heavy | self._light, self._sent)
        return frame(self._seq, made + fresh)

    def _render(self, now: float) -> bool:
        """Parts of the page, no more often than a person could notice. Whether any was rendered."""
        watched, heavy, light = self._watched, self._heavy, self._light
        if now - self._looked >= OFTEN:
            self._looked = now
            known = watched.run, mail_of(watched.run), watched.stream.seq, watched.progress, watched.version
            if known != self._known:
                self._known = known
                self._light = dict(run_page.light_pieces(view_of(watched), self._frame))
        if now - self._weighed >= SELDOM and self._version != self._watched.version:
            self._weighed, self._version = now, self._watched.version
            self._heavy = dict(run_page.heavy_pieces(view_of(self._watched), self._frame))
        return heavy is not self._heavy or light is not self._light

    def since(self, live: Live) -> bytes:
        stream = self._watched.stream
        if live.after > self._seq or 0 < live.after < stream.begin:
            return AGAIN
        parts = self._light if live.has == fingerprint(self._heavy) else self._heavy | self._light
        return frame(self._seq, stream.since(live.after) + "".join(parts.values()))


def _changed(pieces: Mapping[str, str], sent: Mapping[str, int]) -> tuple[str, dict[str, int]]:
    """The pieces that differ from those that were sent, and what has been sent now. At first all count as sent."""
    now = {name: fingerprint({name: html}) for name, html in pieces.items()}
    fresh = [html for name, html in pieces.items() if name in sent and sent[name] != now[name]]
    new = [html for name, html in pieces.items() if sent and name not in sent]
    return "".join(fresh + new), now
