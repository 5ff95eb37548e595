"""§2: a run is done only when every task is; and the list of tasks cannot be talked out of it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Ralph = Callable[..., Any]
Agent = Callable[..., str]
Prompts = Callable[..., list[str]]
CLAIM = "echo '<response>DONE</response>'"


def test_a_claim_is_refused_while_a_task_is_open_and_the_next_one_is_named(
    ralph: Ralph, agent: Agent, workspace: Path, prompts: Prompts
) -> None:
    (workspace / "TODO.md").write_text("- [x] first\n- [ ] second\n- [ ] third\n")
    fake = agent(f"sed -i '0,/\\[ \\]/s//[x]/' TODO.md; {CLAIM}")
    result = ralph("run", "-p", "work", "--tasks", "TODO.md", "--json", "--agent", fake)
    assert result.one("run_finished")["iterations"] == 2
    assert [refused["gate"] for refused in result.all("claim_rejected")] == ["tasks"]
    assert prompts()[0].endswith("2 of 3 tasks are not done. The next one: second")
    assert prompts()[1].endswith("1 of 3 tasks are not done. The next one: third")


def test_a_ticked_task_is_progress(ralph: Ralph, agent: Agent, workspace: Path) -> None:
    (workspace / "TODO.md").write_text("- [ ] first\n- [ ] second\n- [ ] third\n")
    fake = agent(f"sed -i '0,/\\[ \\]/s//[x]/' TODO.md; grep -q '\\[ \\]' TODO.md || {CLAIM}")
    result = ralph("run", "-p", "work", "--tasks", "TODO.md", "--stuck", "1", "--json", "--agent", fake)
    assert result.one("run_finished")["iterations"] == 3


@pytest.mark.parametrize(
    ("script", "named"),
    [
        ("echo '- [x] something else' > TODO.md", "first (it was removed from the list)"),
        ("echo all done > TODO.md", "names no task"),
        ("rm TODO.md", "cannot read the tasks file"),
    ],
)
def test_breaking_or_shortening_the_tasks_file_does_not_complete_tasks(
    ralph: Ralph, agent: Agent, workspace: Path, prompts: Prompts, script: str, named: str
) -> None:
    (workspace / "TODO.md").write_text("- [ ] first\n- [ ] second\n")
    words = ("run", "-p", "work", "--tasks", "TODO.md", "-m", "2", "--json")
    result = ralph(*words, "--agent", agent(f"{script}; {CLAIM}"))
    assert (result.code, result.one("run_finished")["outcome"]) == (1, "exhausted")
    assert named in prompts()[1]


def test_a_task_with_more_text_is_the_same_task(ralph: Ralph, agent: Agent, workspace: Path) -> None:
    (workspace / "TODO.md").write_text("- [ ] first\n")
    fake = agent(f"echo '- [x] first (in abc123)' > TODO.md; {CLAIM}")
    assert ralph("run", "-p", "work", "--tasks", "TODO.md", "--agent", fake).code == 0


def test_a_resumed_run_still_requires_its_first_tasks(ralph: Ralph, agent: Agent, workspace: Path) -> None:
    (workspace / "TODO.md").write_text("- [ ] first\n")
    fake = agent(f"echo '- [x] something else' > TODO.md; {CLAIM}")
    assert ralph("run", "-p", "work", "--tasks", "TODO.md", "-m", "1", "--agent", fake).code == 1
    resumed = ralph("resume", "-m", "2", "--json")
    assert resumed.one("run_finished")["outcome"] == "exhausted"
    assert all("first (it was removed from" in refused["reason"] for refused in resumed.all("claim_rejected"))
