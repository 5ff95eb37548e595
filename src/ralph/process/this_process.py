"""Prepare the current process: standard streams, signals, and leaving the terminal."""

import gc
import os
import signal
from contextlib import suppress

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
TERMINAL_SIGNALS = (*STOP_SIGNALS, signal.SIGQUIT, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)


def open_standard_streams() -> None:
    """Open /dev/null as stdin, stdout or stderr if the caller closed it: no file of ours may get its number."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            nothing = os.open(os.devnull, os.O_RDWR)
            if nothing > 2:  # another thread was faster
                os.close(nothing)


def interrupt_on_signals() -> None:
    """Raise KeyboardInterrupt on SIGINT, SIGTERM and SIGHUP, unless they are ignored."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    for number in STOP_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, interrupt)


def restore_signals() -> None:
    """Undo what was set for start-up: Ctrl-C raises KeyboardInterrupt, SIGTERM and SIGHUP end the process."""
    for number in STOP_SIGNALS:
        if signal.getsignal(number) not in (signal.SIG_IGN, signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def detach(*kept: int) -> None:
    """Leave ralph's terminal, session, signals and descriptors, except `kept`. For a forked process."""
    gc.disable()
    for number in TERMINAL_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.setsid()
    os.chdir("/")
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in map(int, os.listdir("/dev/fd")):
        if fd in (0, 1, 2):
            os.dup2(nothing, fd)
        elif fd not in (nothing, *kept):
            with suppress(OSError):  # the descriptor of the listing itself
                os.close(fd)
