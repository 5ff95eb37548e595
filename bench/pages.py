"""The web UI: time to start, to the first paint and to show a new line, and CPU time with no, one and many viewers."""

import os
import re
import select
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import Any
from urllib.parse import urlsplit

from bench.lab import MILLI, Lab
from bench.samples import Row, Sample, Wanted
from ralph.core import events as e
from ralph.core.model import Check, Iteration, Outcome, Turn, Usage
from ralph.store.folder import RunFolder, prepare
from ralph.store.journal import Journal
from ralph.store.writer import Registration, Writer, enlist

GIGABYTE = 1 << 30
VIEWERS, EVENTS, SECONDS = 50, 1000, 5.0
LINES, PAUSE = 300, 0.02
FLAGS = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync")


def measure(lab: Lab) -> list[Row]:
    runs = [_Run(lab, number) for number in range(100)]
    for run in runs[:-1]:
        run.finish()
    rows = [_listening(lab)]
    with _served(lab) as page:
        rows += [
            _nobody(page),
            _somebody(page),
            _somebody(page, runs[-1]),
            *_latency(page, runs[-1]),
            *_crowd(page, runs[-1]),
        ]
    rows += _painted(lab)
    long = _long_journal(lab)
    with _served(lab) as page:
        rows += _read_whole(page, long)
    for run in (runs[-1], long):
        run.finish()
    return rows


class _Run:
    """A recorded run that looks as if it were running while this process lives."""

    def __init__(self, lab: Lab, number: int) -> None:
        self.id = f"20261115-{120000 + number}-b{number:03d}"
        workspace = lab.workspace()
        self.folder = RunFolder(prepare(workspace), self.id)
        self.folder.make()
        self._journal = Journal(self.folder.journal).open()
        self._writer, self._registration = Writer(self.id, [self._journal]), Registration(self.folder)
        self._registration.begin()
        enlist(self.folder, lab.env)
        self.tell(
            e.RunStarted(
                goal="Make the tests pass",
                preset="checks",
                agent="claude",
                workspace=str(workspace),
                max_iterations=10,
                checks=("pytest -q",),
                pid=os.getpid(),
            )
        )
        for at in (1, 2):
            self.tell(e.IterationStarted(at, 10, "goal"))
            turn = Turn(text="COMPLETE", usage=Usage(input_tokens=1000, output_tokens=200, cost_usd=0.1), duration=60.0)
            self.tell(
                e.IterationFinished(
                    at,
                    Iteration(
                        number=at, turn=turn, checks=(Check(name="pytest -q", passed=at == 2, exit_code=2 - at),)
                    ),
                )
            )
        self.tell(e.IterationStarted(3, 10, "goal"))

    def tell(self, *events: e.Event) -> None:
        self._registration(*self._writer(*events))

    def finish(self) -> None:
        self.tell(
            e.RunFinished(
                outcome=Outcome.DONE,
                reason="the agent said COMPLETE and 1 check passed",
                iterations=2,
                cost_usd=0.2,
                duration_s=120.0,
                exit_code=0,
            )
        )
        self._journal.close()


class _Page:
    """A server, and the cookie of a browser that may use it."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.process = subprocess.Popen(
            [lab.ralph, "serve", "--port", "0"],
            env=lab.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self.process.stdout is not None
        link = urlsplit(self.process.stdout.readline().strip())
        self.port, self.base = link.port or 0, link.path.removesuffix("enter")
        self.cookie = self.enter(link.query.removeprefix("key="))

    def enter(self, key: str = "") -> str:
        if not key:
            words = [self.lab.ralph, "serve", "--link", "--port", str(self.port)]
            key = (
                subprocess.run(words, env=self.lab.env, capture_output=True, text=True, check=True)
                .stdout.strip()
                .partition("key=")[2]
            )
        body = f"key={key}"
        lines = [
            f"POST {self.base}enter HTTP/1.1",
            f"Host: 127.0.0.1:{self.port}",
            f"Origin: http://127.0.0.1:{self.port}",
        ]
        lines += [
            "Content-Type: application/x-www-form-urlencoded",
            f"Content-Length: {len(body)}",
            "Connection: close",
            "",
            body,
        ]
        return re.search(rb"(ralph=[^;]+)", self.ask("\r\n".join(lines)))[1].decode()  # type: ignore[index]

    def ask(self, raw: str) -> bytes:
        with socket.create_connection(("127.0.0.1", self.port)) as sock:
            sock.sendall(raw.encode())
            return b"".join(iter(lambda: sock.recv(1 << 16), b""))

    def get(self, path: str) -> bytes:
        return self.ask(
            f"GET {self.base}{path} HTTP/1.1\r\nHost: 127.0.0.1\r\nCookie: {self.cookie}\r\nConnection: close\r\n\r\n"
        )

    def listen(self, run: str, cookie: str = "") -> socket.socket:
        sock = socket.create_connection(("127.0.0.1", self.port))
        cookie = cookie or self.cookie
        sock.sendall(
            f"GET {self.base}events?run={run} HTTP/1.1\r\nHost: 127.0.0.1\r\nCookie: {cookie}\r\n\r\n".encode()
        )
        return sock

    @property
    def busy(self) -> float:
        """Return the seconds of CPU time so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self, what: str) -> float:
        """Return megabytes of memory: now (VmRSS), or the maximum (VmHWM)."""
        said = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(rf"{what}:\s+(\d+)", said)[1]) / 1024  # type: ignore[index]


@contextmanager
def _served(lab: Lab) -> Iterator[_Page]:
    page = _Page(lab)
    try:
        yield page
    finally:
        page.process.terminate()
        page.process.communicate()


