"""How does a process begin? ralph with three standard streams, whoever called it, and without what no run needs of its
libraries: something stands in for that until it is asked for. The keeper leaves ralph behind; a program gets a session
and signals as a shell would give it, and one that makes a box gives up what no box could take from it. Directly: to
import `subprocess` takes longer than git takes to answer."""

from __future__ import annotations

import errno
import gc
import os
import sys
import time
from types import ModuleType

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any
else:
    import _signal as signal  # see keeper.py


MARK = "RALPH_RUN_ID"
ASKED_BY = "RALPH_ASKED_BY"  # the process that waits for the answer: nobody else needs it
_THERE = ("/bin/sh", "-c", 'cd "$0" && exec "$@"')  # `posix_spawn` knows of no other folder
_DEAF_TO = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGTSTP,
    signal.SIGTTIN,
    signal.SIGTTOU,
)
# What Python ignores, or a shell in the background, must not be ignored by an agent.
_TO_DEFAULT = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
_SET_DEATH_SIGNAL, _SET_CHILD_SUBREAPER, _SET_NO_NEW_PRIVILEGES = 1, 36, 38
_CREATE_RULESET, _RESTRICT_SELF = 444, 446  # system calls of Landlock, the same number on every machine
_KEYCTL = {"x86_64": 250, "aarch64": 219, "riscv64": 219, "ppc64le": 271, "s390x": 280}  # older, and not the same
_GET_KEYRING, _JOIN_KEYRING, _OF_SESSION = 0, 1, -3


def occupy_standard_streams() -> None:
    """Puts nothing in the place of those that whoever called has closed: what is opened next must not be taken for one,
    be it by a keeper, or by somebody who writes to stderr what would end up in a journal."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            nothing = os.open(os.devnull, os.O_RDWR)
            if nothing > 2:  # another thread was quicker
                os.close(nothing)


def hear_signals_as_usual() -> None:
    """Takes back what was set for the time in which a process only begins."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) not in (signal.SIG_IGN, signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def leave_ralph(*kept: int) -> None:
    """Away from ralph's terminal, its signals, its descriptors and its garbage."""
    gc.disable()
    for number in _DEAF_TO:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.setsid()
    os.chdir("/")
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in map(int, os.listdir("/dev/fd")):
        if fd in (0, 1, 2):
            os.dup2(nothing, fd)
        elif fd not in (nothing, *kept):
            try:
                os.close(fd)
            except OSError:  # the descriptor of the listing itself
                pass


def bear_name(name: str) -> None:
    """Whoever kills ralph by its name must not hit the one who cleans up after it: this process gets a name and a
    command line of its own, in the place of those that it has from ralph."""
    if sys.platform != "linux":
        return
    try:
        with open("/proc/self/comm", "wb", buffering=0) as comm, open("/proc/self/stat", "rb") as stat:
            comm.write(name.split()[0].encode())
            fields = stat.read().rpartition(b")")[2].split()
        first, end = int(fields[45]), int(fields[46])  # where the words of the command line lie
        memory = os.open("/proc/self/mem", os.O_WRONLY)
        try:
            os.pwrite(memory, name.encode()[: end - first - 1].ljust(end - first, b"\0"), first)
        finally:
            os.close(memory)
    except (OSError, IndexError):  # no /proc, or one that hides this: then it is one of two that look alike
        pass


def adopt_orphans(wanted: bool = True) -> bool:
    """Asks the kernel to give us every orphan below us. Where it cannot, the group and the mark have to do."""
    if sys.platform != "linux":
        return False
    return c_call("prctl", _SET_CHILD_SUBREAPER, int(wanted), 0, 0, 0) == 0


def c_call(name: str, *values: int | bytes) -> int:
    """What a function of the C library returns."""
    # The C part of `ctypes` alone: the rest of it takes more time, and more memory, than all else that is done here.
    try:
        from _ctypes import call_function, dlopen, dlsym
    except ImportError as error:
        if "Too many open files" in str(error):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE)) from None
        raise
    function = dlsym(dlopen(None, 0), name)  # type: ignore[arg-type]  # None is this process itself
    return int(call_function(function, values))


def start(program: str, argv: Sequence[str], env: Mapping[str, str], fds: Sequence[int], apart: bool = True) -> int:
    """`fds` are its descriptors, from 0 on. `apart`: in a session of its own."""

    def spawn(path: str, words: Sequence[str]) -> int:
        return os.posix_spawn(
            path,
            tuple(words),
            env,
            file_actions=[(os.POSIX_SPAWN_DUP2, fd, target) for target, fd in enumerate(fds)],
            setsid=apart,
            setsigmask=(),
            setsigdef=_TO_DEFAULT,
        )

    try:
        return spawn(program, argv)
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise
        return spawn("/bin/sh", ["sh", program, *argv[1:]])  # a script without #!, as every shell runs it


