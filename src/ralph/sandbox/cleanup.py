"""Cleaning up after sandboxed processes: planted files are moved away, the private /tmp is removed.

What has to be done is recorded in a file first, so that the keeper or the next run can do it for a run that was killed.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from shutil import move

import msgspec

from ralph.errors import UNREADABLE
from ralph.files import acquire_lock, open_file, remove_tree


class CleanupRecord(msgspec.Struct):
    """What to do when a sandbox ends.

    `tmp` is removed. Whatever is at the `watched` paths is moved away, unless it is the link that was there before. New
    links in `linkless` folders are moved away, and at any depth in `linkless_trees`; the lists name links to keep.
    """

    tmp: str
    watched: dict[str, str | None] = {}
    linkless: dict[str, list[str]] = {}
    linkless_trees: dict[str, list[str]] = {}


class CleanupFile:
    """The file that holds the record. It is locked while its sandbox exists."""

    def __init__(self, path: str, fd: int) -> None:
        self._path, self._fd, self._written = path, fd, b""

    @classmethod
    def open(cls, path: str) -> "CleanupFile":
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        acquire_lock(fd, path)
        return cls(path, fd)

    def write(self, record: CleanupRecord) -> None:
        text = msgspec.json.encode(record)
        if text != self._written:
            self._written = text
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, text, 0)

    def close(self) -> None:
        os.unlink(self._path)
        os.close(self._fd)


def links_in(folder: str) -> list[str]:
    """Return the names of the links in a folder."""
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if entry.is_symlink()]
    except (FileNotFoundError, NotADirectoryError):
        return []


def links_below(folder: str) -> list[str]:
    """Return the links at any depth, relative to `folder`. Folders behind links are not entered."""
    found = []
    for place, folders, files in os.walk(folder):
        found += [os.path.join(place, name) for name in (*folders, *files)]
    return [os.path.relpath(path, folder) for path in found if os.path.islink(path)]


def move_planted(record: CleanupRecord, folder: str) -> Iterator[tuple[str, str]]:
    """Move what was planted to `folder`; yield old and new path. Links go first: they may be on the way to the rest."""
    found = [(place, set(links_in(place)) - set(known)) for place, known in record.linkless.items()]
    found += [(place, set(links_below(place)) - set(known)) for place, known in record.linkless_trees.items()]
    for path in sorted(f"{place}/{name}" for place, names in found for name in names):
        if path not in record.watched:
            yield path, _move(path, folder)
    for path, link in record.watched.items():
        if os.path.lexists(path) and not (os.path.islink(path) and os.readlink(path) == link):
            yield path, _move(path, folder)
            if link is not None:
                os.symlink(link, path)


def _move(path: str, folder: str) -> str:
    target = f"{folder}/{time.time_ns()}-{os.path.basename(path)}"
    move(path, target)
    return target


def clean_up_killed_runs(folder: str) -> None:
    """Do what runs that were killed could not do themselves."""
    try:
        names = os.listdir(f"{folder}/open")
    except FileNotFoundError:
        return
    for name in names:
        path = f"{folder}/open/{name}"
        # Locked: its run is alive. Unreadable: it was killed before the sandbox started.
        with suppress(OSError, *UNREADABLE), open(open_file(path), "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(path)
            record = msgspec.json.decode(file.read(), type=CleanupRecord)
            list(move_planted(record, f"{folder}/planted"))
            remove_folder(record.tmp)


def remove_folder(folder: str) -> None:
    """Remove a folder with everything in it, as far as possible."""
    with suppress(OSError):
        remove_tree(folder)
