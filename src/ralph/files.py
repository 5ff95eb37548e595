"""How is a file of ours opened, read, changed, and where does it belong? What lies in a workspace can be changed by an
agent at any moment: so no link is followed, nothing but a regular file is opened, and nobody waits for a pipe."""

from __future__ import annotations

import errno
import os

from ralph.errors import UserError

# The stop hook reads its loop with this after every turn of every session: next to nothing is imported.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from hashlib import blake2b
    from pathlib import Path
    from tempfile import TemporaryDirectory

StrPath = str | os.PathLike[str]

MOST_BYTES = 64 << 20  # of a file that is read whole
LOCK_PATIENCE = 600.0  # seconds, as git has: what is done under a lock may be asked of git
_PIECE = 1 << 16
_SAFELY = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_KIND, _REGULAR, _PIPE = 0o170000, 0o100000, 0o010000
_WRITING = os.O_WRONLY | os.O_RDWR
_OURS = "/.ralph/"  # from here on no folder of a path may be a link
_TROUBLES = {
    errno.ELOOP: "it is a link, which is not followed",
    errno.ENXIO: "it is not a regular file",
    errno.ENAMETOOLONG: "its name is too long",
}


class Supplanted(OSError):
    """In the place of a file there is something that anybody can put there: a link, a pipe, or a file that has another
    name elsewhere. Devices are none of these: nobody but the system makes them."""


def open_file(path: StrPath, flags: int = os.O_RDONLY, mode: int = 0o600) -> int:
    """A descriptor of a regular file, and of no other: whoever is about to write there would write elsewhere."""
    path = os.fspath(path)
    folder, name = _place_of(path)
    try:
        fd = os.open(name, flags & ~os.O_TRUNC | _SAFELY, mode, dir_fd=folder.fd if folder else None)
    except OSError as error:
        kind = Supplanted if error.errno in (errno.ELOOP, errno.ENXIO) else OSError
        raise kind(error.errno, _TROUBLES.get(error.errno or 0, error.strerror), path) from None
    try:
        about = os.fstat(fd)
        if about.st_mode & _KIND != _REGULAR:
            raise (Supplanted if about.st_mode & _KIND == _PIPE else OSError)(
                errno.EINVAL, "it is not a regular file", path
            )
        if flags & _WRITING and about.st_nlink > 1:
            raise Supplanted(errno.EMLINK, "it has another name elsewhere", path)
        if flags & os.O_TRUNC and about.st_size:
            os.ftruncate(fd, 0)
    except OSError:
        os.close(fd)
        raise
    return fd


def open_fresh(path: StrPath, mode: int = 0o600) -> int:
    """A descriptor of an empty file to write to."""
    return open_own(path, os.O_TRUNC, mode)


def open_own(path: StrPath, how: int = 0, mode: int = 0o600) -> int:
    """A descriptor of a file to write to. What somebody has put in its place goes; where that led to stays."""
    try:
        return open_file(path, os.O_WRONLY | os.O_CREAT | how, mode)
    except Supplanted:
        os.unlink(path)
        return open_file(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | how, mode)


def make_folder(path: str, mode: int = 0o700) -> None:
    """A folder, with those above it that are missing, however many. No link is followed on the way, and each gets this
    mode."""
    try:
        _make_unless_there(path, mode)
    except FileNotFoundError:
        missing = [path]
        while (above := os.path.dirname(missing[-1])) and not os.path.isdir(above):
            missing.append(above)
        for one in reversed(missing):
            _make_unless_there(one, mode)


def _make_unless_there(path: str, mode: int) -> None:
    try:
        _make_in_its_place(path, mode)
    except FileExistsError:
        if os.path.islink(path) or not os.path.isdir(path):
            raise Supplanted(errno.ENOTDIR, "it is not a folder, or a link to one", path) from None


def _make_in_its_place(path: str, mode: int) -> None:
    parent, name = _place_of(path)
    os.mkdir(name, mode, dir_fd=parent.fd if parent else None)


class _Folder:
    """A folder of ours, open as long as anybody has it: another thread may be using it."""

    def __init__(self, fd: int) -> None:
        self.fd, self._link = fd, f"/proc/self/fd/{fd}"

    def __del__(self) -> None:
        os.close(self.fd)

    def place(self) -> str:
        """Where it is now. Whoever puts a link on the way to it has moved it, or removed it."""
        try:
            return os.readlink(self._link)
        except OSError:  # no /proc
            return ""


_held: dict[str, _Folder] = {}  # those that were asked for last, in which a turn opens most of its files
_MOST_HELD = 3
_CAN_HOLD = hasattr(os, "O_PATH")
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_held.clear)


