"""What a person does about an ended run or a parked task, with the buttons of the web UI and real runs."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.web.browser.conftest import Open, Page
from tests.web.conftest import eventually

from ralph.store.register import Listed, run_at, runs

RESULT = """echo '{"type":"result","subtype":"success","is_error":false,"result":"%s"}'"""
DONE = RESULT % "<response>DONE</response>"
COMPLETE = RESULT % "COMPLETE"  # how the agent claims if there are checks for a loop
DENIED = (
    '{"type":"result","subtype":"success","is_error":false,"result":"I may not do that.",'
    '"permission_denials":[{"tool_use_id":"t","tool_name":"Bash","tool_input":{}}]}'
)


def git(folder: Path, home: dict[str, str], *words: str) -> str:
    return subprocess.run(["git", *words], cwd=folder, env=home, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def project(home: dict[str, str], tmp_path: Path) -> Path:
    (tmp_path / "README").write_text("hello\n")
    for words in (("init", "-q", "-b", "main"), ("add", "-A"), ("commit", "-qm", "first")):
        git(tmp_path, home, *words)
    return tmp_path


@pytest.fixture
def agent(home: dict[str, str]) -> Callable[[str, str], None]:
    """Install an agent CLI with this name, which plays a script in each turn."""

    def install(name: str, script: str) -> None:
        program = Path(home["HOME"], "bin", name)
        program.write_text(f"#!/bin/sh\ncat > /dev/null\n{script}\n")
        program.chmod(0o755)

    return install


def play(project: Path, home: dict[str, str], *words: str) -> Listed:
    """Run ralph to its end; return the latest run of the project."""
    subprocess.run([sys.executable, "-m", "ralph", *words], cwd=project, env=home, capture_output=True, check=False)
    return max((run for run in runs(home) if run.facts.workspace == str(project)), key=lambda run: run.id)


def outcome(run: Listed) -> str:
    now = run_at(run.place)
    return now.facts.outcome if now else ""


def card(page: Page, run: Listed) -> Page:
    return page.locator(f".one-run:has(a[href$='{run.id}'])")


@pytest.fixture
def finished(project: Path, home: dict[str, str], agent: Callable[[str, str], None]) -> Listed:
    """A run that is done, with its work in a worktree."""
    agent("amp", f"date > work.txt; {DONE}")
    return play(project, home, "run", "go", "--check", "test -e work.txt", "--worktree", "--agent", "amp", "--quiet")


def test_the_work_of_a_run_is_accepted_from_its_card(open_page: Open, finished: Listed, project: Path) -> None:
    page = open_page()
    buttons = card(page, finished).get_by_role("button").all()
    assert [button.inner_text() for button in buttons] == ["Accept", "Dismiss"]
    assert len({button.bounding_box()["y"] for button in buttons}) == 1, "next to each other"
    buttons[0].click()
    page.wait_for_selector("#said >> text=is merged")
    assert (project / "work.txt").exists()
    page.wait_for_selector(f"#done a[href$='{finished.id}']")


def test_the_work_of_a_run_is_discarded_after_a_second_click(
    open_page: Open, finished: Listed, project: Path, home: dict[str, str]
) -> None:
    page = open_page(f"runs/{finished.id}")
    page.get_by_text("Discard…").click()
    page.get_by_role("button", name="Throw its work away").click()
    page.wait_for_selector("#said >> text=is discarded")
    assert not git(project, home, "branch", "--list", "ralph/*")
    page.wait_for_selector("#attention button", state="detached")


def test_runs_that_need_you_are_dismissed_one_by_one_or_all_at_once(
    open_page: Open, project: Path, home: dict[str, str], agent: Callable[[str, str], None]
) -> None:
    agent("amp", DONE)
    words = ("--check", "false", "-m", "1", "--agent", "amp", "--quiet")
    first, *others = [play(project, home, "run", goal, *words) for goal in ("one", "two", "three")]
    page = open_page()
    card(page, first).get_by_role("button", name="Dismiss").click()
    page.wait_for_selector(f"#needs a[href$='{first.id}']", state="detached")
    page.get_by_role("button", name="Dismiss all").click()
    for run in others:
        page.wait_for_selector(f"#needs a[href$='{run.id}']", state="detached")
        page.wait_for_selector(f"#done a[href$='{run.id}']")


@pytest.mark.parametrize("script", [True, False], ids=["with a script", "without"])
def test_a_parked_task_is_retried_and_merged_and_the_backlog_accepted(
    open_page: Open, project: Path, home: dict[str, str], agent: Callable[[str, str], None], script: bool
) -> None:
    (project / "TASKS.md").write_text("- [ ] T1 Write it\n")
    git(project, home, "add", "-A")
    git(project, home, "commit", "-qm", "tasks")
    agent("amp", "echo not yet")
    play(project, home, "work", "TASKS.md", "--check", "true", "-m", "1", "--agent", "amp", "--quiet")
    (work,) = [run for run in runs(home) if run.facts.workspace == str(project) and run.by_kind(False, True)]
    assert outcome(work) == "parked"
    agent("amp", f"date > work.txt; {COMPLETE}")
    page = open_page(f"runs/{work.id}", script=script)
    assert "T1 is parked" in page.inner_text("#attention")
    page.locator("#attention").get_by_role("button", name="Retry").click()
    eventually(lambda: outcome(work) == "done")
    if script:
        page.wait_for_selector("#task-T1.merged")
    else:
        page.reload()
        assert page.locator("#task-T1.merged").count() == 1
    page.locator("#attention").get_by_role("button", name="Accept").click()
    eventually(Path(work.place, "dismissed").exists)
    assert (project / "work.txt").exists()
    page.goto(page.url.partition("runs/")[0])
    assert page.locator(f"#done a[href$='{work.id}']").count() == 1


@pytest.mark.parametrize("button", ["Resume with --yolo", "Resume in a sandbox"])
def test_a_run_that_was_denied_everything_is_resumed_with_more_rights(
    open_page: Open,
    project: Path,
    home: dict[str, str],
    agent: Callable[[str, str], None],
    bubblewrap: str,
    button: str,
) -> None:
    agent("claude", f"case \"$*\" in *dangerously*) date > work.txt; {DONE};; *) echo '{DENIED}';; esac")
    words = ("run", "go", "--check", "test -e work.txt", "-m", "5", "--agent", "claude", "--quiet")
    run = play(project, home, *words)
    assert (outcome(run), (project / "work.txt").exists()) == ("failed", False)
    page = open_page(f"runs/{run.id}")
    page.get_by_role("button", name=button).click()
    page.wait_for_selector("#state >> text=done")
    page.reload()
    facts = page.inner_text(".head .facts")
    assert ("--sandbox" if button == "Resume in a sandbox" else "claude --yolo") in facts
    assert "done when the check passes and the agent says" in facts
    assert (project / "work.txt").exists()
    settings = json.loads(Path(run.place, "run.json").read_bytes())["settings"]
    assert settings["yolo"]
    assert settings.get("sandbox", {}).get("enabled", False) == (button == "Resume in a sandbox")


def test_files_are_rewound_to_an_iteration(
    open_page: Open, project: Path, home: dict[str, str], agent: Callable[[str, str], None]
) -> None:
    agent("amp", f"echo line >> work.txt; {DONE}")
    run = play(project, home, "run", "go", "--check", "false", "-m", "3", "--agent", "amp", "--quiet")
    page = open_page(f"runs/{run.id}")
    page.locator("#i1 > summary").click()
    page.locator("#i1").get_by_text("Rewind to here").click()
    page.locator("#i1").get_by_role("button", name="Rewind").click()
    page.wait_for_selector("#said >> text=1 file restored to iteration 1")
    assert (project / "work.txt").read_text() == "line\n"


def test_a_run_without_a_check_is_done_but_looks_unverified(
    open_page: Open, project: Path, home: dict[str, str], agent: Callable[[str, str], None]
) -> None:
    agent("amp", f"date > work.txt; {DONE}")
    unverified = play(project, home, "run", "-p", "go", "-m", "2", "--agent", "amp", "--quiet")
    verified = play(project, home, "run", "go on", "--check", "true", "-m", "2", "--agent", "amp", "--quiet")
    page = open_page()
    badges = [card(page, run).locator(".badge").first for run in (unverified, verified)]
    assert [badge.inner_text() for badge in badges] == ["done (unverified)", "done"]
    colors = [badge.evaluate("badge => getComputedStyle(badge).color") for badge in badges]
    assert colors[0] != colors[1]
