"""ralph's side of the keeper: the process that starts every agent and check, and kills whatever they leave behind.

See `keeper_program.py` for what it does. There is one keeper per run, and one more for each check that runs in
parallel.
"""

import os
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from ralph.errors import UserError
from ralph.process.descendants import HAS_PROC, KEEPER_NAME, MARK, descendants_of, exclude_spared, kill_run
from ralph.process.keeper_program import KILL_TIMEOUT, SHUTDOWN_GRACE, Channel, Packet, wait_readable
from ralph.process.program import Command, DetachedProcess

REPLY_TIMEOUT = 60.0  # seconds; everything that the keeper is asked for takes at most ten
CLOSE_TIMEOUT = SHUTDOWN_GRACE + KILL_TIMEOUT + 1.0
PACKAGE_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROGRAM = "from ralph.process.keeper_program import main; main()"


class SparedProcesses(Protocol):
    """Processes that may outlive the turn in which they were started."""

    def pids(self) -> Iterable[int]: ...

    def expects(self, pid: int) -> bool:
        """Return whether this process is about to become one of them."""
        ...


class Exited(Struct, frozen=True):
    """The program has exited. `alone`: nothing that it started is still running."""

    code: int
    alone: bool


class Ended(Struct, frozen=True):
    """`kill_all` is done. `others`: how many processes there were besides the program itself."""

    others: int


class KeeperLost(UserError):
    """The keeper was killed or doesn't answer."""

    def __init__(self) -> None:
        hint = "if nobody killed it, the system may be out of resources: see `ulimit -n` and `ulimit -v`"
        super().__init__(f"the process that cleans up after agents ({KEEPER_NAME}) was killed", hint)


