"""`ralph tell`, `pause`, `stop` and `ask`: messages between a person and a run."""

import os
import sys
import time
from pathlib import Path

from ralph.backlog.task_requests import tell_task
from ralph.cli.request import one_run
from ralph.cli.table import DIRECTORY, Values, command, folder_of
from ralph.core.text import nickname, one_line
from ralph.errors import UserError
from ralph.run import control
from ralph.run.options import Option
from ralph.store.find_run import find_workspace
from ralph.store.mailbox import Mailbox, ask_by_file
from ralph.store.register import run_at, runs_in


@command(
    DIRECTORY, words="[RUN] TEXT", examples=('ralph tell "The API moved to port 8080"', "ralph tell k3fa - < advice.md")
)
def tell(values: Values, words: list[str]) -> int:
    """Leave a note for the next prompt of a run. Several notes queue up. If the agent has asked something, the note
    answers its oldest question."""
    *named, text = words or [""]
    text = sys.stdin.buffer.read().decode("utf-8", "replace") if text == "-" else text
    if not text.strip():
        raise UserError("no text to send", 'ralph tell [RUN] "TEXT"; - reads the text from standard input')
    if len(named) > 1:
        raise UserError(f"too many words: {' '.join(words)}", "put the text in quotes")
    folder = folder_of(values)
    here = find_workspace(folder)
    has_works = any(run.facts.kind == "work" for run in runs_in(here / ".ralph"))
    if named and has_works and (confirmation := tell_task(named[0], text, folder)):  # the task's loop is not running
        print(confirmation)
        return 0
    run = one_run(values, named, control.why_not_tell)
    questions = control.tell(run, text)
    if questions:
        print(f"answered: {one_line(questions[0].text)}")
    notes = run.pending_notes(len(Mailbox(run.place).read().notes))
    carries = "carries it" if notes == 1 else f"carries it and {notes - 1} more"
    later = f"run {run.id} is not running; its next prompt {carries} after `ralph resume {run.id}`"
    print(f"the next prompt of run {run.id} {carries}" if run.is_alive else later)
    for question in questions[1:]:
        print(f"still asked: {one_line(question.text)}")
    return 0


@command(DIRECTORY, words="[RUN]", examples=("ralph pause", "ralph pause k3fa"))
def pause(values: Values, words: list[str]) -> int:
    """Pause a run: the current turn finishes, and no other starts until `ralph resume`. A pause doesn't count against
    --max-time."""
    run = one_run(values, words, control.why_not_running)
    control.pause(run)
    print(f"run {run.id} pauses before its next turn; continue with `ralph resume {nickname(run.id)}`")
    return 0


POLL_INTERVAL = 0.05  # seconds


@command(
    Option("--now", "Kill the current turn as well, with everything that it started."),
    Option("--wait", "Return when the run has ended."),
    DIRECTORY,
    words="[RUN]",
    examples=("ralph stop", "ralph stop --now k3fa"),
)
def stop(values: Values, words: list[str]) -> int:
    """Stop a run as Ctrl-C would: the current step may finish, within the run's --grace. `ralph resume` continues a
    stopped run."""
    run = one_run(values, words, control.why_not_running)
    gently = "stops after the current step; `ralph stop` again stops it now"
    print(f"run {run.id} {'stops now' if control.stop(run, bool(values.get('now'))) else gently}")
    while values.get("wait") and (seen := run_at(run.place)) and seen.is_alive:
        time.sleep(POLL_INTERVAL)
    return 0


@command(words="QUESTION", examples=('ralph ask "Which of the two APIs should I keep?"',))
def ask(values: Values, words: list[str]) -> int:
    """For agents inside a run: ask the person who started the run. The answer is in the next prompt; with
    --on-question wait, the run waits for it."""
    text = " ".join(words)
    text = sys.stdin.buffer.read().decode("utf-8", "replace") if text == "-" else text
    if not text.strip():
        raise UserError("no question", 'ralph ask "QUESTION"; - reads it from standard input')
    folder = os.environ.get("RALPH_RUN_FOLDER", "")
    if not folder:
        raise UserError("not inside a run", 'only an agent can ask; to write to an agent: ralph tell "TEXT"')
    if not Path(folder).is_dir():
        raise UserError(f"folder of the run not found: {folder}", "continue without an answer")
    if not ask_by_file(text):
        Mailbox(Path(folder)).ask(text)
        run = run_at(folder)
        if run and run.is_alive:
            control.wake(run)
    print("The question is passed on. End your turn: the answer, if any, comes with the next prompt.")
    return 0
