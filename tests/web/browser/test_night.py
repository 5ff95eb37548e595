"""Real runs, answered and stopped from a phone."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.web.browser.conftest import Open
from tests.web.conftest import eventually

from ralph.store.register import Listed, runs

AGENT = """#!/bin/sh
number=$(($(cat number 2>/dev/null || echo 0) + 1))
echo $number > number
cat > prompt.$number
if [ $number = 1 ]; then ralph ask "Which of the two shall I keep: a..b or a ... b?"; echo asked; fi
if [ $number = 2 ]; then echo "<response>DONE</response>"; fi
"""


@pytest.fixture
def asking(home: dict[str, str], tmp_path: Path) -> Iterator[Path]:
    """The workspace of a real run whose agent asks a question."""
    agent = tmp_path / "agent"
    agent.write_text(AGENT)
    agent.chmod(0o755)
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    words = ["run", "-p", "Tidy the grammar", "-m", "3", "--agent", str(agent), "--on-question", "wait", "--quiet"]
    process = subprocess.Popen(
        [sys.executable, "-m", "ralph", *words], cwd=workspace, env=home, stderr=subprocess.DEVNULL
    )
    yield workspace
    if process.poll() is None:
        process.kill()
    process.wait()


def test_an_answer_from_a_phone_is_in_the_agents_next_prompt(
    open_page: Open, asking: Path, home: dict[str, str]
) -> None:
    def run() -> Listed | None:
        return next((one for one in runs(home) if one.facts.workspace == str(asking)), None)

    eventually(lambda: (one := run()) is not None and one.state == "asking")
    page = open_page(width=390)
    card = page.locator(".one-run:has-text('Tidy the grammar')")
    assert "Which of the two shall I keep: a..b or a ... b?" in card.inner_text()
    card.locator("textarea").fill("Keep `a..b`; the corpus has 212 of them.")
    card.locator("button:has-text('Answer')").first.click()
    second = asking / "prompt.2"
    eventually(lambda: second.exists() and "Tidy the grammar" in second.read_text())
    prompt = second.read_text()
    assert "Keep `a..b`; the corpus has 212 of them." in prompt
    assert "Which of the two shall I keep" in prompt
    page.wait_for_selector("#done >> text=Tidy the grammar")


def test_a_running_run_is_stopped_from_a_phone(open_page: Open, asking: Path, home: dict[str, str]) -> None:
    def run() -> Listed | None:
        return next((one for one in runs(home) if one.facts.workspace == str(asking)), None)

    eventually(lambda: (one := run()) is not None and one.state == "asking")
    known = run()
    assert known is not None
    page = open_page(f"runs/{known.id}", width=390)
    page.locator("#stop > summary").click()
    page.get_by_role("button", name="Now, with all its processes").click()
    page.wait_for_selector("#state >> text=interrupted", timeout=30_000)
    ended = run()
    assert ended is not None
    assert (ended.is_alive, ended.facts.exit_code) == (False, 130)
