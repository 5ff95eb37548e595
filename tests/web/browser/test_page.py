"""The pages in a real browser: on a phone and a desktop, with JavaScript and without."""

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.web.browser.conftest import Open
from tests.web.conftest import Served, eventually
from tests.web.scenes import Scene, WorkScene, night, real_run

from ralph.core import events as e
from ralph.core.backlog import BacklogTask
from ralph.core.measuring import Comparison, Metric, Start
from ralph.core.model import Fingerprint, Iteration, Turn, Usage

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def run(scene: Callable[..., Scene]) -> Scene:
    import secrets

    made = scene(secrets.token_hex(4))
    made.begin(1)
    return made


def test_the_button_of_a_link_gives_a_browser_access(browser: Any, served: Served) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(served.another_link("look"))
    assert "will see all runs" in page.inner_text("main")
    page.click("text=Open")
    page.wait_for_selector("#needs")
    assert page.url == f"{served.origin}{served.base}"
    context.close()


@pytest.mark.parametrize("script", [True, False], ids=["with a script", "without"])
def test_a_question_is_answered_from_the_phone(open_page: Open, run: Scene, script: bool) -> None:
    question = run.mail.ask("Which of the two shall I keep?")
    page = open_page(f"runs/{run.id}", script=script)
    assert "Which of the two shall I keep?" in page.inner_text("#attention")
    page.fill(f"#answer-{question.id}", "Keep the first; drop the other nine.")
    page.click("#attention button:has-text('Answer')")
    eventually(lambda: run.mail.read().notes)
    (note,) = run.mail.read().notes
    assert (note.text, note.answers) == ("Keep the first; drop the other nine.", question)
    if script:
        page.wait_for_selector("#said.on")
        page.wait_for_selector("#attention >> text=Which of the two", state="detached")
        assert page.evaluate("performance.getEntriesByType('navigation').length") == 1


def test_an_answered_question_disappears_even_if_its_form_was_replaced(open_page: Open, run: Scene) -> None:
    question = run.mail.ask("Which of the two shall I keep?")
    page = open_page(f"runs/{run.id}")
    page.fill(f"#answer-{question.id}", "the first")
    page.evaluate("""() => {
        const real = window.fetch;
        window.fetch = (...asked) => { put(document.getElementById("attention").outerHTML); return real(...asked); };
    }""")
    page.click("#attention button:has-text('Answer')")
    page.wait_for_selector("#attention >> text=Which of the two", state="detached")


def test_a_delayed_update_never_replaces_a_newer_one(open_page: Open, run: Scene) -> None:
    page = open_page(f"runs/{run.id}")
    shown = page.evaluate("""() => {
        isPressed = true; put("<section id=steer>older</section>");
        isPressed = false; put("<section id=steer>newer</section>");
        settle();
        return document.getElementById("steer").textContent;
    }""")
    assert shown == "newer"


@pytest.mark.parametrize("script", [True, False], ids=["with a script", "without"])
def test_a_run_is_told_paused_and_resumed(open_page: Open, run: Scene, script: bool) -> None:
    page = open_page(f"runs/{run.id}", script=script)
    page.fill("#tell", "Use Decimal.")
    page.click(".tell button")
    eventually(lambda: run.mail.read().notes)
    page.click("#steer button[title=p]")
    eventually(lambda: run.mail.read().is_paused)
    page.wait_for_selector("#steer button[title=r]")
    page.click("#steer button[title=r]")
    eventually(lambda: not run.mail.read().is_paused)


def test_what_the_agent_does_appears_as_it_happens(open_page: Open, run: Scene) -> None:
    page = open_page(f"runs/{run.id}")
    for number in range(250):
        run.tell(e.AgentText(f"line {number} of the night"))
    page.wait_for_selector("text=line 249 of the night")
    said = re.findall(r"line (\d+) of the night", page.text_content("#stream"))
    assert said == [str(number) for number in range(250)]
    run.tell(e.ToolStarted("t", "Bash", "pytest -q"))
    page.wait_for_selector("#stream .tool >> text=pytest -q")
    run.tell(e.ToolFinished(id="t", name="Bash", ok=True, output="3 passed", lines=1, chars=8))
    page.wait_for_selector("#stream details.tool >> text=pytest -q")
    assert page.locator("#stream .tool").count() == 1
    run.iterate(1, True, False, True)
    page.wait_for_selector("#chapters #i1")
    page.wait_for_selector("#score .mark.bad")


