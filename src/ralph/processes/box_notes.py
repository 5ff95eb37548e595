"""What is left to do when a box is given up? It is written down, so that the next run, or the keeper, can do it for
one that was killed."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import suppress

import msgspec

from ralph.files import hold, open_file


class BoxNote(msgspec.Struct):
    """What has to be done when a box is given up: its /tmp is removed, and what stands at the `watched` paths is put
    aside, unless nothing does, or the link that leads where it led before; and so is every link in the folders that are
    `linkless`, but for those that were there."""

    tmp: str
    watched: dict[str, str | None] = {}
    linkless: dict[str, list[str]] = {}


class BoxNoteFile:
    """Where a box keeps its note, for those who come after a sudden end: it is locked for as long as the box lives."""

    def __init__(self, path: str, fd: int) -> None:
        self._path, self._fd, self._written = path, fd, b""

    @classmethod
    def open(cls, path: str) -> "BoxNoteFile":
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        hold(fd, path)
        return cls(path, fd)

    def write(self, note: BoxNote) -> None:
        text = msgspec.json.encode(note)
        if text != self._written:
            self._written = text
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, text, 0)

    def close(self) -> None:
        os.unlink(self._path)
        os.close(self._fd)


def links_in(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if entry.is_symlink()]
    except (FileNotFoundError, NotADirectoryError):
        return []


def put_aside(note: BoxNote, folder: str) -> Iterator[tuple[str, str]]:
    """What was planted, and where it is now. Links come first: they may lie on the way to the rest."""
    for place, known in note.linkless.items():
        for name in links_in(place):
            if name not in known and f"{place}/{name}" not in note.watched:
                yield f"{place}/{name}", _moved(f"{place}/{name}", folder)
    for path, link in note.watched.items():
        if os.path.lexists(path) and not (os.path.islink(path) and os.readlink(path) == link):
            yield path, _moved(path, folder)
            if link is not None:
                os.symlink(link, path)


def _moved(path: str, folder: str) -> str:
    from shutil import move

    kept = f"{folder}/{time.time_ns()}-{os.path.basename(path)}"
    move(path, kept)
    return kept


def tidy_up(folder: str) -> None:
    """Does what is left to do after runs that were killed, and could not do it themselves."""
    try:
        names = os.listdir(f"{folder}/open")
    except FileNotFoundError:
        return
    for name in names:
        path = f"{folder}/open/{name}"
        # Whoever holds the lock lives; who cannot be read was killed before it began.
        with suppress(OSError, msgspec.MsgspecError), open(open_file(path), "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(path)
            note = msgspec.json.decode(file.read(), type=BoxNote)
            list(put_aside(note, f"{folder}/planted"))
            remove(note.tmp)


def remove(folder: str) -> None:
    """A folder with all that is in it, also what was closed to its owner."""
    from shutil import rmtree

    for place, names, _ in os.walk(folder):
        for name in names:
            path = f"{place}/{name}"
            if not os.path.islink(path):
                os.chmod(path, 0o700)
    rmtree(folder, ignore_errors=True)
