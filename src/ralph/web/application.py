"""The web application: the pages and actions of all addresses, and the access levels that they need.

An ASGI application on starlette's requests and responses. It has its own routing table because addresses are matched
byte for byte: no decoding, no redirects, and a session is required before anything else is looked up.
"""

import asyncio
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from importlib import resources
from urllib.parse import parse_qs

from msgspec import Struct
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import Receive, Scope, Send

from ralph.core.text import one_line
from ralph.errors import UserError
from ralph.history.evidence import evidence_of, patch_of, task_evidence
from ralph.history.feed import history_now
from ralph.store.register import Listed
from ralph.store.serving import Remembered, ServerFolder
from ralph.web import actions
from ralph.web.access import LEVELS, Access, Level, RequestRefused
from ralph.web.backlog_page import backlog_page, backlog_report_page
from ralph.web.board_page import board, enter_page
from ralph.web.live import FILES_TIMEOUT, Hub, run_in_thread
from ralph.web.pieces import Frame, message_page
from ralph.web.run_page import diff_page, iteration_page, report_page, run_page, text_page
from ralph.web.watching import Register, WatchedRun, look_at

MAX_FIELDS = 50  # of a form
PAGES_PER_BROWSER = 4  # rendered at the same time, so that other browsers are served too
MIN_GZIP_SIZE = 1400  # bytes
ASSETS = {
    "page.css": "text/css",
    "report.css": "text/css",
    "drawings.css": "text/css",
    "page.js": "text/javascript",
    "icon.svg": "image/svg+xml",
    "manifest.json": "application/manifest+json",
}
LINK_USED = "this link was already used, or is too old: `ralph serve --link` prints another"
_RUN, _N = r"runs/([A-Za-z0-9][\w.-]{0,150})", r"([1-9]\d{0,5})"


class Visit(Struct, frozen=True, kw_only=True):
    """A request from a browser that has a session."""

    request: Request
    path: str
    form: Mapping[str, str]
    frame: Frame
    browser: str

    def require_level(self, wanted: Level) -> None:
        level = self.frame.level
        if level is None or level < wanted:
            how = f"open a link from `ralph serve --link {wanted}`"
            raise RequestRefused(403, f"this browser may only {level}: {how}")


