"""A sandbox without a network reaches the allowed hosts through the proxy, and no others."""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from ralph.errors import UserError
from ralph.process.keeper import Keeper
from ralph.process.kept_process import KeptProcess
from ralph.process.program import Command
from ralph.sandbox import mounts, network
from ralph.sandbox.network import PORT, Network, Reachable, parse_host


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("github.com", Reachable("github.com")),
        (" GitHub.com. ", Reachable("github.com")),
        ("*.example.org", Reachable("*.example.org")),
        ("localhost:8080", Reachable("localhost", 8080)),
        ("https://api.example.org/v1", Reachable("api.example.org", 443)),
        ("http://user:word@api.example.org:8000/v1", Reachable("api.example.org", 8000)),
        ("[::1]:11434", Reachable("::1", 11434)),
        ("::1", Reachable("::1")),
        ("10.0.0.7", Reachable("10.0.0.7")),
    ],
)
def test_hosts_are_parsed_as_people_write_them(text: str, found: Reachable) -> None:
    assert parse_host(text) == found


@pytest.mark.parametrize("text", ["", "  ", "a b", "x:y", "*", "a.*.b", "https://", ":80", "a,b"])
def test_an_invalid_host_is_an_error(text: str) -> None:
    with pytest.raises(UserError, match="is not a host"):
        parse_host(text)


@pytest.mark.parametrize(
    ("allowed", "name", "port", "admitted"),
    [
        (Reachable("a.org"), "a.org", 443, True),
        (Reachable("a.org"), "a.org", 80, True),
        (Reachable("a.org"), "a.org", 22, False),
        (Reachable("a.org", 22), "a.org", 22, True),
        (Reachable("a.org", 22), "a.org", 443, False),
        (Reachable("a.org"), "b.a.org", 443, False),
        (Reachable("a.org"), "nota.org", 443, False),
        (Reachable("*.a.org"), "b.a.org", 443, True),
        (Reachable("*.a.org"), "c.b.a.org", 443, True),
        (Reachable("*.a.org"), "a.org", 443, False),
        (Reachable("*.a.org"), "nota.org", 443, False),
    ],
)
def test_only_listed_hosts_and_ports_are_allowed(allowed: Reachable, name: str, port: int, admitted: bool) -> None:
    assert allowed.allows(name, port) is admitted


@pytest.mark.parametrize(
    ("address", "elsewhere"),
    [
        ("127.0.0.1", False),
        ("127.8.8.8", False),
        ("::1", False),
        ("::ffff:127.0.0.1", False),
        ("169.254.169.254", False),
        ("fe80::1%eth0", False),
        ("0.0.0.0", False),
        ("10.1.2.3", True),
        ("93.184.216.34", True),
        ("2606:2800::1", True),
    ],
)
def test_a_name_must_not_lead_back_to_this_machine(address: str, elsewhere: bool) -> None:
    assert network._is_remote(address) is elsewhere


