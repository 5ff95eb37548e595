"""Every consumer of events decides about every event: it matches the event, or its row below leaves it out."""

import ast
from pathlib import Path

import pytest

import ralph
from ralph.core import backlog_events, events

SOURCE = Path(ralph.__file__).parent
RUNS, BACKLOGS = ({kind.__name__ for kind in module.NAMES} for module in (events, backlog_events))

LEFT_OUT = {
    # `ralph ps`: what the latest facts of the run are
    ("core/state.py",): """
        AgentResult Baseline ClaimRejected Converged Exhausted HandedOver Notice PermissionDenied ProofAsked
        QuestionAsked ScmFinished Stalled TodoUpdated
    """,
    # `show`, reports and the TUI: what each iteration did; the words of an agent are in its log
    ("history/fold.py",): """
        AgentFinished AgentProgress AgentResult AgentText Continued Converged ExamFinished ExamStarted Exhausted
        MeasurementStarted Paused PermissionDenied ProofAsked ReviewFinished ReviewStarted Stalled ToolFinished
        ToolStarted
    """,
    # `resume`: what decides about the next turn
    ("store/journal.py",): """
        AgentProgress AgentResult AgentText CheckStarted Continued Converged EndMeasured ExamFinished ExamStarted
        Exhausted MeasurementStarted Notice PermissionDenied PersonTold ProofAsked ProofStarted QuestionAsked
        ReviewFinished ReviewStarted Stalled TodoUpdated ToolFinished ToolStarted
    """,
    # the screen; the lines at the end have the reason of Exhausted, Stalled and FilesAccepted, the proof and the cost
    ("show/event_lines.py", "show/screen.py", "show/turn_lines.py"): """
        Exhausted FilesAccepted MeasurementStarted ProofFinished Spent Stalled
    """,
    # the web page of a run; the facts above its pieces come from the history
    ("web/pieces.py",): """
        AgentProgress AgentResult AgentStarted Baseline CheckStarted Converged EndMeasured ExamStarted Exhausted
        FilesAccepted HandedOver IterationFinished MeasurementStarted ProofAsked ProofFinished ProofStarted
        ReviewFinished ReviewStarted RunStarted ScmFinished Spent Stalled StartMeasured TodoUpdated TurnNotCounted
    """,
    # the board of a backlog, its lines on the screen, and its report
    ("core/backlog_events.py",): "",
    ("show/backlog_lines.py",): "TaskListed",
    ("history/backlog_history.py",): """
        BacklogPaused GateOpened GateStarted TaskListed TaskMerged TaskParked TaskQueued TaskReady TaskStarted
        TaskWithdrawn
    """,
}


def matched_events(file: str) -> set[str]:
    """Return the classes that a module matches, by `case` or `isinstance`."""
    found: set[str] = set()
    for node in ast.walk(ast.parse((SOURCE / file).read_text())):
        match node:
            case ast.MatchClass():
                kinds = [node.cls]
            case ast.Call(func=ast.Name(id="isinstance"), args=[_, kind]):
                kinds = [part for part in ast.walk(kind) if isinstance(part, ast.Attribute | ast.Name)]
            case _:
                kinds = []
        found |= {ast.unparse(kind).rpartition(".")[2] for kind in kinds}
    return found


@pytest.mark.parametrize("files", LEFT_OUT, ids=" ".join)
def test_a_consumer_matches_every_event_or_leaves_it_out(files: tuple[str, ...]) -> None:
    matched = set().union(*map(matched_events, files))
    is_about_backlogs = any("backlog" in file for file in files)
    left_out = (BACKLOGS if is_about_backlogs else RUNS) - matched
    assert left_out == {*LEFT_OUT[files].split()}