def start_boxed(program: str, argv: list[str], env: Mapping[str, str], fds: list[int]) -> int:
    """As `start`; but it dies with the keeper, and on the way it gives up what no box could take from it."""
    keeper = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        c_call("prctl", _SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != keeper:  # it was killed before it could be said
            os._exit(127)
        os.setsid()
        for number in _TO_DEFAULT:
            signal.signal(number, signal.SIG_DFL)
        for target, fd in enumerate(fds):
            os.dup2(fd, target)
        _leave_abstract_sockets()
        _leave_keys()
        os.execve(program, argv, env)
    except OSError as error:
        os.write(2, f"cannot run {program}: {error.strerror}\n".encode())
    finally:
        os._exit(127)


def _leave_abstract_sockets() -> None:
    """Sockets without a path belong to the network, which a box may share with all others: by a scope of Landlock it
    reaches only those that were made in it. Kernels before 6.12 have none."""
    scope = bytes(16) + (1).to_bytes(8, sys.byteorder)
    ruleset = c_call("syscall", _CREATE_RULESET, scope, len(scope), 0)
    if ruleset >= 0:
        c_call("prctl", _SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
        c_call("syscall", _RESTRICT_SELF, ruleset, 0)
        os.close(ruleset)


def _leave_keys() -> None:
    """Keys that the kernel keeps for a person's session (of Kerberos, say) are open to every process of it."""
    call = _KEYCTL.get(os.uname().machine, 0)
    if (
        call
        and c_call("syscall", call, _JOIN_KEYRING, 0) < 0
        and c_call("syscall", call, _GET_KEYRING, _OF_SESSION, 0) > 0
    ):
        raise OSError(errno.EDQUOT, "the keys of the session would come along")


def in_folder(folder: str, argv: Sequence[str]) -> tuple[str, ...]:
    """The words that start the same there."""
    return (*_THERE, folder, *argv) if folder else tuple(argv)


class UnkeptProcess:
    """One that no keeper ends, and that is asked nothing: a run or a notification, which may outlive us, or a pager or
    an editor, which has the terminal unless it is `apart`. `code` is known once somebody has looked for it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.code: int | None = None

    @classmethod
    def start(
        cls, argv: Sequence[str], env: Mapping[str, str], fds: Sequence[int], *, cwd: str = "", apart: bool = True
    ) -> UnkeptProcess:
        words = in_folder(cwd, argv)
        return cls(start(words[0], words, env, fds, apart))

    def wait(self, seconds: float = float("inf")) -> int | None:
        """Its exit code; None if it has not ended by then."""
        until, nap = time.monotonic() + seconds, 0.0005
        while self.code is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG if seconds < float("inf") else 0)
            except ChildProcessError:  # whoever started us taught us to ignore the deaths of children
                pid, status = self.pid, 0
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
            elif time.monotonic() >= until:
                break
            else:
                time.sleep(nap)
                nap = min(2 * nap, 0.02)
        return self.code

    def send(self, number: int) -> None:
        if self.wait(0) is None:
            os.kill(self.pid, number)


class StandIn(ModuleType):
    """A module that is imported once it is asked for more than was promised. What is promised is a function that is
    given here, or else is looked for when it is called."""

    def __init__(self, name: str, *promised: str, **given: Callable[[], object]) -> None:
        super().__init__(name)
        vars(self).update({function: self._late(function) for function in promised}, **given)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what is asked of every module when it is imported
            raise AttributeError(name)
        return getattr(self._real(), name)

    def _late(self, function: str) -> Callable[..., Any]:
        return lambda *args, **kwargs: getattr(self._real(), function)(*args, **kwargs)

    def _real(self) -> ModuleType:
        from importlib import import_module

        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return import_module(self.__name__)


class Unknown:
    """A type of which msgspec shall know nothing: no run has values of it, and to import it takes a millisecond."""

    unknown = None


def import_leanly(*names: str) -> None:
    """Imports msgspec or pathlib in half of the time that they take by themselves."""
    import _datetime  # type: ignore[import-not-found]

    parts = (
        StandIn("msgspec.inspect"),
        StandIn("msgspec.msgpack"),
        StandIn("msgspec.toml"),
        StandIn("msgspec.yaml"),
        StandIn("msgspec._json_schema", "schema", "schema_components"),
        StandIn("decimal", Decimal=Unknown),
        StandIn("uuid", UUID=Unknown, SafeUUID=Unknown),
        StandIn("platform", system=lambda: os.uname().sysname),
        StandIn("urllib.parse", "quote_from_bytes"),
        StandIn("fnmatch"),
        StandIn("ntpath"),
        StandIn("warnings"),
    )
    standing: dict[str, Any] = {part.__name__: part for part in parts}
    standing["datetime"] = _datetime  # the same types, without those in Python that version 3.11 makes and throws away
    standing["typing_extensions"] = None  # as if it were not there: all that is wanted of it is in `typing` too
    standing = {name: part for name, part in standing.items() if name not in sys.modules}
    sys.modules.update(standing)
    import typing

    # msgspec tries what a forward reference accepts. To compile one makes Python set up its syntax trees: 1 ms, 1 MB.
    vars(typing)["compile"] = lambda *_: None
    try:
        for name in names:
            __import__(name)
    finally:
        del vars(typing)["compile"]
        for name, part in standing.items():
            if name in sys.modules and sys.modules[name] is part:
                del sys.modules[name]
