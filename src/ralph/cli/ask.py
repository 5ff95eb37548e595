"""`ralph ask`: how does an agent inside a run ask the person who started it? `ralph tell` answers."""

import os
import sys
from pathlib import Path

from ralph.cli.table import CliCommand, Values
from ralph.errors import UserError


def ask(values: Values, words: list[str]) -> int:
    from ralph.records.register import listed
    from ralph.steering import control
    from ralph.steering.mailbox import Mailbox

    text = " ".join(words)
    text = sys.stdin.buffer.read().decode("utf-8", "replace") if text == "-" else text
    if not text.strip():
        raise UserError("nothing is asked", 'ralph ask "QUESTION"; a question of - is read from standard input')
    folder = os.environ.get("RALPH_RUN_FOLDER", "")
    if not folder:
        raise UserError("this is not inside a run", "an agent asks; a person says `ralph tell`")
    if not Path(folder).is_dir():
        raise UserError(f"the run's folder is gone: {folder}", "there is nobody to ask")
    Mailbox(Path(folder)).ask(text)
    run = listed(folder)
    if run and run.is_alive:
        control.nudge(run)
    print("The question is passed on. End your turn: an answer, if there is one, comes with the next prompt.")
    return 0


COMMAND = CliCommand(
    "ask",
    "For agents inside a run: ask the person who started it. With --on-question wait the run waits for the "
    "answer; either way the next prompt carries it.",
    ask,
    words="QUESTION",
    examples=('ralph ask "Which of the two APIs shall I keep?"',),
)
