"""Hidden tabs close their streams: browsers allow six connections to a host."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.web.conftest import Served
from tests.web.scenes import Scene

from ralph.core import events as e

# Under Playwright every tab counts as visible, so the test says what the browser would.
SHOW_OR_HIDE = """(isHidden) => {
    Object.defineProperty(document, "hidden", { configurable: true, get: () => isHidden });
    document.dispatchEvent(new Event("visibilitychange"));
}"""


@pytest.fixture
def new_tab(browser: Any, served: Served) -> Iterator[Callable[[str], Any]]:
    """Open tabs in one browser with access."""
    context = browser.new_context()
    context.set_default_timeout(45_000)
    entry = context.new_page()
    entry.goto(served.another_link("steer"))
    entry.click("button")
    entry.wait_for_selector("#needs")
    entry.close()

    def show(path: str) -> Any:
        page = context.new_page()
        page.goto(f"{served.origin}{served.base}{path}")
        return page

    yield show
    context.close()


def test_a_hidden_tab_closes_its_stream_and_catches_up_when_it_is_shown(
    new_tab: Callable[[str], Any], scene: Callable[..., Scene]
) -> None:
    run = scene("h1dden")
    run.begin(1)
    page = new_tab(f"runs/{run.id}")
    run.tell(e.AgentText("seen at once"))
    page.wait_for_selector("text=seen at once")
    page.evaluate(SHOW_OR_HIDE, True)
    assert page.evaluate("source === undefined")
    run.tell(*(e.AgentText(f"hidden {number}.") for number in range(50)))
    page.evaluate(SHOW_OR_HIDE, False)
    page.wait_for_selector("text=hidden 49.")
    assert page.text_content("#stream").count("hidden 7.") == 1


def test_a_tab_that_is_opened_while_hidden_opens_no_stream(
    new_tab: Callable[[str], Any], scene: Callable[..., Scene]
) -> None:
    run = scene("h1dd3n")
    run.begin(1)
    page = new_tab(f"runs/{run.id}")
    page.evaluate(SHOW_OR_HIDE, True)
    page.evaluate("listen()")
    assert page.evaluate("source === undefined")


def test_with_six_tabs_the_last_one_still_works(new_tab: Callable[[str], Any], scene: Callable[..., Scene]) -> None:
    run = scene("s1xtab")
    run.begin(1)
    pages = [new_tab(f"runs/{run.id}") for _ in range(6)]
    run.tell(e.AgentText("news for the last tab"))
    pages[-1].wait_for_selector("text=news for the last tab")
    pages[-1].goto(pages[-1].url.partition("runs/")[0])
    pages[-1].wait_for_selector("#needs")