class _Echo(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = f"{self.path} for {self.headers['Host']}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def service() -> Iterator[int]:
    """The port of a server of this machine."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Echo) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


Inside = Callable[[str], str]


@pytest.fixture
def inside(bubblewrap: str, keeper: Keeper, tmp_path: Path) -> Iterator[Callable[[Network], Inside]]:
    """Return a function that runs a Python script in a sandbox whose only network is the given one."""
    opened: list[Network] = []

    def with_network(net: Network) -> Inside:
        opened.append(net)

        def run(script: str) -> str:
            seen = [mounts.Mount("/", "read"), mounts.Mount("/dev", "dev"), mounts.Mount("/proc", "proc")]
            argv = mounts.bubblewrap_command(bubblewrap, seen, "/", is_online=False)
            env = {"PATH": os.environ["PATH"], **network.environment()}
            command = Command(
                argv=(*argv, sys.executable, "-I", "-c", script), cwd="/", env=env, sandboxed=True, fds=net.attach()
            )
            return KeptProcess(command, keeper=keeper).capture(head=4000, tail=0).head

        return run

    yield with_network
    for net in opened:
        net.close()


ASKING = """
import os, urllib.error, urllib.request
for name in ("no_proxy", "NO_PROXY"):
    del os.environ[name]  # the tests say which way they mean
def ask(url, proxy=None):
    handler = urllib.request.ProxyHandler({"http": proxy} if proxy else {})
    try:
        return urllib.request.build_opener(handler).open(url, timeout=60).read().decode()
    except urllib.error.HTTPError as error:
        return f"{error.code} {error.read().decode().strip()}"
    except OSError as error:
        return f"{type(error).__name__}"
"""


def test_a_local_service_is_reachable_if_its_port_is_allowed(inside, service: int) -> None:
    run = inside(Network.start([Reachable("localhost", service)], {}))
    script = f"{ASKING}\nprint(ask('http://127.0.0.1:{service}/direct'), ask('http://127.0.0.1:{service + 1}/other'))"
    assert run(script) == f"/direct for 127.0.0.1:{service} URLError\n"


def test_the_proxy_reports_each_refused_host_once(inside, service: int) -> None:
    net = Network.start([Reachable("127.0.0.1", service)], {})
    run = inside(net)
    proxy = f"http://127.0.0.1:{PORT}"
    script = f"""{ASKING}
print(ask('http://127.0.0.1:{service}/page?x=1', '{proxy}'))
for url in ('http://example.org/', 'http://example.org/again', 'http://localhost:{service}/', 'http://127.0.0.1:1/'):
    print(ask(url, '{proxy}')[:60])
"""
    assert run(script).splitlines() == [
        f"/page?x=1 for 127.0.0.1:{service}",
        "403 ralph: the sandbox does not allow example.org:80",
        "403 ralph: the sandbox does not allow example.org:80",
        f"403 ralph: the sandbox does not allow localhost:{service}",
        "403 ralph: the sandbox does not allow 127.0.0.1:1",
    ]
    assert sorted(net.refused()) == [
        "the sandbox does not allow 127.0.0.1:1",
        "the sandbox does not allow example.org:80",
        f"the sandbox does not allow localhost:{service}",
    ]
    run(f"{ASKING}\nask('http://example.org/', '{proxy}')")
    assert net.refused() == []


def test_a_tunnel_leads_to_the_requested_host(inside, service: int) -> None:
    run = inside(Network.start([Reachable("127.0.0.1", service)], {}))
    script = f"""
import socket
def tunnel(place):
    end = socket.create_connection(("127.0.0.1", {PORT}), 20)
    end.sendall(b"CONNECT " + place + b" HTTP/1.1\\r\\nHost: example.org\\r\\n\\r\\n")
    answer = end.recv(4096)
    if b" 200 " in answer:
        end.sendall(b"GET /in-tunnel HTTP/1.0\\r\\nHost: h\\r\\n\\r\\n")
        while piece := end.recv(4096):
            answer += piece
    return answer
print(b"/in-tunnel for h" in tunnel(b"127.0.0.1:{service}"), tunnel(b"example.org:443")[:13], tunnel(b"]:x")[:13])
"""
    assert run(script) == "True b'HTTP/1.1 403 ' b'HTTP/1.1 400 '\n"


@pytest.mark.parametrize(
    "junk", ["b''", "b'x' * 100000", "b'GET / HTTP/1.1\\r\\n\\r\\n'", "b'\\xff\\xfe\\r\\n\\r\\n'", "b'CONNECT'"]
)
def test_the_proxy_survives_invalid_requests(inside, service: int, junk: str) -> None:
    run = inside(Network.start([Reachable("127.0.0.1", service)], {}))
    script = f"""{ASKING}
import socket
end = socket.create_connection(("127.0.0.1", {PORT}), 20)
end.sendall({junk}); end.shutdown(socket.SHUT_WR); end.recv(10)
print(ask('http://127.0.0.1:{service}/', 'http://127.0.0.1:{PORT}'))
"""
    assert run(script) == f"/ for 127.0.0.1:{service}\n"


def test_a_program_without_allowed_hosts_reaches_nothing(inside, service: int) -> None:
    run = inside(Network.start([], {}))
    script = f"{ASKING}\nimport socket\nprint(ask('http://127.0.0.1:{service}/'), len(socket.if_nameindex()))"
    assert run(script) == "URLError 1\n"


def test_each_of_many_sandboxes_gets_its_network(inside, service: int) -> None:
    net = Network.start([Reachable("localhost", service)], {})
    run = inside(net)
    for number in range(20):
        assert run(f"{ASKING}\nprint(ask('http://localhost:{service}/{number}'))").startswith(f"/{number} ")
    descriptors = os.listdir(f"/proc/{net._child}/fd")
    assert len(descriptors) < 20  # descriptors of ended sandboxes are closed


def test_no_sandbox_starts_once_the_proxy_is_killed(inside, service: int) -> None:
    net = Network.start([Reachable("localhost", service)], {})
    run = inside(net)
    os.kill(net._child, 9)
    os.waitpid(net._child, 0)
    with pytest.raises(UserError, match="was killed"):
        run("print('started')")
