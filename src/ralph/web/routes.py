"""Which address means what? First the two that need no session, what a page is made of and the way in; then a table of
what can be looked at, and one of what can be done, each with the level that it needs."""

import os
import re
import sys
import threading
import time
from collections.abc import Callable
from functools import cache, partial
from importlib import resources

from msgspec import Struct

from ralph.core.text import one_line
from ralph.errors import UserError
from ralph.history.evidence import evidence_of, patch_of
from ralph.records.serving import Remembered, ServerFolder
from ralph.show.report import stylesheet
from ralph.web import actions
from ralph.web.access import LEVELS, Access, BrowserSession, Level, NotServed, refuse_below
from ralph.web.board_page import board, enter_page, new_page
from ralph.web.iteration_pages import diff_page, iteration_page, report_page, text_page
from ralph.web.live import Hub, open_topic, topic_name
from ralph.web.pieces import Frame, sentence_page
from ralph.web.run_page import run_page
from ralph.web.server import Live, WebAnswer, WebRequest
from ralph.web.watching import Register, WatchedRuns, seen, view_of
from ralph.web.work_page import work_page, work_report_page

MOST_LOOKS = 4  # pages that are made for one browser at a time: others shall not wait for all that it asks for
ASSETS = {
    "page.css": "text/css",
    "report.css": "text/css",
    "page.js": "text/javascript",
    "icon.svg": "image/svg+xml",
    "manifest.json": "application/manifest+json",
}
_RUN, _N = r"runs/([A-Za-z0-9][\w.-]{0,150})", r"([1-9]\d{0,5})"


class Visit(Struct, frozen=True):
    """A request by somebody who was let in."""

    request: WebRequest
    frame: Frame
    session: BrowserSession
    browser: str


