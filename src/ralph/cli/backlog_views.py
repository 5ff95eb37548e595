"""What `ralph show`, `report` and `work status` print about a backlog."""

import os
import sys
from collections.abc import Sequence

from msgspec.json import encode

from ralph.backlog.ledger import running_summaries
from ralph.cli.table import print_objects
from ralph.core.backlog import Board
from ralph.core.text import escaped, nickname, one_line
from ralph.history.backlog_history import backlog_history
from ralph.history.evidence import task_evidence
from ralph.show.backlog_lines import Row, rows, table
from ralph.show.backlog_report import html, merge_command, retry_command, summary
from ralph.show.outlet import choose, terminal_size
from ralph.show.summary import exam_lines
from ralph.store.folder import load_exam_outputs
from ralph.store.register import Listed


def print_tasks(board: Board, job_rows: Sequence[Row]) -> None:
    columns, _ = terminal_size(sys.stdout, 200)
    print("\n".join(table(board, job_rows, choose(sys.stdout), columns, most=len(job_rows))))


def show_backlog(run: Listed, as_json: bool) -> int:
    """Show a backlog: what needs the user, and every task."""
    history = backlog_history(run)
    job_rows = rows(history.board, running_summaries(run.folder, history.board))
    if as_json:
        return print_objects(job_rows)
    print(f"work {run.id}: {summary(history)}")
    for job, why in history.needing():
        print(f"needs you: {one_line(job.task.key)}: {one_line(why, 500)} ({one_line(retry_command(job))})")
    if merge := merge_command(history):
        print(f"to merge what is finished: {one_line(merge)}")
    for line in exam_lines(load_exam_outputs(run.id), choose(sys.stdout)):
        print(line)
    print_tasks(history.board, job_rows)
    if not run.is_alive and not history.finished:
        print(f"interrupted: ralph resume {nickname(run.id)}")
    return 0


def backlog_report(run: Listed, as_json: bool) -> bytes:
    history = backlog_history(run)
    if as_json:
        return escaped(encode(history)) + b"\n"
    return html(history, task_evidence(run, history, os.environ)).encode("utf-8", "replace")
