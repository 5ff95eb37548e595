"""How is a run that another process plays brought to a stop? By the signals that Ctrl-C stands for; in a
program that has its own use for them, by a word in the run's mailbox."""

import os
import signal
import sys
from contextlib import suppress

from ralph.errors import UserError
from ralph.processes.descendants import is_living
from ralph.processes.interrupt import NUDGE, Interrupt
from ralph.records.register import Listed
from ralph.steering.mailbox import Mailbox
from ralph.steering.which_run import owner


def stop(run: Listed, now: bool = False) -> None:
    """Asks the run to end after what it does at this moment; `now`: to end that too."""
    pid = run.standing.pid
    if run.standing.deaf:
        Mailbox(run.place).stop(now)
    elif not now:
        _send(run, signal.SIGTERM)
    elif _ignores_hangup(pid):
        if not run.standing.stopping:  # a third signal would mean: without any grace
            _send(run, signal.SIGTERM)
        _send(run, signal.SIGINT)  # two signals of one kind may arrive as one
    else:
        _send(run, signal.SIGHUP)


def heed(mailbox: Mailbox, interrupt: Interrupt) -> None:
    """What the run itself does with such a word."""
    level = 2 if mailbox.take_stop(now=True) else interrupt.level + 1 if mailbox.take_stop() else 0
    interrupt.raise_to(level, "a request to stop")


def nudge(run: Listed) -> None:
    """Wakes the run, should it sleep: there is something for it to look at."""
    with suppress(UserError):  # it has just ended, or is somebody else's: it will look when it looks
        _send(run, NUDGE)


def _send(run: Listed, number: signal.Signals) -> None:
    """To this very process, and never to one that has got its number since."""
    handle = _handle_of(run.standing.pid)
    try:
        if not is_living(run.standing.pid, run.standing.start):
            raise ProcessLookupError
        if handle is None:
            os.kill(run.standing.pid, number)
        else:
            signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        raise UserError(f"run {run.id} has just ended", "`ralph show` says how") from None
    except PermissionError:
        raise UserError(f"run {run.id} belongs to {owner(run.place)}", "only that user may stop it") from None
    finally:
        if handle is not None:
            os.close(handle)


def _handle_of(pid: int) -> int | None:
    """Stands for the process even after its number has gone to another; None where the system has no such thing."""
    try:
        return os.pidfd_open(pid) if sys.platform == "linux" else None
    except OSError:
        return None


def _ignores_hangup(pid: int) -> bool:
    """Whether the run was started with `nohup`: what means "the terminal is gone" does not reach it then."""
    try:
        with open(f"/proc/{pid}/status") as status:
            ignored = next((line for line in status if line.startswith("SigIgn:")), "SigIgn: 1")
    except OSError:
        return True  # nothing is known: both signals do no harm
    return bool(int(ignored.split()[1], 16) & 1)
