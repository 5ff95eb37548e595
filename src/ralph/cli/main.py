"""What did the person ask for? One command, one file; one place where errors become an exit code."""

from __future__ import annotations

import errno
import os
import sys

from ralph.cli import table
from ralph.errors import UserError, complain, shortage
from ralph.processes.spawning import hear_signals_as_usual, import_leanly, occupy_standard_streams
from ralph.run import options

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable
else:
    import _signal as signal  # see keeper.py


def run_cli(argv: list[str]) -> int:
    """The exit code of one call: the outcome's, 2 for bad input, 130 for Ctrl-C, 3 for a bug of ours."""
    occupy_standard_streams()
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # it was closed; and what `print` writes to no file at all is on stdout
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - as long as we live
    return guarded(lambda: _dispatch(argv))


def guarded(command: Callable[[], int]) -> int:
    try:
        return _explained(command)
    except KeyboardInterrupt:  # also while something is explained
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))  # the next one may come at once
        _say_no_more(1, 2)  # somebody may have stopped reading, and nobody waits for them now
        return 130


def _explained(command: Callable[[], int]) -> int:
    try:
        code = command()
        if code == 0 and sys.stdout is not None and not sys.stdout.closed:
            sys.stdout.flush()  # whether all that was said can leave the house is not known before
        return code
    except UserError as error:
        complain(error.message, error.hint)
        return 2
    except BrokenPipeError:
        _say_no_more(1)
        return 141
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            complain(f"the name is too long: {str(error.filename)[:100]}…", "name another file or folder")
            return 2
        if error.errno in _IN_THE_WAY and error.filename:
            complain(f"cannot use {error.filename}: {error.strerror}", "look at what is there, and whose it is")
            return 2
        if error.errno not in _FULL_OR_GONE:
            return _unforeseen(error)
        complain(f"cannot write: {error.strerror}", "free some space, or send the output elsewhere")
        return 2
    except Exception as error:  # noqa: BLE001 - the one boundary: a bug of ours must not look like a result
        return _unforeseen(error)


def _say_no_more(*streams: int) -> None:
    """What is still to be written goes nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in streams:
        os.dup2(nowhere, stream)


_FULL_OR_GONE = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
"""A disk that is full, a terminal that is gone: no bug of ours."""


_IN_THE_WAY = (
    *(errno.ELOOP, errno.EMLINK, errno.EINVAL, errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.EACCES, errno.EPERM),
)
"""A link, a pipe, a folder or somebody else's file where one of ours should be: an agent or a person put it there."""


def _unforeseen(error: Exception) -> int:
    if short := shortage(error):
        complain(short.message, short.hint)
        return 2
    try:
        os.getcwd()
    except FileNotFoundError:  # then next to nothing works, and nobody else is to blame
        complain("the current folder is gone", "go to another one")
        return 2
    import tempfile
    import traceback

    from ralph.core.secrets import Redactor, secret_values

    redact = Redactor(secret_values(os.environ)).text
    try:
        fd, path = tempfile.mkstemp(".txt", "ralph-bug-")
    except OSError as trouble:  # much needs one, so that this may be all there is to it
        complain(
            f"cannot make a temporary file: {trouble.strerror}", "make room for some, or name a folder with TMPDIR"
        )
        return 2
    with open(fd, "w", errors="replace") as file:
        file.write(redact("".join(traceback.format_exception(error))))
    complain(
        f"internal error: {type(error).__name__}: {redact(str(error))}",
        f"this is a bug in ralph; the traceback is in {path}",
    )
    return 3


FORK_FIRST = ("run", "loop", "task", "job")
"""These fork a keeper before they learn anything that its copy need not hold."""
PLAYING = (*FORK_FIRST, "resume")
"""These hear signals themselves, once a run has begun; before that they leave at once. Others may have something to
put right on their way out, so a Ctrl-C is an exception to them."""
OF_THE_COORDINATOR = ("nursery", "land", "item", "reread")
"""What a backlog starts; no person does."""


def _dispatch(argv: list[str]) -> int:
    if argv and " " in argv[0].strip() and not argv[0].startswith("-"):  # no command has two words: it is a goal
        argv = ["run", *argv]
    if argv and argv[0] in OF_THE_COORDINATOR:
        from ralph.backlog.child_process import run_child

        hear_signals_as_usual()
        return run_child(argv[0], argv[1:])
    if argv and argv[0] not in FORK_FIRST:
        import_leanly("msgspec")
    if argv and argv[0] not in PLAYING:
        hear_signals_as_usual()
    command, rest = _found(argv)
    if command and command.answer:
        parsed = options.parse(command.options, rest)
        if parsed is not None:
            return command.answer(*parsed)
    import_leanly("msgspec", "pathlib")
    from ralph.cli.help import click_main

    return click_main(_print_takes_a_value(argv))


def _found(argv: list[str]) -> tuple[table.CliCommand | None, list[str]]:
    """The command that is meant, and the words behind it."""
    if not argv or argv[0] not in table.SUMMARIES:
        return None, argv
    command, rest = table.find(argv[0]), argv[1:]
    if command.commands:
        inner = {each.name: each for each in command.commands}
        return inner.get(rest[0] if rest else ""), rest[1:]
    return command, rest


def _print_takes_a_value(argv: list[str]) -> list[str]:
    """`--print=GOAL` is `--print GOAL`: the goal is a positional word either way. Behind `--` a word is what it is."""
    end = argv.index("--") if "--" in argv else len(argv)
    words = [part for word in argv[:end] for part in (word.split("=", 1) if word.startswith("--print=") else (word,))]
    return words + argv[end:]
