"""A stream delivers everything once and in order, even if the connection breaks."""

import os
import re
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.web.conftest import Serve, Served, StreamClient, eventually
from tests.web.scenes import Scene

from ralph.core import events as e
from ralph.store.register import JOURNAL
from ralph.web.access import Level
from ralph.web.live import Topic
from ralph.web.pieces import Frame
from ralph.web.watching import Register


@pytest.fixture
def run(scene: Callable[..., Scene]) -> Scene:
    import secrets

    made = scene(secrets.token_hex(4))
    made.begin(1)
    return made


def test_each_of_250_lines_arrives_once_even_if_the_connection_breaks(
    subscribe: Callable[..., StreamClient], run: Scene
) -> None:
    page = subscribe(f"?run={run.id}")
    for number in range(250):
        run.tell(e.AgentText(f"line <{number}>"))
        if number in (40, 90, 91, 200):
            page.until(f"line &lt;{number}&gt;")
            page.close()
        if number in (60, 90, 95, 220):
            page.connect()
    page.until("line &lt;249&gt;")
    assert re.findall(r"line &lt;(\d+)&gt;", page.all) == [str(number) for number in range(250)]


def test_a_new_stream_sends_what_happened_since_the_page_was_rendered(
    subscribe: Callable[..., StreamClient], served: Served, run: Scene
) -> None:
    run.tell(e.AgentText("before the page"))
    shown = served.get(f"runs/{run.id}").text
    at = re.search(r'data-at="(\d+)"', shown)
    assert at
    assert "before the page" in shown
    run.tell(e.AgentText("after the page"))
    page = subscribe(f"?run={run.id}&after={at[1]}")
    page.until("after the page")
    assert "before the page" not in page.all


def test_the_journal_of_a_run_is_closed_when_its_last_reader_has_left(run: Scene, home: dict[str, str]) -> None:
    before = open_journals()
    register = Register(home)
    topic = Topic(Frame(base="/", level=Level.LOOK), register.find(run.id), register)
    topic.fetch(0, 0, time.monotonic())
    assert open_journals() == before + 1
    topic.close()
    assert open_journals() == before


def open_journals() -> int:
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return [os.path.basename(os.readlink(link)) for link in links].count(JOURNAL)


def test_the_end_of_a_tool_call_replaces_its_start(subscribe: Callable[..., StreamClient], run: Scene) -> None:
    page = subscribe(f"?run={run.id}")
    run.tell(e.ToolStarted("t", "Bash", "sleep 9"))
    page.until("sleep 9")
    (begun,) = re.findall(r'class="tool" id="(e\d+)"', page.all)
    page.close()
    run.tell(e.AgentText("in between"), e.ToolFinished(id="t", name="Bash", ok=True, output="slept", lines=1, chars=5))
    page.events.clear()
    page.connect()
    page.until("slept")
    assert re.findall(r'class="tool" id="(e\d+)"', page.all) == [begun]


def test_parts_of_a_page_are_sent_only_when_they_change(subscribe: Callable[..., StreamClient], run: Scene) -> None:
    page = subscribe(f"?run={run.id}")
    page.until('id="steer"')
    page.events.clear()
    run.mail.pause()
    page.until("Resume")
    assert "running, pausing" in page.all
    assert 'id="stream"' not in page.all
    page.events.clear()
    run.iterate(1, True, False, True)
    page.until('id="i1"')
    page.until('id="score"')
    assert 'data-into="chapters"' in page.all


def test_a_page_that_was_away_too_long_reloads(subscribe: Callable[..., StreamClient], run: Scene) -> None:
    page = subscribe(f"?run={run.id}")
    run.tell(e.AgentText("the first"))
    page.until("the first")
    page.close()
    for number in range(60):
        run.tell(*[e.AgentText(f"{number} " + "x" * 3900) for _ in range(10)])
    page.events.clear()
    page.connect()
    while not page.events:
        page.receive()
    assert page.events[0][0] == "reload"


def test_the_page_of_a_removed_run_reloads(subscribe: Callable[..., StreamClient], run: Scene) -> None:
    import shutil

    page = subscribe(f"?run={run.id}")
    page.until('id="steer"')
    shutil.rmtree(run.folder.path)
    while "reload" not in [kind for kind, _ in page.events]:
        page.receive()


def test_the_board_moves_a_card_when_its_run_asks(subscribe: Callable[..., StreamClient], run: Scene) -> None:
    page = subscribe("")
    page.until(run.id)
    page.events.clear()
    run.mail.ask("Which of the two?")
    page.until("Which of the two?")
    assert '<section id="needs"' in page.all
    assert "<title" in page.all


