"""A backlog in a terminal, as lines and as a table."""

import pytest

from ralph.core.backlog import BacklogTask, Board, FailedCheck, Job
from ralph.core.backlog_events import GateOpened
from ralph.core.check_counts import FailureCount
from ralph.show.backlog_lines import rows, sentence, table
from ralph.show.outlet import GLYPHS, Style


def test_tasks_that_need_a_person_are_first_and_finished_ones_last() -> None:
    jobs = [
        Job(task=BacklogTask(key="T1", title="T1 Read the settings"), state="merged"),
        Job(task=BacklogTask(key="T2", title="T2 Colours", after=("T4",))),
        Job(task=BacklogTask(key="T3", title="T3 Links"), state="working"),
        Job(task=BacklogTask(key="T4", title="T4 The importer"), state="parked", reason="exhausted: 10 iterations"),
    ]
    board = Board(jobs={job.task.key: job for job in jobs})
    assert table(board, rows(board, {}), Style(GLYPHS), 80) == [
        " T4  parked     exhausted: 10 iterations · The importer",
        " T3  working    Links",
        " T2  blocked    after T4 · Colours",
        " T1  merged     Read the settings",
        " 1 merged, 1 blocked, 1 working, 1 parked",
    ]


@pytest.mark.parametrize(
    ("key", "title", "about"),
    [
        ("T1", "T1 Read the settings", "Read the settings"),
        ("1.2", "1.2: Read them", "Read them"),
        ("T1", "T12 Read", "T12 Read"),
        ("read-the-settings", "Read the settings", "Read the settings"),
        ("T1", "T1", "T1"),
    ],
)
def test_a_title_does_not_repeat_the_key(key: str, title: str, about: str) -> None:
    assert BacklogTask(key=key, title=title).about == about


def test_a_red_target_is_not_called_green() -> None:
    red = (FailedCheck("pytest -q", count=FailureCount(2, 9)), FailedCheck("make lint"))
    assert sentence(GateOpened("a" * 40, red))[0] == (
        "gate: the target is red at aaaaaaaaaaaa: "
        "pytest -q (2 failures), make lint (a task has to fix it: no count of its failures)"
    )
    assert sentence(GateOpened("a" * 40))[0] == "gate: the target is green at aaaaaaaaaaaa"
