"""Is a run that goes on still what ralph left? Outside the workspace, where its agent has no business, it is noted how
long the journal was after each iteration, and what it and the other files that decide held."""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from msgspec import Struct
from msgspec.json import Decoder, encode

from ralph.errors import UserError
from ralph.files import make_folder, open_file, open_own, read_file, state_folder, write_file
from ralph.records.journal import decoded, lines_of

try:  # `hashlib` itself takes longer to import than all of this
    from _blake2 import blake2b  # type: ignore[import-not-found, unused-ignore]
except ImportError:
    from hashlib import blake2b

DECIDING = ("run.json", "tasks.json", "protected/protected.json")
_BEGUN, _COUNTED = b'{"type":"run_started"', b'{"type":"iteration_finished"'
_ENDED = b'{"type":"run_finished"'
_PLACE, _CHUNK = "seals", 1 << 20


class Length(Struct, frozen=True):
    """The journal up to some line."""

    size: int
    digest: str


class Sealed(Struct, frozen=True):
    """What ralph has noted. The line that is written next belongs to the journal, too: ralph may be killed before it is
    there, or just after. A copy elsewhere is another run."""

    place: str
    journal: Length
    next: Length
    files: dict[str, str]


class Seal:
    """Hears every line just before it is written. The note is written over in its place, in one call that no kill can
    cut in two: a fresh file after each iteration would take longer than all else that ralph does there."""

    def __init__(self, run_id: str, folder: Path, env: Mapping[str, str]) -> None:
        self._id, self._folder = run_id, folder
        self._path, self._place = path_of(run_id, env), os.fsencode(os.path.realpath(folder)).decode("latin-1")
        self._contents: dict[str, bytes] = {}
        self._files: dict[str, str] = {}
        self._size, self._hash = 0, blake2b()
        self._note, self._longest = -1, 0

    def refuse_what_was_changed(self) -> None:
        """Raises where the run is not as ralph left it."""
        try:
            sealed = _DECODER.decode(read_file(self._path, _CHUNK))
        except (OSError, ValueError):  # none was made, or somebody has accepted the run as it is
            return
        if sealed.place != self._place:
            return
        found = [name for name, digest in sealed.files.items() if _digest(self._folder / name) != digest]
        found += _changes_of(self._folder / "journal.ndjson", sealed)
        if found:
            raise UserError(
                f"run {self._id} is not as ralph left it: {', '.join(found)} changed",
                f"see what happened to it; `ralph trust {self._id}` accepts it as it is",
            )

    def begin(self) -> None:
        """What the journal already holds is part of it."""
        with suppress(OSError), open(open_file(self._folder / "journal.ndjson"), "rb", buffering=0) as file:
            while piece := file.read(_CHUNK):
                self._add(piece)

    def __call__(self, lines: bytes) -> None:
        if _BEGUN not in lines and _COUNTED not in lines and _ENDED not in lines:
            self._add(lines)
            return
        before = self._length()
        self._add(lines)
        if _BEGUN in lines:  # before the first turn, so that no agent can have had a hand in it
            self._contents = {name: data for name in DECIDING if (data := _contents(self._folder / name)) is not None}
            self._files = {name: _digest(self._folder / name) for name in DECIDING}
        with suppress(OSError):  # as with the list of runs, which says so: then nothing can be compared
            self._write(Sealed(self._place, before, self._length(), self._files))

    def restore(self) -> None:
        """Puts back what an agent that cleans up has removed."""
        for name, data in self._contents.items():
            path = self._folder / name
            if not path.exists():
                make_folder(str(path.parent))
                write_file(path, data)

    def close(self) -> None:
        if self._note >= 0:
            os.close(self._note)
            self._note = -1

    def _write(self, sealed: Sealed) -> None:
        if self._note < 0:
            make_folder(os.path.dirname(self._path))
            self._note = open_own(self._path)
            self._longest = os.fstat(self._note).st_size
        note = encode(sealed).ljust(self._longest)
        self._longest = len(note)
        os.pwrite(self._note, note, 0)

    def _add(self, data: bytes) -> None:
        self._size += len(data)
        self._hash.update(data)

    def _length(self) -> Length:
        return Length(self._size, self._hash.hexdigest())


def path_of(run_id: str, env: Mapping[str, str]) -> str:
    return os.path.join(state_folder(env, _PLACE), run_id)


def break_seal(run_id: str, env: Mapping[str, str]) -> bool:
    """Accepts a run as it is; whether there was anything to compare it with."""
    try:
        os.unlink(path_of(run_id, env))
    except OSError:
        return False
    return True


def _contents(path: Path) -> bytes | None:
    try:
        return read_file(path)
    except OSError:
        return None


def _digest(path: Path) -> str:
    try:
        return str(blake2b(read_file(path)).hexdigest())
    except FileNotFoundError:
        return ""
    except OSError as error:
        return error.strerror or "unreadable"


def _changes_of(journal: Path, sealed: Sealed) -> list[str]:
    """What is wrong with the journal. After a kill it holds more than was noted, but no iteration that counts."""
    try:
        with open(open_file(journal), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            known = sealed.next if size >= sealed.next.size else sealed.journal
            if _hashed(file, known.size) != known:
                return ["its journal"]
            entries = filter(None, map(decoded, lines_of(file)))  # a torn line counts for nothing
            if any(entry.type == "iteration_finished" for entry in entries):
                return ["its journal (an iteration was added)"]
    except OSError as error:
        return [f"its journal ({error.strerror})"]
    return []


def _hashed(file: BinaryIO, size: int) -> Length:
    digest, left = blake2b(), size
    while left and (piece := file.read(min(left, _CHUNK))):
        digest.update(piece)
        left -= len(piece)
    return Length(size - left, digest.hexdigest())


_DECODER = Decoder(Sealed)
