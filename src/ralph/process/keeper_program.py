"""The keeper: a small program that runs next to ralph, starts what ralph asks for, and kills everything below it.

It makes itself the parent of every orphan below it (a "subreaper"), so nothing that an agent starts can get away: after
each command it kills until the kernel reports that no child is left. It does the same when ralph ends or is killed.
ralph talks to it over the socket on its standard input; see `keeper.py` for ralph's side. It is executed with
`python -S`, so it uses the standard library only.

Requests ("do") and the events that answer them, with the same "id":

    spawn    start a program with the attached descriptors  → started, exited; or failed
    kill     kill everything except `spared`                → ended
    watch    kill what is marked with this run id if ralph is killed: a filter of a git that hangs, for example
    cleanup  run this command, one for each key, at the end if ralph is killed
    close    ralph has finished: kill everything, and exit
    release  exit, and leave running what is running
"""

import ctypes
import errno
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn

from ralph.process.descendants import (
    KEEPER_NAME,
    RunningProcess,
    can_signal,
    descendants_of,
    exclude_spared,
    find_group,
    is_running,
    kill,
    open_pidfd,
    processes_of_run,
    terminate,
)

Packet = dict[str, Any]

SHUTDOWN_GRACE = 2.0  # seconds from SIGTERM to SIGKILL when ralph is gone
KILL_TIMEOUT = 5.0  # seconds from the first SIGKILL until survivors are given up
FOREIGN_TIMEOUT = 0.3  # the same if all of them belong to other users: they can only end by themselves
SANDBOX_POLL = 0.01
IGNORED = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE, signal.SIGXFSZ),
    *(signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU),
)
MAX_DESCRIPTORS = 8
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 36, 38
LANDLOCK_CREATE_RULESET, LANDLOCK_RESTRICT_SELF = 444, 446  # the same numbers on every architecture
KEYCTL_NUMBERS = {"x86_64": 250, "aarch64": 219, "riscv64": 219, "ppc64le": 271, "s390x": 280}
KEYCTL_GET_KEYRING_ID, KEYCTL_JOIN_SESSION_KEYRING, KEY_SPEC_SESSION_KEYRING = 0, 1, -3
_LIBC = ctypes.CDLL(None)