class Keeper:
    """Starts one program at a time, and kills everything that comes from it.

    `survivors` are the pids of the last turn that could not be killed, because they belong to other users or hang in
    the kernel. `spared` are processes that may outlive their turn; they end with the keeper.
    """

    def __init__(self) -> None:
        self.survivors: tuple[int, ...] = ()
        self.spared: SparedProcesses | None = None
        self.pid = 0
        self._run_id = self._watched_run = ""
        self._requests = 0
        self._spawn_id = self._kill_id = 0  # late answers to older requests are ignored
        self._channel: Channel
        self._process: DetachedProcess

    @classmethod
    def start(cls) -> "Keeper":
        keeper = cls()
        keeper._start()
        return keeper

    def __enter__(self) -> "Keeper":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fileno(self) -> int:
        """Readable when there is something to `receive`."""
        return self._channel.fileno()

    def spawn(self, program: str, command: Command, fds: Sequence[int]) -> int:
        """Start a program in a new session with `fds` as its stdin, stdout, stderr and so on; return its pid.

        Raises OSError if it cannot be started. `receive` reports its exit.
        """
        self.survivors = ()
        self._kill_id = 0
        self._run_id = command.env.get(MARK, "")
        self._spawn_id = self._request(
            {
                "do": "spawn",
                "program": program,
                "argv": command.argv,
                "cwd": command.cwd,
                "env": dict(command.env),
                "term_delay": command.term_delay,
                "sandboxed": command.sandboxed,
            },
            fds,
        )
        while (answer := self._next_message())["id"] != self._spawn_id:
            pass  # a late answer
        if answer["event"] == "failed":
            raise OSError(answer["errno"], os.strerror(answer["errno"]), answer["path"])
        return int(answer["pid"])

    def kill_all(self, grace: float) -> None:
        """Send SIGTERM to everything below the keeper, SIGKILL after `grace` seconds; `receive` reports the end."""
        spared = list(self.spared.pids()) if self.spared else []
        self._kill_id = self._request({"do": "kill", "grace": grace, "spared": spared})

    def watch_run(self, run_id: str) -> None:
        """Have the keeper kill what is marked with this run id if ralph is killed: a filter of git, for example."""
        self._watched_run = run_id  # a filter that ignores the kernel's SIGHUP is found only by the run's mark
        self._request({"do": "watch", "run_id": run_id})

    def set_cleanup(self, argv: Sequence[str], env: Mapping[str, str] = os.environ, *, key: str) -> None:
        """Have the keeper run this command if ralph is killed. An empty `argv` removes the command with this key."""
        self._request({"do": "cleanup", "key": key, "argv": list(argv), "env": dict(env)})

    def release(self) -> None:
        """Let what is running outlive the run, and start a new keeper."""
        self._request({"do": "release"})
        self._wait_for_exit()
        self._channel.close()
        self._start()

    @property
    def has_spared(self) -> bool:
        return self.spared is not None and any(self.spared.pids())

    def is_unsettled(self, late: bool) -> bool:
        """Return whether a running process may still become a spared one; if `late`, whether one is about to."""
        if self.spared is None:
            return False
        if not HAS_PROC:  # what is running is unknown
            return not late
        others = exclude_spared(descendants_of(self.pid), self.spared.pids(), ancestors=True)
        return any(not late or self.spared.expects(process.pid) for process in others)

    def receive(self) -> Exited | Ended | None:
        """Return the next report, or None if it is about an earlier request."""
        message = self._next_message()
        if message["id"] not in (self._spawn_id, self._kill_id):
            return None
        if message["event"] == "exited":
            return Exited(message["code"], message["alone"])
        self.survivors = tuple(message["survivors"])
        return Ended(message["others"])

    def _next_message(self) -> Packet:
        if not wait_readable(self._channel, REPLY_TIMEOUT):
            raise KeeperLost
        received = self._channel.receive()
        if received is None:
            raise KeeperLost
        return received[0]

    def replace(self) -> UserError:
        """Kill what a lost keeper left, and start a new keeper. Return the error that ends the run: without its keeper
        ralph can't promise that nothing survives."""
        killed = self._kill_from_here()
        self._channel.close()
        self._start()
        return UserError(
            f"{KeeperLost().message}; ralph killed what it had started: {killed} process{'' if killed == 1 else 'es'}",
            "see what the agent did in its log; with --sandbox it cannot reach processes outside",
        )

    def close(self) -> None:
        """End the keeper; returns when nothing is left below it."""
        if self._channel.fileno() < 0:
            return
        try:
            self._request({"do": "close"})
            ended_normally = self._wait_for_exit()
        except (OSError, KeeperLost):
            ended_normally = False
        if not ended_normally:
            self._kill_from_here()
        self._channel.close()

    def _start(self) -> None:
        self._channel, theirs = Channel.pair()
        try:
            self._process = execute_keeper(theirs.fileno())
        except OSError as error:
            self._channel.close()
            raise UserError(f"cannot start a process: {error.strerror}", "see `ulimit -n` and `ulimit -u`") from error
        finally:
            theirs.close()
        self.pid = self._process.pid
        if self._watched_run:
            self.watch_run(self._watched_run)

    def _request(self, message: Packet, fds: Sequence[int] = ()) -> int:
        self._requests += 1
        try:
            self._channel.send({"id": self._requests, **message}, fds)
        except OSError as error:
            raise KeeperLost from error
        return self._requests

    def _wait_for_exit(self) -> bool:
        """Wait until the keeper has closed its end and exited; return False if it was killed."""
        is_open = True
        while is_open:
            if not wait_readable(self._channel, CLOSE_TIMEOUT):
                raise KeeperLost
            is_open = self._channel.receive() is not None  # unread reports are dropped
        return self._process.wait() == 0

    def _kill_from_here(self) -> int:
        """Kill the keeper and the run's processes; return how many there were besides the keeper.

        The kernel has killed the agent or check itself, and the others are found by the run's mark.
        """
        if self._process.wait(0) is None:
            self._process.send_signals(signal.SIGKILL)
            self._process.wait()
        return kill_run(self._run_id, grace=0.0)


def execute_keeper(channel: int) -> DetachedProcess:
    """Execute the keeper with this end of the channel as its stdin."""
    nothing = os.open(os.devnull, os.O_RDWR)
    try:
        argv = (sys.executable, "-s", "-S", "-P", "-c", PROGRAM, str(os.getpid()))
        return DetachedProcess.start(argv, {**os.environ, "PYTHONPATH": PACKAGE_ROOT}, (channel, nothing, nothing))
    finally:
        os.close(nothing)
