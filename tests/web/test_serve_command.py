"""The command `ralph serve`: bad options, names and proxies, links from other terminals, shutdown."""

import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import segno
from tests.web.conftest import Serve, Served
from tests.web.scenes import Scene

from ralph.store.serving import Link, ServerFolder, run_url, running_servers


def ralph(home: dict[str, str], *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ralph", *words], env={**home, **env}, capture_output=True, text=True, timeout=60
    )


WRONG = {
    ("--bind", "0.0.0.0"): "reachable from other machines",
    ("--bind", "192.168.1.5"): "reachable from other machines",
    ("--bind", "::"): "reachable from other machines",
    ("--bind", "0.0.0.0", "--plain"): "needs --name",
    ("--bind", "localhost"): "expects an IP address",
    ("--bind", "203.0.113.9", "--plain"): "cannot listen on 203.0.113.9",
    ("--port", "65536"): "65536",
    ("--port", "x"): "'x'",
    ("--allow", "all"): "'all'",
    ("--name", "http://devbox"): "expects a host name",
    ("--name", "dev box"): "expects a host name",
    ("--name", "devbox/x"): "expects a host name",
    ("--name", ""): "expects a host name",
    ("/nowhere",): "too many words",
    ("--link",): "no web UI is running",
    ("--link", "everything"): "unknown level",
    ("--unknown",): "--unknown",
}


@pytest.mark.parametrize("words", WRONG, ids=" ".join)
def test_bad_options_get_one_line_and_a_hint(home: dict[str, str], words: tuple[str, ...], tmp_path: Path) -> None:
    done = ralph(home, "serve", *words, XDG_STATE_HOME=str(tmp_path))
    assert done.returncode == 2, done.stderr
    assert WRONG[words] in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) <= 3


def test_a_busy_port_is_a_one_line_error_with_a_hint(home: dict[str, str], served: Served) -> None:
    done = ralph(home, "serve", "--port", str(served.port))
    assert done.returncode == 2
    assert "ralph serve --link" in done.stderr


@pytest.mark.parametrize("package", ["segno", "starlette", "uvicorn"])
def test_without_its_packages_the_error_says_how_to_install_them(home: dict[str, str], package: str) -> None:
    code = f"import sys; sys.modules[{package!r}] = None; sys.argv = ['ralph', 'serve']; import ralph.__main__"
    words = [sys.executable, "-c", f"{code}; sys.exit(ralph.__main__.main())"]
    done = subprocess.run(words, env=home, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2, done.stderr
    message, hint = done.stderr.splitlines()
    assert message == f"ralph: the web UI needs {package}, which is not installed"
    assert hint.startswith("hint: ")
    assert "pip install 'segno" in hint


def test_ctrl_c_ends_the_server_at_once_while_pages_are_open(serve: Serve, scene: Callable[..., Scene]) -> None:
    run = scene("0p3n")
    run.begin(1)
    served = serve()
    lines = [f"GET {served.base}events?run={run.id} HTTP/1.1", "Host: 127.0.0.1", f"Cookie: {served.cookie}", "", ""]
    with served.connect() as stream, served.connect():
        stream.sendall("\r\n".join(lines).encode())
        assert b"200 OK" in stream.recv(1 << 16)
        served.process.send_signal(signal.SIGINT)
        assert served.process.wait(10) == 0
    assert served.process.stderr is not None
    assert "Traceback" not in served.process.stderr.read()


def test_an_agent_cannot_create_links(home: dict[str, str], served: Served) -> None:
    done = ralph(home, "serve", "--link", "--port", str(served.port), RALPH_RUN_ID="20261115-120000-k3fa")
    assert (done.returncode, "only a person" in done.stderr) == (2, True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_each_signal_that_ends_the_server_removes_its_links(
    serve: Serve, home: dict[str, str], number: signal.Signals
) -> None:
    served = serve()
    folder = ServerFolder(f"127.0.0.1:{served.port}", home)
    served.another_link("look")
    assert folder.running
    served.process.send_signal(number)
    assert served.process.wait(60) == 0
    assert not folder.running
    assert not list(Path(folder.path).rglob("*.json"))
    assert not list(Path(folder.path, "links").iterdir())


def test_a_signal_right_after_the_start_ends_the_server(serve: Serve) -> None:
    for _ in range(3):
        served = serve(enters=False)
        served.process.terminate()
        assert served.process.wait(60) == 0


def test_a_killed_server_is_not_listed(serve: Serve, home: dict[str, str]) -> None:
    served = serve()
    served.process.kill()
    served.process.wait()
    assert f"127.0.0.1:{served.port}" not in running_servers(home)
    again = ralph(home, "serve", "--link", "--port", str(served.port))
    assert (again.returncode, "no web UI is running on" in again.stderr) == (2, True)


def test_secrets_are_stored_as_hashes_and_only_for_this_user(serve: Serve, home: dict[str, str]) -> None:
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


def test_browsers_lose_access_with_the_server_unless_remembered(serve: Serve) -> None:
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
    assert capped.post("dismissall").status == 403  # the cap also applies to remembered browsers
    capped.process.terminate()


def test_behind_a_proxy_only_its_name_works(serve: Serve) -> None:
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
    found = [name for name, one in running_servers(served.env).items() if one.pid == served.process.pid]
    return int(found[0].rpartition(":")[2])


def test_with_a_name_the_link_is_also_a_qr_code(home: dict[str, str]) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "ralph", "serve", "--port", "0", "--name", "devbox.example.net"],
        env=home,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    link = process.stdout.readline().strip()
    code = [[bool(module) for module in row] for row in segno.make(link, error="l", micro=False).matrix]
    lines = [process.stdout.readline().rstrip("\n") for _ in range((len(code) + 5) // 2)]
    dark = [
        [(half == 1 and sign in " ▀") or (half == 0 and sign in " ▄") for sign in line]
        for line in lines
        for half in (0, 1)
    ]
    assert [row[2:-2] for row in dark[2 : 2 + len(code)]] == code
    process.terminate()
    process.communicate()


def test_another_loopback_address_needs_no_plain(serve: Serve) -> None:
    served = serve("--bind", "127.0.0.2", enters=False)  # this is loopback as well
    assert served.link.startswith("http://127.0.0.2:")
    served.process.terminate()


def test_other_commands_know_the_address_of_a_run(serve: Serve, home: dict[str, str], tmp_path: Path) -> None:
    env = {**home, "XDG_STATE_HOME": str(tmp_path)}
    assert run_url("k3fa", env) == ""
    served = serve(XDG_STATE_HOME=str(tmp_path))
    assert run_url("k3fa", env) == f"{served.origin}{served.base}runs/k3fa"
    served.process.terminate()
    served.process.wait()
    assert run_url("k3fa", env) == ""


def test_the_help_says_what_a_link_allows(home: dict[str, str]) -> None:
    shown = ralph(home, "serve", "--help").stdout
    assert "look, steer" in shown
    assert "--allow" in shown


def test_runs_do_not_depend_on_the_web_ui(serve: Serve, scene: Callable[..., Scene]) -> None:
    run = scene("a10ne")
    run.begin(1)
    served = serve()
    assert served.get(f"runs/{run.id}").status == 200
    served.process.kill()
    served.process.wait()
    run.tool("Read", "a file")
    run.iterate(1, True, True, True)


def test_a_notification_has_the_question_and_the_address_of_its_run(
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