class Channel:
    """One end of the connection: one JSON object per line over a socket, with file descriptors attached."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end

    @classmethod
    def pair(cls) -> "tuple[Channel, Channel]":
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        return cls(ours), cls(theirs)

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Packet, fds: Sequence[int] = ()) -> None:
        data = json.dumps(message).encode() + b"\n"
        count = socket.send_fds(self._socket, [data], fds) if fds else self._socket.send(data)
        if count < len(data):  # even an empty send fails once the other end has read the message and closed
            self._socket.sendall(data[count:])

    def receive(self) -> tuple[Packet, list[int]] | None:
        """Block until the next message; return it with its descriptors, or None if the other end is closed."""
        line, fds = b"", list[int]()
        while not line.endswith(b"\n"):
            try:
                # Peek first, so that bytes of the next message stay in the socket and keep it readable.
                peeked = self._socket.recv(1 << 16, socket.MSG_PEEK)
                size = peeked.find(b"\n") + 1 or len(peeked)
                piece, attached, _, _ = socket.recv_fds(self._socket, size or 1, MAX_DESCRIPTORS)
            except ConnectionResetError:  # closed without having read our last message
                return None
            if not piece:
                return None
            fds += attached
            line += piece
        for fd in fds:
            os.set_inheritable(fd, False)
        return json.loads(line), fds

    def close(self) -> None:
        self._socket.close()


def wait_readable(source: int | Channel, seconds: float) -> bool:
    """Wait until there is something to read, or the other end is closed; return False after some seconds."""
    poll = select.poll()
    poll.register(source, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


class KeeperProgram:
    """Starts one program at a time. Everything below this process comes from that program."""

    def __init__(self, channel: Channel, ralph_pid: int) -> None:
        self._channel = channel
        self._ralph_pid = ralph_pid
        self._ralph_gone = False
        self._released = False
        self._watched_run = ""
        self._orphans: list[RunningProcess] = []  # what a killed ralph was running: not below this process
        self._cleanups: dict[str, Packet] = {}
        self._spawn_id = self._kill_id = 0  # the requests that the next events answer
        self._pid = 0  # of the program that was started last; also its process group
        self._exit_reported = True
        self._is_sandboxed = False
        self._has_children = False
        self._term_delay = 0.0  # seconds in which the program may end by itself before SIGTERM
        self._spared: list[int] = []
        self._asked: set[int] = set()  # the pids that were sent a signal
        self._term_at = 0.0
        self._kill_at: float | None = None  # when SIGKILL is due; None while nothing is to be killed
        self._reachable_at = 0.0  # when we last saw a process that we may signal

    def serve(self) -> None:
        """Handle requests until ralph is gone and nothing is left below this process."""
        self._open()
        try:
            while not self._released and (not self._ralph_gone or self._kill_at is not None):
                self._step()
        except BaseException:
            kill(self._running())
            raise
        for command in self._cleanups.values():
            self._run_cleanup(command)

    def _open(self) -> None:
        self._adopts = adopt_orphans()
        self._poll = select.poll()
        self._poll.register(self._channel, select.POLLIN)
        # A forked copy of ralph keeps the socket open after ralph died, so watch the process itself as well.
        self._ralph = open_pidfd(self._ralph_pid) if os.getppid() == self._ralph_pid else -1
        if self._ralph >= 0:
            self._poll.register(self._ralph, select.POLLIN)
        elif os.getppid() != self._ralph_pid:
            self._on_ralph_exit()
        self._child_exits, wakeup = os.pipe()
        os.set_blocking(wakeup, False)
        self._poll.register(self._child_exits, select.POLLIN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)

    def _step(self) -> None:
        timeout = None
        if self._kill_at is not None:  # exits wake us; the short timeouts are for processes that /proc didn't show
            remaining = self._kill_at - time.monotonic()
            timeout = 1000 * (min(remaining, 0.05) if remaining > 0 else 0.02)
        for fd, _ in self._poll.poll(timeout):
            if fd == self._child_exits:
                os.read(fd, 4096)
            elif fd == self._ralph:
                self._poll.unregister(fd)
                self._on_ralph_exit()
            else:
                self._handle_request()
        if self._released:
            return
        self._reap()
        if self._kill_at is not None:
            self._continue_killing(self._kill_at)

    def _handle_request(self) -> None:
        received = self._channel.receive()
        if received is None:
            self._poll.unregister(self._channel)
            # With a pidfd wait for the end of its process: the kernel closes the sockets first, and child runs look for
            # the process.
            if self._ralph < 0:
                self._on_ralph_exit()
            return
        request, fds = received
        match request["do"]:
            case "spawn":
                self._spawn(request, fds)
            case "kill":
                self._kill_id, self._spared = request["id"], request["spared"]
                self._start_killing(request["grace"])
            case "cleanup":
                self._cleanups.pop(request["key"], None)
                if request["argv"]:
                    self._cleanups[request["key"]] = request
            case "watch":
                self._watched_run = request["run_id"]
            case "close":
                self._watched_run = ""
                self._on_ralph_exit()
            case "release":
                self._released, self._cleanups = True, {}

    def _on_ralph_exit(self) -> None:
        self._ralph_gone, self._spared = True, []
        if self._watched_run:  # now, because later a resumed run has the same id
            below = {process.pid for process in descendants_of(os.getpid())}
            self._orphans = [process for process in processes_of_run(self._watched_run) if process.pid not in below]
        self._start_killing(SHUTDOWN_GRACE)

    def _spawn(self, request: Packet, fds: list[int]) -> None:
        self._spawn_id, self._is_sandboxed = request["id"], request["sandboxed"]
        self._term_delay = request["term_delay"]
        try:
            self._pid = fork_and_exec(request, fds)
        except OSError as error:
            self._send(self._spawn_id, event="failed", errno=error.errno, path=error.filename)
        else:
            self._exit_reported = False
            self._send(self._spawn_id, event="started", pid=self._pid)
        finally:
            for fd in fds:
                os.close(fd)

    def _reap(self) -> None:
        """Collect the children that have exited. ECHILD is the only proof that nothing is left."""
        status = None
        while True:
            try:
                pid, its_status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._has_children = bool(self._running()) if self._orphans or not self._adopts else False
                break
            if pid == 0:
                self._has_children = True
                break
            if pid == self._pid and not self._exit_reported:
                status = its_status
        if status is None:
            return
        if self._is_sandboxed and self._has_children:
            self._wait_for_sandbox()
        self._exit_reported = True
        code = os.waitstatus_to_exitcode(status)
        self._send(self._spawn_id, event="exited", code=code, alone=not self._has_children)

    def _wait_for_sandbox(self) -> None:
        """Wait for the sandbox's init process: it dies with bubblewrap, and everything inside dies with it."""
        deadline = time.monotonic() + KILL_TIMEOUT
        try:
            while time.monotonic() < deadline:
                if os.waitpid(-1, os.WNOHANG)[0]:
                    continue
                if wait_readable(self._child_exits, SANDBOX_POLL):
                    os.read(self._child_exits, 4096)
                else:
                    kill(self._running())
        except ChildProcessError:
            self._has_children = False

    def _start_killing(self, grace: float) -> None:
        now = time.monotonic()
        if self._kill_at is None:
            self._term_at, self._kill_at = now + self._term_delay, now + grace
            self._reachable_at = now
        self._kill_at = min(self._kill_at, now + grace)

    def _continue_killing(self, kill_at: float) -> None:
        """Signal what is running. Called after every exit, because a killed process hands its children to us."""
        # The ancestors of a spared process are spared too, unless the program itself has to end.
        running = self._running() if self._has_children else []
        running = exclude_spared(running, self._spared, ancestors=self._exit_reported)
        now = time.monotonic()
        if not running or any(map(can_signal, running)):
            self._reachable_at = now
        is_over = not self._has_children or (self._spared and not running)
        is_stuck = now > kill_at + KILL_TIMEOUT or now > self._reachable_at + FOREIGN_TIMEOUT
        if is_over or is_stuck:
            survivors = [process.pid for process in running]
            others = self._asked - {self._pid, -self._pid, *survivors}
            self._send(self._kill_id, event="ended", others=len(others), survivors=survivors)
            self._asked.clear()
            self._kill_at = None
        elif now >= kill_at:
            self._asked.update(process.pid for process in running)
            kill(running)
        elif now >= self._term_at:
            # SIGTERM would kill bubblewrap, and with it everything inside without a warning.
            terminate(
                (process for process in running if process.pid != self._pid or not self._is_sandboxed), self._asked
            )

    def _running(self) -> list[RunningProcess]:
        if self._adopts:
            below = descendants_of(os.getpid())
        elif self._spared and not self._exit_reported:  # other processes in its group may be spared
            below = [RunningProcess(self._pid, 0, b"")]
        else:
            below = find_group(self._pid, self._spared)
        return below + [process for process in self._orphans if is_running(process)]

    def _send(self, request_id: int, **answer: object) -> None:
        with suppress(OSError):  # ralph is gone; the next poll notices
            self._channel.send({"id": request_id, **answer})

    def _run_cleanup(self, command: Packet) -> None:
        argv = command["argv"]
        with suppress(OSError):  # the next run cleans up
            os.waitpid(os.posix_spawn(argv[0], argv, command["env"], setsid=True), 0)


