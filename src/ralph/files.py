"""Opening, reading and writing ralph's own files, and files that the user names.

An agent can change everything in a workspace, so ralph never follows a link to one of its own files, opens nothing but
regular files, and never blocks on a pipe. The sandbox relies on this.
"""

from __future__ import annotations

import codecs
import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import msgspec

from ralph.errors import UNREADABLE, UserError

StrPath = str | os.PathLike[str]
T = TypeVar("T")

MOST_BYTES = 64 << 20  # of a file that is read whole
STATE_HINT = "check its permissions and the free space, or set XDG_STATE_HOME"
LOCK_TIMEOUT = 600.0  # seconds: git commands may run under a lock
_CHUNK = 1 << 20
_LONG_PATH = 3000  # characters; Linux has a limit of 4096 bytes
_REASONS = {
    errno.ELOOP: "it is a link, which is not followed",
    errno.ENXIO: "it is not a regular file",
    errno.ENAMETOOLONG: "its name is too long",
}


class ReplacedFileError(OSError):
    """The file was replaced by a link or a pipe, which an agent can create. (A device is an ordinary OSError.)"""


def open_file(path: StrPath, flags: int = os.O_RDONLY, mode: int = 0o600) -> int:
    """Open one of ralph's own files and return its descriptor. Fails unless it is a regular file."""
    return _open_regular(path, flags | os.O_NOFOLLOW, mode)


def open_given(path: StrPath | bytes) -> int:
    """Open a regular file that the user named, which may be a link, and return its descriptor."""
    return _open_regular(path, os.O_RDONLY)


