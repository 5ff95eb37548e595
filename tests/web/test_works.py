"""A backlog in the web UI: its tasks on the board, and its own page."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.web.conftest import Served, StreamClient
from tests.web.scenes import Scene, WorkScene

from ralph.core.backlog import BacklogTask

Make = Callable[..., Scene]
TASKS = (
    BacklogTask(key="T1", title="Coupons expire"),
    BacklogTask(key="T2", title="Sums are Decimal"),
    BacklogTask(key="T3", title="Round once", after=("T2",)),
    BacklogTask(key="T4", title="Two coupons do not stack <b>ever</b>"),
)


@pytest.fixture
def work(home: dict[str, str], tmp_path: Path) -> Iterator[WorkScene]:
    import secrets

    made = WorkScene(tmp_path, home, f"20261115-130000-{secrets.token_hex(3)}", *TASKS)
    yield made
    made.finish()


def column(html: str, id_: str) -> str:
    return html.partition(f'id="{id_}"')[2].partition("</section>")[0]


def test_waiting_tasks_are_queued_on_the_board(served: Served, work: WorkScene) -> None:
    work.start("T1")
    shown = served.get().text
    queued = column(shown, "queued")
    assert "Sums are Decimal" in queued
    assert "after T2" in queued
    assert "Coupons expire" not in queued
    assert f"runs/{work.id}#task-T2" in queued
    assert "0 of 4 tasks merged" in column(shown, "running")


def test_without_a_backlog_there_is_no_queue(served: Served, work: WorkScene) -> None:
    for task in TASKS:
        work.start(task.key)
        work.merge(task.key)
    assert "Queued" not in column(served.get().text, "queued")


def test_a_parked_task_needs_you(served: Served, work: WorkScene) -> None:
    work.start("T1")
    work.park("T1", "the gate refused it `3` times")
    assert "Coupons expire" in column(served.get().text, "needs")
    page = served.get(f"runs/{work.id}").text
    assert 'name="task" value="T1"' in page
    assert ">Retry</button>" in page
    assert "the gate refused it <code>3</code> times" in page


def test_an_ended_run_of_a_task_is_shown_by_its_backlog(served: Served, work: WorkScene, scene: Make) -> None:
    loop = scene("task", goal="a goal of a task's own", work=work.id, backlog_task="T1")
    work.start("T1", loop)
    assert "a goal of a task&#x27;s own" in column(served.get().text, "running").replace("&#39;", "&#x27;")
    loop.finish("exhausted", "10 iterations were not enough")
    work.park("T1", run=loop.id)
    board = served.get().text
    assert "a goal of a task" not in board
    assert f'href="{served.base}runs/{loop.id}"' in served.get(f"runs/{work.id}").text
    assert served.get(f"runs/{loop.id}").status == 200


def test_the_page_of_a_backlog_shows_the_state_of_each_task(served: Served, work: WorkScene) -> None:
    work.start("T1")
    work.merge("T1")
    page = served.get(f"runs/{work.id}").text
    assert '<li id="task-T1" class="merged">' in page
    assert '<li id="task-T3" class="waiting">' in page
    assert "Two coupons do not stack &lt;b&gt;ever&lt;/b&gt;" in page
    assert "ralph/w/merged" in page
    assert "make test" in page
    assert "Two coupons" in served.get(f"runs/{work.id}/report").text


def test_a_merge_is_shown_as_it_happens(
    subscribe: Callable[..., StreamClient], work: WorkScene, served: Served
) -> None:
    work.start("T1")
    heard = subscribe(f"?run={work.id}")
    work.merge("T1")
    heard.until('<li id="task-T1" class="merged">')


def test_a_backlog_can_be_paused_and_resumed_but_not_told(served: Served, work: WorkScene) -> None:
    assert served.post(f"runs/{work.id}/pause").status == 200
    assert "Resume" in served.get(f"runs/{work.id}").text
    assert served.post(f"runs/{work.id}/resume").status == 200
    refused = served.post(f"runs/{work.id}/tell", text="hello")
    assert (refused.status, "name one of its tasks" in refused.text) == (409, True)


def test_an_ended_backlog_has_nothing_queued(served: Served, work: WorkScene) -> None:
    work.start("T1")
    work.finish()
    assert "Sums are Decimal" not in column(served.get().text, "queued")
    assert "Resume" in served.get(f"runs/{work.id}").text


def test_the_board_collapses_what_does_not_fit(served: Served, scene: Make) -> None:
    for number in range(21):
        scene(f"c0{number:02}", goal=f"goal {number}").finish("exhausted")
    needs = column(served.get().text, "needs")
    shown, _, collapsed = needs.partition("<details")
    assert (shown.count("<li"), collapsed.count("<li")) == (12, 9)
    assert "9 more</summary>" in collapsed


def test_an_ended_backlog_needs_you_until_it_is_accepted_or_dismissed(served: Served, work: WorkScene) -> None:
    work.start("T1")
    work.merge("T1")
    work.start("T2")
    work.park("T2")
    work.finish("parked")
    assert f"runs/{work.id}" in column(served.get().text, "needs")
    assert served.post(f"runs/{work.id}/dismiss").status == 200
    assert f"runs/{work.id}" in column(served.get().text, "done")
