"""`ralph run --preset supervise`: the agent is restarted until it has left a file DONE in the workspace."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

Ralph = Callable[..., Any]
Agent = Callable[..., str]
SUPERVISE = ("--preset", "supervise", "--restart-delay", "0")


def test_the_agent_is_restarted_until_it_leaves_done(
    ralph: Ralph, agent: Agent, prompts: Callable[..., list[str]], workspace: Path
) -> None:
    result = ralph("run", "the goal", *SUPERVISE, "--agent", agent("[ $N = 2 ] && touch DONE; exit 0"))
    assert result.code == 0, result.err
    told = "the goal\n\nWhen all of it is done, create the file DONE."
    assert prompts() == [told, f"Continue working on the following:\n\n{told}"]


def test_a_worktree_can_be_the_workspace(ralph: Ralph, agent: Agent, repository: Path) -> None:
    result = ralph("run", "x", *SUPERVISE, "--worktree", "--agent", agent("touch DONE"), "--json")
    assert result.code == 0, result.err
    assert (Path(result.one("run_finished")["worktree"]) / "DONE").exists()
    assert not (repository / "DONE").exists()


def test_a_wait_marker_stops_the_run_and_resume_continues_it(ralph: Ralph, agent: Agent, workspace: Path) -> None:
    fake = agent("[ $N = 1 ] && echo 'for a key' > WAIT_WITHOUT_RESTART || touch DONE")
    stopped = ralph("run", "x", *SUPERVISE, "--agent", fake)
    assert (stopped.code, "for a key" in stopped.last_line) == (0, True)
    (workspace / "WAIT_WITHOUT_RESTART").unlink()
    resumed = ralph("resume")
    assert (resumed.code, resumed.last_line.startswith("ralph: done")) == (0, True), resumed.err


def test_another_done_file_can_be_named(ralph: Ralph, agent: Agent) -> None:
    fake = agent('case "$PROMPT" in *"create the file FINISHED"*) touch FINISHED;; esac', "claude")
    result = ralph("run", "x", *SUPERVISE, "--done-file", "FINISHED", "-m", "1", "--agent", fake)
    assert result.code == 0, result.err
