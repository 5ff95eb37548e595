"""The archive of a long run: one tar file instead of a folder for each of its older iterations."""

import os
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from ralph.files import open_file, remove_tree

_NAME = "iterations.tar"


class Archive:
    """Collects the older logs of one run."""

    def __init__(self, run: Path) -> None:
        self._run, self._path = run, run / _NAME

    def put_away(self, before: int, checks: Path) -> None:
        """Move the logs of iterations `before` this one here: their folders, and the logs of their checks."""
        folder = self._run / "iterations"
        old = sorted(name for name in _names(folder) if _number(name) < before)
        since = os.stat(self._run / "run.json").st_mtime  # older logs of checks are from an earlier run
        logs = sorted(name for name in _names(checks) if _number(name.removeprefix("guardrail_")) < before)
        logs = [name for name in logs if os.lstat(checks / name).st_mtime >= since]
        files = [(f"iterations/{name}/{file}", folder / name / file) for name in old for file in _names(folder / name)]
        self._add((name, path) for name, path in (*files, *((name, checks / name) for name in logs)) if _is_log(path))
        for name in old:
            with suppress(OSError):
                remove_tree(folder / name)
        for name in logs:
            os.unlink(checks / name)

    def _add(self, files: Iterable[tuple[str, Path]]) -> None:
        with open(open_file(self._path, os.O_RDWR | os.O_CREAT), "r+b") as raw:
            raw.truncate(max(map(_end, _members(raw.fileno())), default=0))  # a kill may have cut off the last file
            raw.seek(0, os.SEEK_END)
            with tarfile.open(fileobj=raw, mode="w", format=tarfile.GNU_FORMAT) as archive:
                for name, path in files:
                    with open(open_file(path), "rb") as file:
                        archive.addfile(archive.gettarinfo(arcname=name, fileobj=file), file)


class Log(Struct, frozen=True):
    """The start or the end of a file, and its whole size."""

    data: bytes
    size: int


class Logs:
    """The files that the iterations of a run left, in their folders or in the archive."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._archived: dict[str, tarfile.TarInfo] | None = None  # read when it is first needed

    def read(self, number: int, name: str, most: int, tail: bool = False) -> Log:
        """Return at most `most` bytes of the file with this name; raise FileNotFoundError if there is none."""
        inside = f"iterations/{number:03d}/{name}"
        try:
            fd = open_file(f"{self._run}/{inside}")
            begin, size = 0, os.fstat(fd).st_size
        except FileNotFoundError:
            fd = open_file(self._run / _NAME)
            if self._archived is None:
                self._archived = {member.name: member for member in _members(fd)}
            found = self._archived.get(inside)
            if found is None:
                os.close(fd)
                raise
            begin, size = found.offset_data, found.size
        try:
            read = min(size, most)
            return Log(os.pread(fd, read, begin + size - read if tail else begin), size)
        finally:
            os.close(fd)


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _is_log(path: Path) -> bool:
    """Skip folders and whatever else an agent may have put there."""
    return path.is_file() and not path.is_symlink()


def _number(name: str) -> float:
    """Return the iteration that a name begins with; infinity if it does not."""
    digits = name[: len(name) - len(name.lstrip("0123456789"))]
    return int(digits) if 3 <= len(digits) < 10 else float("inf")


def _members(fd: int) -> Iterator[tarfile.TarInfo]:
    """Yield the files of an archive up to its end, or to where it was cut off."""
    size = os.fstat(fd).st_size
    with open(fd, "rb", closefd=False) as raw, suppress(tarfile.TarError):
        raw.seek(0)
        with tarfile.open(fileobj=raw, mode="r:") as archive:
            for member in archive:
                if _end(member) > size:
                    return
                yield member


def _end(member: tarfile.TarInfo) -> int:
    return member.offset_data + -(-member.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
