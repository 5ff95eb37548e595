"""What is to be started, and which file is that? Looked up as in the command's own folder and on its own PATH. And how
is a program run for its answer? Whatever hangs, the run that asks can be interrupted, and what it started is found by
its mark."""

import errno
import math
import os
import select
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.errors import UserError
from ralph.processes.interrupt import Dismissal, Interrupt, signals_put_off, tie, untie, wake
from ralph.processes.spawning import ASKED_BY, MARK, in_folder, start

if TYPE_CHECKING:
    import signal
else:
    import _signal as signal  # see keeper.py


class Command(Struct, frozen=True, kw_only=True):
    """What to start, and all that it can read on its stdin. `patience`: the seconds in which it may come to an end by
    itself once it has to end. `boxed`: it makes a box and starts a program in there; `fds` are for it alone, from 3 on,
    and are closed here once it has them."""

    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str]
    stdin: bytes = b""
    patience: float = 0.0
    boxed: bool = False
    fds: tuple[int, ...] = ()


class CannotStart(UserError):
    """A program could not be started at all."""


class ProgramMissing(CannotStart):
    pass


class ProgramNotExecutable(CannotStart):
    pass


_found: dict[tuple[str, str, str], str] = {}
_own: dict[tuple[str, str], str] = {}


def find_program(name: str, env: Mapping[str, str], cwd: str) -> str:
    """The path of the program; says why there is none. As a shell does, it remembers where one was found."""
    asked = name, env.get("PATH", os.defpath), cwd
    if asked in _found and _is_program(_found[asked]):
        return _found[asked]
    for path in _places(name, env, cwd):
        if _is_program(path):
            _found[asked] = path
            return path
    for path in _places(name, env, cwd):
        if os.path.isfile(path):
            raise ProgramNotExecutable(f"not executable: {path}", f"try: chmod +x {path}")
    if "/" in name:
        raise ProgramMissing(f"no such program: {name}", "check the path")
    raise ProgramMissing(f"command not found: {name}", "is it installed, and is its folder on PATH?")


def _is_program(path: str) -> bool:
    return os.access(path, os.X_OK) and os.path.isfile(path)  # in this order: `access` is quick to say no


def _places(name: str, env: Mapping[str, str], cwd: str) -> Iterator[str]:
    """Where a program of this name may be."""
    if "/" in name:
        yield os.path.join(cwd, name)
        return
    for folder in env.get("PATH", os.defpath).split(os.pathsep):
        # Every check looks for its shell: `os.path.join` takes longer than to look.
        yield f"{folder.rstrip('/')}/{name}" if folder.startswith("/") else os.path.join(cwd, folder, name)


def own_program(name: str) -> str:
    """The path of a program that ralph wants for itself, such as git; empty if there is none. One in a folder that
    agents work in, a virtual environment on PATH for one, counts only where there is no other: an agent may have put it
    there. It stays the one that was found first."""
    if "/" in name:
        return name
    folders = os.environ.get("PATH", os.defpath)
    if not _is_program(_own.get((name, folders), "")):
        places = (f"{folder}/{name}" for folder in folders.split(os.pathsep) if folder.startswith("/"))
        programs = list(filter(_is_program, places))
        trusted = (path for path in programs if not _is_worked_on(path) and not _is_worked_on(os.path.realpath(path)))
        _own[name, folders] = next(trusted, "") or next(iter(programs), "")
    return _own[name, folders]


def _is_worked_on(path: str) -> bool:
    """Whether it lies in a workspace or a repository."""
    while (folder := os.path.dirname(path)) != path:
        if os.path.lexists(f"{folder}/.ralph") or os.path.lexists(f"{folder}/.git"):
            return True
        path = folder
    return False


def explained(error: OSError, program: str, cwd: str) -> CannotStart:
    """What the system's refusal to start `program` means to a person."""
    if error.filename == cwd:
        return CannotStart(f"cannot run {program} in {cwd}: {error.strerror}")
    if isinstance(error, FileNotFoundError):
        return ProgramMissing(f"cannot run {program}: the interpreter in its first line is missing")
    if isinstance(error, PermissionError):
        return ProgramNotExecutable(f"cannot run {program}: {error.strerror}", f"try: chmod +x {program}")
    return CannotStart(f"cannot run {program}: {error.strerror}")


