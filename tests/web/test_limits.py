"""Slow, many or greedy clients do not keep the server from answering the next one."""

import socket
import threading
import time
from collections.abc import Callable

import pytest
from tests.web.conftest import FORM, Reply, Serve, Served, eventually, read_reply
from tests.web.scenes import Scene

from ralph.store.serving import ServerFolder


@pytest.fixture(scope="module")
def run(scene: Callable[..., Scene]) -> Scene:
    made = scene()
    made.begin(1)
    return made


def test_seven_hundred_slow_clients_do_not_block_others(served: Served) -> None:
    slow = []
    for _ in range(700):  # more connections than the server keeps
        sock = served.connect()
        sock.sendall(f"GET {served.base} HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ".encode())
        slow.append(sock)
    began = time.monotonic()
    assert served.get().status == 200
    assert time.monotonic() - began < 9  # slow clients have ten seconds
    for sock in slow:
        sock.close()


def test_clients_that_do_not_read_do_not_block_others(served: Served, run: Scene) -> None:
    lines = [f"GET {served.base}runs/{run.id} HTTP/1.1", "Host: 127.0.0.1", f"Cookie: {served.cookie}", "", ""]
    unread = []
    for _ in range(80):
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        sock.connect(("127.0.0.1", served.port))
        sock.sendall("\r\n".join(lines).encode() * 20)
        unread.append(sock)
    assert served.get().status == 200
    for sock in unread:
        sock.close()


def test_a_request_has_a_time_limit_however_often_a_byte_arrives(impatient: Served) -> None:
    began = time.monotonic()
    with impatient.connect() as sock:
        stop = threading.Event()

        def drip() -> None:
            for byte in f"GET {impatient.base} HTTP/1.1\r\nHost: 127.0.0.1\r\nX: {'a' * 1000}".encode():
                if stop.wait(0.05):
                    return
                try:
                    sock.sendall(bytes([byte]))
                except OSError:
                    return

        thread = threading.Thread(target=drip)
        thread.start()
        sock.settimeout(30)
        reply = Reply(read_reply(sock))
        stop.set()
        thread.join()
    assert time.monotonic() - began > 0.9
    assert (reply.status, reply.text) == (408, "request timed out after 1 seconds\n")
    assert reply.headers["cache-control"] == "no-store"


def test_a_body_of_ten_megabytes_is_refused_with_a_message(served: Served, run: Scene) -> None:
    body = b"text=" + b"x" * 10_000_000
    head = [f"POST {served.base}runs/{run.id}/tell HTTP/1.1", "Host: 127.0.0.1", "Origin: http://127.0.0.1"]
    head += [f"Cookie: {served.cookie}", f"Content-Type: {FORM}", f"Content-Length: {len(body)}", "Accept: text/plain"]
    reply = served.exchange("\r\n".join((*head, "", "")).encode() + body)
    assert (reply.status, reply.text) == (413, "request too large: at most 64 KB\n")
    assert not run.mail.read().notes


def test_a_missing_body_times_out(impatient: Served, run: Scene) -> None:
    head = [f"POST {impatient.base}runs/{run.id}/tell HTTP/1.1", "Host: 127.0.0.1", "Origin: http://127.0.0.1"]
    head += [f"Cookie: {impatient.cookie}", f"Content-Type: {FORM}", "Content-Length: 100", "", "text=half a"]
    with impatient.connect() as sock:
        sock.settimeout(30)
        sock.sendall("\r\n".join(head).encode())
        assert read_reply(sock) == b""
    assert not run.mail.read().notes


def test_a_connection_carries_one_request(served: Served) -> None:
    """A client that sends a thousand requests at once does not get ahead of the others."""
    one = f"GET {served.base}a/icon.svg HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    reply = served.exchange(one.encode() * 20)
    assert reply.raw.count(b"HTTP/1.1 200 OK") == 1
    assert reply.headers["connection"] == "close"


def test_a_form_with_too_many_fields_is_refused(served: Served, run: Scene) -> None:
    reply = served.ask("POST", f"runs/{run.id}/tell", body="&".join(f"a{n}=1" for n in range(500)))
    assert reply.status == 400