def test_a_draft_survives_updates(open_page: Open, run: Scene) -> None:
    """A part in which the user types is replaced only after they leave it, and keeps the draft."""
    question = run.mail.ask("Which of the two?")
    page = open_page(f"runs/{run.id}")
    box = f"#answer-{question.id}"
    page.click(box)
    page.keyboard.type("half an ans")
    other = run.mail.ask("And which colour?")  # the part with the boxes changes
    run.iterate(1, True, True, True)
    page.wait_for_selector("#chapters #i1")
    page.keyboard.type("wer")
    assert page.input_value(box) == "half an answer"
    page.click("h1")
    page.wait_for_selector(f"#answer-{other.id}")
    assert page.input_value(box) == "half an answer"
    run.mail.tell("blue", other)
    page.wait_for_selector(f"#answer-{other.id}", state="detached")
    assert page.input_value(box) == "half an answer"


def test_a_draft_on_the_board_survives_updates_of_other_runs(
    open_page: Open, run: Scene, scene: Callable[..., Scene]
) -> None:
    question = run.mail.ask("Which of the two?")
    page = open_page()
    page.fill(f"#answer-{question.id}", "this one")
    other = scene("0th3r")
    other.begin(1)
    other.mail.ask("And I?")
    page.click("h1", force=True)
    page.wait_for_selector("text=And I?")
    assert page.input_value(f"#answer-{question.id}") == "this one"


def test_a_late_answer_is_reported_as_late(open_page: Open, run: Scene) -> None:
    question = run.mail.ask("Which of the two?")
    page = open_page(f"runs/{run.id}")
    page.fill(f"#answer-{question.id}", "the second")
    run.mail.tell("the first", question)
    eventually(lambda: page.evaluate("later.has('attention')"))  # the page knows that the question is gone
    page.click("#attention button:has-text('Answer')")
    page.wait_for_selector("#said.on.bad")
    assert "no longer asks that" in page.inner_text("#said")
    assert page.input_value(f"#answer-{question.id}") == "the second"  # the draft is kept
    open_page.complaints.clear()  # type: ignore[attr-defined] # that it was answered with 409


def test_a_button_stays_under_the_finger_that_presses_it(open_page: Open, run: Scene) -> None:
    page = open_page(f"runs/{run.id}")
    button = page.locator("#steer button:has-text('Pause')")
    button.hover()
    page.mouse.down()
    run.mail.pause()  # by somebody else: the button would become "Resume"
    eventually(lambda: page.evaluate("later.has('steer')"))
    assert button.is_visible()
    page.mouse.up()
    page.wait_for_selector("#said.on")
    page.wait_for_selector("#steer button:has-text('Resume')")
    assert run.mail.read().is_paused


def test_the_whole_card_links_to_its_run(open_page: Open, run: Scene) -> None:
    page = open_page(width=1280)
    card = page.locator(f".one-run:has(a[href$='{run.id}'])")
    card.click(position={"x": 200, "y": 12})
    page.wait_for_selector("#stream")
    assert run.id in page.url


def test_keys_do_what_buttons_do(open_page: Open, run: Scene) -> None:
    page = open_page(f"runs/{run.id}", width=1280)
    page.keyboard.press("t")
    page.keyboard.type("p is a letter here")
    page.keyboard.press("Control+Enter")
    eventually(lambda: run.mail.read().notes)
    assert not run.mail.read().is_paused
    page.keyboard.press("Escape")
    page.keyboard.press("p")
    eventually(lambda: run.mail.read().is_paused)
    page.keyboard.press("s")
    page.wait_for_selector("text=Stop this run?")
    page.keyboard.press("Escape")
    page.wait_for_selector("text=Stop this run?", state="hidden")
    page.keyboard.press("g")
    page.wait_for_selector("#needs")
    page.wait_for_load_state()  # keys work only after that
    page.keyboard.press("j")
    assert page.evaluate("document.activeElement.className") == "cover"


