"""ralph accepts every command that it proposes, in every state that needs a person."""

import os
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ralph.core import events as e
from ralph.core.model import Outcome
from ralph.history.states import STATES
from ralph.store.folder import RunFolder, prepare
from ralph.store.journal import Journal
from ralph.store.mailbox import Mailbox
from ralph.store.register import STATE, runs_in
from ralph.store.writer import Registration, Writer, enlist

ENDED = [name for name, state in STATES.items() if state.needs_you and name in {end.value for end in Outcome}]
CHANGES = 'echo "line $N" >> file; [ $N -gt 1 ] && echo "<response>DONE</response>"; true'

Ralph = Callable[..., Any]


def advice(ralph: Ralph, run: str = "") -> list[str]:
    """Return the commands under "what needs you" of `ralph show`."""
    shown = ralph("show", *([run] if run else [])).out.partition("what needs you\n")[2]
    return [part.strip() for line in re.findall(r"  (ralph .*)", shown) for part in line.split("&&")]


def follow(ralph: Ralph, commands: list[str]) -> None:
    assert commands
    for command in commands:
        result = ralph(*shlex.split(command)[1:])
        assert result.code != 2, f"{command}: {result.err}"


def forge_outcome(place: Path, outcome: str) -> None:
    """Change the outcome in the record of a run."""
    for file in (place / "journal.ndjson", place / STATE):
        file.write_text(file.read_text().replace('"outcome":"exhausted"', f'"outcome":"{outcome}"'))


@pytest.mark.parametrize("outcome", ENDED)
@pytest.mark.parametrize("where", [(), ("--worktree",)], ids=["here", "worktree"])
def test_the_advice_for_an_ended_run_is_accepted(
    ralph: Ralph, agent: Callable[..., str], repository: Path, outcome: str, where: tuple[str, ...]
) -> None:
    fake = agent(CHANGES)
    assert ralph("run", "-p", "the goal", "-m", "1", "--check", "test -f file", "--agent", fake, *where).code == 1
    (run,) = runs_in(repository / ".ralph")
    forge_outcome(Path(run.place), outcome)
    follow(ralph, advice(ralph))


def test_the_advice_for_a_killed_run_is_accepted(ralph: Ralph, agent: Callable[..., str], repository: Path) -> None:
    ralph("run", "-p", "the goal", "-m", "1", "--check", "test -f file", "--agent", agent(CHANGES))
    (run,) = runs_in(repository / ".ralph")
    journal = Path(run.place) / "journal.ndjson"
    kept = [line for line in journal.read_text().splitlines(keepends=True) if '"run_finished"' not in line]
    journal.write_text("".join(kept))
    (Path(run.place) / STATE).unlink()
    assert advice(ralph) == [f"ralph resume {run.id[-4:]}"]
    follow(ralph, advice(ralph))


@pytest.mark.parametrize("state", ["paused", "asking"])
def test_the_advice_for_a_run_that_waits_is_accepted(
    ralph: Ralph, repository: Path, environment: dict[str, str], state: str
) -> None:
    folder = RunFolder(prepare(repository), "20260101-120000-k3fa")
    folder.make()
    journal = Journal(folder.journal).open()
    writer, registration = Writer(folder.id, [journal]), Registration(folder)
    registration.begin()
    enlist(folder, environment)
    question = Mailbox(folder.path).ask("Which?") if state == "asking" else None
    asked = [e.QuestionAsked(question.id, "Which?")] if question else []
    started = e.RunStarted(
        goal="goal", preset="checks", agent="claude", workspace=str(repository), max_iterations=9, pid=os.getpid()
    )
    registration(*writer(started, *asked, e.Paused("why", asks=state == "asking")))
    registration.tick()
    try:
        assert advice(ralph) == ["ralph resume k3fa" if state == "paused" else 'ralph tell k3fa "…"']
        follow(ralph, advice(ralph))
    finally:
        journal.close()


def finish_in_worktree(ralph: Ralph, agent: Callable[..., str]) -> None:
    script = 'echo new > file; echo "<response>DONE</response>"'
    result = ralph("run", "-p", "goal", "--check", "test -f file", "--worktree", "--agent", agent(script))
    assert result.code == 0, result.err


@pytest.mark.parametrize("verb", ["accept", "discard"])
def test_after_accept_or_discard_nothing_is_left_to_do(
    ralph: Ralph, agent: Callable[..., str], repository: Path, verb: str
) -> None:
    finish_in_worktree(ralph, agent)
    (run,) = runs_in(repository / ".ralph")
    assert advice(ralph) == [f"ralph accept {run.id[-4:]}"]
    assert ralph(verb).code == 0
    shown = ralph("show").out
    assert "what needs you" not in shown
    assert "Nothing needs you." in ralph("report").out


def test_a_question_of_a_finished_run_is_not_open(ralph: Ralph, agent: Callable[..., str], repository: Path) -> None:
    script = 'ralph ask "Which?" > /dev/null; echo new > file; echo "<response>DONE</response>"'
    assert ralph("run", "-p", "goal", "--check", "test -f file", "--agent", agent(script)).code == 0
    assert advice(ralph) == []


def test_the_path_of_a_log_is_the_same_in_the_run_and_in_show(
    ralph: Ralph, agent: Callable[..., str], repository: Path
) -> None:
    words = ("run", "-p", "goal", "-m", "1", "--check", "false", "--worktree", "--agent", agent("echo x > file"))
    result = ralph(*words)
    (live,) = re.findall(r"→ .*?(\S+\.log)", result.err)
    (later,) = set(re.findall(r"see (\S+\.log)", ralph("show").out))
    assert Path(live).is_file()
    assert live == later
