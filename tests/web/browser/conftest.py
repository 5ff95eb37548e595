"""Playwright with the distribution's Chromium. Without Chromium these tests are skipped; CI installs it."""

import shutil
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import installed
from tests.web.conftest import Served

FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
    "--host-resolver-rules=MAP evil.example 127.0.0.1",
    "--force-prefers-reduced-motion",  # animations would keep it drawing
)


@pytest.fixture(scope="session")
def chromium() -> str:
    return installed("chromium", "chromium")


@pytest.fixture(scope="package")  # not longer: its event loop runs in this thread
def browser(chromium: str) -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # The headless shell takes less than half of the CPU time.
        windowless = shutil.which("chromium-headless-shell") or chromium
        launched = playwright.chromium.launch(executable_path=windowless, args=list(FLAGS))
        yield launched
        launched.close()


Page = Any
Open = Callable[..., Page]


@pytest.fixture
def open_page(browser: Any, served: Served, tmp_path: Path) -> Iterator[Open]:
    """Open a page in a new browser context with access. Errors in the console fail the test."""
    contexts, complaints = [], []

    def show(
        path: str = "", *, width: int = 390, script: bool = True, dark: bool = False, level: str = "", **more: Any
    ) -> Page:
        context = browser.new_context(
            viewport={"width": width, "height": 844},
            java_script_enabled=script,
            color_scheme="dark" if dark else "light",
            **{"reduced_motion": "reduce", **more},
        )
        contexts.append(context)
        cookie = served.enter_as(level) if level else served.cookie
        name, _, value = cookie.partition("=")
        context.add_cookies(
            [{"name": name, "value": value, "domain": "127.0.0.1", "path": served.base, "httpOnly": True}]
        )
        page = context.new_page()
        page.set_default_timeout(45_000)
        page.on("console", lambda said: said.type == "error" and complaints.append(f"{said.text} {said.location}"))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(f"{served.origin}{served.base}{path}")
        return page

    show.complaints = complaints  # type: ignore[attr-defined]
    yield show
    for context in contexts:
        context.close()
    assert not complaints


class Elsewhere:
    """Another server on this machine, with a page that the user visits while ours is open."""

    def __init__(self) -> None:
        self.pages: dict[str, str] = {}
        self.cookies: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.cookies.append(self.headers.get("Cookie", ""))
                body = outer.pages.get(self.path, "").encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Set-Cookie", "ralph=planted; Path=/")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def elsewhere() -> Iterator[Elsewhere]:
    made = Elsewhere()
    yield made
    made.close()