def test_a_lost_connection_is_shown_and_restored(open_page: Open, run: Scene) -> None:
    page = open_page(f"runs/{run.id}")
    run.tell(e.AgentText("heard"))
    page.wait_for_selector("text=heard")
    page.context.set_offline(True)
    page.evaluate("disconnect(); listen()")
    page.wait_for_selector("body.lost", state="attached")
    run.tell(e.AgentText("said while nobody listened"))
    page.context.set_offline(False)
    page.wait_for_selector("text=said while nobody listened")
    page.wait_for_selector("body:not(.lost)")
    open_page.complaints.clear()  # type: ignore[attr-defined] # that the connection failed


WIDE = """[...document.querySelectorAll('body *')].filter((each) => each.getBoundingClientRect().right > 391
  && !each.closest('.scroll, pre')).slice(0, 5).map((each) => each.outerHTML.slice(0, 80))"""


def tuned(scene: Callable[..., Scene], idea: str) -> Scene:
    """A run that optimises a number."""
    run = scene("tun3", preset="tune", checks=("pytest -q",))
    run.tell(e.StartMeasured(Start(Metric(min_gain=0.01), (100.0, 104.0, 102.0))))
    run.begin(1)
    measured = Comparison(before=150, after=149, gain=0.006, kept=False)
    attempt = Iteration(number=1, turn=Turn(text=f"IDEA: {idea}", usage=Usage(cost_usd=0.2)), measured=measured)
    run.tell(e.IterationFinished(1, attempt))
    run.finish()
    return run


def test_no_page_is_wider_than_a_phone(
    open_page: Open, scene: Callable[..., Scene], home: dict[str, str], tmp_path: Any
) -> None:
    long = "averylongwordwithoutanyspaceinit" * 8
    run = scene("w1de", goal=f"{long} {long}", checks=(long, "pytest -q"), branch=long)
    run.iterate(1, True, False, said=f"{long}\n`{long}`")
    run.begin(2)
    run.tool("Bash", long, f"{long}\n" * 3, lines=3)
    run.mail.ask(f"{long}?")
    work = WorkScene(
        tmp_path, home, "20261115-180000-w1dw", BacklogTask(key="T1", title=long), BacklogTask(key=long[:60], title="x")
    )
    work.start("T1")
    work.park("T1", long)
    tune = tuned(scene, long)
    a_run, a_work, a_tune = f"runs/{run.id}", f"runs/{work.id}", f"runs/{tune.id}"
    more = (f"{a_run}/report", f"{a_run}/iterations/1", f"{a_work}/report", f"{a_tune}/report")
    for path in ("", a_run, a_work, a_tune, *more):
        page = open_page(path)
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= 390, (path, page.evaluate(WIDE))
    work.finish()


@pytest.mark.parametrize("width", [390, 1280])
def test_the_id_of_a_run_is_never_broken(
    open_page: Open, scene: Callable[..., Scene], tmp_path: Path, width: int
) -> None:
    run = scene("x4pj", workspace=tmp_path / "a_project-with-quite-a-long-name-9.1.3")
    page = open_page(width=width)
    card = f".one-run:has(a[href$='{run.id}'])"
    name, place, whole = page.evaluate(PLACES, [f"{card} .nick", f"{card} .first b", card])
    assert name["height"] < 1.5 * place["height"]
    assert name["right"] <= whole["right"]


@pytest.mark.parametrize("width", [390, 1200])
def test_a_file_with_a_long_name_stays_in_its_card(open_page: Open, scene: Callable[..., Scene], width: int) -> None:
    nothing = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
    run = scene(f"f{width}", base_tree=Fingerprint.parse(f"a:{nothing}"))

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=run.workspace, check=True, capture_output=True, text=True).stdout

    git("init", "-q")
    git("hash-object", "-t", "tree", "-w", "/dev/null")
    (run.workspace / f"{'long' * 40}.py").write_text("1\n")
    git("add", "-A", "--", "*.py")
    run.iterate(1, True, tree=Fingerprint.parse(f"b:{git('write-tree').strip()}"))
    run.finish("exhausted")
    page = open_page(f"runs/{run.id}", width=width)
    page.wait_for_selector("#files li")
    card, number = page.evaluate(PLACES, ["#files", "#files .number"])
    assert number["right"] <= card["right"]


