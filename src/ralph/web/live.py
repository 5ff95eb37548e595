"""What is sent to those who look, and when? Pieces of the page that differ from what was sent last: of the board and a
work once a second, of a run as soon as its journal grows. Nothing is rendered twice for two people who see the same,
nor where nothing has changed but the time: clocks go on by themselves."""

import time
from collections.abc import Callable, Mapping
from functools import partial

from ralph.errors import UserError
from ralph.records.register import listed
from ralph.show.plots import Html
from ralph.web import board_page, run_page, work_page
from ralph.web.access import LEVELS
from ralph.web.hub import AGAIN, LONGEST_PAUSE, TICK, Topic, frame
from ralph.web.pieces import Frame, fingerprint
from ralph.web.server import Live
from ralph.web.watching import Register, WatchedRun, WatchedRuns, mail_of, seen, view_of

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


Look = tuple[object, Callable[[], dict[str, Html]]]
"""What is known, and how it is rendered where that has changed."""


def _look_at_all(register: Register, made: Frame) -> Look:
    glance = register.glance()
    return glance, lambda: board_page.pieces(register.survey(glance), made)


def _look_at_a_work(register: Register, run: str, made: Frame) -> Look:
    work = register.work(seen(register.find(run), time.time()))
    known = work.seen.run, work.seen.mail, work.history.last, work.loops
    return known, partial(work_page.pieces, work, made)


class SlowTopic:
    """What is looked at once a second."""

    def __init__(self, look: Callable[[], Look]) -> None:
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
            watched.refresh(run)
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
    """The pieces that differ from those that were sent, and what has been sent now. At first all count as sent: who
    comes gets what he lacks."""
    now = {name: fingerprint({name: html}) for name, html in pieces.items()}
    fresh = [html for name, html in pieces.items() if name in sent and sent[name] != now[name]]
    new = [html for name, html in pieces.items() if sent and name not in sent]
    return "".join(fresh + new), now
