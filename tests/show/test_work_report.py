"""The report of a backlog answers what happened, what needs a person, and what to type."""

import re

from ralph.core import backlog_events as w
from ralph.core.backlog import BacklogTask, GateVerdict
from ralph.history.backlog_history import BacklogHistory, fold_backlog
from ralph.history.evidence import Evidence, PatchedFile
from ralph.show.backlog_report import html

WHY = "25 iterations without an accepted claim; still failing: " + ", ".join(f"check-{n}" for n in range(40)) + ", end"
STARTED = w.BacklogStarted(
    name="k3fa", backlog="TASKS.md", workspace="/w", target="ralph/k3fa/merged", checks=("make",)
)
RUNNING = (
    STARTED,
    w.TaskListed(BacklogTask(key="T1", title="`halve(n)` returns <half>")),
    w.TaskListed(BacklogTask(key="T2", title="Second")),
    w.TaskStarted("T1", 1, "20261115-130000-aaaa"),
    w.TaskReady(key="T1", tip="1" * 40, files=("a.py",)),
    w.GateStarted(("T1",)),
    w.GateFinished(GateVerdict(tried=("T1",), merged=("T1",), commit="2" * 40)),
    w.TaskMerged("T1"),
    w.TaskStarted("T2", 1, "20261115-130000-bbbb"),
)
TOTALS = {"merged": 1, "parked": 1, "blocked": 0, "tasks": 2}
ENDED = (
    *RUNNING,
    w.TaskParked("T2", WHY, "20261115-130000-bbbb"),
    w.BacklogFinished(outcome="parked", reason="", **TOTALS, cost_usd=None, duration_s=90.0, exit_code=1),
)


class Line:
    """A line of the journal, as it is read back."""

    def __init__(self, event: object, at: float) -> None:
        self._event, self.at = event, at

    def event(self) -> object:
        return self._event


def history_of(*events: object) -> BacklogHistory:
    return fold_backlog("20261115-130000-k3fa", [Line(event, 60.0 * at) for at, event in enumerate(events, 100)])  # type: ignore[misc]


def test_a_parked_task_shows_the_whole_reason_the_failing_check_and_its_changes() -> None:
    evidence = {
        "T2": Evidence(tails={"make": "E  assert 3 == 4"}, patch=[PatchedFile("a.py", 1, 0, ["@@ @@", "+new"])])
    }
    page = html(history_of(*ENDED), evidence)
    task = page.partition(">T2</b>")[2]
    assert WHY in task
    assert re.search(r"<details open><summary>✗ make</summary><pre>E  assert 3 == 4</pre>", task)
    assert "Changes, +1 −0" in task


def test_the_report_names_the_commands_that_retry_and_merge() -> None:
    text = html(history_of(*ENDED))
    assert ("ralph work retry T2" in text, "ralph accept k3fa" in text) == (True, True)
    assert "ralph accept" not in html(history_of(*RUNNING))


def test_code_in_titles_is_rendered_and_other_markup_is_text() -> None:
    assert "<code>halve(n)</code> returns &lt;half&gt;" in html(history_of(*ENDED))