def fork_and_exec(request: Packet, fds: list[int]) -> int:
    """Start a program in a new session that dies with the keeper; return its pid. Raise OSError if that fails."""
    # Not Popen: a function to run before exec costs it half a millisecond for each program.
    keeper = os.getpid()
    reader, writer = os.pipe()  # closed by a successful exec
    pid = os.fork()
    if pid == 0:
        _become(request, fds, keeper, writer)
    os.close(writer)
    failure = b"".join(iter(lambda: os.read(reader, select.PIPE_BUF), b""))
    os.close(reader)
    if failure:
        os.waitpid(pid, 0)
        number, path = json.loads(failure)
        raise OSError(number, os.strerror(number), path)
    return pid


def _become(request: Packet, fds: list[int], keeper: int, failure_pipe: int) -> NoReturn:
    """Turn the forked process into the program that was requested."""
    number, path = errno.EINVAL, request["program"]  # EINVAL: a NUL byte in an argument
    try:
        die_with_parent(keeper)
        os.setsid()
        os.chdir(request["cwd"])
        for target, fd in enumerate(fds):
            os.dup2(fd, target)
        if request["sandboxed"]:
            leave_abstract_sockets()
            leave_session_keyring()
        program, argv, env = request["program"], request["argv"], request["env"]
        try:
            os.execve(program, argv, env)
        except OSError as error:
            if error.errno != errno.ENOEXEC:
                raise
            os.execve("/bin/sh", ["sh", program, *argv[1:]], env)  # a script without a #! line, as a shell runs it
    except OSError as error:
        number, path = error.errno or errno.EINVAL, error.filename or path
    finally:
        os.write(failure_pipe, json.dumps([number, path]).encode())
        os._exit(127)


