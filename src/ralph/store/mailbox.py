"""The mailbox of a run: small files in its folder, through which a person and the run send each other messages.

A note, a question, a pause or a stop is one file. It waits there until the run reads it, even if no process is running.
"""

import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from ralph.core.events import AgentFinished, Event, QuestionAsked, Tell
from ralph.core.model import PersonNote, Question, Run
from ralph.core.secrets import Redactor, secret_values
from ralph.core.state import STOP_REQUEST
from ralph.core.text import clean, head, one_line
from ralph.errors import UserError
from ralph.files import load_json, names_in, open_file, save_file
from ralph.process.signals import Interrupt

NOTE, QUESTION, PAUSE, STOP, STOP_NOW = ".note", ".question", "pause", "stop", "stop-now"
STOPPED_BY = "stopped-by"
LONGEST_QUESTION = 4000
QUESTION_FILE = "QUESTION.md"  # a question that an agent left as a file in its workspace
QUESTION_FILE_VARIABLE = "RALPH_QUESTION"  # its path, for an agent in a sandbox that can write nowhere else
POLL_INTERVAL = 0.5
MAX_BYTES, _PER_FILE = 4 << 20, 1 << 12  # for all notes and questions, and what each counts besides its own size

Letter = TypeVar("Letter")


class Mail(msgspec.Struct, frozen=True):
    """The content of a mailbox: notes, oldest first, and the questions without an answer. `stopped_by` names the
    agent that asked for a stop; it is empty if a person did."""

    notes: tuple[PersonNote, ...] = ()
    questions: tuple[Question, ...] = ()
    is_paused: bool = False
    stopped_by: str = ""


class Mailbox:
    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.path = os.path.join(folder, "mail")

    def read(self) -> Mail:
        names = names_in(self.path)
        letters = self._latest([name for name in names if name.endswith((NOTE, QUESTION))])
        notes = self._load([name for name in letters if name.endswith(NOTE)], PersonNote)
        asked = self._load([name for name in letters if name.endswith(QUESTION)], Question)
        answered = {note.answers.id for note in notes if note.answers}
        questions = (Question(letter.id, _redact(letter.text)) for letter in asked if letter.id not in answered)
        stopped_by = load_json(self._at(STOPPED_BY), str, MAX_BYTES) if STOPPED_BY in names else None
        return Mail(tuple(notes), tuple(questions), PAUSE in names, one_line(stopped_by or "", 80))

    def tell(self, text: str, answers: Question | None = None) -> PersonNote:
        """Leave a note for the next prompt."""
        note = PersonNote(_new_id(), text, answers)
        self._put(note.id + NOTE, note)
        return note

    def ask(self, text: str) -> Question:
        """Leave a question for the person."""
        question = Question(_new_id(), head(_redact(clean(text)).strip(), LONGEST_QUESTION, "…"))
        self._put(question.id + QUESTION, question)
        return question

    def inherit(self, other: "Mailbox", find_run: Callable[[], Run]) -> None:
        """Move the notes of a run that will not be resumed to this mailbox, except the notes that
        were `given` to it."""
        notes = other.read().notes
        if notes:
            for note in untold(Mail(notes), find_run()):
                self._put(note.id + NOTE, note)
            other.forget(notes)

    def leave(self, suffix: str, letter: object) -> None:
        """Leave a message of another kind, which `take` finds by its suffix."""
        self._put(_new_id() + suffix, letter)

    def take(self, suffix: str, kind: type[Letter]) -> list[Letter]:
        """Remove and return the messages with this suffix, oldest first."""
        names = [name for name in names_in(self.path) if name.endswith(suffix)]
        letters = self._load(names, kind)
        for name in names:
            with suppress(OSError):  # an agent may have put a folder there
                self._remove(name)
        return letters

    def pause(self) -> None:
        self._put(PAUSE, None)

    def unpause(self) -> None:
        self._remove(PAUSE)

    def stop(self, now: bool = False) -> None:
        """Ask a run that ignores signals to end."""
        self._put(STOP_NOW if now else STOP, None)

    def sign_stop(self, by: str = "") -> None:
        """Record which agent asks for a stop, or that a person does. Never fails: the signal matters more."""
        with suppress(OSError, UserError):
            self._put(STOPPED_BY, by) if by else self._remove(STOPPED_BY)

    def take_stop(self, now: bool = False) -> bool:
        """Remove a request to stop; return whether there was one."""
        name = STOP_NOW if now else STOP
        if not os.access(self._at(name), os.F_OK):
            return False
        self._remove(name)
        return True

    def dismiss(self) -> None:
        """Remove every question: there will be no answer."""
        for question in self.read().questions:
            self._remove(question.id + QUESTION)

    def forget(self, notes: Iterable[PersonNote]) -> None:
        """Remove notes that were in an iteration's prompt, and the questions that they answer."""
        for note in notes:
            if note.answers:
                self._remove(note.answers.id + QUESTION)
            self._remove(note.id + NOTE)

    def _latest(self, names: list[str]) -> list[str]:
        """Return the latest names, at most as many as the limit allows: an agent may have filled the mailbox."""
        room, recent = MAX_BYTES, []
        for name in reversed(names):
            with suppress(OSError):
                room -= os.lstat(self._at(name)).st_size + _PER_FILE
            if room < 0:
                break
            recent.append(name)
        return recent[::-1]

    def _load(self, names: Iterable[str], kind: type[Letter]) -> list[Letter]:
        """Return the messages in these files, without those that were removed or that ralph did not write."""
        return [letter for name in names if (letter := load_json(self._at(name), kind, MAX_BYTES))]

    def _at(self, name: str) -> str:
        return os.path.join(self.path, name)

    def _remove(self, name: str) -> None:
        with suppress(FileNotFoundError, NotADirectoryError):
            os.unlink(self._at(name))

    def _put(self, name: str, content: object) -> None:
        save_file(self._at(name), msgspec.json.encode(content), "is the run's folder still there?")