@pytest.fixture(scope="module")
def long_night(home: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    run = night(tmp_path_factory.mktemp("night") / "shop", home, "20261115-180000-n1ht", 40, 20)
    run.mail.ask("Half up, or half even?")
    yield run
    run.close()


# All positions at the same moment: an update may replace the elements.
PLACES = "selectors => selectors.map(one => document.querySelector(one).getBoundingClientRect().toJSON())"


@pytest.mark.parametrize("script", [True, False])
def test_the_score_starts_with_the_latest_iterations(open_page: Open, long_night: Scene, script: bool) -> None:
    page = open_page(f"runs/{long_night.id}", script=script)
    card, latest, name = page.evaluate(PLACES, ["#score", "#score .current", "#score tr:nth-child(2) th"])
    assert latest["right"] <= card["right"]
    assert card["x"] <= name["x"] < latest["x"]


def test_a_printed_page_fits_its_paper_and_keeps_the_question(open_page: Open, long_night: Scene) -> None:
    page = open_page(f"runs/{long_night.id}", width=718)  # A4 without its margins
    page.emulate_media(media="print")
    assert page.evaluate("document.documentElement.scrollWidth") <= 718
    assert page.locator("#attention >> text=half even").is_visible()
    assert not page.locator("#attention textarea").is_visible()
    assert page.locator("#score tr:first-child > :visible").count() == 17
    paper, name = page.evaluate(PLACES, ["#score", "#score th code"])
    assert paper["x"] <= name["x"] < paper["x"] + 60


PAGES = ("board", "work", "work's report", "run that asks", "run that ended", "iteration", "diff", "report")


@pytest.fixture(scope="module")
def addresses(
    scene: Callable[..., Scene], home: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """One page of each kind, with as much on it as possible."""
    folder = tmp_path_factory.mktemp("pages")
    asking = night(folder / "shop", home, "20261115-180000-ax3s", 12, 5)
    asking.refuse()
    asking.mail.ask("May I change `total()`?")
    ended = scene("ax3d", branch="ralph/x")
    ended.iterate(1, True, False, True)
    ended.refuse()
    ended.finish("exhausted", "1 iteration, and no end", branch="ralph/x")
    work = WorkScene(folder, home, "20261115-180000-ax3w", *(BacklogTask(key=f"T{n}", title="x") for n in range(4)))
    work.start("T0")
    work.merge("T0")
    work.start("T1")
    work.park("T1")
    work.start("T2")
    runs = {"work": work.id, "run that asks": asking.id, "run that ended": ended.id}
    parts = {"work's report": f"{work.id}/report", "report": f"{asking.id}/report"}
    parts |= {"iteration": f"{ended.id}/iterations/1", "diff": f"{real_run(folder / 'changed', home)}/diff"}
    yield {"board": ""} | {name: f"runs/{path}" for name, path in (runs | parts).items()}
    asking.close()
    work.finish()


@pytest.mark.parametrize("name", PAGES)
def test_pages_are_accessible(open_page: Open, addresses: dict[str, str], name: str) -> None:
    """axe finds no violations: all rules on a desktop, those about colors and sizes on a phone in dark mode."""
    from importlib import resources

    axe = resources.files("axe_core_python").joinpath("axe.min.js").read_text()
    page = open_page(addresses[name], width=1280, reduced_motion="reduce")
    page.evaluate(axe)
    on_a_desk = page.evaluate("axe.run({resultTypes: ['violations']})")
    page.emulate_media(color_scheme="dark", reduced_motion="reduce")
    page.set_viewport_size({"width": 390, "height": 844})
    rules = "{resultTypes: ['violations'], runOnly: ['color-contrast', 'scrollable-region-focusable']}"
    on_a_phone = page.evaluate(f"axe.run({rules})")
    found = [*on_a_desk["violations"], *on_a_phone["violations"]]
    assert not [(one["id"], [node["html"][:120] for node in one["nodes"]][:3]) for one in found]


def test_print_shows_everything_and_no_buttons(open_page: Open, run: Scene) -> None:
    run.iterate(1, True, False, True)
    page = open_page(f"runs/{run.id}", width=1280)
    page.wait_for_selector("#i1")
    page.emulate_media(media="print")
    assert page.locator("#steer").is_hidden()
    assert page.locator("#i1 dd").first.is_visible()
