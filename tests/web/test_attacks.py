"""Attacks over raw sockets: without access a client gets nothing, whatever it sends."""

from collections.abc import Callable

import pytest
from tests.web.conftest import FORM, Reply, Serve, Served
from tests.web.scenes import Scene

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; manifest-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types ralph",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
NOTHING = ("access-control-allow-origin", "set-cookie", "server")


def refused(reply: Reply, status: int) -> None:
    """Every answer has the same headers, and none reveals anything."""
    assert reply.status == status, reply.raw[:600]
    assert {name: reply.headers.get(name) for name in HEADERS} == HEADERS
    assert not [name for name in NOTHING if name in reply.headers]
    assert "secret goal" not in reply.text


@pytest.fixture(scope="module")
def run(scene: Callable[..., Scene]) -> Scene:
    made = scene(goal="secret goal")
    made.iterate(1, True, False, True)
    return made


HOSTS = [
    None,
    "",
    " ",
    "evil.example",
    "evil.example:{port}",
    "127.0.0.1.evil.example",
    "127.0.0.1.evil.example:{port}",
    "localhost.evil.example",
    "localhost.",
    "127.0.0.1:{port}.evil.example",
    "127.0.0.1:{port}@evil.example",
    "user@127.0.0.1:{port}",
    "127.0.0.1:{port}/",
    "127.0.0.1:{port},evil.example",
    "127.0.0.1 evil.example",
    "127.0.0.1:port",
    "127.0.0.1:-1",
    "127.0.0.1:123456",
    "127.1",
    "127.0.0.2:{port}",
    "0x7f000001",
    "2130706433",
    "0.0.0.0:{port}",
    "[::]:{port}",
    "[::1",
    "::1",
    "[::1%lo]",
    "[::ffff:127.0.0.1]",
    "http://127.0.0.1:{port}",
    "xn--localhost-9q1k",
    "LOCALHOST\u00e9",
]


@pytest.mark.parametrize("host", HOSTS)
def test_an_unknown_host_is_refused(served: Served, run: Scene, host: str | None) -> None:
    sent = None if host is None else host.format(port=served.port)
    for path in ("", f"runs/{run.id}", "a/page.css"):
        refused(served.ask("GET", path, headers={"Host": sent}), 400 if sent is None else 421)


def test_two_host_headers_are_refused(served: Served, run: Scene) -> None:
    for second in ("127.0.0.1", "evil.example"):
        lines = [
            f"GET {served.base} HTTP/1.1",
            "Host: 127.0.0.1",
            f"Host: {second}",
            f"Cookie: {served.cookie}",
            "",
            "",
        ]
        refused(served.exchange("\r\n".join(lines).encode()), 400)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:1", "localhost", "LocalHost:8787", "[::1]", "[::1]:65535"])
def test_a_tunnel_may_end_at_any_port(served: Served, host: str) -> None:
    assert served.get(Host=host).status == 200


@pytest.mark.parametrize(
    "name", ["X-Forwarded-Host", "X-Forwarded-For", "X-Forwarded-Proto", "Forwarded", "X-Original-URL"]
)
def test_forwarded_headers_are_ignored(served: Served, name: str) -> None:
    refused(served.get(**{"Host": "evil.example", name: "127.0.0.1"}), 421)
    assert "Secure" not in served.ask("GET", "", headers={name: "https://127.0.0.1"}).headers.get("set-cookie", "")


MALFORMED = {
    "HTTP/0.9 without a path": "GET\r\n\r\n",
    "a version with a sign": "GET {base} HTTP/+1.1\r\n{host}\r\n\r\n",
    "no version": "GET {base} \r\n{host}\r\n\r\n",
    "two spaces": "GET  {base} HTTP/1.1\r\n{host}\r\n\r\n",
    "a tab": "GET\t{base}\tHTTP/1.1\r\n{host}\r\n\r\n",
    "a NUL": "GET {base}\0 HTTP/1.1\r\n{host}\r\n\r\n",
    "a bare return": "GET {base} HTTP/1.1\r\nX: a\rTransfer-Encoding: chunked\r\n{host}\r\n\r\n",
    "a header without a colon": "GET {base} HTTP/1.1\r\n{host}\r\nnonsense\r\nTransfer-Encoding: chunked\r\n\r\n",
    "a space before the colon": "GET {base} HTTP/1.1\r\n{host}\r\nTransfer-Encoding : chunked\r\n\r\n",
    "a header that begins with a space": "GET {base} HTTP/1.1\r\n {host}\r\n{host}\r\n\r\n",
    "an empty name": "GET {base} HTTP/1.1\r\n{host}\r\n: x\r\n\r\n",
    "a NUL in a header": "GET {base} HTTP/1.1\r\n{host}\r\nX: a\0b\r\n\r\n",
    "TLS": "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    "a greeting of another protocol": "EHLO evil.example\r\n\r\n",
    "nothing but newlines": "\r\n\r\n",
}


