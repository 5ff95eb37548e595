"""Run one command line, and turn whatever happens into an exit code. Errors become exit codes only here."""

import errno
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable

import click

from ralph.cli.help import COMPLETE_VARIABLE, root
from ralph.core.secrets import Redactor, secret_values
from ralph.errors import UserError, complain, shortage
from ralph.process.signals import restore_signals
from ralph.process.streams import open_standard_streams
from ralph.run.command_options import usage_error

BAD_INPUT, BUG, INTERRUPTED, BROKEN_PIPE = 2, 3, 130, 141

PLAYING = ("run", "loop", "task", "job", "resume")
"""Commands that handle signals themselves once a run has begun; before that, a signal ends them at once. In the other
commands Ctrl-C raises an exception, so that they can clean up."""
VERBOSE = ("-v", "-V")
OWN_OPTIONS = (*VERBOSE, "--version", "-h", "--help")
"""The options of `ralph` without a command."""
INTERNAL = ("run-gate", "run-task", "read-backlog")
"""Commands that only `ralph work` starts."""

WRITE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
"""The disk is full, or the terminal is gone."""
PATH_ERRORS = (
    *(errno.ELOOP, errno.EMLINK, errno.EINVAL, errno.EISDIR, errno.ENOTDIR, errno.EEXIST),
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.EFBIG),
)
"""Something else is in the place of a file: a link, a pipe or a folder, or ralph may not use it."""


def run_cli(argv: list[str]) -> int:
    """Return the exit code: the outcome's, 2 for bad input, 130 for Ctrl-C, 3 for a bug in ralph."""
    open_standard_streams()
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # the caller closed it
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - used until the process ends
    return exit_code(lambda: dispatch(argv))


def exit_code(run: Callable[[], int]) -> int:
    """Run a command and return its exit code; report an error in one line."""
    try:
        try:
            code = run()
            if code == 0 and sys.stdout is not None and not sys.stdout.closed:
                sys.stdout.flush()  # only now do we know whether the output could be written
            return code
        except Exception as error:  # noqa: BLE001 - the one boundary: a bug must not look like a result
            return report_error(error)
    except KeyboardInterrupt:  # also while an error is reported
        signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
        _discard_output(1, 2)  # the reader may be gone
        return INTERRUPTED


def report_error(error: Exception) -> int:
    """Print what went wrong, with a hint; return the exit code."""
    if isinstance(error, click.UsageError):
        error = usage_error(error)
    if isinstance(error, UserError):
        complain(error.message, error.hint)
        return BAD_INPUT
    if isinstance(error, BrokenPipeError):
        _discard_output(1)
        return BROKEN_PIPE
    if (known := _system_error(error)) is None:
        return _report_bug(error)
    complain(known.message, known.hint)
    return BAD_INPUT


def _system_error(error: Exception) -> UserError | None:
    """Return the UserError for an error that the machine or the user caused; None for a bug."""
    number = error.errno if isinstance(error, OSError) else None
    name = error.filename if isinstance(error, OSError) else None
    if number == errno.ENAMETOOLONG:
        return UserError(f"the name is too long: {str(name)[:100]}…", "name another file or folder")
    if number in PATH_ERRORS and name:
        return UserError(f"cannot use {name}: {os.strerror(number or 0)}", "check what is there, and its owner")
    if number in WRITE_ERRORS:
        return UserError(f"cannot write: {os.strerror(number or 0)}", "free some space, or redirect the output")
    if short := shortage(error):
        return short
    try:
        os.getcwd()
    except FileNotFoundError:
        return UserError("the current folder was deleted", "change to another one")
    return None


def _report_bug(error: Exception) -> int:
    redact = Redactor(secret_values(os.environ)).text
    try:
        fd, path = tempfile.mkstemp(".txt", "ralph-bug-")
    except OSError as trouble:  # possibly the cause of the error as well
        complain(f"cannot make a temporary file: {trouble.strerror}", "free some space, or set TMPDIR")
        return BAD_INPUT
    with open(fd, "w", errors="replace") as file:
        file.write(redact("".join(traceback.format_exception(error))))
    complain(
        f"internal error: {type(error).__name__}: {redact(str(error))}",
        f"this is a bug in ralph; the traceback is in {path}",
    )
    return BUG


def _discard_output(*streams: int) -> None:
    """Redirect these file descriptors to /dev/null, so that buffered output can't fail."""
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in streams:
        os.dup2(null, stream)


def with_command(argv: list[str]) -> list[str]:
    """Put `run`, the default command, in front of a goal of several words or an option of `run`."""
    if len(argv) > 1 and argv[0] in VERBOSE:  # alone it prints the version
        command, *words = with_command(argv[1:])
        return [command, argv[0], *words]
    if argv and argv[0] not in OWN_OPTIONS and (argv[0].startswith("-") or " " in argv[0].strip()):
        return ["run", *argv]
    return argv


def dispatch(argv: list[str]) -> int:
    """Run the command that the words name; return its exit code."""
    argv = with_command(argv)
    if not argv or argv[0] not in PLAYING:
        restore_signals()
    if argv and argv[0] in INTERNAL:
        from ralph.backlog.child_process import run_child

        return run_child(argv[0], argv[1:])
    if not argv and COMPLETE_VARIABLE not in os.environ:
        argv = ["help"]
    try:
        result = root.main(argv, prog_name="ralph", standalone_mode=False)
    except click.Abort:
        return INTERRUPTED
    return result if isinstance(result, int) else 0
