"""Has the agent asked something, and does the run stand still until a person speaks? A question is told to all who
listen, once, soon after it was asked."""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ralph.core import events
from ralph.errors import UserError
from ralph.files import open_file
from ralph.steering.mailbox import LONGEST_QUESTION, Mail, Mailbox

DROP = "QUESTION.md"
DROP_NAME = "RALPH_QUESTION"  # the variable by which one who can write nowhere else knows where that is


class QuestionListener:
    """Looks when it is called, and after every turn. An agent that cannot call ralph may leave a question as a file in
    the workspace `root`, which may change; None: this run takes none. `waits`: no turn begins before the answer."""

    def __init__(self, mailbox: Mailbox, tell: events.Tell, waits: bool, root: Callable[[], Path] | None) -> None:
        self._mailbox, self._tell, self._waits, self._root = mailbox, tell, waits, root
        self._told = {question.id for question in mailbox.read().questions}

    def hear(self, *happened: events.Event) -> None:
        if isinstance(happened[-1], events.AgentFinished):
            self()

    def __call__(self) -> None:
        text = _taken(f"{self._root()}/.ralph/{DROP}") if self._root else ""
        if text.strip():
            self._mailbox.ask(text)
        for question in self._mailbox.read().questions:
            if question.id not in self._told:
                self._told.add(question.id)
                self._tell(events.QuestionAsked(question.id, question.text, self._waits))


def left(text: str) -> bool:
    """Leaves a question as such a file, for one in a box; False where this is none."""
    path = os.environ.get(DROP_NAME, "")
    if path:
        try:
            with open(path, "a", encoding="utf-8", errors="replace") as file:
                file.write(f"{text}\n\n")
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}", "say it in your answer instead") from None
    return bool(path)


def _taken(path: str) -> str:
    """The text of a file that is removed; nothing where there is none. An agent may leave anything there."""
    if not os.access(path, os.F_OK):  # asked after every turn, and a fifth of the price of an error
        return ""
    try:
        fd = open_file(path)
    except OSError:
        return ""
    try:
        text = os.read(fd, 4 * LONGEST_QUESTION).decode("utf-8", "replace")
    finally:
        os.close(fd)
    if text.strip():
        with suppress(FileNotFoundError):
            os.unlink(path)
    return text


GLANCE = 0.5


def wait_for_person(mailbox: Mailbox, is_held: Callable[[Mail], bool], wait: Callable[[float], object]) -> float:
    """Returns when nothing in the mailbox holds the run any more, or when `wait` says that it is interrupted. The
    seconds that this took."""
    began = time.monotonic()
    while not wait(GLANCE) and is_held(mailbox.read()):
        pass
    return time.monotonic() - began
