"""Has the agent asked something? It is told to all who listen, once, soon after it was asked."""

import os
import stat
import time
from collections.abc import Callable
from contextlib import suppress

from ralph.core import events
from ralph.run.context import Context
from ralph.steering.mailbox import LONGEST_QUESTION, Mail, Mailbox

DROP = "QUESTION.md"


class Inquiry:
    """Looks when it is called, and after every turn. An agent that cannot call ralph may leave a question as a file,
    if this run `takes_files`."""

    def __init__(self, mailbox: Mailbox, context: Context, waits: bool, takes_files: bool = True) -> None:
        self._mailbox, self._context, self._waits, self._takes_files = mailbox, context, waits, takes_files
        self._told = {question.id for question in mailbox.read().questions}

    def hear(self, *happened: events.Event) -> None:
        if isinstance(happened[-1], events.AgentFinished):
            self()

    def __call__(self) -> None:
        text = _taken(f"{self._context.root}/.ralph/{DROP}") if self._takes_files else ""
        if text.strip():
            self._mailbox.ask(text)
        for question in self._mailbox.read().questions:
            if question.id not in self._told:
                self._told.add(question.id)
                self._context.tell(events.QuestionAsked(question.id, question.text, self._waits))


def _taken(path: str) -> str:
    """The text of a file that is removed; nothing where there is none. An agent may leave anything there."""
    if not os.access(path, os.F_OK):  # asked after every turn, and a fifth of the price of an error
        return ""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return ""
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return ""
        text = os.read(fd, 4 * LONGEST_QUESTION).decode("utf-8", "replace")
    finally:
        os.close(fd)
    if text.strip():
        with suppress(FileNotFoundError):
            os.unlink(path)
    return text


GLANCE = 0.5


def park(context: Context, mailbox: Mailbox, reason: str, is_held: Callable[[Mail], bool]) -> None:
    """Returns when nothing in the mailbox holds the run any more, or when it is interrupted."""
    began = time.monotonic()
    tick = context.tick
    context.tell(events.Paused(reason))
    while not context.interrupt.wait(GLANCE, (lambda _: tick()) if tick else None) and is_held(mailbox.read()):
        pass
    seconds = time.monotonic() - began
    context.began += seconds
    if not context.interrupt.level:
        context.tell(events.Continued(seconds))