def _place_of(path: str) -> tuple[_Folder | None, str]:
    """The folder that the file is in, where that is one of ours, and its name there; else nothing and all of its path.
    Raises where the folder is reached by a link."""
    folder, _, name = path.rpartition("/")
    held = _held.pop(folder, None)
    if held is None or held.place() != folder:
        at = path.rfind(_OURS)
        if at < 0 or not _CAN_HOLD:
            return None, path
        folder = folder.rstrip("/")
        held = _Folder(os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
        place = held.place()
        if place != folder:
            if place and place != os.path.realpath(path[:at]).rstrip("/") + folder[at:]:
                raise OSError(errno.ELOOP, "a folder on the way to it is a link, which is not followed", path)
            return held, name  # the way to the workspace is a link of the user's: it may lead elsewhere the next time
        if len(_held) >= _MOST_HELD:
            oldest, *_ = _held
            _held.pop(oldest, None)
    _held[folder] = held
    return held, name


def read_file(path: StrPath, most: int = MOST_BYTES) -> bytes:
    """All that is in a file of ours; an error where that is more than so many bytes."""
    return _all_of(open_file(path), path, most)


def read_given(path: StrPath, most: int = MOST_BYTES) -> bytes:
    """All that is in a file that a person has named. That may be a link; but nobody waits for a pipe."""
    return _all_of(_open_given(path), path, most)


def read_head(path: StrPath, most: int) -> bytes:
    """The beginning of a file that a person has named. Read again until there is no more: of what the kernel tells,
    each call gives a part."""
    with open(open_given(path), "rb") as file:
        if (data := file.read(most)) is None:  # of the kernel's messages there may be none
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN), path)
        return data


def open_given(path: StrPath | bytes) -> int:
    """A descriptor of a regular file that a person has named, to read it piece by piece."""
    fd = _open_given(path)
    try:
        _refuse_others(os.fstat(fd).st_mode, path)
    except OSError:
        os.close(fd)
        raise
    return fd


def _open_given(path: StrPath | bytes) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise OSError(error.errno, _TROUBLES.get(error.errno or 0, error.strerror), path) from None


def _refuse_others(mode: int, path: StrPath | bytes) -> None:
    if mode & _KIND == 0o040000:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if mode & _KIND != _REGULAR:
        raise OSError(errno.EINVAL, "it is not a regular file", path)


def _all_of(fd: int, path: StrPath, most: int) -> bytes:
    """It may grow meanwhile; but a buffer for the most that may come would be mapped and unmapped for every prompt."""
    try:
        about = os.fstat(fd)
        _refuse_others(about.st_mode, path)
        pieces, room = [], most + 1 - about.st_size
        while room > 0 and (piece := os.read(fd, min(about.st_size + _PIECE, most + 1))):
            pieces.append(piece)
            room = most + 1 - sum(map(len, pieces))
        if room <= 0:
            raise OSError(errno.EFBIG, f"it is larger than {_size(most)}", path)
        return b"".join(pieces)
    finally:
        os.close(fd)


def _size(count: int) -> str:
    return f"{count >> 20} MB" if count >> 20 else f"{count >> 10} KB"


def new_hash(data: bytes = b"", size: int = 64) -> blake2b:
    """By which content is known again; more of it can be added."""
    try:  # `hashlib` itself brings OpenSSL along: three milliseconds, and most of a megabyte
        from _blake2 import blake2b  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        from hashlib import blake2b
    return blake2b(data, digest_size=size)


def write_file(path: StrPath, data: bytes, mode: int = 0o666) -> None:
    """A file with this content, in the place of what was there."""
    _write(open_fresh(path, mode), data)


def add_to_file(path: StrPath, data: bytes, mode: int = 0o666) -> None:
    """More at the end of a file."""
    _write(open_file(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, mode), data)


def _write(fd: int, data: bytes) -> None:
    """With three calls to the system, where Python's files take eight: a few of these are written in every turn."""
    try:
        while data:
            data = data[os.write(fd, data) :]
    finally:
        os.close(fd)


def replace_file(path: StrPath, data: bytes, mode: int = 0o666) -> None:
    """The whole of a file at once: nobody ever reads half of it, and a kill leaves the old one or the new one."""
    folder, name = os.path.split(os.fspath(path))
    fresh = os.path.join(folder, f".{name[:200]}.{os.getpid()}.new")
    try:
        write_file(fresh, data, mode)
        os.replace(fresh, path)
    except OSError:
        if os.path.lexists(fresh):
            os.unlink(fresh)
        raise