# System calls that Python does not wrap, made through ctypes.


def c_call(name: str, *values: int | bytes) -> int:
    """Call a function of the C library and return its result."""
    arguments = [ctypes.c_long(value) if isinstance(value, int) else value for value in values]
    return int(getattr(_LIBC, name)(*arguments))


def adopt_orphans() -> bool:
    """Make this process the parent of every orphan below it; return False if the system can't do that."""
    return sys.platform == "linux" and c_call("prctl", PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when `parent` dies; exit now if it already has."""
    if sys.platform == "linux":
        c_call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(127)


def set_process_name(name: str) -> None:
    """Set the name that `ps` and `pkill` see (at most 15 bytes)."""
    with suppress(OSError), open("/proc/self/comm", "wb", buffering=0) as comm:  # without /proc
        comm.write(name.encode())


def leave_abstract_sockets() -> None:
    """Make sockets without a path that were created outside unreachable, by a Landlock scope (Linux 6.12).

    They belong to the network namespace, which a sandbox may share with the rest of the machine.
    """
    ruleset_attr = bytes(16) + (1).to_bytes(8, sys.byteorder)
    ruleset = c_call("syscall", LANDLOCK_CREATE_RULESET, ruleset_attr, len(ruleset_attr), 0)
    if ruleset >= 0:
        c_call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        c_call("syscall", LANDLOCK_RESTRICT_SELF, ruleset, 0)
        os.close(ruleset)


def leave_session_keyring() -> None:
    """Join an empty keyring: the user's session keyring (Kerberos, for example) is open to all their processes."""
    keyctl = KEYCTL_NUMBERS.get(os.uname().machine, 0)
    if not keyctl or c_call("syscall", keyctl, KEYCTL_JOIN_SESSION_KEYRING, 0) >= 0:
        return
    if c_call("syscall", keyctl, KEYCTL_GET_KEYRING_ID, KEY_SPEC_SESSION_KEYRING, 0) > 0:
        raise OSError(errno.EDQUOT, "cannot leave the keyring of the session")


def ignore_signals() -> None:
    """Ignore signals with a handler that does nothing: programs would inherit SIG_IGN, but exec resets handlers."""
    for number in IGNORED:
        signal.signal(number, lambda *_: None)


def main() -> None:
    ignore_signals()
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    set_process_name(KEEPER_NAME)
    os.chdir("/")
    with socket.socket(fileno=0) as end:
        KeeperProgram(Channel(end), int(sys.argv[1])).serve()
