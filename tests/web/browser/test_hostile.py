"""In a real browser: hostile text never runs, and other sites get no access."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.web.browser.conftest import Elsewhere, Open
from tests.web.conftest import Served
from tests.web.scenes import Scene

from ralph.core import events as e
from ralph.core.model import Check, Iteration, PersonNote, Turn

HOSTILE = [
    "<script>window.pwned=1</script>",
    "<img src=x onerror=window.pwned=1>",
    '"><svg onload=window.pwned=1>',
    "'-alert(1)-'",
    "</textarea><script>window.pwned=1</script>",
    "</title><script>window.pwned=1</script>",
    "</pre></code></details><iframe srcdoc='<script>parent.pwned=1</script>'>",
    "javascript:window.pwned=1",
    "<style>*{display:none}</style><base href=//evil.example/>",
    "<meta http-equiv=refresh content='0;url=http://evil.example'>",
    "<form action=//evil.example><button>Go on</button></form>",
    "<a id=stream></a><div id=said></div><input name=question>",
    "data: x\n\nid: 99999\ndata: <b id=now>fake</b>\n\n",
    "event: again\r\rdata: x\r\r",
    "`<b>` ${window.pwned=1} {{7*7}} &lt;script&gt;",
    "\u202e\u2066gnp.exe \x1b]8;;http://evil\x07 \ud800 \x00",
]


@pytest.mark.parametrize("words", HOSTILE)
def test_hostile_text_is_only_text_in_every_field(
    open_page: Open, scene: Callable[..., Scene], words: str, tmp_path: Any
) -> None:
    import secrets

    run = scene(
        secrets.token_hex(4),
        goal=words,
        checks=(words, "true"),
        branch=words,
        agent=words,
        preset=words,
        workspace=tmp_path / words.replace("/", "_").replace("\x00", "").encode("utf-8", "replace").decode()[:80],
    )
    run.begin(1)
    page = open_page(f"runs/{run.id}")
    tell = run.tell
    tell(
        e.AgentText(words),
        e.ToolStarted("t", words, words),
        e.ToolFinished(id="t", name=words, ok=False, output=words, lines=1, chars=9),
    )
    tell(e.TodoUpdated((e.TodoItem(words, words), e.TodoItem(words, "active"))))
    tell(
        e.CheckStarted(words),
        e.CheckFinished(name=words, passed=False, exit_code=1, duration_s=1.0, log=words, output=words),
    )
    tell(e.ClaimRejected(words, words, words), e.Notice(words), e.QuestionAsked("q", words))
    tell(e.PersonTold(1, (PersonNote("n", words),)), e.Waiting(5.0, words))
    turn = Turn(text=words, agent=words)
    tell(
        e.IterationFinished(
            1,
            Iteration(
                number=1,
                turn=turn,
                checks=(Check(name=words, passed=False, exit_code=1, head=words, tail=words, log=words),),
                touched=(words,),
            ),
        )
    )
    run.mail.ask(words)
    run.begin(2)
    tell(e.AgentText("the end"))
    page.wait_for_selector("text=the end")
    page.wait_for_selector("#i1")
    page.wait_for_selector("#attention .question")
    _is_unharmed(page)
    for path in ("", f"runs/{run.id}", f"runs/{run.id}/iterations/1", f"runs/{run.id}/report"):
        page.goto(page.url.partition("runs/")[0] + path)
        _is_unharmed(page)


def _is_unharmed(page: Any) -> None:
    assert page.evaluate("window.pwned") is None
    assert page.locator("iframe, base, body style, body script, body meta, form[action*=evil]").count() == 0
    for name in ("stream", "said", "now"):
        assert page.locator(f"[id={name}]").count() <= 1
    assert page.locator("#now >> text=fake").count() == 0
    assert "evil" not in page.url


def test_no_foreign_script_runs_even_if_injected(open_page: Open) -> None:
    page = open_page()
    with pytest.raises(Exception, match="TrustedHTML"):
        page.evaluate("document.body.innerHTML = '<img src=x onerror=window.pwned=1>'")
    with pytest.raises(Exception, match="olicy"):
        page.evaluate("trustedTypes.createPolicy('evil', {createHTML: (x) => x})")
    assert page.evaluate("window.pwned") is None
    open_page.complaints.clear()  # type: ignore[attr-defined] # that all of it was refused


@pytest.fixture
def visiting(browser: Any, served: Served, elsewhere: Elsewhere) -> Any:
    """A user with access visits a page of another server on this machine."""
    context = browser.new_context()
    name, _, value = served.cookie.partition("=")
    context.add_cookies(
        [
            {
                "name": name,
                "value": value,
                "domain": "127.0.0.1",
                "path": served.base,
                "httpOnly": True,
                "sameSite": "Lax",
            }
        ]
    )

    def visit(html: str, path: str = "/") -> Any:
        elsewhere.pages[path] = html
        page = context.new_page()
        page.goto(elsewhere.origin + path)
        return page

    yield visit
    context.close()


def test_a_server_on_another_port_does_not_get_the_cookie(visiting: Any, served: Served, elsewhere: Elsewhere) -> None:
    """Browsers send cookies to all ports of a host: only the secret path keeps this one from other servers."""
    visiting("<p>hello</p>").goto(f"{elsewhere.origin}/any/path")
    assert not any(served.cookie in sent for sent in elsewhere.cookies)


# `got` is told what came of it; `made` is an element that loads something.
PRELUDE = """
const got = (what) => { window.got = what; }, no = () => got('no'), site = 'SITE', run = 'RUN';
const load = (name, values) => {
  const made = Object.assign(document.createElement(name), values, { onload: () => got('seen'), onerror: no });
  document.body.append(made);
};
const include = { credentials: 'include' }, note = new URLSearchParams({ text: 'evil' });
"""
ATTEMPTS = {
    "fetch": "fetch(site, include).then(async (answer) => got(await answer.text()), no)",
    "fetch without cors": "fetch(site, { mode: 'no-cors', ...include }).then((one) => got(one.type + one.status), no)",
    "an event source": "const source = new EventSource(site + 'events', { withCredentials: true }); "
    "source.onmessage = (message) => got(message.data); source.onerror = no",
    "a script": "load('script', { src: site + 'a/page.js' })",
    "a picture": "load('img', { src: site + 'a/icon.svg' })",
    "a style sheet": "load('link', { rel: 'stylesheet', href: site + 'a/page.css' })",
    "a posted note": "fetch(`${site}runs/${run}/tell`, "
    "{ method: 'POST', mode: 'no-cors', body: note, ...include }).then(no, no)",
    "a beacon": "navigator.sendBeacon(`${site}runs/${run}/tell`, note); no()",
}


@pytest.mark.parametrize("attempt", ATTEMPTS.values(), ids=ATTEMPTS)
def test_another_site_gets_nothing_even_if_it_knows_the_address(
    visiting: Any, served: Served, scene: Callable[..., Scene], attempt: str
) -> None:
    import secrets

    run = scene(secrets.token_hex(4), goal="secret goal")
    run.begin(1)
    page = visiting("<body></body>")
    prelude = PRELUDE.replace("SITE", f"{served.origin}{served.base}").replace("RUN", run.id)
    page.evaluate(f"(() => {{ {prelude} {attempt} }})()")
    page.wait_for_function("window.got !== undefined")
    assert page.evaluate("window.got") in ("no", "opaque403", "opaque0")
    assert served.get().status == 200
    assert not run.mail.read().notes


def test_another_site_cannot_submit_a_form(visiting: Any, served: Served, scene: Callable[..., Scene]) -> None:
    run = scene("f0rm")
    run.begin(1)
    action = f"{served.origin}{served.base}runs/{run.id}/tell"
    page = visiting(f"<form method=post action='{action}'><input name=text value=evil></form>")
    page.evaluate("document.forms[0].submit()")
    page.wait_for_url(action)
    assert "another web site sent this request" in page.inner_text("body")
    assert not run.mail.read().notes


def test_another_site_cannot_frame_or_control_our_pages(visiting: Any, served: Served) -> None:
    url = f"{served.origin}{served.base}"
    page = visiting(f"<iframe src='{url}'></iframe>")
    page.wait_for_timeout(300)
    inner = page.frames[1]
    assert "Needs you" not in inner.content()
    with page.context.expect_page() as opened:
        page.evaluate(f"window.other = open('{url}')")
    opened.value.wait_for_load_state()
    assert "Needs you" in opened.value.inner_text("body")  # the user may follow a link
    assert page.evaluate("window.other.closed")  # but the other page keeps no reference


def test_a_rebound_dns_name_is_refused(browser: Any, served: Served) -> None:
    """DNS rebinding: the browser takes our server for another site, whose scripts could read everything."""
    context = browser.new_context()
    page = context.new_page()
    answer = page.goto(f"http://evil.example:{served.port}{served.base}")
    assert (answer.status, "Needs you" in page.inner_text("body")) == (421, False)
    context.close()
