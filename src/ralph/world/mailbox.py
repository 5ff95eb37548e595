"""How do a person and a run talk while it goes on? By small files in the run's folder: notes, questions and a pause.

Whoever may write there may speak: no process has to listen, and what is said outlives all of them.
"""

import os
import stat
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

import msgspec

from ralph.core import events
from ralph.core.model import PersonNote, Question, Run
from ralph.core.text import clean, head
from ralph.world.folder import cannot_write
from ralph.world.site import Site

NOTE, QUESTION, PAUSE = ".note", ".question", "pause"
DROP = "QUESTION.md"
LONGEST_QUESTION = 4000

Kind = TypeVar("Kind", PersonNote, Question)


class Mail(msgspec.Struct, frozen=True):
    """What lies in the box: notes, oldest first, and questions that none of them answers."""

    notes: tuple[PersonNote, ...] = ()
    questions: tuple[Question, ...] = ()
    is_paused: bool = False


class Mailbox:
    def __init__(self, folder: Path) -> None:
        self.path = folder / "mail"

    def read(self) -> Mail:
        try:
            names = sorted(os.listdir(self.path))
        except FileNotFoundError:
            return Mail()
        notes = [note for name in names if name.endswith(NOTE) and (note := _decoded(self.path / name, PersonNote))]
        asked = [asked for name in names if name.endswith(QUESTION) and (asked := _decoded(self.path / name, Question))]
        answered = {note.answers.id for note in notes if note.answers}
        return Mail(tuple(notes), tuple(one for one in asked if one.id not in answered), PAUSE in names)

    def tell(self, text: str, answers: Question | None = None) -> PersonNote:
        """Leaves a note for the next prompt."""
        note = PersonNote(_new_id(), text, answers)
        self._put(note.id + NOTE, note)
        return note

    def ask(self, text: str) -> Question:
        """Leaves a question for the person."""
        question = Question(_new_id(), head(clean(text).strip(), LONGEST_QUESTION, "…"))
        self._put(question.id + QUESTION, question)
        return question

    def pause(self) -> None:
        self._put(PAUSE, None)

    def unpause(self) -> None:
        (self.path / PAUSE).unlink(missing_ok=True)

    def dismiss(self) -> None:
        """Takes away every question: there will be no answer."""
        for question in self.read().questions:
            (self.path / (question.id + QUESTION)).unlink(missing_ok=True)

    def forget(self, notes: Iterable[PersonNote]) -> None:
        """Takes notes away that an iteration was given, and the questions that they answer."""
        for note in notes:
            if note.answers:
                (self.path / (note.answers.id + QUESTION)).unlink(missing_ok=True)
            (self.path / (note.id + NOTE)).unlink(missing_ok=True)

    def _put(self, name: str, content: object) -> None:
        """Whole or not at all: the run may look at any moment."""
        fresh = self.path / f".{name}.{os.getpid()}"
        try:
            self.path.mkdir(mode=0o700, exist_ok=True)
            fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with open(fd, "wb") as file:
                file.write(msgspec.json.encode(content))
            os.replace(fresh, self.path / name)
        except OSError as error:
            raise cannot_write(self.path, error) from None


def _decoded(path: Path, kind: type[Kind]) -> Kind | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError):  # taken away meanwhile, or not written by us
        return None


def _new_id() -> str:
    return f"{time.time_ns():020d}-{os.urandom(2).hex()}"


def untold(mail: Mail, run: Run) -> tuple[PersonNote, ...]:
    """The notes that no iteration of the run was given."""
    given = {note.id for iteration in run.iterations for note in iteration.told}
    return tuple(note for note in mail.notes if note.id not in given)


class Inquiry:
    """Tells of each question once, soon after it was asked. An agent that cannot call ralph may leave one as a file."""

    def __init__(self, mailbox: Mailbox, site: Site, waits: bool) -> None:
        self._mailbox, self._site, self._waits = mailbox, site, waits
        self._told = {question.id for question in mailbox.read().questions}

    def hear(self, event: events.Event) -> None:
        if isinstance(event, events.AgentFinished):
            self()

    def __call__(self) -> None:
        text = _taken(self._site.root / ".ralph" / DROP)
        if text.strip():
            self._mailbox.ask(text)
        for question in self._mailbox.read().questions:
            if question.id not in self._told:
                self._told.add(question.id)
                self._site.tell(events.QuestionAsked(question.id, question.text, self._waits))


def _taken(path: Path) -> str:
    """The text of a file that is removed; nothing where there is none. An agent may leave anything there."""
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
        path.unlink(missing_ok=True)
    return text