class Pages:
    """All that is served. `recall` keeps the sessions for the next server of this folder."""

    def __init__(self, access: Access, folder: ServerFolder, register: Register, recall: bool = False) -> None:
        self._access, self._folder, self._register, self._recall = access, folder, register, recall
        self._watching = WatchedRuns(register)
        self.hub = Hub(partial(open_topic, base=access.base, register=register, watching=self._watching))
        self._turns: dict[str, threading.Semaphore] = {}
        self._looks: list[tuple[re.Pattern[str], Callable[..., WebAnswer | Live]]] = [
            (re.compile(pattern), look)
            for pattern, look in (
                ("", self._board),
                ("events", self._events),
                ("new", self._new),
                (_RUN, self._run),
                (f"{_RUN}/iterations/{_N}", self._iteration),
                (f"{_RUN}/iterations/{_N}/(prompt|log)", self._file),
                (f"{_RUN}/diff(?:/{_N})?", self._diff),
                (f"{_RUN}/report", self._report),
            )
        ]

    def answer(self, request: WebRequest) -> WebAnswer | Live:
        if request.method == "GET" and request.path.startswith("a/"):
            return asset(request.path.removeprefix("a/"))
        if request.path == "enter":
            return self._enter(request)
        browser, session = self._access.session(request.headers)
        visit = Visit(request, Frame(self._access.base, session.level), session, browser)
        if request.method == "POST":
            return self._act(visit)
        with self._turns.setdefault(browser, threading.Semaphore(MOST_LOOKS)):
            return self._look(visit)

    def refusal(self, refusal: NotServed, is_plain: bool) -> WebAnswer:
        if is_plain:
            return WebAnswer(f"{refusal.sentence}\n".encode(), refusal.status, "text/plain")
        return sentence_page(Frame(self._access.base, None), "ralph", refusal.sentence, refusal.status)

    def _enter(self, request: WebRequest) -> WebAnswer:
        """A link shows what it allows; only the button on that page uses it up."""
        key = (request.query if request.method == "GET" else request.form).get("key", "")
        if request.method == "GET":
            level = LEVELS.get(self._folder.level_of_link(key))
            if level is None:
                raise NotServed(403, _USED_UP)
            return enter_page(Frame(self._access.base, None), key, self._access.capped(level))
        level = LEVELS.get(self._folder.take_link(key))
        if level is None:
            raise NotServed(403, _USED_UP)
        token, session = self._access.enter(level)
        if self._recall:
            kept = {name: (str(one.level), one.until) for name, one in self._access.sessions.items()}
            self._folder.remember(Remembered(self._access.site, kept))
        log(request.client, session.level, "enter", "", "")
        cookie = self._access.cookie(token, request.origin)
        return WebAnswer(status=303, headers={"Location": self._access.base, "Set-Cookie": cookie})

    def _look(self, visit: Visit) -> WebAnswer | Live:
        for pattern, look in self._looks:
            found = pattern.fullmatch(visit.request.path)
            if found:
                try:
                    return look(visit, *found.groups())
                except UserError as error:
                    raise NotServed(404, _sentence(error)) from None
        raise NotServed(404, "There is nothing here.")

    def _board(self, visit: Visit) -> WebAnswer:
        return board(self._register.survey(), visit.frame)

    def _events(self, visit: Visit) -> Live:
        query = visit.request.query
        run = query.get("run", "")
        if run:
            self._register.find(run)
        self.hub.refuse_too_many()
        after = _number(visit.request.headers.get("Last-Event-ID") or query.get("after"))
        topic = topic_name(str(visit.session.level), run)
        return Live(topic, after if run else 0, _number(query.get("has")), visit.browser)

    def _new(self, visit: Visit) -> WebAnswer:
        refuse_below(Level.START, visit.session)
        return new_page(self._register.workspaces(), actions.agents(self._register.env), visit.frame, {})

    def _run(self, visit: Visit, run: str) -> WebAnswer:
        listed = self._register.find(run)
        if listed.facts.kind == "work":
            return work_page(self._register.work(seen(listed, time.time())), visit.frame)
        watched = self._watching.of(run)
        watched.wait_until_counted()
        with watched.lock:
            return run_page(view_of(watched), visit.frame)

    def _iteration(self, visit: Visit, run: str, number: str) -> WebAnswer:
        watched = self._watching.of(run)
        watched.wait_until_counted(30.0)  # an iteration that was not read yet is one all the same
        chapter = next((one for one in watched.history().iterations if one.number == int(number)), None)
        if chapter is None:
            raise NotServed(404, f"There is no iteration {number} of this run.")
        return iteration_page(watched.run, chapter, visit.frame)

    def _file(self, visit: Visit, run: str, number: str, what: str) -> WebAnswer:
        return text_page(self._register.find(run), int(number), what, visit.frame)

    def _diff(self, visit: Visit, run: str, number: str | None) -> WebAnswer:
        listed = self._register.find(run)
        return diff_page(listed, patch_of(listed, int(number) if number else None), visit.frame)

    def _report(self, visit: Visit, run: str) -> WebAnswer:
        listed = self._register.find(run)
        if listed.facts.kind == "work":
            return work_report_page(self._register.work(seen(listed, time.time())), visit.frame)
        watched = self._watching.of(run)
        watched.wait_until_counted(8.0)
        evidence = evidence_of(watched.run.folder, watched.history(), os.environ)  # git is asked: others need not wait
        with watched.lock:
            return report_page(watched.run, watched.history(), evidence, visit.frame)

    def _act(self, visit: Visit) -> WebAnswer:
        """Does what was asked for, and says in one sentence what was done, or why not."""
        request = visit.request
        found = re.fullmatch(rf"{_RUN}/([a-z]+)|(start)", request.path)
        name = (found[2] or found[3]) if found else ""
        action = actions.ACTIONS.get(name)
        if not found or action is None:
            raise NotServed(404, "There is nothing here.")
        run = found[1] or ""
        refuse_below(action.level, visit.session)
        try:
            done = action.carry_out(self._register, run, request.form)
        except UserError as error:
            log(request.client, visit.session.level, name, run, f"refused: {error.message}")
            if name == "start" and not request.wants_a_sentence:
                places, known = self._register.workspaces(), actions.agents(self._register.env)
                return new_page(places, known, visit.frame, request.form, _sentence(error))
            if request.wants_a_sentence:
                return WebAnswer(f"{_sentence(error)}\n".encode(), 409, "text/plain")
            return sentence_page(visit.frame, "That cannot be done", _sentence(error), 409)
        log(request.client, visit.session.level, name, done.run, done.sentence)
        if request.wants_a_sentence:
            return WebAnswer(f"{done.sentence}\n".encode(), 200, "text/plain")
        return WebAnswer(status=303, headers={"Location": visit.frame.run(done.run)})


_USED_UP = "This link has been used, or is too old. On the machine, `ralph serve --link` prints another."


@cache
def asset(name: str) -> WebAnswer:
    if name not in ASSETS:
        raise NotServed(404, "There is nothing here.")
    if name == "report.css":
        return WebAnswer(stylesheet().encode(), kind=ASSETS[name])
    return WebAnswer(resources.files("ralph.web").joinpath("assets", name).read_bytes(), kind=ASSETS[name])


def log(client: str, level: Level, action: str, run: str, said: str) -> None:
    """Who did what, without the words: those are in the journal."""
    words = [time.strftime("%H:%M:%S"), str(level), client or "socket", action, run]
    print(" ".join(filter(None, words)) + (f": {one_line(said)}" if said else ""), file=sys.stderr, flush=True)


def _sentence(error: UserError) -> str:
    hint = f" ({error.hint})" if error.hint else ""
    text = f"{error.message}{hint}"
    return text[:1].upper() + text[1:] + "."


def _number(text: str | None) -> int:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 19 else 0
