"""The journal of a backlog is folded into its history: the state of each task, its runs and its merges."""

from msgspec.structs import replace

from ralph.core import backlog_events
from ralph.core.backlog import BacklogTask, Board, GateVerdict
from ralph.history.backlog_history import BacklogHistory, board_after, fold_backlog, todo_of
from ralph.history.fold import Fold

STARTED = backlog_events.BacklogStarted(name="k3fa", backlog="TASKS.md", workspace="/w", target="ralph/k3fa/merged")
FINISHED = backlog_events.BacklogFinished(
    outcome="exhausted",
    reason="1 parked",
    merged=1,
    parked=1,
    blocked=0,
    tasks=2,
    cost_usd=None,
    duration_s=9.0,
    exit_code=1,
)
NIGHT = (
    STARTED,
    backlog_events.TaskListed(BacklogTask(key="a", title="First")),
    backlog_events.TaskListed(BacklogTask(key="b", title="Second")),
    backlog_events.TaskStarted("a", 1),
    backlog_events.TaskStarted("b", 1),
    backlog_events.TaskReady(key="a", tip="1" * 40),
    backlog_events.GateStarted(("a",)),
    backlog_events.GateFinished(GateVerdict(tried=("a",), merged=("a",), commit="2" * 40)),
    backlog_events.TaskMerged("a"),
    backlog_events.TaskParked("b", "exhausted"),
    FINISHED,
)


class Line:
    """A line of the journal, as it is read back."""

    def __init__(self, event: object, at: float) -> None:
        self._event, self.at = event, at

    def event(self) -> object:
        return self._event


def history_of(*events: object) -> BacklogHistory:
    return fold_backlog("w1", [Line(event, float(at)) for at, event in enumerate(events, 100)])  # type: ignore[misc]


def test_a_backlog_has_a_state_per_task() -> None:
    seen = history_of(*NIGHT)
    assert seen.states == {"a": "merged", "b": "parked"}
    assert (seen.target, seen.merges, seen.returns) == ("ralph/k3fa/merged", 1, 0)
    assert [(job.task.key, why) for job, why in seen.needing()] == [("b", "exhausted")]
    assert (seen.began, seen.last, seen.finished) == (100.0, 110.0, FINISHED)


def test_an_event_about_a_task_whose_line_was_torn_is_skipped() -> None:
    seen = history_of(STARTED, backlog_events.TaskStarted("lost", 1), None, *NIGHT[1:])
    assert seen.states == {"a": "merged", "b": "parked"}


def test_tasks_that_the_gate_returned_are_counted() -> None:
    assert history_of(*NIGHT[:7], backlog_events.TaskReturned("a", "conflict")).returns == 1


def test_the_tasks_of_a_backlog_are_its_todo_list() -> None:
    board = None
    for at, event in enumerate((*NIGHT[:4], backlog_events.TaskStarted("lost", 1)), 100):
        board = board_after(board, event, float(at))
    assert [(task.text, task.status) for task in todo_of(board or Board())] == [
        ("a working: First", "active"),
        ("b queued: Second", "pending"),
    ]


def test_a_live_view_of_a_backlog_has_its_checks_and_its_tasks() -> None:
    fold = Fold("w")
    for at, event in enumerate((replace(STARTED, checks=("make test",)), *NIGHT[1:4]), 100):
        fold.add(event, float(at))  # type: ignore[arg-type]
    assert fold.last_results == {"make test": None}
    assert [task.text for task in fold.todo] == ["a working: First", "b queued: Second"]


def test_the_events_of_a_backlog_keep_their_names_on_disk() -> None:
    names = {"work_started", "work_paused", "work_finished", "task_listed", "task_merged", "gate_finished"}
    assert names <= {*backlog_events.NAMES.values()}