class WebApp:
    """The ASGI application. With `remember`, sessions are stored for the next server of this folder."""

    def __init__(self, access: Access, folder: ServerFolder, register: Register, remember: bool = False) -> None:
        self._access, self._folder, self._register, self._remember = access, folder, register, remember
        self.hub = Hub(register)
        self._slots: dict[str, asyncio.Semaphore] = {}
        self._pages: dict[str, Callable[..., Response]] = {
            "": self._board,
            _RUN: self._run,
            f"{_RUN}/iterations/{_N}": self._iteration,
            f"{_RUN}/iterations/{_N}/(prompt|log)": self._file,
            f"{_RUN}/diff(?:/{_N})?": self._diff,
            f"{_RUN}/report": self._report,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            path = scope["raw_path"].decode("latin-1")
            self._access.admit(request.method, path, request.headers)
        except RequestRefused as refusal:
            await send_early(self._refusal(refusal, request), receive, send)
            return
        try:
            response = await self._respond(request, path.removeprefix(self._access.base))
        except RequestRefused as refusal:
            response = self._refusal(refusal, request)
        except ClientDisconnect:
            return
        except Exception:  # noqa: BLE001 - a bug in one page must not end the server
            print("ralph: internal error in the web UI:", file=sys.stderr)
            traceback.print_exc()
            response = PlainTextResponse("internal error: the terminal of `ralph serve` shows more\n", 500)
        await GZipMiddleware(response, MIN_GZIP_SIZE, compresslevel=1)(scope, receive, send)

    async def _respond(self, request: Request, path: str) -> Response:
        form = parse_fields((await request.body()).decode("utf-8", "replace")) if request.method == "POST" else {}
        if request.method == "GET" and path.startswith("a/"):
            return asset(path.removeprefix("a/"))
        if path == "enter":
            return await run_in_thread(partial(self._enter, request, form))
        browser, session = self._access.session(request.headers)
        frame = Frame(self._access.base, session.level)
        visit = Visit(request=request, path=path, form=form, frame=frame, browser=browser)
        if request.method == "POST":
            return await run_in_thread(partial(self._act, visit))
        if path == "events":
            return await self._events(visit)
        async with self._slots.setdefault(browser, asyncio.Semaphore(PAGES_PER_BROWSER)):
            return await run_in_thread(partial(self._page, visit))

    def _refusal(self, refusal: RequestRefused, request: Request) -> Response:
        if wants_text(request):
            return PlainTextResponse(f"{refusal.message}\n", refusal.status)
        return message_page(Frame(self._access.base, None), "ralph", refusal.message, refusal.status)

    def _enter(self, request: Request, form: Mapping[str, str]) -> Response:
        """Show the level of a link. Only the button on that page uses up the link."""
        if request.method == "GET":
            key = request.query_params.get("key", "")
            level = LEVELS.get(self._folder.link_level(key))
            if level is None:
                raise RequestRefused(403, LINK_USED)
            return enter_page(Frame(self._access.base, None), key, self._access.cap_level(level))
        level = LEVELS.get(self._folder.use_link(form.get("key", "")))
        if level is None:
            raise RequestRefused(403, LINK_USED)
        token, session = self._access.enter(level)
        if self._remember:
            sessions = {name: (str(browser.level), browser.until) for name, browser in self._access.sessions.items()}
            self._folder.remember(Remembered(self._access.site, sessions))
        log(request, session.level, "enter")
        cookie = self._access.cookie(token, self._access.origin(request.headers))
        return RedirectResponse(self._access.base, 303, {"Set-Cookie": cookie})

    def _page(self, visit: Visit) -> Response:
        for pattern, page in self._pages.items():
            if match := re.fullmatch(pattern, visit.path):
                try:
                    return page(visit, *match.groups())
                except UserError as error:
                    raise RequestRefused(404, error.advice) from None
        raise RequestRefused(404, "not found")

    async def _events(self, visit: Visit) -> Response:
        query = visit.request.query_params
        run = query.get("run", "")
        listed = await run_in_thread(partial(self._register.find, run)) if run else None
        after = parse_number(visit.request.headers.get("Last-Event-ID") or query.get("after"))
        return self.hub.subscribe(visit.frame, listed, after if run else 0, visit.browser)

    def _board(self, visit: Visit) -> Response:
        return board(self._register.survey(time.time()), visit.frame)

    def _run(self, visit: Visit, run: str) -> Response:
        listed = self._register.find(run)
        return listed.by_kind(self._show_run, self._show_backlog)(listed, visit.frame)

    def _show_backlog(self, listed: Listed, frame: Frame) -> Response:
        return backlog_page(self._register.work(look_at(listed, time.time())), frame)

    def _show_run(self, listed: Listed, frame: Frame) -> Response:
        with closing(WatchedRun.open(listed)) as watched:
            watched.load_files(FILES_TIMEOUT)
            return run_page(self._register.view(watched), frame)

    def _iteration(self, visit: Visit, run: str, number: str) -> Response:
        listed = self._register.find(run)
        history = history_now(listed)
        chapter = next((iteration for iteration in history.iterations if iteration.number == int(number)), None)
        if chapter is None:
            raise RequestRefused(404, f"this run has no iteration {number}")
        return iteration_page(listed, history, chapter, visit.frame)

    def _file(self, visit: Visit, run: str, number: str, what: str) -> Response:
        return text_page(self._register.find(run), int(number), what, visit.frame)

    def _diff(self, visit: Visit, run: str, number: str | None) -> Response:
        listed = self._register.find(run)
        return diff_page(listed, patch_of(listed, int(number) if number else None), visit.frame)

    def _report(self, visit: Visit, run: str) -> Response:
        listed = self._register.find(run)
        return listed.by_kind(self._report_run, self._report_backlog)(listed, visit.frame)

    def _report_backlog(self, listed: Listed, frame: Frame) -> Response:
        work = self._register.work(look_at(listed, time.time()))
        return backlog_report_page(work, task_evidence(listed, work.history, os.environ), frame)

    def _report_run(self, listed: Listed, frame: Frame) -> Response:
        history = history_now(listed)
        return report_page(listed, history, evidence_of(listed.folder, history, os.environ), frame)

    def _act(self, visit: Visit) -> Response:
        """Carry out an action; answer with its result, or with the reason why it was refused."""
        request = visit.request
        match = re.fullmatch(rf"{_RUN}/([a-z]+)|(dismissall)", visit.path)
        name = (match[2] or match[3]) if match else ""
        if not match or name not in actions.LEVEL_OF:
            raise RequestRefused(404, "not found")
        run = match[1] or ""
        visit.require_level(actions.LEVEL_OF[name])
        try:
            run, message = actions.carry_out(name, run, visit.form, self._register)
        except UserError as error:
            log(request, visit.frame.level, name, run, f"refused: {error.message}")
            if wants_text(request):
                return PlainTextResponse(f"{error.advice}\n", 409)
            return message_page(visit.frame, "Not done", error.advice, 409)
        log(request, visit.frame.level, name, run, message)
        if wants_text(request):
            return PlainTextResponse(f"{message}\n")
        return RedirectResponse(visit.frame.run(run) if run else visit.frame.base, 303)


async def send_early(response: Response, receive: Receive, send: Send) -> None:
    """Send a response before the request's body was read; the rest is discarded before the connection is closed.

    Closing a connection with unread bytes resets it, and the client would not see the response.
    """
    await send({"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers})
    await send({"type": "http.response.body", "body": response.body, "more_body": True})
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.body", "body": b""})


def asset(name: str) -> Response:
    if name not in ASSETS:
        raise RequestRefused(404, "not found")
    package, folder = ("ralph.show", "") if name in ("report.css", "drawings.css") else ("ralph.web", "assets")
    return Response(resources.files(package).joinpath(folder, name).read_bytes(), media_type=ASSETS[name])


def log(request: Request, level: Level | None, action: str, run: str = "", result: str = "") -> None:
    """Print an action with its level and client, without what a person wrote: that is in the journal."""
    words = [time.strftime("%H:%M:%S"), str(level), request.scope["client"][0], action, run]
    print(" ".join(filter(None, words)) + (f": {one_line(result)}" if result else ""), file=sys.stderr, flush=True)


def wants_text(request: Request) -> bool:
    return "text/plain" in request.headers.get("Accept", "")


def parse_fields(encoded: str) -> dict[str, str]:
    try:
        lists = parse_qs(encoded, keep_blank_values=True, max_num_fields=MAX_FIELDS)
    except ValueError:
        raise RequestRefused(400, f"too many fields: at most {MAX_FIELDS}") from None
    return {name: values[0] for name, values in lists.items()}


def parse_number(text: str | None) -> int:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 19 else 0