GRACE = 5.0
CHUNK = 1 << 16
_NAP = 0.01
_LAST_MOMENT = 0.3  # seconds for all answers together, once a person wants an end now
_LONG_SILENCE = 2.0
_GLANCE = 0.25  # seconds after which somebody looks after a program that says nothing
_MOST_ERRORS = 64 << 20
_LINGER = 1.0  # for what others still say, to whom a program that has ended left its output
_CLOSING = 5.0  # the same when the time of the run is over: what it did is still written down
# Who ignores the deaths of its children, or takes note of each, leaves us none to ask about: a shell has to tell. Asked
# to end, it waits for the program all the same.
_TELLING = ("/bin/sh", "-c", 'trap : TERM; "$@" 3>&-; echo $? >&3', "sh")


class CutOff(TimeoutError):
    """An answer was not waited for: the person or the clock wants an end of the run."""


class Asker:
    """The run for which programs are asked: they bear its mark, end when it is interrupted, and take of its time."""

    def __init__(self, interrupt: Interrupt, run_id: str = "", grace: float = 30.0) -> None:
        self.interrupt, self.run_id, self._grace = interrupt, run_id, grace
        self.time_left: Callable[[], float] = lambda: math.inf
        self._heard, self._ends_at = 0, math.inf

    def left(self) -> float:
        """Seconds that the answers to its questions may still take."""
        level, now = self.interrupt.level, time.monotonic()
        if not level and self.time_left() <= 0:
            level = 1
            self._ends_at = min(self._ends_at, now + _CLOSING)
        if level > self._heard:
            self._heard = level
            self._ends_at = min(self._ends_at, now + (self._grace if level == 1 else _LAST_MOMENT))
        return self._ends_at - now

    def is_late(self) -> bool:
        """Whether the time of the run is over, and that in which what it did is still written down."""
        return self.time_left() <= 0 and self.left() <= 0

    @property
    def is_pressed(self) -> bool:
        return self.interrupt.level > 1

    @property
    def reason(self) -> str:
        return f"received {self.interrupt.reason}" if self.interrupt.level else "the time of the run is over"


_under_way: set["AskedProgram"] = set()


@contextmanager
def leaving_alone() -> Iterator[Asker]:
    """Who asks by threads of its own, and may leave before they have their answers: then nobody waits for those any
    more, and nobody is left behind who was to give one."""
    with Dismissal() as dismissal:
        try:
            yield Asker(dismissal)
        finally:
            dismissal.raise_to(2, "a wish to leave")
            until = time.monotonic() + 3 * _LAST_MOMENT
            while _under_way and time.monotonic() < until:
                with suppress(KeyboardInterrupt):
                    time.sleep(_NAP)


_asker: ContextVar[Asker | None] = ContextVar("asker", default=None)


@contextmanager
def asked_by(asker: Asker | None) -> Iterator[None]:
    """While entered, every program that is asked is this run's, or nobody's."""
    before = _asker.set(asker)
    try:
        yield
    finally:
        _asker.reset(before)


def seconds_left() -> float:
    """How long the run that asks may still wait for anything."""
    asker = _asker.get()
    return asker.left() if asker else math.inf


