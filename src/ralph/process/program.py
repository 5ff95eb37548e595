"""Which file is a program, why it can't be started, and how it is started without a keeper.

Without a keeper are git, which has to end with ralph, and programs that may outlive it: a run in the background, a
notification, an editor and a task of a backlog.
"""

import math
import os
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from msgspec import Struct

from ralph.errors import UserError
from ralph.process.descendants import open_pidfd
from ralph.process.signals import hang_up_on_close, keep_on_close

PIPE_CAPACITY = 1 << 16
# What Python ignores, or a shell in the background, must not be ignored by the program.
DEFAULT_SIGNALS = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
CHANGE_FOLDER = ("/bin/sh", "-c", 'cd "$0" && exec "$@"')  # posix_spawn cannot set a working directory


class Command(Struct, frozen=True, kw_only=True):
    """A program to start, and all of its stdin.

    `term_delay` is how many seconds it may take to end by itself before it gets SIGTERM. If it is `sandboxed`, the
    program is bubblewrap, which starts the real one. `fds` are passed to it from descriptor 3 on, and then closed here.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str = ""
    stdin: bytes = b""
    term_delay: float = 0.0
    sandboxed: bool = False
    fds: tuple[int, ...] = ()


class CannotStart(UserError):
    """A program could not be started at all."""


class ProgramMissing(CannotStart):
    pass


def find_program(name: str, env: Mapping[str, str], cwd: str) -> str:
    """Return the path of a program, looked up in `cwd` and on the PATH of `env`; raise CannotStart if there is none."""
    folders = [""] if "/" in name else env.get("PATH", os.defpath).split(os.pathsep)
    paths = [os.path.join(cwd, folder, name) for folder in folders]
    for path in paths:
        if _is_program(path):
            return path
    for path in paths:
        if os.path.isfile(path):
            raise CannotStart(f"not executable: {path}", f"try: chmod +x {path}")
    if "/" in name:
        raise ProgramMissing(f"no such program: {name}", "check the path")
    raise ProgramMissing(f"command not found: {name}", "is it installed, and is its folder on PATH?")


def own_program(name: str, untrusted: Sequence[str] = ()) -> str:
    """Return the path of a program that ralph itself needs, such as git; empty if there is none.

    A program inside a workspace or repository (a virtual environment on PATH, for example) counts only if there is no
    other: an agent may have put it there. One inside an `untrusted` folder never counts.
    """
    if "/" in name:
        return name
    folders = [folder for folder in search_path(untrusted).split(os.pathsep) if folder.startswith("/")]
    programs = [path for folder in folders if _is_program(path := f"{folder}/{name}")]
    trusted = (path for path in programs if not _is_in_work(path) and not _is_in_work(os.path.realpath(path)))
    return next(trusted, "") or next(iter(programs), "")


def search_path(untrusted: Sequence[str] = ()) -> str:
    """Return the PATH for programs that ralph itself runs, without what is inside the `untrusted` folders."""
    path = os.environ.get("PATH", os.defpath)
    if not untrusted:
        return path
    excluded = tuple(f"{os.path.realpath(folder)}/" for folder in untrusted)
    entries = [entry for entry in path.split(os.pathsep) if os.path.isabs(entry)]
    return os.pathsep.join(entry for entry in entries if not f"{os.path.realpath(entry)}/".startswith(excluded))


def start_error(error: OSError, program: str, cwd: str) -> CannotStart:
    """Explain why the system refused to start `program`."""
    if error.filename == cwd:
        return CannotStart(f"cannot run {program} in {cwd}: {error.strerror}")
    if isinstance(error, FileNotFoundError):
        return ProgramMissing(f"cannot run {program}: the interpreter in its first line is missing")
    if isinstance(error, PermissionError):
        return CannotStart(f"cannot run {program}: {error.strerror}", f"try: chmod +x {program}")
    return CannotStart(f"cannot run {program}: {error.strerror}")


def _is_program(path: str) -> bool:
    return os.access(path, os.X_OK) and os.path.isfile(path)


def _is_in_work(path: str) -> bool:
    while (folder := os.path.dirname(path)) != path:
        if os.path.lexists(f"{folder}/.ralph") or os.path.lexists(f"{folder}/.git"):
            return True
        path = folder
    return False


class DetachedProcess:
    """A program that ralph starts without a keeper. `code` is its exit code, once `wait` has returned it.

    It is in a session of its own, so that Ctrl-C doesn't reach it, unless it needs the terminal. If it `hangs_up`, the
    kernel sends it and its group SIGHUP when ralph dies, until `let_go`. `was_reaped`: the program around us has
    collected it, so its exit code is unknown.
    """

    def __init__(self, pid: int, lifeline: tuple[int, ...] = ()) -> None:
        self.pid = pid
        self.code: int | None = None
        self.was_reaped = False
        self._pidfd: int | None = None
        self._lifeline = lifeline

    @classmethod
    def start(
        cls,
        argv: Sequence[str],
        env: Mapping[str, str],
        fds: Sequence[int],
        *,
        cwd: str = "",
        new_session: bool = True,
        hangs_up: bool = False,
    ) -> "DetachedProcess":
        """Start a program with `fds` as its stdin, stdout, stderr and so on. Signals have their default handling."""
        argv = (*CHANGE_FOLDER, cwd, *argv) if cwd else tuple(argv)
        lifeline = os.pipe() if hangs_up else ()  # the program has the reading end, and only we have the writing end
        try:
            pid = os.posix_spawn(
                argv[0],
                argv,
                env,
                file_actions=[(os.POSIX_SPAWN_DUP2, fd, target) for target, fd in enumerate((*fds, *lifeline[:1]))],
                setsid=new_session,
                setsigmask=(),
                setsigdef=DEFAULT_SIGNALS,
            )
        except BaseException:
            for fd in lifeline:
                os.close(fd)
            raise
        if lifeline:
            with suppress(ProcessLookupError):  # it has exited, and the program around us has collected it
                hang_up_on_close(lifeline[0], -pid)
        return cls(pid, lifeline)

    def fileno(self) -> int:
        """Readable when it has exited; -1 if the system can't tell."""
        if self._pidfd is None:
            self._pidfd = open_pidfd(self.pid)
        return self._pidfd

    def wait(self, seconds: float = math.inf) -> int | None:
        """Wait for its exit code; return None if it is still running after `seconds`."""
        until, nap = time.monotonic() + seconds, 0.0005
        while self.code is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG if seconds < math.inf else 0)
            except ChildProcessError:
                pid, status, self.was_reaped = self.pid, 0, True
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
            elif time.monotonic() >= until:
                break
            else:
                time.sleep(nap)
                nap = min(2 * nap, 0.02)
        return self.code

    def send_signals(self, *numbers: int) -> None:
        """Signal its process group, unless `wait` has seen its exit. Only for a program with its own session."""
        if self.code is None:  # until then its pid is not reused
            with suppress(ProcessLookupError):
                for number in numbers:
                    os.killpg(self.pid, number)

    def let_go(self) -> None:
        """Let it continue when ralph dies."""
        for fd in self._lifeline[:1]:
            keep_on_close(fd)

    def close(self) -> None:
        """Close our end of the lifeline: the kernel sends SIGHUP, unless the program was let go."""
        for fd in (*self._lifeline, -1 if self._pidfd is None else self._pidfd):
            if fd >= 0:
                os.close(fd)
        self._lifeline, self._pidfd = (), -1


def unnamed_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("ralph")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def open_input(data: bytes) -> int:
    """Return a descriptor from which exactly `data` can be read."""
    if not data:
        return os.open(os.devnull, os.O_RDONLY)
    if len(data) <= PIPE_CAPACITY:
        fd, writer = os.pipe()
        # Over the pipe-user-pages limit the kernel gives small pipes; never block on one.
        os.set_blocking(writer, False)
        written = os.write(writer, data)
        os.close(writer)
        if written == len(data):
            return fd
        os.close(fd)
    fd = unnamed_file()
    while data:  # a full disk takes a part of it, and then reports an error
        data = data[os.write(fd, data) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