def _listening(lab: Lab) -> Row:
    """Measure the time until the first request is answered."""
    answers = []
    for _ in range(11):
        began = time.perf_counter()
        process = subprocess.Popen(
            [lab.ralph, "serve", "--port", "0"], env=lab.env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert process.stdout is not None
        link = urlsplit(process.stdout.readline().decode())
        with socket.create_connection(("127.0.0.1", link.port or 0)) as sock:
            sock.sendall(f"GET {link.path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
            sock.recv(1)
        answers.append((time.perf_counter() - began) * MILLI)
        process.terminate()
        process.communicate()
    return Row("web UI: first answer after", Sample(tuple(answers[1:])), "ms", {}, Wanted(1500))


def _share(page: _Page, seconds: float) -> float:
    before = page.busy
    time.sleep(seconds)
    return (page.busy - before) / seconds * 100


def _nobody(page: _Page) -> Row:
    time.sleep(1)
    return Row("web UI: CPU without viewers", Sample((_share(page, 10),)), "%", {}, Wanted(1))


def _somebody(page: _Page, run: _Run | None = None) -> Row:
    what = "a silent run" if run else "100 runs"
    with page.listen(run.id if run else "") as sock:
        sock.recv(1 << 16)
        time.sleep(2)  # until all runs have been read once
        return Row(f"web UI: CPU, one viewer of {what}", Sample((_share(page, 10),)), "%", {}, Wanted(2))


def _latency(page: _Page, run: _Run) -> list[Row]:
    """Measure from the line in the journal to the browser's end of the socket, at 50 lines a second."""
    delays = []
    with page.listen(run.id) as sock:
        heard = b""
        for number in range(LINES):
            time.sleep(PAUSE)
            began = time.perf_counter()
            run.tell(e.AgentText(f"line {number} of many"))
            mark = f"line {number} of many".encode()
            while mark not in heard:
                heard = heard[-4096:] + sock.recv(1 << 16)
            delays.append((time.perf_counter() - began) * MILLI)
    shown = delays[20:]
    return [
        Row("web UI: line to page, p50", Sample((median(shown),)), "ms"),
        Row("web UI: line to page, p99", Sample((quantiles(shown, n=100)[98],)), "ms", {}, Wanted(150)),
    ]


def _crowd(page: _Page, run: _Run) -> list[Row]:
    """Measure 50 viewers of one run with 1,000 events a second."""
    cookies = [page.enter() for _ in range(-(-VIEWERS // 4))]
    socks = [page.listen(run.id, cookies[at // 4]) for at in range(VIEWERS)]
    poll = select.poll()
    for sock in socks:
        sock.recv(1)  # subscribed
        sock.setblocking(False)
        poll.register(sock, select.POLLIN)
    known = {sock.fileno(): sock for sock in socks}
    received = dict.fromkeys(known, 0)
    before, began, told = page.busy, time.perf_counter(), 0
    while (now := time.perf_counter() - began) < SECONDS:
        while told < now * EVENTS:
            run.tell(*(e.AgentText(f"event {told + at}") for at in range(10)))
            told += 10
        for fd, _ in poll.poll(5):
            received[fd] += len(known[fd].recv(1 << 20))
    share = (page.busy - before) / SECONDS * 100
    memory = page.memory("VmRSS")
    assert min(received.values()) > told * len("event 1000"), "a viewer did not get all events"
    for sock in socks:
        sock.close()
    return [
        Row("web UI: CPU, 50 viewers of 1,000 events a second", Sample((share,)), "%", {}, Wanted(25)),
        Row("web UI: memory, 50 viewers of 1,000 events a second", Sample((memory,)), "MB", {}, Wanted(80)),
    ]


def _long_journal(lab: Lab) -> _Run:
    run = _Run(lab, 999)
    data = '"data":{"text":"%s"}' % ("x" * 400)
    line = f'{{"type":"agent_text","timestamp":"2026-11-15T12:00:00Z","run":"{run.id}","seq":9,{data}}}\n'
    block = line.encode() * 2000
    with run.folder.journal.open("ab") as file:
        while file.tell() < GIGABYTE:
            file.write(block)
    return run


def _read_whole(page: _Page, run: _Run) -> list[Row]:
    began = time.perf_counter()
    page.get(f"runs/{run.id}")
    seconds = time.perf_counter() - began
    return [
        Row("web UI: journal of 1 GB read after", Sample((seconds,)), "s", {}, Wanted(5)),
        Row("web UI: journal of 1 GB, peak memory", Sample((page.memory("VmHWM"),)), "MB", {}, Wanted(100)),
    ]


def _painted(lab: Lab) -> list[Row]:
    """Measure the first contentful paint of the board in Chromium, minus that of a page with one sentence."""
    chromium = shutil.which("chromium")
    if chromium is None:
        return []
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=list(FLAGS))
        with _served(lab) as page:
            _paint(browser, page, "")  # the first page of a browser also loads fonts
            empty = median(_paint(browser, page, "nothing") for _ in range(7))
            later = tuple(_paint(browser, page, "") - empty for _ in range(7))
        browser.close()
    return [Row("web UI: first paint of 100 runs", Sample(later), "ms", {}, Wanted(200))]


def _paint(browser: Any, page: _Page, path: str) -> float:
    """Return the time in milliseconds."""
    name, _, value = page.cookie.partition("=")
    context = browser.new_context()
    context.add_cookies([{"name": name, "value": value, "domain": "127.0.0.1", "path": page.base}])
    tab = context.new_page()
    tab.goto(f"http://127.0.0.1:{page.port}{page.base}{path}", wait_until="domcontentloaded")
    at = None
    while at is None:
        at = tab.evaluate("performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null")
    context.close()
    return float(at)
