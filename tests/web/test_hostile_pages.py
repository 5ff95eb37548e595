"""Outside text is only text on every page: never a terminal sequence or markup."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.hostile_text import COMMANDS_A_TERMINAL, EVIL, SCRIPT, forge
from tests.web.conftest import Serve

MARKUP = "<script>alert(1)</script><img src=x onerror=alert(1)>"
PAGES = ("", "runs/{0}", "runs/{0}/iterations/1", "runs/{0}/iterations/1/prompt", "runs/{0}/iterations/1/log")
MORE = ("runs/{0}/diff", "runs/{0}/diff/1", "runs/{0}/report")


@pytest.fixture(scope="module")
def hostile(home: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run in which everything an agent can write is hostile."""
    workspace = tmp_path_factory.mktemp("hostile")
    agent = Path(home["HOME"]) / "bin" / "evil-agent"
    agent.write_text(f"#!/bin/sh\ncat > /dev/null\necho '{MARKUP}'\n{SCRIPT}\n")
    agent.chmod(0o755)
    for words in (("init", "-q"), ("commit", "-q", "--allow-empty", "-m", "first")):
        subprocess.run(("git", *words), cwd=workspace, env=home, check=True)
    words = [sys.executable, "-m", "ralph", "run", f"goal {EVIL} {MARKUP}", "-m", "2", "--agent", str(agent)]
    check = f"printf '%s' '{EVIL} {MARKUP}'; false"
    done = subprocess.run([*words, "--check", check], cwd=workspace, env=home, capture_output=True, check=False)
    assert done.returncode == 1, done.stderr
    (folder,) = workspace.glob(".ralph/runs/*")
    return folder


@pytest.mark.parametrize("forged", [False, True])
def test_no_page_shows_outside_text_unescaped(serve: Serve, hostile: Path, forged: bool) -> None:
    if forged:
        forge(hostile)
    served = serve()
    for path in (*PAGES, *MORE):
        page = served.get(path.format(hostile.name))
        assert page.status == 200, (path, page.text)
        found = COMMANDS_A_TERMINAL.search(page.text)
        assert not found, f"{path}: {page.text[max(found.start() - 60, 0) : found.end() + 20]!r}"
        assert "<script>alert" not in page.text
        assert "<img src=x" not in page.text
