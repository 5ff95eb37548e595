"""`ralph serve` as a person types it: wrong words, names and proxies, sockets, links from other terminals, its end."""

import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.web.conftest import Reply, Serve, Served, read_reply
from tests.web.scenes import Scene

from ralph.records.serving import Link, ServerFolder, page_of, servers
from ralph.web.qr_code import matrix


def ralph(home: dict[str, str], *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ralph", *words], env={**home, **env}, capture_output=True, text=True, timeout=60
    )


WRONG = {
    ("--bind", "0.0.0.0"): "not this machine alone",
    ("--bind", "192.168.1.5"): "not this machine alone",
    ("--bind", "::"): "not this machine alone",
    ("--bind", "0.0.0.0", "--plain"): "needs a --name",
    ("--bind", "localhost"): "is no address",
    ("--bind", "203.0.113.9", "--plain"): "cannot listen on 203.0.113.9",
    ("--port", "65536"): "65536",
    ("--port", "x"): "'x'",
    ("--allow", "all"): "'all'",
    ("--name", "http://devbox"): "is no host",
    ("--name", "dev box"): "is no host",
    ("--name", "devbox/x"): "is no host",
    ("--name", ""): "is no host",
    ("--socket", "/tmp/x", "--port", "1"): "--socket and --port",
    ("--socket", "/nowhere/at/all"): "cannot listen on /nowhere/at/all",
    ("--socket", f"/tmp/{'x' * 150}"): "shorter than 100 characters",
    ("--socket", "/etc/passwd"): "is no socket",
    ("/nowhere",): "no such folder",
    ("--link",): "no page is served",
    ("--link", "everything"): "no level",
    ("--unknown",): "--unknown",
}


@pytest.mark.parametrize("words", WRONG, ids=" ".join)
def test_wrong_words_get_one_line_and_a_hint(home: dict[str, str], words: tuple[str, ...], tmp_path: Path) -> None:
    done = ralph(home, "serve", *words, XDG_STATE_HOME=str(tmp_path))
    assert done.returncode == 2, done.stderr
    assert WRONG[words] in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) <= 3


def test_a_port_that_is_taken_is_said(home: dict[str, str], served: Served) -> None:
    done = ralph(home, "serve", "--port", str(served.port))
    assert done.returncode == 2
    assert "ralph serve --link" in done.stderr


