"""Who stands between ralph and everything it starts? One small process per run, which outlives ralph for as long as it
takes to end what ralph began."""

from __future__ import annotations

import os
import select
import time

from ralph.errors import UserError
from ralph.processes.descendants import (
    RunningProcess,
    below,
    collect_killed,
    distinct,
    is_held,
    is_in_reach,
    left_of,
    press,
    without,
)
from ralph.processes.reaper import FAREWELL, NAME, PATIENCE, Channel
from ralph.processes.spawning import MARK, adopt_orphans

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Iterable, Sequence
    from typing import NoReturn, Protocol

    from ralph.processes.program import Command
    from ralph.processes.reaper import Message

    class Spared(Protocol):
        """Processes that outlive the turn they came of."""

        def pids(self) -> Iterable[int]: ...

        def expects(self, pid: int) -> bool:
            """Whether this process is about to become one of them."""
            ...
else:
    import _signal as signal


GLANCE = 200  # milliseconds between two looks at one that is silent
_MOST_SILENT = 60.0  # seconds; what it is asked for takes at most ten
_LAST_WORDS = FAREWELL + PATIENCE + 1.0

# The keeper is forked before anything is imported that it does not need: what `signal`, `contextlib` and annotations
# alone would bring is a third of it.


class Started:
    """The process that was asked for has this pid."""

    def __init__(self, pid: int) -> None:
        self.pid = pid


class Exited:
    """The process that was asked for has ended. `alone`: nothing that it started is left."""

    def __init__(self, code: int, alone: bool) -> None:
        self.code = code
        self.alone = alone


class Ended:
    """What `end` asked for is done. `others`: how many there were besides the process itself."""

    def __init__(self, others: int, survivors: tuple[int, ...]) -> None:
        self.others = others
        self.survivors = survivors


class NotStarted(Exception):
    """The process that was asked for could not be started; `error` says why."""

    def __init__(self, number: int, path: str) -> None:
        self.error = OSError(number, os.strerror(number), path)


class KeeperLost(UserError):
    """The keeper itself was killed, or it does not answer; before anything is started, it could not live at all."""

    def __init__(self) -> None:
        hint = "if nobody has done that, the system is short of something: see `ulimit -n` and `ulimit -v`"
        super().__init__(f"the process that ends what agents start ({NAME}) was killed or stopped", hint)