def test_a_browser_that_may_only_look_gets_no_buttons(
    subscribe: Callable[..., StreamClient], served: Served, run: Scene
) -> None:
    looks = Served(served.process, served.link, served.env)
    looks.cookie = served.enter_as("look")
    page = subscribe(f"?run={run.id}", to=looks)
    run.mail.ask("Which of the two?")
    page.until("Which of the two?")
    assert "<form" not in page.all


@pytest.mark.parametrize("query", ["?run=unknown", "?run=../x", "?run=%00"])
def test_a_stream_of_an_unknown_run_is_not_found(served: Served, query: str) -> None:
    assert served.get(f"events{query}").status == 404


@pytest.mark.parametrize("after", ["x", "-1", "9" * 30, "1e3", "²"])
def test_an_invalid_event_number_counts_as_zero(subscribe: Callable[..., StreamClient], run: Scene, after: str) -> None:
    run.tell(e.AgentText("what there is"))
    from urllib.parse import quote

    subscribe(f"?run={run.id}&after={quote(after)}").until("what there is")


def test_a_truncated_or_newer_journal_is_shown_as_far_as_possible(
    served: Served, subscribe: Callable[..., StreamClient], run: Scene
) -> None:
    run.iterate(1, True, True, True)
    with run.folder.journal.open("ab") as file:
        file.write(
            b'{"type":"of_a_later_version","timestamp":"","run":"r","seq":9999,"data":{}}\n\xff\xfe\x00\n{"type":"agent'
        )
    page = subscribe(f"?run={run.id}")
    shown = served.get(f"runs/{run.id}")
    assert shown.status == 200
    assert "Iteration 1" in shown.text
    with run.folder.journal.open("ab") as file:
        file.write(b'_text","timestamp":"","run":"r","seq":10000,"data":{"text":"the other half"}}\n')
    page.until("the other half")


@pytest.mark.parametrize("page", ["", "/iterations/1", "/diff", "/diff/1", "/report"])
def test_a_replaced_journal_is_an_error_until_it_is_restored(
    served: Served, scene: Callable[..., Scene], page: str
) -> None:
    run = scene()
    run.iterate(1, True)
    before = served.get(f"runs/{run.id}{page}").status
    data = run.folder.journal.read_bytes()
    run.folder.journal.unlink()
    run.folder.journal.symlink_to("/etc/hostname")
    for _ in range(2):
        assert served.get(f"runs/{run.id}{page}").status in (200, 404, 409)
    run.folder.journal.unlink()
    run.folder.journal.write_bytes(data)
    assert served.get(f"runs/{run.id}{page}").status == before


def test_an_empty_journal_has_a_page(served: Served, scene: Callable[..., Scene]) -> None:
    run = scene("emp7y")
    run.folder.journal.write_bytes(b"")
    assert served.get(f"runs/{run.id}").status == 200
    assert served.get("").status == 200


def test_a_long_journal_is_shown_at_once(serve: Serve, scene: Callable[..., Scene]) -> None:
    run = scene("l0ng")
    run.iterate(1, True, False, True)
    line = b'{"type":"agent_text","timestamp":"2026-11-15T12:00:00Z","run":"r","seq":7,"data":{"text":"%b"}}\n' % (
        b"x" * 900
    )
    with run.folder.journal.open("ab") as file:
        for _ in range(100):
            file.write(line * 1000)
    run.tell(e.AgentText("the very end"))
    served = serve()
    served.get("")
    assert "the very end" in served.get(f"runs/{run.id}").text
    eventually(lambda: "Reading the journal" not in served.get(f"runs/{run.id}").text)
    assert 'id="i1"' in served.get(f"runs/{run.id}").text
    served.process.terminate()


def test_streams_of_vanished_clients_do_not_block_others(served: Served, run: Scene) -> None:
    for _ in range(20):
        sock = served.connect()
        lines = [
            f"GET {served.base}events?run={run.id} HTTP/1.1",
            "Host: 127.0.0.1",
            f"Cookie: {served.cookie}",
            "",
            "",
        ]
        sock.sendall("\r\n".join(lines).encode())
        sock.recv(1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        sock.close()
    run.tell(e.AgentText("still there"))
    assert served.get().status == 200


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="reads a process's time from /proc")
def test_watching_a_hundred_quiet_runs_takes_at_most_one_percent_of_a_core(
    serve: Serve, scene: Callable[..., Scene], subscribe: Callable[..., StreamClient]
) -> None:
    for number in range(100):
        scene(f"q{number:03d}").finish()
    served = serve()
    tasks = Path(f"/proc/{served.process.pid}/task")

    def busy() -> float:
        return sum(int((one / "schedstat").read_text().split()[0]) for one in tasks.iterdir()) / 1e9

    def share() -> float:
        """Return the share of a core used over two seconds."""
        before, began = busy(), time.monotonic()
        time.sleep(2)
        return (busy() - before) / (time.monotonic() - began)

    subscribe("", to=served)
    eventually(lambda: share() < 0.01)
    served.process.terminate()
