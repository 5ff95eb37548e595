"""`ralph tell`: how does a person say a word to a run, or answer what its agent asked? The next prompt carries it."""

import os
import sys
from typing import TYPE_CHECKING

from ralph.cli.plain import DIRECTORY, Plain, Values, click_command, one_run
from ralph.core.text import one_line
from ralph.errors import UserError

if TYPE_CHECKING:
    import click

    from ralph.records.register import Listed


def tell(values: Values, words: list[str]) -> int:
    from ralph.steering.mailbox import Mailbox
    from ralph.steering.which_run import refuse_foreign

    *named, text = words or [""]
    text = sys.stdin.buffer.read().decode("utf-8", "replace") if text == "-" else text
    if not text.strip():
        raise UserError("nothing to tell", 'ralph tell [RUN] "TEXT"; a text of - is read from standard input')
    if len(named) > 1:
        raise UserError(f"too many words: {' '.join(words)}", "put the text in quotes")
    run = one_run(values, named, _cannot_be_told)
    refuse_foreign(run)
    if _is_spoken_inside(run):
        raise UserError("only a person can tell a run something", 'an agent can ask: ralph ask "QUESTION"')
    mailbox = Mailbox(run.place)
    questions = mailbox.read().questions
    mailbox.tell(text, questions[0] if questions else None)
    if questions:
        print(f"answered: {one_line(questions[0].text)}")
    print(_when(run, run.ungiven(len(mailbox.read().notes))))
    for question in questions[1:]:
        print(f"still asked: {one_line(question.text)}")
    return 0


def _is_spoken_inside(run: "Listed") -> bool:
    """Whether an agent of the run says it: its own, or that of a child of the same task."""
    from ralph.processes.descendants import MARK

    task = os.environ.get("JRUN_TASK_FOLDER")
    return os.environ.get(MARK) == run.id or bool(task and task == run.standing.task)


def _cannot_be_told(run: "Listed") -> str:
    if run.standing.outcome == "done":
        return "is done"
    return "was started by the agent of a task, for one turn: tell the task" if run.is_child else ""


def _when(run: "Listed", notes: int) -> str:
    carries = "carries it" if notes == 1 else f"carries it and {notes - 1} more"
    if run.is_alive:
        return f"the next prompt of run {run.id} {carries}"
    return f"run {run.id} is not at work; its next prompt {carries} after `ralph resume {run.id}`"


PLAIN = Plain(
    "tell",
    "Leave a note for the next prompt of a run. Several notes queue up. While the agent asks something, "
    "what you tell is the answer to its oldest question.",
    tell,
    (DIRECTORY,),
    metavar="[RUN] TEXT",
    examples=('ralph tell "The API moved to port 8080"', "ralph tell k3fa - < advice.md"),
)


def command() -> "click.Command":
    return click_command(PLAIN)
