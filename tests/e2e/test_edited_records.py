"""Somebody edits or removes what ralph wrote into the workspace: the run keeps the checks and tasks of its start."""

import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Agent = Callable[..., str]
Ralph = Callable[..., Any]

CLAIMS = "echo '<response>DONE</response>'"


@pytest.fixture
def killed(agent: Agent, live: Any, workspace: Path, nap: str) -> Path:
    """The folder of a run that was killed in its second turn."""
    (workspace / "test.sh").write_text("grep -q good work\n")
    (workspace / "TASKS.md").write_text("- [ ] work\n")
    work = f'[ "$RALPH_ITERATION" = 1 ] && echo more || sleep {nap}'
    options = ("--check", "sh test.sh", "--protect", "test.sh", "--tasks", "TASKS.md")
    run = live("run", "g", "-m", "5", *options, "--agent", agent(work))
    run.until("iteration_finished")
    run.until("agent_started")
    run.end(signal.SIGKILL)
    (folder,) = workspace.glob(".ralph/runs/*")
    return folder


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def move_behind_a_link(folder: Path) -> None:
    replace(folder / "run.json", "sh test.sh", "true")
    workspace = folder.parents[2]
    workspace.rename(workspace.with_name("elsewhere"))
    workspace.symlink_to("elsewhere")


def clean_up(folder: Path) -> None:
    for path in folder.iterdir():
        if path.name not in ("journal.ndjson", "protected"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


EDITS: dict[str, Callable[[Path], object]] = {
    "nothing": lambda folder: None,
    "weaker checks": lambda folder: replace(folder / "run.json", "sh test.sh", "true"),
    "no order": lambda folder: (folder / "run.json").unlink(),
    "an empty list of tasks": lambda folder: (folder / "tasks.json").write_text("[]"),
    "another workspace": move_behind_a_link,
    "everything but the journal removed": clean_up,
}


@pytest.mark.parametrize("edit", EDITS)
def test_resume_uses_the_checks_and_tasks_of_the_start(killed: Path, ralph: Ralph, agent: Agent, edit: str) -> None:
    EDITS[edit](killed)
    agent(f"echo '- [x] another' > TASKS.md; {CLAIMS}")
    assert ralph("resume", "-m", "1").code == 1, "the check fails, and a task is open"
    agent(f"echo good > work; {CLAIMS}")
    assert ralph("resume", "-m", "1").code == 1, "the task is still open"
    agent(f"echo '- [x] work' > TASKS.md; {CLAIMS}")
    assert ralph("resume", "-m", "1").code == 0


def test_a_missing_order_is_reported_in_one_line(killed: Path, ralph: Ralph, environment: dict[str, str]) -> None:
    orders = Path(environment["HOME"], ".local/state/ralph/orders")
    shutil.rmtree(orders)
    before = (killed / "journal.ndjson").read_bytes()
    refused = ralph("resume")
    problem, hint = refused.err.splitlines()
    assert (refused.code, problem) == (
        2,
        f"ralph: run {killed.name} cannot be resumed here: {orders}/{killed.name}/run.json is missing",
    )
    assert "start a new run" in hint
    assert (killed / "journal.ndjson").read_bytes() == before


def test_a_bit_flipped_journal_is_reported_in_one_line(killed: Path, ralph: Ralph) -> None:
    journal = killed / "journal.ndjson"
    data = bytearray(journal.read_bytes())
    for at in range(0, len(data), 97):
        data[at] ^= 0x80
    journal.write_bytes(data)
    refused = ralph("resume")
    assert refused.code == 2
    assert "internal error" not in refused.err
    for words in (("show",), ("logs",), ("ps", "-a"), ("report",)):
        assert "internal error" not in ralph(*words).err
