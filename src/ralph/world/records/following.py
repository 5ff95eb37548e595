"""How is a journal read while it is being written? Complete lines as they come, from its beginning or only its end."""

import os
from collections.abc import Iterator
from pathlib import Path

from ralph.errors import UserError
from ralph.world.records.journal import Entry, decoded

_CHUNK = 1 << 18
_GLIMPSE = 1 << 16


class Following:
    """The lines of a growing file. A last line without its end is kept until the rest of it is there."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rest = b""
        try:
            self._file = open(path, "rb", buffering=0)  # noqa: SIM115 - open as long as the reader is interested
        except OSError as error:
            raise unreadable(path, error) from None

    def lines(self) -> Iterator[bytes]:
        """What is new since the last call, line by line, each with its newline."""
        while chunk := self._file.read(_CHUNK):
            *whole, self._rest = (self._rest + chunk).split(b"\n")
            for line in whole:
                yield line + b"\n"

    def close(self) -> None:
        self._file.close()


def glimpse(path: str | os.PathLike[str]) -> list[Entry]:
    """The first and the last entries of a journal, however long it is."""
    try:
        with open(path, "rb") as file:
            first = file.read(_GLIMPSE)
            file.seek(max(os.fstat(file.fileno()).st_size - _GLIMPSE, len(first)))
            last = file.read(_GLIMPSE)
    except OSError as error:
        raise unreadable(path, error) from None
    return [entry for line in (*first.split(b"\n"), *last.split(b"\n")) if (entry := decoded(line))]


def unreadable(path: str | os.PathLike[str], error: OSError) -> UserError:
    return UserError(f"cannot read {path}: {error.strerror or error}", "was the run's folder removed?")
