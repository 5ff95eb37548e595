"""Tabs that nobody looks at listen to nothing: browsers allow six connections, and phones have one battery."""

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.web.browser.conftest import FLAGS
from tests.web.conftest import Served, eventually
from tests.web.scenes import Scene

from ralph.core import events as e

pytestmark = pytest.mark.timeout(300)
LONG = 90.0  # seconds: a browser with six windows takes its time where others need the machine, too


@pytest.fixture(scope="module")
def driver(chromium: str, served: Served) -> Iterator[Any]:
    """Chromium as a person has it, whose tabs can be hidden behind one another."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in ("--headless=new", *FLAGS):
        options.add_argument(flag)
    service = webdriver.ChromeService(executable_path=shutil.which("chromedriver"))
    made = webdriver.Chrome(options, service)
    made.get(served.another_link("steer"))
    made.find_element("css selector", "button").click()
    yield made
    made.quit()


# A connection that is open may be an idle one, which a browser keeps or opens as it likes: the page itself has to say
# that it has closed its stream, and whether it was hidden then.
TELL = """
const close = EventSource.prototype.close;
EventSource.prototype.close = function () { close.call(this); localStorage.setItem("closed", document.hidden); };
"""


def test_a_hidden_tab_closes_its_stream_and_catches_up_when_it_is_seen(
    driver: Any, served: Served, scene: Callable[..., Scene]
) -> None:
    run = scene("h1dden")
    run.begin(1)
    base = f"{served.origin}{served.base}"
    driver.get(f"{base}runs/{run.id}")
    driver.execute_script(TELL)
    run.tell(e.AgentText("seen at once"))
    eventually(lambda: "seen at once" in driver.page_source, LONG)
    first = driver.current_window_handle
    driver.switch_to.new_window("tab")
    driver.get(f"{base}a/icon.svg")
    eventually(lambda: driver.execute_script("return localStorage.getItem('closed')") == "true", LONG)
    run.tell(*(e.AgentText(f"hidden {number}") for number in range(50)))
    driver.switch_to.window(first)
    eventually(lambda: "hidden 49" in (page := driver.page_source) and page.count("hidden 7<") == 1, LONG)


def test_with_six_tabs_the_one_that_is_looked_at_still_works(
    driver: Any, served: Served, scene: Callable[..., Scene]
) -> None:
    run = scene("s1xtab")
    run.begin(1)
    for _ in range(6):
        driver.switch_to.new_window("window")
        driver.get(f"{served.origin}{served.base}runs/{run.id}")
    run.tell(e.AgentText("news for whoever looks"))
    eventually(lambda: "news for whoever looks" in driver.page_source, LONG)
    driver.get(f"{served.origin}{served.base}")
    assert "Needs you" in driver.page_source