@pytest.mark.parametrize("raw", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_request_is_refused_with_all_headers(served: Served, raw: str) -> None:
    sent = raw.format(base=served.base, host=f"Host: 127.0.0.1\r\nCookie: {served.cookie}")
    refused(served.exchange(sent.encode("latin-1")), 400)


ENDLESS = {
    "a line without end": "GET {base}" + "a" * 70_000,
    "a header without end": "GET {base} HTTP/1.1\r\n{host}\r\nX: " + "a" * 70_000,
    "headers without end": "GET {base} HTTP/1.1\r\n{host}\r\n" + "X: a\r\n" * 15_000,
}


@pytest.mark.parametrize("raw", ENDLESS.values(), ids=ENDLESS)
def test_a_request_head_without_end_is_refused(served: Served, raw: str) -> None:
    refused(served.exchange(raw.format(base=served.base, host="Host: 127.0.0.1").encode()), 400)


SMUGGLED = {
    "chunked": ("Transfer-Encoding: chunked", "0\r\n\r\n", 400),
    "chunked and a length": ("Content-Length: 5\r\nTransfer-Encoding: chunked", "0\r\n\r\n", 400),
    "an unknown coding": ("Transfer-Encoding: xchunked\r\nContent-Length: 3", "a=b", 400),
    "an empty coding": ("Transfer-Encoding: \r\nContent-Length: 3", "a=b", 400),
    "two lengths": ("Content-Length: 3\r\nContent-Length: 30", "a=b", 400),
    "a negative length": ("Content-Length: -1", "a=b", 400),
    "a signed length": ("Content-Length: +3", "a=b", 400),
    "a length with an underscore": ("Content-Length: 1_0", "a=b", 400),
    "a hexadecimal length": ("Content-Length: 0x3", "a=b", 400),
    "a length in other digits": ("Content-Length: \u00b3", "a=b", 400),
    "no length": ("X: y", "a=b", 411),
    "a great length": ("Content-Length: 65537", "a=b", 413),
    "a length beyond numbers": ("Content-Length: " + "9" * 400, "a=b", 400),
}


@pytest.mark.parametrize(("headers", "body", "status"), SMUGGLED.values(), ids=SMUGGLED)
def test_a_body_cannot_contain_a_second_request(
    impatient: Served, run: Scene, headers: str, body: str, status: int
) -> None:
    served = impatient
    hidden = f"GET {served.base} HTTP/1.1\r\nHost: 127.0.0.1\r\nCookie: {served.cookie}\r\n\r\n"
    lines = [f"POST {served.base}runs/{run.id}/pause HTTP/1.1", "Host: 127.0.0.1", "Origin: http://127.0.0.1"]
    lines += [f"Content-Type: {FORM}", f"Cookie: {served.cookie}", headers, "", body + hidden]
    reply = served.exchange("\r\n".join(lines).encode("latin-1"))
    refused(reply, status)
    assert reply.raw.count(b"HTTP/1.1 ") == 1


def test_a_get_request_with_a_body_is_refused(served: Served) -> None:
    lines = [
        f"GET {served.base} HTTP/1.1",
        "Host: 127.0.0.1",
        f"Cookie: {served.cookie}",
        "Content-Length: 3",
        "",
        "abc",
    ]
    refused(served.exchange("\r\n".join(lines).encode()), 400)


PATHS = [
    "/",
    "//",
    "/favicon.ico",
    "/robots.txt",
    "/{site}",
    "//{site}/",
    "/{other}/",
    "/x/../{site}/",
    "/%2e/{site}/",
    "/{site}%2f",
    "/{SITE}/",
    "http://127.0.0.1{base}",
    "http://evil.example{base}",
    "*",
    "{site}/",
    "\\{site}\\",
]


@pytest.mark.parametrize("path", PATHS)
def test_without_the_secret_path_nothing_is_found(served: Served, run: Scene, path: str) -> None:
    site = served.base.strip("/")
    sent = path.format(site=site, base=served.base, SITE=site.swapcase(), other="A" * len(site))
    lines = [f"GET {sent} HTTP/1.1", "Host: 127.0.0.1", f"Cookie: {served.cookie}", "Connection: close", "", ""]
    refused(served.exchange("\r\n".join(lines).encode()), 404)


TRAVERSALS = [
    "runs/..",
    "runs/../",
    "runs/%2e%2e/%2e%2e/etc/passwd",
    "runs/{id}/..",
    "runs/{id}/../../../../etc/passwd",
    "runs/{id}%2f..%2f..",
    "runs/{id}/iterations/../../run.json",
    "runs/{id}/iterations/001/prompt",
    "runs/{id}/iterations/-1/prompt",
    "runs/{id}/iterations/1/run.json",
    "runs/{id}/iterations/1/prompt.md",
    "runs/{id}/iterations/1/prompt/..",
    "runs/{id}/iterations/1e3",
    "runs/{id}/iterations/99999999999999999999",
    "runs/{id}/diff/../../x",
    "runs/{id}/journal.ndjson",
    "runs/{id}/state.json",
    "runs/{id} ",
    "runs/{id}\u00e9",
    "runs/{short}",
    "runs/",
    "runs",
    "runs//{id}",
    "runs/./{id}",
    "runs/{place}",
    "a/../access.py",
    "a/..%2faccess.py",
    "a/",
    "a",
    "a/page.js/",
    "a//page.js",
    "a/%70age.js",
    "enter/",
    "events/",
    ".",
    "..",
    "%00",
]


@pytest.mark.parametrize("path", TRAVERSALS)
def test_a_path_never_reaches_a_file(served: Served, run: Scene, path: str) -> None:
    sent = path.format(id=run.id, short=run.id[-4:], place=str(run.folder.path).lstrip("/"))
    reply = served.ask("GET", sent.replace(" ", "%20").replace("\u00e9", "%c3%a9"))
    refused(reply, 404)
    assert "root:" not in reply.text


def test_a_link_in_a_runs_folder_is_not_followed(served: Served, run: Scene) -> None:
    folder = run.folder.path / "iterations" / "001"
    folder.mkdir(parents=True)
    (folder / "stdout.log").symlink_to("/etc/passwd")
    (folder / "prompt.md").mkdir()
    refused(served.get(f"runs/{run.id}/iterations/1/log"), 404)
    refused(served.get(f"runs/{run.id}/iterations/1/prompt"), 404)


SITES = ["cross-site", "same-site", "SAME-ORIGIN", "", "evil"]


@pytest.mark.parametrize("site", SITES)
def test_other_sites_cannot_fetch_anything(served: Served, run: Scene, site: str) -> None:
    for mode in ("cors", "no-cors", "websocket"):
        refused(served.get(f"runs/{run.id}", Sec_Fetch_Site=site, Sec_Fetch_Mode=mode, Sec_Fetch_Dest="empty"), 403)
    for destination in ("iframe", "frame", "object", "embed", "script", "style", "image"):
        refused(served.get("", Sec_Fetch_Site=site, Sec_Fetch_Mode="navigate", Sec_Fetch_Dest=destination), 403)
    refused(served.get("events", Sec_Fetch_Site=site, Sec_Fetch_Mode="cors", Sec_Fetch_Dest="empty"), 403)


def test_a_link_on_another_site_can_be_followed(served: Served) -> None:
    headers = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"}
    assert served.get("", **headers).status == 200


ORIGINS = [
    None,
    "null",
    "",
    "http://evil.example",
    "http://127.0.0.1",
    "http://127.0.0.1:1",
    "https://127.0.0.1:{port}",
    "http://localhost:{port}",
    "http://127.0.0.1:{port}/",
    "http://127.0.0.1:{port}.evil.example",
    "HTTP://127.0.0.1:{port}",
    "http://127.0.0.1:{port} http://evil.example",
]


@pytest.mark.parametrize("origin", ORIGINS)
def test_a_form_from_another_origin_is_refused(served: Served, run: Scene, origin: str | None) -> None:
    sent = None if origin is None else origin.format(port=served.port)
    refused(served.ask("POST", f"runs/{run.id}/pause", headers={"Origin": sent}), 403)
    assert not run.mail.read().is_paused


TYPES = [
    None,
    "",
    "text/plain",
    "application/json",
    "multipart/form-data; boundary=x",
    "application/x-www-form-urlencoded2",
    "application/x-www-form-urlencoded, text/plain",
    "text/plain; application/x-www-form-urlencoded",
]


@pytest.mark.parametrize("kind", TYPES)
def test_only_forms_are_accepted(served: Served, run: Scene, kind: str | None) -> None:
    refused(served.ask("POST", f"runs/{run.id}/pause", headers={"Content-Type": kind}), 415)
    assert not run.mail.read().is_paused


@pytest.mark.parametrize("method", ["get", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "PROPFIND"])
def test_other_methods_are_refused(served: Served, run: Scene, method: str) -> None:
    refused(served.ask(method, f"runs/{run.id}/pause"), 405)
    refused(served.ask(method, "", headers={"Host": "evil.example"}), 421)


COOKIES = [
    None,
    "",
    "ralph=",
    "ralph=x",
    "ralph=null",
    "ralph={hash}",
    "Ralph={token}",
    "xralph={token}",
    "other={token}",
]


@pytest.mark.parametrize("cookie", COOKIES)
def test_every_page_needs_a_session_on_loopback_too(served: Served, run: Scene, cookie: str | None) -> None:
    token = served.cookie.partition("=")[2]
    from hashlib import sha256

    sent = cookie and cookie.format(token=token, hash=sha256(token.encode()).hexdigest())
    for path in ("", f"runs/{run.id}", f"runs/{run.id}/report", "events", "nothing", "runs/unknown"):
        refused(served.get(path, Cookie=sent), 401)
    refused(served.ask("POST", f"runs/{run.id}/pause", headers={"Cookie": sent}), 401)
    assert not run.mail.read().is_paused


def test_a_cookie_of_another_server_on_this_host_is_ignored(served: Served) -> None:
    assert served.get("", Cookie=f"ralph=planted; {served.cookie}").status == 200


@pytest.mark.parametrize("key", ["", "x", "a" * 5000, "../../x", "%00"])
def test_an_invented_key_is_refused(served: Served, key: str) -> None:
    refused(served.ask("GET", f"enter?key={key}", headers={"Cookie": None}), 403)
    refused(served.ask("POST", "enter", headers={"Cookie": None}, key=key), 403)


def test_a_link_is_used_up_by_its_button_and_works_once(served: Served) -> None:
    key = served.another_link("look").partition("key=")[2]
    for _ in range(3):  # a chat program, a scanner, a person
        shown = served.ask("GET", f"enter?key={key}", headers={"Cookie": None})
        assert shown.status == 200
        assert "set-cookie" not in shown.headers
    assert served.enter(key).startswith("ralph=")
    refused(served.ask("POST", "enter", headers={"Cookie": None}, key=key), 403)
    refused(served.ask("GET", f"enter?key={key}", headers={"Cookie": None}), 403)


def test_a_link_of_one_server_does_not_open_another(served: Served, serve: Serve) -> None:
    other = serve(enters=False)
    refused(served.ask("POST", "enter", headers={"Cookie": None}, key=other.key), 403)
    refused(served.ask("GET", "", headers={"Cookie": other.enter()}), 401)


def test_the_cookie_is_only_for_this_site_and_not_for_scripts(served: Served) -> None:
    key = served.another_link("look").partition("key=")[2]
    answer = served.ask("POST", "enter", headers={"Cookie": None}, key=key)
    sent = answer.headers["set-cookie"].split("; ")
    assert {"HttpOnly", "SameSite=Lax", f"Path={served.base}"} <= set(sent)
    assert "Secure" not in sent  # plain http on loopback


def test_look_does_not_allow_steer_and_steer_does_not_allow_start(served: Served, run: Scene) -> None:
    looks, steers = served.enter_as("look"), served.enter_as("steer")
    for action in ("tell", "answer", "pause", "resume", "stop", "rewind"):
        refused(served.ask("POST", f"runs/{run.id}/{action}", headers={"Cookie": looks}, text="x"), 403)
        refused(served.ask("POST", f"runs/unknown/{action}", headers={"Cookie": looks}, text="x"), 403)
    for cookie in (looks, steers):
        for action in ("allow", "accept", "discard", "retry", "rewind"):
            refused(served.ask("POST", f"runs/{run.id}/{action}", headers={"Cookie": cookie}, to="1"), 403)
    mail = run.mail.read()
    assert (mail.notes, mail.is_paused) == ((), False)
    shown = served.ask("GET", f"runs/{run.id}", headers={"Cookie": looks}).text
    assert "<form" not in shown


def test_allow_caps_every_link(serve: Serve, run: Scene) -> None:
    capped = serve("--allow", "steer")
    refused(capped.ask("POST", f"runs/{run.id}/accept"), 403)
    assert capped.ask("GET", f"runs/{run.id}").status == 200
    assert "allows steer at most" in run_ralph(capped, "serve", "--link", "start", "--port", str(capped.port))


def run_ralph(served: Served, *words: str) -> str:
    import subprocess
    import sys

    done = subprocess.run([sys.executable, "-m", "ralph", *words], env=dict(served.env), capture_output=True, text=True)
    assert done.returncode == 2
    return done.stderr