def test_an_agent_cannot_hand_out_links(home: dict[str, str], served: Served) -> None:
    done = ralph(home, "serve", "--link", "--port", str(served.port), RALPH_RUN_ID="20261115-120000-k3fa")
    assert (done.returncode, "only a person" in done.stderr) == (2, True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_however_it_ends_nothing_of_it_is_left(serve: Serve, home: dict[str, str], number: signal.Signals) -> None:
    served = serve()
    folder = ServerFolder(f"127.0.0.1:{served.port}", home)
    served.another_link("look")
    assert folder.served
    served.process.send_signal(number)
    assert served.process.wait(60) == 0
    assert not folder.served
    assert not list(Path(folder.path).rglob("*.json"))
    assert not list(Path(folder.path, "links").iterdir())


def test_whoever_ends_it_at_its_very_first_moment_does_not_wait_for_ever(serve: Serve) -> None:
    for _ in range(3):
        served = serve(enters=False)
        served.process.terminate()
        assert served.process.wait(60) == 0


def test_it_listens_before_it_has_imported_what_pages_are_made_of(home: dict[str, str]) -> None:
    code = "import sys; import ralph.web.listening; print(*sys.modules)"
    known = subprocess.run([sys.executable, "-c", code], env=home, capture_output=True, text=True, check=True).stdout
    late = {"ralph.web.routes", "ralph.web.run_page", "ralph.settings", "ralph.history.run_history", "http.server"}
    assert not late & set(known.split())


def test_a_server_that_was_killed_is_known_to_be_gone(serve: Serve, home: dict[str, str]) -> None:
    served = serve()
    served.process.kill()
    served.process.wait()
    assert f"127.0.0.1:{served.port}" not in servers(home)
    again = ralph(home, "serve", "--link", "--port", str(served.port))
    assert (again.returncode, "no page is served there" in again.stderr) == (2, True)


def test_secrets_are_kept_as_hashes_and_for_this_user_alone(serve: Serve, home: dict[str, str]) -> None:
    served = serve("--remember")
    link = served.another_link("steer")
    folder = Path(ServerFolder(f"127.0.0.1:{served.port}", home).path)
    kept = [path for path in folder.rglob("*") if path.is_file()]
    everything = b"".join(path.read_bytes() + path.name.encode() for path in kept)
    assert link.partition("key=")[2].encode() not in everything
    assert served.cookie.partition("=")[2].encode() not in everything
    assert {stat.S_IMODE(path.stat().st_mode) for path in kept} == {0o600}
    assert {stat.S_IMODE(path.stat().st_mode) for path in (folder, folder / "links")} == {0o700}
    served.process.terminate()


def test_a_link_is_too_old_after_ten_minutes(serve: Serve, home: dict[str, str]) -> None:
    import msgspec

    served = serve()
    link = served.another_link("look")
    (file,) = Path(ServerFolder(f"127.0.0.1:{served.port}", home).path, "links").iterdir()
    kept = msgspec.json.decode(file.read_bytes(), type=Link)
    assert 590 < kept.until - time.time() <= 600
    file.write_bytes(msgspec.json.encode(Link("look", time.time() - 1)))
    key = link.partition("key=")[2]
    assert served.ask("GET", f"enter?key={key}", headers={"Cookie": None}).status == 403
    assert served.ask("POST", "enter", headers={"Cookie": None}, key=key).status == 403
    served.process.terminate()


def test_browsers_are_forgotten_unless_they_shall_be_remembered(serve: Serve) -> None:
    forgets = serve()
    forgets.process.terminate()
    forgets.process.wait()
    again = serve("--port", str(forgets.port), enters=False)
    assert again.base != forgets.base
    again.process.terminate()
    again.process.wait()
    remembers = serve("--port", str(forgets.port), "--remember")
    remembers.process.kill()
    remembers.process.wait()
    back = serve("--port", str(forgets.port), "--remember", enters=False)
    back.cookie = remembers.cookie
    assert back.base == remembers.base
    assert back.get().status == 200
    back.process.terminate()
    back.process.wait()
    capped = serve("--port", str(forgets.port), "--remember", "--allow", "look", enters=False)
    capped.cookie = remembers.cookie
    assert capped.get("new").status == 403  # what a browser was allowed once is capped as well
    capped.process.terminate()


def test_behind_a_proxy_the_page_goes_by_its_name_alone(serve: Serve) -> None:
    served = serve("--name", "devbox.example.net", enters=False)
    assert served.link.startswith("https://devbox.example.net/")
    served.port = _port_of(served)
    key = served.key
    headers = {"Host": "devbox.example.net", "Cookie": None}
    for origin in ("http://devbox.example.net", "https://other.example.net", f"http://127.0.0.1:{served.port}"):
        assert served.ask("POST", "enter", headers={**headers, "Origin": origin}, key=key).status == 403
    answer = served.ask("POST", "enter", headers={**headers, "Origin": "https://devbox.example.net"}, key=key)
    assert answer.status == 303
    assert "; Secure" in answer.headers["set-cookie"]
    assert served.ask("GET", "", headers={"Host": "other.example.net"}).status == 421
    served.process.terminate()


def _port_of(served: Served) -> int:
    found = [name for name, one in servers(served.env).items() if one.pid == served.process.pid]
    return int(found[0].rpartition(":")[2])


def test_with_a_name_the_link_is_also_a_code_for_a_phone(home: dict[str, str]) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "ralph", "serve", "--port", "0", "--name", "devbox.example.net"],
        env=home,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    link = process.stdout.readline().strip()
    code = matrix(link)
    assert code is not None
    lines = [process.stdout.readline().rstrip("\n") for _ in range((len(code) + 5) // 2)]
    dark = [
        [(half == 1 and sign in " ▀") or (half == 0 and sign in " ▄") for sign in line]
        for line in lines
        for half in (0, 1)
    ]
    assert [row[2:-2] for row in dark[2 : 2 + len(code)]] == [[bool(module) for module in row] for row in code]
    process.terminate()
    process.communicate()


@pytest.mark.parametrize("size", [17, 32, 53, 78, 106, 134])
def test_the_code_is_the_one_that_others_make(size: int) -> None:
    segno = pytest.importorskip("segno", reason="needs segno: pip install segno")
    text = ("https://devbox.example.net/" + "aB3_-/?=" * 20)[:size]
    made = matrix(text)
    assert made is not None
    version = (len(made) - 17) // 4
    other = segno.make(text, error="l", boost_error=False, mode="byte", version=version, mask=0)
    assert made == [[int(module) for module in row] for row in other.matrix]
    assert matrix("x" * 135) is None


def test_what_is_read_along_the_way_is_only_served_where_that_was_accepted(serve: Serve) -> None:
    served = serve("--bind", "127.0.0.2", enters=False)  # loopback all the same
    assert served.link.startswith("http://127.0.0.2:")
    served.process.terminate()


@pytest.fixture
def place(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("s") / "ralph.sock")


def over(path: str, raw: bytes) -> Reply:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(10)
        sock.connect(path)
        sock.sendall(raw)
        return Reply(read_reply(sock))


def test_a_socket_is_for_this_user_alone(serve: Serve, place: str, home: dict[str, str]) -> None:
    served = serve("--socket", place)
    assert stat.S_IMODE(os.stat(place).st_mode) == 0o600
    assert served.link.startswith("http://localhost/")
    asked = f"GET {served.base} HTTP/1.1\r\nHost: localhost:8787\r\nConnection: close\r\n\r\n"
    assert over(place, asked.encode()).status == 401
    entered = f"key={served.key}"
    lines = [
        f"POST {served.base}enter HTTP/1.1",
        "Host: localhost:8787",
        "Origin: http://localhost:8787",
        "Connection: close",
    ]
    lines += ["Content-Type: application/x-www-form-urlencoded", f"Content-Length: {len(entered)}", "", entered]
    assert over(place, "\r\n".join(lines).encode()).status == 303
    assert ralph(home, "serve", "--socket", place).returncode == 2  # somebody serves there
    another = ralph(home, "serve", "--socket", place, "--link", "look").stdout
    assert another.startswith(served.link.partition("enter")[0])
    served.process.terminate()
    served.process.wait()
    assert not os.path.exists(place)


def test_a_socket_that_a_dead_server_left_is_taken_over(serve: Serve, place: str) -> None:
    first = serve("--socket", place)
    first.process.kill()
    first.process.wait()
    assert os.path.exists(place)
    assert serve("--socket", place).link.startswith("http://localhost/")


def test_the_page_of_a_run_is_known_to_other_programs(serve: Serve, home: dict[str, str], tmp_path: Path) -> None:
    env = {**home, "XDG_STATE_HOME": str(tmp_path)}
    assert page_of("k3fa", env) == ""
    served = serve(XDG_STATE_HOME=str(tmp_path))
    assert page_of("k3fa", env) == f"{served.origin}{served.base}runs/k3fa"
    served.process.terminate()
    served.process.wait()
    assert page_of("k3fa", env) == ""


def test_the_help_says_what_a_link_allows(home: dict[str, str]) -> None:
    said = ralph(home, "serve", "--help").stdout
    assert "look, steer" in said
    assert "--allow" in said


def test_runs_do_not_depend_on_the_page(serve: Serve, scene: Callable[..., Scene]) -> None:
    run = scene("a10ne")
    run.begin(1)
    served = serve()
    assert served.get(f"runs/{run.id}").status == 200
    served.process.kill()
    served.process.wait()
    run.tool("Read", "a file")
    run.iterate(1, True, True, True)


def test_a_notification_carries_the_question_and_the_address_of_its_run(
    serve: Serve, home: dict[str, str], tmp_path: Path
) -> None:
    served = serve(XDG_STATE_HOME=str(tmp_path / "state"), enters=False)
    agent = tmp_path / "agent"
    agent.write_text('#!/bin/sh\ncat > /dev/null\nralph ask "Which of the two?"\n')
    agent.chmod(0o755)
    command = 'if [ "$RALPH_EVENT" = question ]; then cat > heard; echo "$RALPH_URL" > url; fi'
    words = ["run", "-p", "go", "-m", "1", "--agent", str(agent), "--notify", command, "-C", str(tmp_path), "--quiet"]
    ralph(home, *words, XDG_STATE_HOME=str(tmp_path / "state"))
    (folder,) = (tmp_path / ".ralph" / "runs").iterdir()
    address = f"{served.origin}{served.base}runs/{folder.name}"
    assert (tmp_path / "heard").read_text() == f"Which of the two?\n{address}\n"
    assert (tmp_path / "url").read_text() == f"{address}\n"
    served.process.terminate()