class AskedProgram:
    """A program in a session of its own: a Ctrl-C meant for ralph must not cut it off half-way; the second one does.
    `code` and `error` are known at the end. Whoever leaves before all of its output is read ends it."""

    def __init__(self, argv: tuple[str, ...], env: Mapping[str, str], stdin: bytes = b"", cwd: str = "") -> None:
        self.code = 0
        self.error = ""
        self._argv, self._env, self._stdin, self._cwd = argv, env, stdin, cwd
        self._pid = 0
        self._has_ended = False
        self._own_rest = _PIPE_HOLDS  # bytes of its output that may be its own, once it has ended
        self._looked_at, self._closes_at, self._deadline = time.monotonic(), math.inf, math.inf
        self._uneasy: Callable[[], None] = lambda: None
        self._asker = _asker.get()

    def __enter__(self) -> "AskedProgram":
        try:
            with signals_put_off():  # a Ctrl-C while it starts would leave it behind
                self._start()
        except BaseException:
            if self._pid:
                self.__exit__()
            raise
        return self

    def _start(self) -> None:
        if self._asker and self._asker.left() <= 0:
            raise CutOff(self._asker.reason)
        env = {**self._env, ASKED_BY: str(os.getpid())}
        if self._asker and self._asker.run_id:
            env[MARK] = self._asker.run_id
        self._out, writer = os.pipe()
        self._err, given = unnamed_file(), readable(self._stdin)
        self._told = unnamed_file() if signal.getsignal(signal.SIGCHLD) not in (signal.SIG_DFL, wake) else None
        self._leash = None if self._asker and self._asker.run_id else os.pipe()
        passed = [given, writer, self._err]
        passed += [fd for fd in (self._told, self._leash and self._leash[0]) if fd is not None]
        try:
            program = own_program(self._argv[0])
            if not program:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._argv[0])
            words = in_folder(self._cwd, (program, *self._argv[1:]))
            if self._told is not None:
                words = (*_TELLING, *words)
            self._pid = start(words[0], words, env, passed)
            _under_way.add(self)
            if self._leash:  # no keeper looks after it: should we be killed, it hears of that
                with suppress(ProcessLookupError):  # unless it has ended already, and the program around us took note
                    tie(self._leash[0], -self._pid)
        except OSError:
            if not self._pid:
                self._close()
            raise
        finally:
            os.close(writer)
            os.close(given)

    def __exit__(self, *_: object) -> None:
        if not self._has_ended:
            self._end()
        self._close()

    def read(self) -> bytes:
        """The next piece of its output; empty when there is no more, and the program has ended. To whom else it left
        its output is not waited for: one that works on in the background would hold up whoever asks."""
        chunk = os.read(self._out, CHUNK) if self._has_output() else b""
        self._own_rest -= len(chunk) if self._has_ended else 0
        nap = _NAP / 256  # it has closed its output, so it is about to end: to be late costs more than to look
        while not chunk and not self._has_ended:
            self._await(os.WNOHANG)
            if not self._has_ended:
                time.sleep(min(nap, self._left()))
                nap = min(2 * nap, _NAP)
        return chunk

    def output(self, patience: float, uneasy: Callable[[], None] = lambda: None, latest: float = math.inf) -> bytes:
        """All of its output, or little more than the `latest` bytes of it; TimeoutError if that takes longer. `uneasy`
        is called when it is silent for long, and again when it has been for twice as long: it may know why, and
        raise."""
        self._deadline = time.monotonic() + patience
        self._uneasy = uneasy
        pieces, size = deque[bytes](), 0
        for piece in iter(self.read, b""):
            pieces.append(piece)
            size += len(piece)
            while size - len(pieces[0]) >= latest:
                size -= len(pieces.popleft())
        return b"".join(pieces)

    @property
    def waits_for_a_pipe(self) -> bool:
        """Whether it stands before a pipe to which nobody writes, wherever that is (Linux)."""
        pids = [str(self._pid)]
        with suppress(OSError):
            if self._told is not None:  # it was started by another
                with open(f"/proc/{self._pid}/task/{self._pid}/children") as children:
                    pids += children.read().split()
        for pid in pids:
            with suppress(OSError), open(f"/proc/{pid}/wchan") as place:
                if place.read() == "wait_for_partner":
                    return True
        return False

    def _has_output(self) -> bool:
        """Waits for it; False if it is not to be waited for any more."""
        ready = select.poll()
        ready.register(self._out, select.POLLIN)
        if self._asker:
            ready.register(self._asker.interrupt, select.POLLIN)
        began, silence = time.monotonic(), _LONG_SILENCE
        while True:
            until = min(self._left(), began + silence - time.monotonic(), _GLANCE)
            heard = [fd for fd, _ in ready.poll(max(until, 0) * 1000)]
            if time.monotonic() - self._looked_at >= _GLANCE:
                self._look_after_it()
            is_over = time.monotonic() >= self._closes_at
            if self._out in heard and (not is_over or self._own_rest > 0):
                return True
            if is_over:
                return False
            if heard and self._asker:
                self._asker.interrupt.acknowledge()
                if self._asker.is_pressed:  # there is nothing more to hear
                    ready.unregister(self._asker.interrupt)
            if time.monotonic() - began >= silence:
                silence *= 2
                self._uneasy()

    def _look_after_it(self) -> None:
        """It may have ended though others hold its output; and of errors without end the beginning is forgotten."""
        self._looked_at = time.monotonic()
        if not self._has_ended:
            self._await(os.WNOHANG)
            self._closes_at = self._looked_at + _LINGER if self._has_ended else math.inf
        if os.fstat(self._err).st_blocks * 512 > _MOST_ERRORS:
            os.ftruncate(self._err, 0)

    def _left(self) -> float:
        """Seconds to wait for it, TimeoutError when there are no more."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        if self._asker:
            left = min(left, self._asker.left(), max(self._asker.time_left(), _NAP))
            if left <= 0:
                raise CutOff(self._asker.reason)
        return left

    def _close(self) -> None:
        _under_way.discard(self)
        os.close(self._out)
        os.close(self._err)
        if self._told is not None:
            os.close(self._told)
        if self._leash:
            untie(self._leash[0])  # what it may have left in peace stays so
            os.close(self._leash[0])
            os.close(self._leash[1])

    def _await(self, options: int = 0) -> None:
        """Takes note of its end; with WNOHANG only if that has come."""
        try:
            pid, status = os.waitpid(self._pid, options)
        except ChildProcessError:
            if self._told is None:
                raise
            pid, status = self._pid, 0
        if not pid:
            return
        if self._told is None:
            self.code = os.waitstatus_to_exitcode(status)
        else:  # that it was a signal, or a code of the program's own: git itself has some up to 129
            code = int(os.pread(self._told, 8, 0) or 128 + signal.SIGKILL)
            self.code = 128 - code if code > 129 else code
        self._has_ended = True
        self.error = written_to(self._err).decode("utf-8", "replace")

    def _end(self) -> None:
        """Ends it and its group; gently first, for a git that is killed leaves its locks behind. Who loses patience
        with that makes it short."""
        try:
            is_pressed = self._asker is not None and self._asker.is_pressed
            deadline = time.monotonic() + (_LAST_MOMENT if is_pressed else GRACE)
            with suppress(ProcessLookupError):
                os.killpg(self._pid, signal.SIGTERM)
                os.killpg(self._pid, signal.SIGCONT)
            while not self._has_ended and time.monotonic() < deadline:
                self._await(os.WNOHANG)
                if not self._has_ended:
                    time.sleep(_NAP)
                if self._asker and self._asker.is_pressed:
                    deadline = min(deadline, time.monotonic() + _LAST_MOMENT)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(self._pid, signal.SIGKILL)
        if not self._has_ended:
            self._await()


_PIPE_HOLDS = 1 << 16
_PIECE = 1 << 20
_LATEST = 4 << 20


def unnamed_file() -> int:
    """A file to write to and to read from."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("ralph")
    import tempfile

    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def written_to(fd: int) -> bytes:
    """The latest that is in such a file; whoever writes to it goes on where it was."""
    return os.pread(fd, _LATEST, max(0, os.fstat(fd).st_size - _LATEST)).lstrip(b"\0")


def readable(data: bytes) -> int:
    """A descriptor from which exactly `data` can be read."""
    if not data:
        return os.open(os.devnull, os.O_RDONLY)
    if len(data) <= _PIPE_HOLDS:
        fd, writer = os.pipe()
        # Whose pipes take up too much memory gets small ones: to wait for room would be to wait for ever.
        os.set_blocking(writer, False)
        written = os.write(writer, data)
        os.close(writer)
        if written == len(data):
            return fd
        os.close(fd)
    fd = unnamed_file()
    for at in range(0, len(data), _PIECE):
        os.write(fd, data[at : at + _PIECE])
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
