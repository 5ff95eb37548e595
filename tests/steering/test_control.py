"""The reasons for which a run cannot be steered are the same in every interface."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ralph.actions import control
from ralph.core import events as e
from ralph.core.model import Outcome
from ralph.errors import UserError
from ralph.store.folder import RunFolder
from ralph.store.mailbox import Mailbox
from ralph.store.register import Listed, run_at
from ralph.store.writer import Registration, enlist
from ralph.tui.slash_commands import TypedCommand
from ralph.tui.tui_state import TuiState

Ralph = Callable[..., Any]


class OnRecord:
    """A run whose process is this one, recorded in `place`."""

    def __init__(self, place: Path, workspace: Path, env: dict[str, str]) -> None:
        self.folder = RunFolder(place, "20260101-120000-k3fa")
        self.folder.make()
        self.folder.journal.touch()
        self.registration = Registration(self.folder)
        self.registration.begin()
        enlist(self.folder, env)
        self.registration(
            e.RunStarted(
                goal="goal",
                preset="supervise",
                agent="claude",
                workspace=str(workspace),
                max_iterations=9,
                pid=os.getpid(),
            )
        )

    @property
    def listed(self) -> Listed:
        found = run_at(self.folder.path)
        assert found
        return found


@pytest.fixture
def recorded(workspace: Path, environment: dict[str, str]) -> Callable[[Path], OnRecord]:
    return lambda place: OnRecord(place, workspace, environment)


@pytest.fixture
def child(recorded: Callable[[Path], OnRecord], tmp_path: Path) -> OnRecord:
    """A run that the agent of a task started: it takes one turn, and reads no notes."""
    return recorded(tmp_path / "task")


@pytest.fixture
def run(recorded: Callable[[Path], OnRecord], workspace: Path) -> OnRecord:
    return recorded(workspace / ".ralph")


def test_a_child_run_refuses_notes_from_the_command_and_the_tui(
    child: OnRecord, ralph: Ralph, workspace: Path, environment: dict[str, str]
) -> None:
    why = "was started by the agent of a task, for one turn: tell the task"
    state = TuiState(workspace, env=environment)
    state.survey()
    assert state.run.id == child.folder.id
    with pytest.raises(UserError, match=why):
        state.carry_out(TypedCommand("tell", "use tabs"))
    refused = ralph("tell", child.folder.id, "use tabs")
    assert (refused.code, why in refused.err) == (2, True)
    assert Mailbox(child.folder.path).read().notes == ()


@pytest.mark.parametrize(("outcome", "why"), [("done", "is done"), ("exhausted", "is not running: exhausted")])
def test_an_action_checks_the_current_state_of_the_run(run: OnRecord, outcome: str, why: str) -> None:
    seen = run.listed
    run.registration(
        e.RunFinished(outcome=Outcome(outcome), reason="why", iterations=1, cost_usd=None, duration_s=1.0, exit_code=0)
    )
    act: Callable[[Listed], Any] = control.stop if outcome == "exhausted" else lambda run: control.tell(run, "x", {})
    with pytest.raises(control.Objected, match=why):
        act(seen)


def test_a_run_whose_folder_is_gone_is_an_error(run: OnRecord) -> None:
    import shutil

    seen = run.listed
    shutil.rmtree(run.folder.path)
    for act in (control.stop, control.pause, control.unpause):
        with pytest.raises(control.Objected, match="no longer on record"):
            act(seen)


def test_a_late_answer_never_becomes_a_note(run: OnRecord) -> None:
    mailbox = Mailbox(run.folder.path)
    question = mailbox.ask("which?")
    assert control.answer(run.listed, question.id, "that one", {}) == question
    with pytest.raises(control.Objected, match="no longer asks that"):
        control.answer(run.listed, question.id, "or this one", {})
    assert [note.text for note in mailbox.read().notes] == ["that one"]


def test_the_oldest_question_is_answered_first(run: OnRecord) -> None:
    mailbox = Mailbox(run.folder.path)
    first, second = mailbox.ask("one?"), mailbox.ask("two?")
    assert control.tell(run.listed, "yes", {}) == (first, second)
    assert mailbox.read().questions == (second,)


def test_only_a_paused_run_can_be_continued(run: OnRecord) -> None:
    with pytest.raises(control.Objected, match="is running"):
        control.unpause(run.listed)
    control.pause(run.listed)
    assert control.unpause(run.listed) is False
    assert not Mailbox(run.folder.path).read().is_paused


def test_a_running_run_cannot_be_rewound_even_in_a_worktree(
    ralph: Callable[..., Any], repository: Path, start: Any
) -> None:
    run = start("--worktree")
    place = Path(run.until("run_started")["worktree"])
    run.in_turn()
    run.let()
    run.in_turn()
    (place / "mine").write_text("half of it\n")
    refused = ralph("rewind", run.id, "0")
    assert (refused.code, refused.err) == (2, f"ralph: run {run.id} is running\nhint: `ralph ps -a` lists all runs\n")
    assert (place / "mine").exists()