def remove_tree(folder: StrPath, last: str = "") -> None:
    """Removes a folder with all that is in it, also what was closed to its owner, and however deep it is: folders are
    moved up before they are emptied, so that no path grows long. No link is followed that somebody puts in the place of
    a folder meanwhile. An error says why something stays. The file by which others know the folder goes `last`, so that
    they know it if this is cut off."""
    top = _opened_folder(folder)
    trouble, count, inside = None, 0, [""]  # names in the top folder, and itself
    try:
        while inside:
            name = inside.pop()
            try:
                place = _opened_folder(name, top) if name else os.dup(top)
                try:
                    with os.scandir(place) as entries:
                        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
                    for below, is_folder in found:
                        if not is_folder:
                            if name or below != last:
                                os.unlink(below, dir_fd=place)
                            continue
                        if name:
                            os.close(_opened_folder(below, place))  # one that is closed is not moved, either
                            count, moved = count + 1, f".{os.getpid()}-{count}.gone"
                            os.rename(below, moved, src_dir_fd=place, dst_dir_fd=top)
                            below = moved
                        inside.append(below)
                finally:
                    os.close(place)
                if name:
                    os.rmdir(name, dir_fd=top)
            except OSError as error:
                trouble = trouble or error
        if last and not trouble and os.path.lexists(os.path.join(folder, last)):
            os.unlink(last, dir_fd=top)
    finally:
        os.close(top)
    if trouble:
        raise trouble
    os.rmdir(folder)


def _opened_folder(path: StrPath, within: int | None = None) -> int:
    """A folder, no link to one, opened for whoever wants to change what is in it, though its owner had closed it."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        opened = os.open(path, flags, dir_fd=within)
    except PermissionError:
        os.chmod(path, 0o700, dir_fd=within)
        opened = os.open(path, flags, dir_fd=within)
    os.fchmod(opened, 0o700)
    return opened


def hold(
    fd: int, path: StrPath, patience: float = LOCK_PATIENCE, left: Callable[[], float] = lambda: LOCK_PATIENCE
) -> None:
    """Takes the lock of a file, which dies with its holder. Polled: a holder that was stopped, or that took it to stop
    everybody else, must not do so for ever; and who has no seconds `left` wants to be gone."""
    import fcntl
    import time

    deadline, nap = time.monotonic() + patience, 0.0005
    while True:
        try:
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline or left() <= 0:
                hint = "the process that holds its lock does not go on: end it (`lslocks` names it)"
                raise UserError(f"{path} is locked", hint) from None
        time.sleep(nap)
        nap = min(nap * 1.5, 0.02)


Stamp = tuple[int, ...]
"""Of a file: as long as it is the same, so is the file. Nobody sets the time at which a file was changed."""


def stamp(seen: os.stat_result) -> Stamp:
    return seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns, seen.st_mode


def stamp_of(path: StrPath) -> Stamp:
    """Empty where there is none."""
    try:
        return stamp(os.stat(path))
    except OSError:
        return ()


def is_hole(seen: os.stat_result) -> bool:
    """Whether it is a very long file in which next to nothing was written: to make one costs nothing, to read it takes
    all the time, or all the memory, that there is."""
    return seen.st_size >> 32 > 0 and seen.st_blocks * 1024 < seen.st_size


AT_WORK, DEMO, PROBE = "ralph-at-work-", "ralph-demo-", "ralph-probe-"  # among the temporary files


def temporary_folder() -> TemporaryDirectory[str]:
    """A folder for the time of a question to git or two; what a kill leaves of it, `ralph clean` takes away."""
    from tempfile import TemporaryDirectory

    return TemporaryDirectory(prefix=AT_WORK)


def is_alive(pid: int) -> bool:
    """Whether there is a process of this number: who left its number in a file may be gone."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


class locked:
    """Changes of `folder` by one process at a time. The lock leaves no file, and dies with its holder. Who has no
    seconds `left` does not wait for it."""

    def __init__(self, folder: Path, left: Callable[[], float] = lambda: LOCK_PATIENCE) -> None:
        self._folder, self._left = folder, left

    def __enter__(self) -> None:
        try:
            self._handle = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise unusable(self._folder, error) from None
        try:
            hold(self._handle, self._folder, left=self._left)
        except UserError:
            os.close(self._handle)
            raise

    def __exit__(self, *_: object) -> None:
        os.close(self._handle)


def put(path: Path, text: str) -> None:
    """As `replace_file`, for a file of a task; one line says why that cannot be."""
    try:
        replace_file(path, text.encode("utf-8", "surrogateescape"))
    except OSError as error:
        raise unusable(path, error) from None


def unusable(path: StrPath, error: OSError) -> UserError:
    return UserError(f"cannot use {path}: {error.strerror or error}", "check the folder and its permissions")


def state_folder(env: Mapping[str, str], kind: str) -> str:
    """Where things of this user's are kept that belong to no workspace."""
    home = env.get("HOME") or os.path.expanduser("~")
    return os.path.join(_folder(env, "XDG_STATE_HOME", ".local/state", home), "ralph", kind)


def config_folder(env: Mapping[str, str]) -> str:
    """Where this user's own settings are; nowhere for one without a home."""
    folder = _folder(env, "XDG_CONFIG_HOME", ".config", env.get("HOME", ""))
    return os.path.join(folder, "ralph") if os.path.isabs(folder) else ""


def _folder(env: Mapping[str, str], variable: str, otherwise: str, home: str) -> str:
    """The standard says that a path that is not absolute is to be ignored."""
    named = env.get(variable, "")
    return named if os.path.isabs(named) else os.path.join(home, otherwise)
