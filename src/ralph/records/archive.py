"""Where do the logs of a very long run go? The older ones into one archive, which `tar` reads: 10,000 iterations would
leave as many folders. It only ever grows, and what a kill has cut off at its end is written over."""

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from ralph.files import Supplanted, open_file, remove_tree

_NAME = "iterations.tar"
_BLOCK, _PIECE = 512, 1 << 20
_CHECKSUM = slice(148, 156)
_NO_FILE = (errno.ENOENT, errno.EINVAL, errno.ELOOP, errno.ENXIO)  # gone, a folder, a link, a pipe


class ArchivedFile(Struct, frozen=True):
    """A file in the archive: where its bytes begin, and how many there are."""

    name: str
    begin: int
    size: int

    @property
    def end(self) -> int:
        return self.begin + -(-self.size // _BLOCK) * _BLOCK


class Archive:
    """The older logs of one run."""

    def __init__(self, run: Path) -> None:
        self._run, self._path = run, run / _NAME
        self._end = -1  # of what is in it, as long as nobody else has written there

    def put_away(self, before: int, checks: Path) -> None:
        """Moves here what iterations `before` this one have left: their own folders, and the logs of their checks."""
        folder = self._run / "iterations"
        old = sorted(name for name in _names(folder) if _number(name) < before)
        since = os.stat(self._run / "run.json").st_mtime  # what an earlier run has left beside it is not of this run
        logs = sorted(name for name in _names(checks) if _number(name.removeprefix("guardrail_")) < before)
        logs = [name for name in logs if os.lstat(checks / name).st_mtime >= since]
        files = [(f"iterations/{name}/{file}", folder / name / file) for name in old for file in _names(folder / name)]
        self._add([*files, *((name, checks / name) for name in logs)])
        for name in old:
            with suppress(OSError):
                remove_tree(folder / name)
        for name in logs:
            os.unlink(checks / name)

    def _add(self, files: Iterable[tuple[str, Path]]) -> None:
        try:
            archive = open_file(self._path, os.O_RDWR | os.O_CREAT)
        except Supplanted:
            os.unlink(self._path)
            archive = open_file(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            if os.fstat(archive).st_size != self._end + 2 * _BLOCK:
                self._end = max((member.end for member in _members(archive)), default=0)
            at = self._end
            for name, path in files:
                at = _append(archive, at, name, path)
            os.ftruncate(archive, at)
            os.pwrite(archive, bytes(2 * _BLOCK), at)
            self._end = at
        finally:
            os.close(archive)


class Log(Struct, frozen=True):
    """The beginning or the end of a file of an iteration, and the size of all of it."""

    data: bytes
    size: int


class Logs:
    """What the iterations of a run have left, wherever that is now."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._put_away: dict[str, ArchivedFile] | None = None  # what the archive held when it was first needed

    def read(self, number: int, name: str, most: int, tail: bool = False) -> Log:
        """The file of this name; FileNotFoundError where there is none."""
        inside = f"iterations/{number:03d}/{name}"
        try:
            fd = open_file(f"{self._run}/{inside}")
            begin, size = 0, os.fstat(fd).st_size
        except FileNotFoundError:
            fd = open_file(self._run / _NAME)
            if self._put_away is None:
                self._put_away = {one.name: one for one in _members(fd)}
            found = self._put_away.get(inside)
            if found is None:
                os.close(fd)
                raise
            begin, size = found.begin, found.size
        try:
            read = min(size, most)
            return Log(os.pread(fd, read, begin + size - read if tail else begin), size)
        finally:
            os.close(fd)


def _names(folder: Path) -> list[str]:
    """What is in a folder that an agent can reach; nothing where it is a link."""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        return os.listdir(fd)
    finally:
        os.close(fd)


def _number(name: str) -> float:
    """The iteration that a name begins with; one that never comes, where it does not."""
    digits = name[: len(name) - len(name.lstrip("0123456789"))]
    return int(digits) if 3 <= len(digits) < 10 else float("inf")


def _append(archive: int, at: int, name: str, path: Path) -> int:
    """Writes a file into the archive at some place; the place behind it. What is no file of ours is passed over."""
    try:
        fd = open_file(path)
    except OSError as error:
        if error.errno not in _NO_FILE:
            raise
        return at
    try:
        about, at_file = os.fstat(fd), at + _BLOCK
        for begin in range(0, about.st_size, _PIECE):
            piece = os.pread(fd, min(_PIECE, about.st_size - begin), begin)
            os.pwrite(archive, piece, at_file + begin)
        member = ArchivedFile(name, at_file, about.st_size)
        os.ftruncate(archive, max(member.end, os.fstat(archive).st_size))
        os.pwrite(archive, _header(name, about.st_size, int(about.st_mtime)), at)
        return member.end
    finally:
        os.close(fd)


def _header(name: str, size: int, moment: int) -> bytes:
    """As POSIX has it."""
    numbers = b"%b\0%b\0%b\0%011o\0%011o\0" % (b"0000600", b"0000000", b"0000000", size, moment)
    head = os.fsencode(name)[:100].ljust(100, b"\0") + numbers + b" " * 8 + b"0" + bytes(100) + b"ustar\00000"
    head = head.ljust(_BLOCK, b"\0")
    return head[: _CHECKSUM.start] + b"%06o\0 " % sum(head) + head[_CHECKSUM.stop :]


def _members(archive: int) -> Iterator[ArchivedFile]:
    """What is in an archive, up to its end, or to where it is broken."""
    at, size = 0, os.fstat(archive).st_size
    while len(head := os.pread(archive, _BLOCK, at)) == _BLOCK:
        try:
            told = int(head[_CHECKSUM].split(b"\0")[0], 8)
            member = ArchivedFile(os.fsdecode(head[:100].rstrip(b"\0")), at + _BLOCK, int(head[124:135], 8))
        except ValueError:
            return
        if told != sum(head) - sum(head[_CHECKSUM]) + 8 * 32 or member.end > size:
            return
        yield member
        at = member.end
