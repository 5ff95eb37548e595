"""The keeper: a small program that runs next to ralph, starts what ralph asks for, and kills everything below it.

It makes itself the parent of every orphan below it (a "subreaper"), so nothing that an agent starts can get away: after
each command it kills until the kernel reports that no child is left. It does the same when ralph ends or is killed.
ralph talks to it over the socket on its standard input; see `keeper.py` for ralph's side. It is executed with
`python -S`, so it uses the standard library only.

Requests ("do") and the events that answer them, with the same "id":

    spawn    start a program with the attached descriptors  → started, exited; or failed
    kill     kill everything except `spared`                → ended
    watch    kill what is marked with this run id if ralph is killed: a git that hangs, for example
    cleanup  run this command, one for each key, at the end if ralph is killed
    close    ralph will close the socket next because it has finished
    release  exit, and leave running what is running
"""

import errno
import json
import os
import select
import signal
import socket
import sys
import time
from contextlib import suppress
from functools import cache
from typing import NoReturn

from ralph.process.channel import Channel, Packet
from ralph.process.descendants import (
    MARK,
    AlreadyAsked,
    RunningProcess,
    can_signal,
    descendants_of,
    exclude_spared,
    is_running,
    kill,
    marked_processes,
    open_pidfd,
    processes_in_group,
    processes_of_run,
    terminate,
    unique,
)
from ralph.process.system_calls import (
    adopt_orphans,
    die_with_parent,
    leave_abstract_sockets,
    leave_session_keyring,
    set_process_name,
)

NAME = "loop-keeper"  # doesn't contain "ralph", so that `pkill ralph` spares it
SHUTDOWN_GRACE = 2.0  # seconds from SIGTERM to SIGKILL when ralph is gone
KILL_TIMEOUT = 5.0  # seconds from the first SIGKILL until survivors are given up
FOREIGN_TIMEOUT = 0.3  # the same if all of them belong to other users: they can only end by themselves
RALPH_EXIT_MS = 1000
SANDBOX_POLL_MS = 10
IGNORED = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT),
    *(signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU),
)


class KeeperProgram:
    """Starts one program at a time. Everything below this process comes from that program."""

    def __init__(self, channel: Channel, ralph_pid: int) -> None:
        self._channel = channel
        self._ralph_pid = ralph_pid
        self._ralph_gone = self._ralph_closing = False
        self._released = False
        self._watched_run = ""
        self._left_by_ralph: list[RunningProcess] = []  # commands of a killed ralph: they are not below this process
        self._cleanups: dict[str, Packet] = {}
        self._spawn_id = self._kill_id = 0  # the requests that the next events answer
        self._pid = 0  # of the program that was started last; also its process group
        self._exit_reported = True
        self._is_sandboxed = False
        self._run_id = ""
        self._has_children = False
        self._term_delay = 0.0  # seconds in which the program may end by itself before SIGTERM
        self._spared: list[int] = []
        self._asked: AlreadyAsked = set()
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
        for fd, _ in self._poll.poll(self._poll_timeout()):
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

    def _poll_timeout(self) -> float | None:
        """Return milliseconds. Exits wake us; the short timeouts are for processes that /proc didn't show."""
        if self._kill_at is None:
            return None
        remaining = self._kill_at - time.monotonic()
        return 1000 * (min(remaining, 0.05) if remaining > 0 else 0.02)

    def _handle_request(self) -> None:
        received = self._channel.receive()
        if received is None:
            self._poll.unregister(self._channel)
            if not self._ralph_closing:
                self._wait_for_ralph()
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
                self._ralph_closing, self._watched_run = True, ""
            case "release":
                self._released, self._watched_run, self._cleanups = True, "", {}

    def _wait_for_ralph(self) -> None:
        """Wait a moment for ralph's exit: the kernel closes its sockets first, and child runs look for its process."""
        poll = select.poll()
        if self._ralph >= 0:
            poll.register(self._ralph, select.POLLIN)
            poll.poll(RALPH_EXIT_MS)

    def _on_ralph_exit(self) -> None:
        self._ralph_gone, self._spared = True, []
        if self._watched_run:  # now, because later a resumed run has the same id
            self._left_by_ralph, self._watched_run = processes_of_run(self._watched_run), ""
        self._start_killing(SHUTDOWN_GRACE)

    def _spawn(self, request: Packet, fds: list[int]) -> None:
        self._spawn_id, self._is_sandboxed = request["id"], request["sandboxed"]
        self._term_delay, self._run_id = request["term_delay"], request["env"].get(MARK, "")
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
                self._has_children = not (self._adopts and not self._left_by_ralph) and bool(self._running())
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
        poll = select.poll()
        poll.register(self._child_exits, select.POLLIN)
        deadline = time.monotonic() + KILL_TIMEOUT
        try:
            while time.monotonic() < deadline:
                if os.waitpid(-1, os.WNOHANG)[0]:
                    continue
                if poll.poll(SANDBOX_POLL_MS):
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
            self._report_end(running)
        elif now >= kill_at:
            self._asked.update((process.pid, process.name) for process in running)
            kill(running)
        elif now >= self._term_at:
            # SIGTERM would kill bubblewrap, and with it everything inside without a warning.
            terminate((one for one in running if one.pid != self._pid or not self._is_sandboxed), self._asked)

    def _report_end(self, survivors: list[RunningProcess]) -> None:
        pids = [process.pid for process in survivors]
        others = {pid for pid, _ in self._asked} - {self._pid, *pids}
        self._send(self._kill_id, event="ended", others=len(others), survivors=pids)
        self._asked.clear()
        self._kill_at = None

    def _running(self) -> list[RunningProcess]:
        running = descendants_of(os.getpid()) + [process for process in self._left_by_ralph if is_running(process)]
        if self._pid and not self._adopts:
            running += processes_in_group(self._pid) + (marked_processes(self._run_id) if self._run_id else [])
        return unique(running)

    def _send(self, request_id: int, **answer: object) -> None:
        with suppress(OSError):  # ralph is gone; the next poll notices
            self._channel.send({"id": request_id, **answer})

    def _run_cleanup(self, command: Packet) -> None:
        nothing = os.open(os.devnull, os.O_RDWR)
        try:
            argv = command["argv"]
            request = {"program": argv[0], "argv": argv, "cwd": "/", "env": command["env"], "sandboxed": False}
            os.waitpid(fork_and_exec(request, [nothing] * 3), 0)
        except OSError:  # the next run cleans up
            pass