def _redact(text: str) -> str:
    """Remove keys: an agent that asks may not know every secret, and may write its question without ralph."""
    return Redactor(secret_values(os.environ)).text(text)


def _new_id() -> str:
    return f"{time.time_ns():020d}-{os.urandom(2).hex()}"


def untold(mail: Mail, run: Run) -> tuple[PersonNote, ...]:
    """Return the notes that no iteration of the run was given."""
    told_ids = {note.id for iteration in run.iterations for note in iteration.told}
    return tuple(note for note in mail.notes if note.id not in told_ids)


class QuestionListener:
    """Reports new questions when it is called, and after every turn.

    An agent that cannot call ralph may leave a question as a file in the workspace, whose path `root` returns. If
    `root` is None, such files are ignored.
    """

    def __init__(self, mailbox: Mailbox, tell: Tell, root: Callable[[], Path] | None) -> None:
        self._mailbox, self._tell, self._root = mailbox, tell, root
        self._told: set[str] = set()

    def begin(self) -> None:
        """Skip the questions that were reported before."""
        self._told = {question.id for question in self._mailbox.read().questions}

    def hear(self, *happened: Event) -> None:
        if isinstance(happened[-1], AgentFinished):
            self()

    def __call__(self) -> None:
        text = _take_text(f"{self._root()}/.ralph/{QUESTION_FILE}") if self._root else ""
        if text.strip():
            self._mailbox.ask(text)
        for question in self._mailbox.read().questions:
            if question.id not in self._told:
                self._told.add(question.id)
                self._tell(QuestionAsked(question.id, question.text))


def ask_by_file(text: str) -> bool:
    """Leave a question as a file in the workspace; return False if this process isn't in a sandbox."""
    path = os.environ.get(QUESTION_FILE_VARIABLE, "")
    if path:
        try:
            with open(path, "a", encoding="utf-8", errors="replace") as file:
                file.write(f"{text}\n\n")
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}", "say it in your answer instead") from None
    return bool(path)


def _take_text(path: str) -> str:
    """Remove a file and return its text, "" if there is none. Never trust it: an agent may have written anything."""
    try:
        fd = open_file(path)
    except OSError:
        return ""
    try:
        text = os.read(fd, 4 * LONGEST_QUESTION).decode("utf-8", "replace")
    finally:
        os.close(fd)
    if text.strip():
        Path(path).unlink(missing_ok=True)
    return text


def wait_for_person(mailbox: Mailbox, is_paused: Callable[[Mail], bool], wait: Callable[[float], object]) -> float:
    """Wait while the run is paused, or until `wait` reports an interrupt. Return the seconds that passed."""
    began = time.monotonic()
    while not wait(POLL_INTERVAL) and is_paused(mailbox.read()):
        pass
    return time.monotonic() - began


def obey_stop_request(mailbox: Mailbox, interrupt: Interrupt) -> None:
    """Interrupt this process's own run if its mailbox asks for a stop."""
    level = 2 if mailbox.take_stop(now=True) else interrupt.level + 1 if mailbox.take_stop() else 0
    interrupt.raise_to(level, STOP_REQUEST)