def _open_regular(path: StrPath | bytes, flags: int, mode: int = 0o600) -> int:
    try:
        fd = os.open(path, flags & ~os.O_TRUNC | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    except OSError as error:
        kind = ReplacedFileError if error.errno in (errno.ELOOP, errno.ENXIO) else OSError
        raise kind(error.errno, _REASONS.get(error.errno or 0, error.strerror), path) from None
    try:
        info = os.fstat(fd)
        if stat.S_ISDIR(info.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if not stat.S_ISREG(info.st_mode):
            kind = ReplacedFileError if stat.S_ISFIFO(info.st_mode) else OSError
            raise kind(errno.EINVAL, "it is not a regular file", path)
        if flags & os.O_TRUNC and info.st_size:
            os.ftruncate(fd, 0)
    except OSError:
        os.close(fd)
        raise
    return fd


def open_fresh(path: StrPath, mode: int = 0o600) -> int:
    """Open an empty file for writing. Replaces a link or a pipe, like `open_own`."""
    return open_own(path, os.O_TRUNC, mode)


def open_own(path: StrPath, extra_flags: int = 0, mode: int = 0o600) -> int:
    """Open a file for writing (O_RDWR: and for reading), and create it if it is missing. Replaces a link or a pipe; a
    link's target stays."""
    flags = extra_flags | os.O_CREAT | (0 if extra_flags & os.O_RDWR else os.O_WRONLY)
    try:
        return open_file(path, flags, mode)
    except ReplacedFileError:
        os.unlink(path)
        return open_file(path, flags | os.O_EXCL, mode)


def make_folder(path: str) -> None:
    """Create a folder and its missing parents, at any depth, only for their owner. Fails if `path` is a link."""
    missing = [path]
    while (parent := os.path.dirname(missing[-1])) and not os.path.isdir(parent):
        missing.append(parent)
    for folder in reversed(missing):
        try:
            os.mkdir(folder, 0o700)
        except FileExistsError:
            if os.path.islink(folder) or not os.path.isdir(folder):
                raise ReplacedFileError(errno.ENOTDIR, "it is not a folder, or a link to one", folder) from None


def read_file(path: StrPath, most: int = MOST_BYTES) -> bytes:
    """Return the content of one of ralph's own files. Fails if it is larger than `most` bytes."""
    return _read_all(open_file(path), path, most)


def read_given(path: StrPath, most: int = MOST_BYTES) -> bytes:
    """Return the content of a file that the user named, which may be a link. Fails if it is larger than `most`."""
    return _read_all(open_given(path), path, most)


def read_head(path: StrPath, most: int) -> bytes:
    """Return up to `most` bytes from the start of a file that the user named."""
    with open(open_given(path), "rb") as file:  # buffered: /proc returns a part of the file for each call
        return file.read(most)


def decode_file(data: bytes, name: StrPath) -> str:
    """Return the text in a user's file: UTF-8, or UTF-16 with a byte order mark. Anything else is a UserError."""
    is_utf16 = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        return data.decode("utf-16" if is_utf16 else "utf-8-sig")
    except UnicodeDecodeError:
        hint = f"convert it, for example: iconv -f latin1 -t utf-8 {name} > {name}.utf8"
        raise UserError(f"{name} is not UTF-8 text", hint) from None


def _read_all(fd: int, path: StrPath, most: int) -> bytes:
    """Read a descriptor to its end and close it."""
    chunks, room = [], most + 1
    with open(fd, "rb", buffering=0) as file:
        while chunk := file.read(min(_CHUNK, room)):  # in pieces: `read` allocates memory for all that it may read
            chunks.append(chunk)
            room -= len(chunk)
    if not room:
        limit = f"{most >> 20} MB" if most >> 20 else f"{most >> 10} KB"
        raise OSError(errno.EFBIG, f"it is larger than {limit}", path)
    return b"".join(chunks)


def write_file(path: StrPath, data: bytes, mode: int = 0o666) -> None:
    with open(open_fresh(path, mode), "wb") as file:
        file.write(data)


def add_to_file(path: StrPath, data: bytes, mode: int = 0o666) -> None:
    """Append to a file, and create it if it is missing."""
    with open(open_file(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, mode), "wb") as file:
        file.write(data)


def replace_file(path: StrPath, data: bytes, mode: int = 0o666) -> None:
    """Write a file atomically: readers, and a crash, see the old content or the new, never a part."""
    folder, name = os.path.split(os.fspath(path))
    fresh = os.path.join(folder, f".{name[:200]}.{os.getpid()}.new")
    try:
        write_file(fresh, data, mode)
        os.replace(fresh, path)
    except OSError:
        if os.path.lexists(fresh):
            os.unlink(fresh)
        raise


def save_file(path: StrPath, data: bytes, hint: str = STATE_HINT) -> None:
    """Write a file that only its owner can read, atomically, with its folder. Raises a UserError on failure."""
    try:
        make_folder(os.path.dirname(path))
        replace_file(path, data, 0o600)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}", hint) from None


def load_json(path: StrPath, kind: type[T], most: int = MOST_BYTES) -> T | None:
    """Return what one of ralph's own JSON files holds; None if it is missing, too large or not valid."""
    try:
        return msgspec.json.decode(read_file(path, most), type=kind)
    except (OSError, *UNREADABLE):
        return None


def names_in(folder: StrPath) -> list[str]:
    """Return the names in a folder, sorted; none if there is no such folder."""
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []


def remove_tree(folder: StrPath, last: str = "") -> None:
    """Remove a folder and everything in it, including folders that are closed to their owner (`chmod 0`).

    Removes as much as possible, then raises the first error. The file called `last` is removed last: other commands
    recognise the folder by it, and can repeat a removal that was interrupted.
    """
    errors: list[OSError] = []
    folders = [os.fspath(folder)]
    if os.path.islink(folders[0]):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), folders[0])
    for place in folders:  # grows while it is iterated over
        try:
            os.chmod(place, 0o700)
            with os.scandir(place) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(_shorten(entry.path, folders))
                    elif place != folders[0] or entry.name != last:
                        os.unlink(entry.path)
        except OSError as error:
            errors.append(error)
    for place in reversed(folders):
        try:
            if place == folders[0] and last and not errors:
                with suppress(FileNotFoundError):
                    os.unlink(os.path.join(place, last))
            os.rmdir(place)
        except OSError as error:
            errors.append(error)
    if errors:
        raise errors[0]