class Keeper:
    """Starts one process at a time, and ends whatever comes of it.

    `survivors` are those of the last turn that nobody could end, since they are somebody else's or hang in the kernel.
    `spare` are processes that outlive their turn, with all below them; they end with the keeper. `adopts`: this process
    is ralph's own, so it takes over what a keeper leaves that is killed: nothing else is below it but what it started.
    """

    def __init__(self, adopts: bool = False) -> None:
        self.survivors: tuple[int, ...] = ()
        self.spare: Spared | None = None
        self._adopts = self._wants_adoption = adopts
        self._run_id = ""
        self._ours: frozenset[int] = frozenset()
        self._requests = 0
        self._spawning = self._ending = 0  # the requests whose answers matter: those to older ones may still come
        self._child = 0
        self._channel: Channel

    @classmethod
    def start(cls, adopts: bool = False) -> Keeper:
        """Fork early: the more has been imported, the more a fork costs and its copy holds."""
        keeper = cls(adopts)
        keeper._fork()
        return keeper

    def __enter__(self) -> Keeper:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fileno(self) -> int:
        """Readable when there is something to `hear`."""
        return self._channel.fileno()

    def spawn(self, program: str, command: Command, fds: Sequence[int], tells: bool = True) -> None:
        """Starts a process in its own session with `fds` as its stdin, stdout, stderr and what follows. What comes of
        it, `hear` says: that it has started only where the keeper `tells`, for to wake up costs time. TERM comes
        after the command's patience, and not to a box: only to what is inside."""
        self.survivors = ()
        self._ending = 0
        words, env = list(command.argv), dict(command.env)
        asked = ("spawn", program, words, command.cwd, env, command.patience, tells, command.boxed)
        self._spawning = self._ask(asked, fds)
        self._run_id = env.get(MARK, "")
        if self._wants_adoption:  # now, while the program starts, it costs no time
            self._wants_adoption = False
            self._adopts = adopt_orphans()

    def end(self, grace: float) -> None:
        """TERM to all that lives below the keeper, KILL after `grace`. `hear` tells when nothing is left."""
        self._ending = self._ask(("end", grace, tuple(self.spare.pids()) if self.spare else ()))

    def record(self, fd: int) -> None:
        """Has the keeper write down into this file which process it has started last."""
        self._ask(("record",), (fd,))

    def watch(self, leash: int) -> None:
        """Has the keeper kill ralph when the other end of this pipe is closed and somebody has stopped ralph, or holds
        it as a debugger does: it would never hear of that."""
        self._ask(("watch",), (leash,))

    def another(self) -> Keeper:
        """One more, for what is done at the same time."""
        return Keeper.start(self._adopts)

    @property
    def pid(self) -> int:
        return int(self._child)

    def tidy(self, folder: str) -> None:
        """Lets the keeper do what is left to do for the boxes of this folder, if ralph cannot do it any more."""
        self._ask(("tidy", folder))

    @property
    def has_spared(self) -> bool:
        """Whether there is one to spare, which must end with the keeper."""
        return self.spare is not None and any(self.spare.pids())

    def is_unsettled(self, late: bool) -> bool:
        """Whether something is left that may become one of those to spare or, when it is `late`, is about to."""
        if self.spare is None:
            return False
        strays = without(below(self._child), self.spare.pids(), upward=True)
        return any(not late or self.spare.expects(process.pid) for process in strays)

    def release(self) -> None:
        """Lets what is left live on, beyond the run. The keeper that stays is no child of ours any more."""
        if self._adopts:  # it is not for us to take over what lives on
            self._adopts = self._wants_adoption = False
            adopt_orphans(False)
        number = self._ask(("release",))
        while (answer := self._answer())[0] != number:
            pass  # about what is over
        *_, successor = answer
        self._collect()
        self._child = successor

    def hear(self, waits: bool = True) -> Started | Exited | Ended | None:
        """What the keeper says next: NotStarted where it could not do as it was asked, None about what is over. It
        `waits` for that, unless it is known that there is something."""
        number, kind, *values = self._answer(waits)
        if number not in (self._spawning, self._ending):
            return None
        if kind == "failed":
            raise NotStarted(*values)
        if kind == "started":
            return Started(*values)
        if kind == "exited":
            return Exited(*values)
        ended = Ended(*values)
        self.survivors = ended.survivors
        return ended

    def close(self) -> None:
        """Returns when nothing is left below the keeper, and it is gone itself."""
        if self._channel.fileno() < 0:
            return
        try:
            self._channel.send((0, "farewell"))
            self._channel.finish()
            self._wait(_LAST_WORDS)
            while self._channel.receive():  # about what is over: it is gone when there is no more to hear
                self._wait(_LAST_WORDS)
            went_by_itself = self._collect()
        except (OSError, KeeperLost):  # it was killed before, or somebody has stopped it
            went_by_itself = False
        if not went_by_itself:
            self._end_from_here()
        self._channel.close()

    @property
    def is_lost(self) -> bool:
        """Whether it was killed or stopped: nobody looks after what it kept. Nothing is asked of it to know this."""
        line = select.poll()
        line.register(self._channel, 0)
        return any(what & select.POLLHUP for _, what in line.poll(0)) or self.is_stopped

    @property
    def is_stopped(self) -> bool:
        """Whether somebody has sent it SIGSTOP, which the system keeps for whoever asks next; or holds it as a debugger
        does, which it tells nobody else."""
        if not self._child:
            return False
        try:
            if os.waitid(os.P_PID, self._child, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None:
                return True
        except (AttributeError, ChildProcessError):  # no child of ours: it came of a release
            return False
        return is_held(self._child)

    def replace(self) -> int:
        """Ends all that was below a keeper that is lost, and itself, and puts a new one in its place. Says how many
        there were. Nothing gentle: whoever did it wanted them out of reach."""
        ended = self._end_from_here()
        self._channel.close()
        self._fork()
        return ended

    def _end_from_here(self) -> int:
        ended: set[int] = set()
        for _ in range(2):  # one that was stopped still adopts, so that nothing gets lost meanwhile: it goes last
            deadline = time.monotonic() + PATIENCE
            while (living := self._left()) and time.monotonic() < deadline:
                press(living, set(), kill=True)
                ended.update(process.pid for process in living)
                time.sleep(0.005)
            try:
                if self._child:
                    os.kill(self._child, signal.SIGKILL)
            except ProcessLookupError:
                pass
        if self._child:
            collect_killed(self._child)
            self._child = 0
        for pid in ended:
            try:
                os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:  # it was not left to us
                pass
        return len(ended)

    def _left(self) -> list[RunningProcess]:
        """What a lost keeper has left: those with the run's mark, those below it and, where we adopt, all below us."""
        found = without(below(os.getpid()), self._ours) if self._adopts else below(self._child) if self._child else []
        found = [process for process in distinct(found + left_of(self._run_id)) if process.pid != self._child]
        return list(filter(is_in_reach, found))

    def _fork(self) -> None:
        self._ours = frozenset(process.pid for process in below(os.getpid())) if self._adopts else frozenset()
        self._channel, theirs = Channel.pair()
        # A ^C typed at this moment must not hit the copy before it has learned to ignore it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
        try:
            self._child = os.fork()
            if self._child == 0:
                _serve(theirs)
        except OSError as error:
            self._channel.close()
            raise UserError(f"cannot start a process: {error.strerror}") from error
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            theirs.close()

    def _collect(self) -> bool:
        """Takes note of its end; False where somebody has killed it."""
        status = 0
        try:
            if self._child:
                _, status = os.waitpid(self._child, 0)
        except ChildProcessError:  # it came of a release, or a parent of ours taught us to ignore SIGCHLD
            pass
        self._child = 0
        return status == 0

    def _ask(self, request: Message, fds: Sequence[int] = ()) -> int:
        """The number of the request, which every answer to it bears."""
        self._requests += 1
        try:
            self._channel.send((self._requests, *request), fds)
        except OSError as error:
            raise KeeperLost from error
        return self._requests

    def _wait(self, most: float = _MOST_SILENT) -> None:
        """Until the keeper has said something, or is gone. One that is stopped, or held by a debugger, never does."""
        line = select.poll()
        line.register(self._channel, select.POLLIN)
        deadline = time.monotonic() + most
        while not line.poll(GLANCE):
            if self.is_stopped or time.monotonic() > deadline:
                raise KeeperLost

    def _answer(self, waits: bool = True) -> Message:
        if waits:
            self._wait()
        received = self._channel.receive()
        if received is None:
            raise KeeperLost
        return received[0]


def _serve(channel: Channel) -> NoReturn:
    """The keeper's own life. It must never come back into the stack of ralph's."""
    try:
        from ralph.processes.reaper import Reaper

        reaper = Reaper(channel)
        reaper.begin()
        reaper.serve()
    finally:
        os._exit(0)
