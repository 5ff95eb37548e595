"""Who stands between ralph and everything it starts? One small process per run, which outlives ralph for as long as it
takes to end what ralph began."""

from __future__ import annotations

import os

from ralph.errors import UserError
from ralph.processes.reaper import Channel

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Iterable, Mapping, Sequence
    from typing import NoReturn, Protocol

    from ralph.processes.reaper import Message

    class Spared(Protocol):
        """Processes that outlive the turn they came of."""

        def pids(self) -> Iterable[int]: ...

        def expects(self, pid: int) -> bool:
            """Whether this process is about to become one of them."""
            ...
else:
    import _signal as signal


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


class KeeperLost(Exception):
    """The keeper itself was killed."""


class Keeper:
    """Starts one process at a time, and ends whatever comes of it.

    `survivors` are those of the last turn that nobody could end, since they are somebody else's or hang in the kernel.
    `spare` are processes that outlive their turn, with all below them; they end with the keeper.
    """

    def __init__(self) -> None:
        self.survivors: tuple[int, ...] = ()
        self.spare: Spared | None = None
        self._requests = 0
        self._spawning = self._ending = 0  # the requests whose answers matter: those to older ones may still come
        self._fork()

    @classmethod
    def start(cls) -> Keeper:
        """Fork early: the more has been imported, the more a fork costs and its copy holds."""
        return cls()

    def __enter__(self) -> Keeper:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fileno(self) -> int:
        """Readable when there is something to `hear`."""
        return self._channel.fileno()

    def spawn(
        self,
        program: str,
        argv: Sequence[str],
        cwd: str,
        env: Mapping[str, str],
        fds: Sequence[int],
        patience: float = 0.0,
        tells: bool = True,
        boxed: bool = False,
    ) -> None:
        """Starts a process in its own session with `fds` as its stdin, stdout, stderr and what follows. What comes of
        it, `hear` says: that it has started only where the keeper `tells`, for to wake up costs time. TERM comes
        `patience` later, and not to a box: only to what is inside."""
        self.survivors = ()
        self._ending = 0
        self._spawning = self._ask(("spawn", program, list(argv), cwd, dict(env), patience, tells, boxed), fds)

    def end(self, grace: float) -> None:
        """TERM to all that lives below the keeper, KILL after `grace`. `hear` tells when nothing is left."""
        self._ending = self._ask(("end", grace, tuple(self.spare.pids()) if self.spare else ()))

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
        from ralph.processes.descendants import below, without

        strays = without(below(self._child), self.spare.pids(), upward=True)
        return any(not late or self.spare.expects(kin.pid) for kin in strays)

    def release(self) -> None:
        """Lets what is left live on, beyond the run. The keeper that stays is no child of ours any more."""
        number = self._ask(("release",))
        while (answer := self._answer())[0] != number:
            pass  # about what is over
        *_, successor = answer
        self._collect()
        self._child = successor

    def hear(self) -> Started | Exited | Ended | None:
        """What the keeper says next: NotStarted where it could not do as it was asked, None about what is over."""
        number, kind, *values = self._answer()
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
            self._channel.finish()
        except OSError:  # it was killed before
            pass
        self._channel.close()
        self._collect()

    @property
    def is_lost(self) -> bool:
        """Whether it was killed: nobody looks after what it kept. While nothing is asked of it, nothing else tells."""
        from select import POLLHUP, poll

        line = poll()
        line.register(self._channel, 0)
        return any(what & POLLHUP for _, what in line.poll(0))

    def revive(self) -> None:
        """Puts a new keeper in the place of one that was killed."""
        self._channel.close()
        self._collect()
        self._fork()

    def _fork(self) -> None:
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

    def _collect(self) -> None:
        try:
            if self._child:
                os.waitpid(self._child, 0)
        except ChildProcessError:  # it came of a release, or a parent of ours taught us to ignore SIGCHLD
            pass
        self._child = 0

    def _ask(self, request: Message, fds: Sequence[int] = ()) -> int:
        """The number of the request, which every answer to it bears."""
        self._requests += 1
        try:
            self._channel.send((self._requests, *request), fds)
        except OSError as error:
            raise KeeperLost from error
        return self._requests

    def _answer(self) -> Message:
        received = self._channel.receive()
        if received is None:
            raise KeeperLost
        return received[0]


def _serve(channel: Channel) -> NoReturn:
    """The keeper's own life. It must never come back into the stack of ralph's."""
    try:
        from ralph.processes.reaper import Reaper

        Reaper(channel).serve()
    finally:
        os._exit(0)