def _shorten(path: str, folders: list[str]) -> str:
    """Move a folder up to the first of `folders` if its path gets too long for the system; return its path."""
    if len(path) < _LONG_PATH:
        return path
    moved = os.path.join(folders[0], f".{os.getpid()}-{len(folders)}.gone")
    os.chmod(path, 0o700)
    os.rename(path, moved)
    return moved


def try_lock(fd: int) -> bool:
    """Lock a file; return False if another process has locked it. Closing all copies of `fd` unlocks it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def acquire_lock(
    fd: int, path: StrPath, timeout: float = LOCK_TIMEOUT, left: Callable[[], float] = lambda: LOCK_TIMEOUT
) -> None:
    """Lock a file; the lock ends with its process. Gives up after `timeout` seconds, or once `left()` is 0."""
    deadline, pause = time.monotonic() + timeout, 0.0005
    while not try_lock(fd):
        if time.monotonic() > deadline or left() <= 0:
            hint = "the process that holds the lock does not respond: find it with `lslocks`, and end it"
            raise UserError(f"{path} is locked", hint)
        time.sleep(pause)
        pause = min(pause * 1.5, 0.02)


Stamp = tuple[int, ...]
"""Inode, size, times and mode: a file with the same stamp is unchanged. (Programs cannot set the change time.)"""


def stamp(info: os.stat_result) -> Stamp:
    return info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_mode


def stamp_of(path: StrPath) -> Stamp:
    """Return the stamp of a file; empty if there is no such file."""
    try:
        return stamp(os.stat(path))
    except OSError:
        return ()


# Prefixes of temporary folders. `ralph clean` removes those that a killed process left behind.
AT_WORK, DEMO, EXAM = "ralph-at-work-", "ralph-demo-", "ralph-exam-"
DEMO_EXAM = "-exam"  # the folder of a demo's exam has the name of the demo with this suffix


def temporary_folder() -> TemporaryDirectory[str]:
    return TemporaryDirectory(prefix=AT_WORK)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)
    return True


@contextmanager
def locked(folder: Path, left: Callable[[], float] = lambda: LOCK_TIMEOUT) -> Iterator[None]:
    """Keep other processes from changing the folder while entered, without creating a lock file."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise cannot_use(folder, error) from None
    try:
        acquire_lock(handle, folder, left=left)
        yield
    finally:
        os.close(handle)


def hold(path: StrPath) -> int | None:
    """Lock a file or folder until this process ends or closes the returned descriptor. None if another process holds
    it, or if it is gone.

    A lock says who is alive better than a pid does: pids are used again, and ralph is always 1 in its container.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with suppress(OSError):
        # If the path is another file now, it was replaced before it was locked.
        if try_lock(handle) and os.path.samestat(os.fstat(handle), os.lstat(path)):
            return handle
    os.close(handle)
    return None


def cannot_use(path: StrPath, error: OSError) -> UserError:
    return UserError(f"cannot use {path}: {error.strerror or error}", "check the folder and its permissions")


def state_folder(env: Mapping[str, str], kind: str) -> str:
    """Return the folder for state of this `kind` that belongs to the user, not to a workspace."""
    home = env.get("HOME") or os.path.expanduser("~")
    return os.path.join(_xdg_folder(env, "XDG_STATE_HOME", ".local/state", home), "ralph", kind)


def config_folder(env: Mapping[str, str]) -> str:
    """Return the folder of the user's settings; empty if the user has no home."""
    folder = _xdg_folder(env, "XDG_CONFIG_HOME", ".config", env.get("HOME", ""))
    return os.path.join(folder, "ralph") if os.path.isabs(folder) else ""


def _xdg_folder(env: Mapping[str, str], variable: str, default: str, home: str) -> str:
    """Return an XDG base folder. The specification says to ignore a path that is not absolute."""
    named = env.get(variable, "")
    return named if os.path.isabs(named) else os.path.join(home, default)
