"""`ralph tell`: how does a person say a word to a run, or answer what its agent asked? The next prompt carries it."""

import sys
from typing import TYPE_CHECKING

from ralph.cli.named_run import one_run
from ralph.cli.table import DIRECTORY, CliCommand, Values
from ralph.core.text import one_line
from ralph.errors import UserError

if TYPE_CHECKING:
    from ralph.records.register import Listed


def tell(values: Values, words: list[str]) -> int:
    from ralph.steering import control
    from ralph.steering.mailbox import Mailbox

    *named, text = words or [""]
    text = sys.stdin.buffer.read().decode("utf-8", "replace") if text == "-" else text
    if not text.strip():
        raise UserError("nothing to tell", 'ralph tell [RUN] "TEXT"; a text of - is read from standard input')
    if len(named) > 1:
        raise UserError(f"too many words: {' '.join(words)}", "put the text in quotes")
    if said := _to_an_item(values, named, text):
        print(said)
        return 0
    run = one_run(values, named, control.cannot_be_told)
    questions = control.tell(run, text)
    if questions:
        print(f"answered: {one_line(questions[0].text)}")
    print(_when(run, run.ungiven(len(Mailbox(run.place).read().notes))))
    for question in questions[1:]:
        print(f"still asked: {one_line(question.text)}")
    return 0


def _to_an_item(values: Values, named: list[str], text: str) -> str:
    """Words about an item of a backlog whose loop is not at work are for its next one. What comes of them, if so."""
    from pathlib import Path

    from ralph.records.register import recorded_in
    from ralph.steering.which_run import workspace_around

    folder = Path(values.get("directory", ".")).absolute()
    here = workspace_around(folder)
    if not named or not any(run.facts.kind == "work" for run in recorded_in(here / ".ralph")):
        return ""
    from ralph.backlog.wishes import tell_item

    return tell_item(named[0], text, folder)


def _when(run: "Listed", notes: int) -> str:
    carries = "carries it" if notes == 1 else f"carries it and {notes - 1} more"
    if run.is_alive:
        return f"the next prompt of run {run.id} {carries}"
    return f"run {run.id} is not at work; its next prompt {carries} after `ralph resume {run.id}`"


COMMAND = CliCommand(
    "tell",
    "Leave a note for the next prompt of a run. Several notes queue up. While the agent asks something, "
    "what you tell is the answer to its oldest question.",
    tell,
    (DIRECTORY,),
    words="[RUN] TEXT",
    examples=('ralph tell "The API moved to port 8080"', "ralph tell k3fa - < advice.md"),
)
