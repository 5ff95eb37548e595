"""How do a person and a run talk while it goes on? By small files in its folder: notes, questions, a pause, a stop.

Whoever may write there may speak: no process has to listen, and what is said outlives all of them.
"""

import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

import msgspec

from ralph.core.model import PersonNote, Question, Run
from ralph.core.text import clean, head, one_line
from ralph.errors import UNREADABLE, UserError
from ralph.files import open_file, read_file, replace_file

if TYPE_CHECKING:
    from pathlib import Path

    from ralph.core.events import Event, Tell

NOTE, QUESTION, PAUSE, STOP, STOP_NOW = ".note", ".question", "pause", "stop", "stop-now"
STOPPED_BY = "stopped-by"
LONGEST_QUESTION = 4000
DROP = "QUESTION.md"  # a question that an agent left as a file in its workspace
DROP_NAME = "RALPH_QUESTION"  # the variable by which one who can write nowhere else knows where that is
GLANCE = 0.5
ROOM, _EACH = 4 << 20, 1 << 12  # bytes for all notes and questions, and what each takes besides its own
_NO_BOX = (FileNotFoundError, NotADirectoryError)  # an agent may have put anything in its place

Letter = TypeVar("Letter")


class Mail(msgspec.Struct, frozen=True):
    """What lies in the box: notes, oldest first, and questions that none of them answers. `stopped_by`: the agent, and
    no person, who has asked for an end."""

    notes: tuple[PersonNote, ...] = ()
    questions: tuple[Question, ...] = ()
    is_paused: bool = False
    stopped_by: str = ""


class Mailbox:
    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.path = os.path.join(folder, "mail")

    def read(self) -> Mail:
        names = self._names()
        letters = self._fitting([name for name in names if name.endswith((NOTE, QUESTION))])
        notes = [note for name in letters if name.endswith(NOTE) and (note := _decoded(self._at(name), PersonNote))]
        asked = [asked for name in letters if name.endswith(QUESTION) and (asked := _decoded(self._at(name), Question))]
        answered = {note.answers.id for note in notes if note.answers}
        questions = (Question(one.id, _without_keys(one.text)) for one in asked if one.id not in answered)
        stopped_by = _decoded(self._at(STOPPED_BY), str) if STOPPED_BY in names else None
        return Mail(tuple(notes), tuple(questions), PAUSE in names, one_line(stopped_by or "", 80))

    def tell(self, text: str, answers: Question | None = None) -> PersonNote:
        """Leaves a note for the next prompt."""
        note = PersonNote(_new_id(), text, answers)
        self._put(note.id + NOTE, note)
        return note

    def ask(self, text: str) -> Question:
        """Leaves a question for the person."""
        question = Question(_new_id(), head(_without_keys(clean(text)).strip(), LONGEST_QUESTION, "…"))
        self._put(question.id + QUESTION, question)
        return question

    def inherit(self, other: "Mailbox", given: Callable[[], Run]) -> None:
        """Takes over the notes for a run that will not go on, save those that it was `given`."""
        notes = other.read().notes
        if notes:
            for note in untold(Mail(notes), given()):
                self._put(note.id + NOTE, note)
            other.forget(notes)

    def leave(self, suffix: str, letter: object) -> None:
        """Leaves a letter of another kind."""
        self._put(_new_id() + suffix, letter)

    def take(self, suffix: str, kind: type[Letter]) -> list[Letter]:
        """Takes such letters out of the box, oldest first."""
        names = [name for name in self._names() if name.endswith(suffix)]
        found = [letter for name in names if (letter := _decoded(self._at(name), kind))]
        for name in names:
            with suppress(OSError):  # an agent may have put a folder there
                self._remove(name)
        return found

    def pause(self) -> None:
        self._put(PAUSE, None)

    def unpause(self) -> None:
        self._remove(PAUSE)

    def stop(self, now: bool = False) -> None:
        """Asks a run to end that hears no signals."""
        self._put(STOP_NOW if now else STOP, None)

    def sign_stop(self, by: str = "") -> None:
        """Says who asks for an end, where that is no person: a signal does not. It ends nothing by itself, and what
        an agent has put in its place keeps nobody from the signal."""
        with suppress(OSError, UserError):
            self._put(STOPPED_BY, by) if by else self._remove(STOPPED_BY)

    def take_stop(self, now: bool = False) -> bool:
        """Takes a request to end out of the box; False where there is none."""
        name = STOP_NOW if now else STOP
        if not os.access(self._at(name), os.F_OK):
            return False
        self._remove(name)
        return True

    def dismiss(self) -> None:
        """Takes away every question: there will be no answer."""
        for question in self.read().questions:
            self._remove(question.id + QUESTION)

    def forget(self, notes: Iterable[PersonNote]) -> None:
        """Takes notes away that an iteration was given, and the questions that they answer."""
        for note in notes:
            if note.answers:
                self._remove(note.answers.id + QUESTION)
            self._remove(note.id + NOTE)

    def _names(self) -> list[str]:
        if not os.access(self.path, os.F_OK):  # as nearly always, and a fifth of the price of an error
            return []
        try:
            return sorted(os.listdir(self.path))
        except _NO_BOX:
            return []

    def _fitting(self, names: list[str]) -> list[str]:
        """The latest of these, as many as there is room for: an agent may fill the box."""
        room, found = ROOM, []
        for name in reversed(names):
            with suppress(OSError):
                room -= os.lstat(self._at(name)).st_size + _EACH
            if room < 0:
                break
            found.append(name)
        return found[::-1]

    def _at(self, name: str) -> str:
        return os.path.join(self.path, name)

    def _remove(self, name: str) -> None:
        with suppress(*_NO_BOX):
            os.unlink(self._at(name))

    def _put(self, name: str, content: object) -> None:
        """Whole or not at all: the run may look at any moment."""
        try:
            os.makedirs(self.path, mode=0o700, exist_ok=True)
            replace_file(self._at(name), msgspec.json.encode(content), 0o600)
        except OSError as error:
            raise UserError(f"cannot write {self.path}: {error.strerror}", "is the run's folder still there?") from None


