"""Who looks, and what is new for them? One thread owns all streams: it reads and renders once for everybody, and sends
without waiting for anybody. It looks as often as there may be something new; while nobody looks, it does nothing."""

import select
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from msgspec import Struct

from ralph.errors import UserError
from ralph.web.access import NotServed
from ralph.web.server import Live

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
                self._complain()

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
        if now - self._listened > 1:
            self._listened = now
            self._drop_the_departed()

    def _drop_the_departed(self) -> None:
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

    def _complain(self) -> None:
        import traceback

        print("ralph: internal error while telling what is new:", file=sys.stderr)
        traceback.print_exc()
        self._topics.clear()
        for one in list(self._streams):
            self._drop(one)


def frame(seq: int, html: str) -> bytes:
    """Pieces of HTML as one event; nothing where there are none."""
    if not html:
        return b""
    lines = "".join(f"data: {line}\n" for line in html.replace("\r", "").split("\n"))
    return f"id: {seq}\n{lines}\n".encode("utf-8", "replace")
