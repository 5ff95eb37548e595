"""`ralph tell`, `pause`, `stop`, `ask`: how do a person and a run at work speak to each other?"""

import os
import sys
import time
from pathlib import Path

from ralph.cli.request import one_run
from ralph.cli.table import DIRECTORY, Values, command, folder_of
from ralph.core.text import one_line
from ralph.errors import UserError
from ralph.run.options import Option


@command(
    DIRECTORY, words="[RUN] TEXT", examples=('ralph tell "The API moved to port 8080"', "ralph tell k3fa - < advice.md")
)
def tell(values: Values, words: list[str]) -> int:
    """Leave a note for the next prompt of a run. Several notes queue up. While the agent asks something, what you tell
    is the answer to its oldest question."""
    from ralph.records.register import recorded_in
    from ralph.steering import control
    from ralph.steering.mailbox import Mailbox
    from ralph.steering.which_run import workspace_around

    *named, text = words or [""]
    text = sys.stdin.buffer.read().decode("utf-8", "replace") if text == "-" else text
    if not text.strip():
        raise UserError("nothing to tell", 'ralph tell [RUN] "TEXT"; a text of - is read from standard input')
    if len(named) > 1:
        raise UserError(f"too many words: {' '.join(words)}", "put the text in quotes")
    folder = folder_of(values)
    here = workspace_around(folder)
    if named and any(run.facts.kind == "work" for run in recorded_in(here / ".ralph")):
        from ralph.backlog.wishes import tell_item

        if said := tell_item(named[0], text, folder):  # of an item whose loop is not at work: for its next one
            print(said)
            return 0
    run = one_run(values, named, control.cannot_be_told)
    questions = control.tell(run, text)
    if questions:
        print(f"answered: {one_line(questions[0].text)}")
    notes = run.ungiven(len(Mailbox(run.place).read().notes))
    carries = "carries it" if notes == 1 else f"carries it and {notes - 1} more"
    later = f"run {run.id} is not at work; its next prompt {carries} after `ralph resume {run.id}`"
    print(f"the next prompt of run {run.id} {carries}" if run.is_alive else later)
    for question in questions[1:]:
        print(f"still asked: {one_line(question.text)}")
    return 0


@command(DIRECTORY, words="[RUN]", examples=("ralph pause", "ralph pause k3fa"))
def pause(values: Values, words: list[str]) -> int:
    """Hold a run: the turn that is under way is finished, and no other begins until `ralph resume`. The time of a pause
    does not count against --max-time."""
    from ralph.steering import control

    run = one_run(values, words, control.not_at_work)
    control.pause(run)
    print(f"run {run.id} pauses before its next turn; go on with `ralph resume {run.id}`")
    return 0


_GLANCE = 0.05


@command(
    Option("--now", "End the turn too, with everything that it started."),
    Option("--wait", "Return when the run has ended."),
    DIRECTORY,
    words="[RUN]",
    examples=("ralph stop", "ralph stop --now k3fa"),
)
def stop(values: Values, words: list[str]) -> int:
    """End a run as Ctrl-C would: what it does at this moment may be finished, within the run's --grace. A run that is
    stopped can go on later, with `ralph resume`."""
    from ralph.records.register import listed
    from ralph.steering import control

    run = one_run(values, words, control.not_at_work)
    gently = "ends once what it does at this moment is finished; `ralph stop` again ends it now"
    print(f"run {run.id} {'ends now' if control.stop(run, bool(values.get('now'))) else gently}")
    while values.get("wait") and (seen := listed(run.place)) and seen.is_alive:
        time.sleep(_GLANCE)
    return 0


@command(words="QUESTION", examples=('ralph ask "Which of the two APIs shall I keep?"',))
def ask(values: Values, words: list[str]) -> int:
    """For agents inside a run: ask the person who started it. With --on-question wait the run waits for the answer;
    either way the next prompt carries it."""
    from ralph.records.register import listed
    from ralph.steering import control
    from ralph.steering.mailbox import Mailbox, left

    text = " ".join(words)
    text = sys.stdin.buffer.read().decode("utf-8", "replace") if text == "-" else text
    if not text.strip():
        raise UserError("nothing is asked", 'ralph ask "QUESTION"; a question of - is read from standard input')
    folder = os.environ.get("RALPH_RUN_FOLDER", "")
    if not folder:
        raise UserError("this is not inside a run", "an agent asks; a person says `ralph tell`")
    if not Path(folder).is_dir():
        raise UserError(f"the run's folder is gone: {folder}", "there is nobody to ask")
    if not left(text):
        Mailbox(Path(folder)).ask(text)
        run = listed(folder)
        if run and run.is_alive:
            control.nudge(run)
    print("The question is passed on. End your turn: an answer, if there is one, comes with the next prompt.")
    return 0