def _decoded(path: str, kind: type[Letter]) -> Letter | None:
    try:
        return msgspec.json.decode(read_file(path, ROOM), type=kind)
    except (OSError, *UNREADABLE):  # taken away meanwhile, or not written by us
        return None


def _without_keys(text: str) -> str:
    """An agent that asks may not see all that is secret here, and its question may not be written by ralph at all."""
    from ralph.core.secrets import Redactor, secret_values  # the list of runs reads mail without them

    return Redactor(secret_values(os.environ)).text(text)


def _new_id() -> str:
    return f"{time.time_ns():020d}-{os.urandom(2).hex()}"


def untold(mail: Mail, run: Run) -> tuple[PersonNote, ...]:
    """The notes that no iteration of the run was given."""
    given = {note.id for iteration in run.iterations for note in iteration.told}
    return tuple(note for note in mail.notes if note.id not in given)


class QuestionListener:
    """Looks when it is called, and after every turn. An agent that cannot call ralph may leave a question as a file in
    the workspace `root`, which may change; None: this run takes none. `waits`: no turn begins before the answer."""

    def __init__(self, mailbox: Mailbox, tell: "Tell", waits: bool, root: "Callable[[], Path] | None") -> None:
        from ralph.core import events  # the list of runs reads mail without them

        self._mailbox, self._tell, self._waits, self._root, self._events = mailbox, tell, waits, root, events
        self._told: set[str] = set()

    def begin(self) -> None:
        """What is asked already, its asker has told."""
        self._told = {question.id for question in self._mailbox.read().questions}

    def hear(self, *happened: "Event") -> None:
        if isinstance(happened[-1], self._events.AgentFinished):
            self()

    def __call__(self) -> None:
        text = _taken(f"{self._root()}/.ralph/{DROP}") if self._root else ""
        if text.strip():
            self._mailbox.ask(text)
        for question in self._mailbox.read().questions:
            if question.id not in self._told:
                self._told.add(question.id)
                self._tell(self._events.QuestionAsked(question.id, question.text, self._waits))


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


def wait_for_person(mailbox: Mailbox, is_held: Callable[[Mail], bool], wait: Callable[[float], object]) -> float:
    """Returns, after how many seconds, when nothing holds the run any more, or when `wait` says it is interrupted."""
    began = time.monotonic()
    while not wait(GLANCE) and is_held(mailbox.read()):
        pass
    return time.monotonic() - began
