"""Accept, discard, retry, resume and dismiss from the TUI: real runs in real git repositories."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from ralph.store.register import Listed, runs
from ralph.tui.app import RalphApp

Show = Callable[..., str]
OnScreen = Callable[..., RalphApp]
Typed = Callable[[Pilot[Any], str], Awaitable[None]]
Ralph = Callable[..., Any]
Git = Callable[..., str]


async def wait_for(app: RalphApp, pilot: Pilot[Any], holds: Callable[[], bool]) -> None:
    """Wait until the TUI has seen what another process did."""
    for _ in range(3000):
        if holds():
            return
        app.survey()
        app.read_journal()
        await pilot.pause(0.02)
    raise AssertionError(app.state.runs)


def only_run(env: dict[str, str]) -> Listed:
    (run,) = runs(env)
    return run


@pytest.fixture
def finished_in_worktree(ralph: Ralph, agent: Callable[..., str], repository: Path) -> Path:
    """A repository in which a run has finished in its own worktree."""
    agent('printf "%s\\n" "change $N" >> work.txt; echo STOP')
    assert ralph("run", "go", "--ralph", "2", "--worktree", "--agent", "fake-agent").code == 0
    return repository


def test_a_accepts_the_branch_and_its_diff_can_still_be_read(
    finished_in_worktree: Path, on_screen: OnScreen, shown: Show
) -> None:
    async def scenario(app: RalphApp, pilot: Pilot[Any]) -> None:
        assert "; a accepts it" in shown(app, "head")
        await pilot.press("escape", "a")
        assert "its checks run once more" in shown(app, "message")
        await wait_for(app, pilot, lambda: "merged into your branch" in shown(app, "message"))
        assert "a accepts it" not in shown(app, "head")
        await pilot.press("d")
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert "iteration 1 · 1 file · +1 -0" in shown(app, "page-title")
        assert "+change 1" in shown(app, "page")
        await pilot.press("escape")
        await pilot.press("a")
        assert "has no branch to accept or discard" in shown(app, "message")

    on_screen(scenario, (110, 30))
    assert (finished_in_worktree / "work.txt").read_text() == "change 1\n"


def test_discard_throws_the_branch_away(
    finished_in_worktree: Path, on_screen: OnScreen, shown: Show, typed: Typed, git: Git
) -> None:
    assert "ralph/" in git("branch")

    async def scenario(app: RalphApp, pilot: Pilot[Any]) -> None:
        await typed(pilot, "/discard")
        await wait_for(app, pilot, lambda: "discarded" in shown(app, "message"))

    on_screen(scenario)
    assert "ralph/" not in git("branch")
    assert not (finished_in_worktree / "work.txt").exists()


def test_a_branch_whose_checks_fail_is_not_accepted_and_the_message_says_why(
    ralph: Ralph, agent: Callable[..., str], repository: Path, git: Git, on_screen: OnScreen, shown: Show
) -> None:
    agent("echo x > work.txt; echo STOP")
    check = "test ! -e stop"
    assert ralph("run", "go", "--ralph", "2", "--worktree", "--agent", "fake-agent", "--check", check).code == 0
    (repository / "stop").touch()
    git("add", "-A")
    git("commit", "-qm", "a commit that breaks the check")

    async def scenario(app: RalphApp, pilot: Pilot[Any]) -> None:
        await pilot.press("escape", "a")
        await wait_for(app, pilot, lambda: shown(app, "message").startswith("✗"))
        assert check in shown(app, "message")

    on_screen(scenario, (120, 30))
    assert not (repository / "work.txt").exists()


@pytest.mark.parametrize("right", ["yolo", "sandbox"])
def test_a_failed_run_is_resumed_with_the_right_that_was_missing(
    right: str,
    request: pytest.FixtureRequest,
    ralph: Ralph,
    agent: Callable[..., str],
    repository: Path,
    environment: dict[str, str],
    on_screen: OnScreen,
    shown: Show,
    typed: Typed,
) -> None:
    if right == "sandbox":
        request.getfixturevalue("bubblewrap")
    agent("[ -e allowed ] && echo STOP || exit 1")
    assert ralph("run", "go", "--ralph", "9", "--agent", "fake-agent", "--max-failures", "1").code == 1
    assert only_run(environment).state == "failed"
    (repository / "allowed").touch()

    async def scenario(app: RalphApp, pilot: Pilot[Any]) -> None:
        await typed(pilot, f"/resume {right}")
        await wait_for(app, pilot, lambda: only_run(environment).state == "done")
        await wait_for(app, pilot, lambda: f" --{right} · " in shown(app, "head"))

    on_screen(scenario, (110, 30))


def test_dismissed_runs_no_longer_need_a_person(
    ralph: Ralph, agent: Callable[..., str], on_screen: OnScreen, shown: Show, typed: Typed
) -> None:
    for goal in ("one", "two", "three"):
        assert ralph("run", goal, "--ralph", "1", "--agent", agent("echo again")).code == 1

    async def scenario(app: RalphApp, pilot: Pilot[Any]) -> None:
        def needing() -> int:
            app.survey()
            return sum(run.needs_you for run in app.state.present.values())

        assert needing() == 3
        await typed(pilot, "/dismiss")
        assert "dismissed" in shown(app, "message")
        assert needing() == 2
        await typed(pilot, "/dismiss all")
        assert "dismissed 2 runs" in shown(app, "message")
        assert needing() == 0

    on_screen(scenario)


@pytest.mark.parametrize("note", ["look twice", "- look twice", "--help: look twice"])
def test_a_parked_task_is_retried_with_a_note_and_its_backlog_resumed_and_accepted(
    ralph: Ralph,
    agent: Callable[..., str],
    repository: Path,
    git: Git,
    on_screen: OnScreen,
    shown: Show,
    typed: Typed,
    prompts: Callable[..., list[str]],
    note: str,
) -> None:
    agent('case "$PROMPT" in *"look twice"*) echo x > work.txt; echo "<promise>COMPLETE</promise>";; esac')
    (repository / "tasks.md").write_text("- [ ] T1 Make it work\n")
    git("add", "-A")
    git("commit", "-qm", "a backlog")
    words = ("work", "tasks.md", "-m", "1", "--check", "true", "--agent", "fake-agent")
    assert ralph(*words).code == 1

    async def scenario(app: RalphApp, pilot: Pilot[Any]) -> None:
        assert "parked" in shown(app, "runs")
        await typed(pilot, f"/retry T1 {note}")
        await wait_for(app, pilot, lambda: "T1 is retried" in shown(app, "message"))
        assert "r resumes the backlog" in shown(app, "message")
        await pilot.press("escape", "r")
        await wait_for(app, pilot, lambda: bool(app.state.running))
        await wait_for(app, pilot, lambda: not app.state.launched)
        assert "; a accepts it" in shown(app, "head")
        await pilot.press("a")
        await wait_for(app, pilot, lambda: "merged into your branch" in shown(app, "message"))
        assert "a accepts it" not in shown(app, "head")

    on_screen(scenario, (120, 30))
    assert note in prompts()[-1]
    assert (repository / "work.txt").exists()