def open_stream(served: Served, run: Scene, query: str = "", cookie: str = "") -> socket.socket:
    sock = served.connect()
    lines = [f"GET {served.base}events?run={run.id}{query} HTTP/1.1", "Host: 127.0.0.1"]
    sock.sendall("\r\n".join((*lines, f"Cookie: {cookie or served.cookie}", "", "")).encode())
    sock.settimeout(20)
    return sock


def cookies_for(browsers: int, served: Served) -> list[str]:
    folder = ServerFolder(f"127.0.0.1:{served.port}", served.env)
    return [served.enter(folder.new_link("look")) for _ in range(browsers)]


def test_seventy_streams_stay_open(served: Served, run: Scene) -> None:
    """Streams have no time limit, and do not keep the server from answering."""
    cookies = cookies_for(18, served)
    streams = [open_stream(served, run, cookie=cookies[n // 4]) for n in range(70)]
    for sock in streams:
        assert b"text/event-stream" in sock.recv(1 << 12)
    assert served.get().status == 200
    run.tool("Read", "a file that seventy see")
    for sock in streams:
        received = b""
        while b"a file that seventy see" not in received:
            received += sock.recv(1 << 16)
        sock.close()


def test_at_most_256_streams_are_open(serve: Serve, run: Scene) -> None:
    served = serve()
    cookies = cookies_for(64, served)
    streams = [open_stream(served, run, cookie=cookies[n // 4]) for n in range(256)]
    for sock in streams:
        received = b""
        while b"retry" not in received:  # it is counted from now on
            received += sock.recv(1 << 16)
        assert received.startswith(b"HTTP/1.1 200")
    refused = open_stream(served, run)
    assert _status(refused) == 503
    assert served.get().status == 200
    refused.close()
    streams.pop().close()

    def is_let_in() -> bool:
        streams.append(open_stream(served, run))
        return _status(streams[-1]) == 200

    eventually(is_let_in)
    for sock in streams:
        sock.close()


def _status(sock: socket.socket) -> int:
    return int(sock.recv(12).split()[1])


def test_the_fifth_stream_of_a_browser_ends_its_oldest(served: Served, run: Scene) -> None:
    cookie = served.enter_as("look")
    streams = []
    for _ in range(4):
        streams.append(open_stream(served, run, cookie=cookie))
        while b"retry" not in streams[-1].recv(1 << 16):
            pass
    fifth = open_stream(served, run, cookie=cookie)
    received = read_reply(streams[0])
    streams[0].close()
    assert b"event: disconnect" in received
    run.tool("Read", "what the others see")
    for sock in (*streams[1:], fifth):
        received = b""
        while b"what the others see" not in received:
            received += sock.recv(1 << 16)
            assert b"event: disconnect" not in received
        sock.close()


def test_a_client_that_falls_a_megabyte_behind_is_dropped(serve: Serve, scene: Callable[..., Scene]) -> None:
    served, run = serve(), scene("b3h1nd")
    run.begin(1)
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect(("127.0.0.1", served.port))
    sock.settimeout(20)
    lines = [f"GET {served.base}events?run={run.id} HTTP/1.1", "Host: 127.0.0.1", f"Cookie: {served.cookie}", "", ""]
    sock.sendall("\r\n".join(lines).encode())
    assert b"text/event-stream" in sock.recv(1 << 12)
    quick = open_stream(served, run)
    for number in range(30):
        run.tool("Bash", f"turn {number}", "y" * 4000, lines=1)
    received = b""
    wanted = 0
    while wanted < 600:
        run.tell(*[_text(f"{wanted} " + "z" * 3900) for _ in range(20)])
        wanted += 20
        mark = f"{wanted - 20} zz".encode()
        while mark not in received:
            received = received[-4096:] + quick.recv(1 << 20)
    quick.close()
    assert len(read_reply(sock)) < 1_500_000  # of the 2.4 MB that the other client got
    sock.close()


def _text(text: str) -> object:
    from ralph.core.events import AgentText

    return AgentText(text)