@cache
def changed_signals() -> list[int]:
    """Return the signals that the keeper handles or ignores, or that Python or the caller of ralph ignored."""
    return [number for number in signal.valid_signals() if signal.getsignal(number) != signal.SIG_DFL]


def fork_and_exec(request: Packet, fds: list[int]) -> int:
    """Start a program in a new session that dies with the keeper; return its pid. Raise OSError if that fails."""
    keeper, signals = os.getpid(), changed_signals()
    reader, writer = os.pipe()  # closed by a successful exec
    pid = os.fork()
    if pid == 0:
        _become(request, fds, keeper, signals, writer)
    os.close(writer)
    with open(reader, "rb") as pipe:
        failure = pipe.read()
    if failure:
        os.waitpid(pid, 0)
        number, path = json.loads(failure)
        raise OSError(number, os.strerror(number), path)
    return pid


def _become(request: Packet, fds: list[int], keeper: int, signals: list[int], failure_pipe: int) -> NoReturn:
    """Turn the forked process into the program that was requested."""
    number, path = errno.EINVAL, request["program"]  # EINVAL: a NUL byte in an argument
    try:
        die_with_parent(keeper)
        os.setsid()
        for one in signals:
            signal.signal(one, signal.SIG_DFL)
        os.chdir(request["cwd"])
        for target, fd in enumerate(fds):
            os.dup2(fd, target)
        if request["sandboxed"]:
            leave_abstract_sockets()
            leave_session_keyring()
        _exec(request["program"], request["argv"], request["env"])
    except OSError as error:
        number, path = error.errno or errno.EINVAL, error.filename or path
    finally:
        os.write(failure_pipe, json.dumps([number, path]).encode())
        os._exit(127)


def _exec(program: str, argv: list[str], env: dict[str, str]) -> NoReturn:
    try:
        os.execve(program, argv, env)
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise
        os.execve("/bin/sh", ["sh", program, *argv[1:]], env)  # a script without a #! line, as a shell runs it


def main() -> None:
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    set_process_name(NAME)
    os.chdir("/")
    with socket.socket(fileno=0) as end:
        KeeperProgram(Channel(end), int(sys.argv[1])).serve()
