"""What did the person ask for? One command, one file; one place where errors become an exit code."""

from __future__ import annotations

import errno
import os
import sys

from ralph.errors import UserError
from ralph.lean import import_leanly
from ralph.processes.answers import occupy_standard_streams

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def run_cli(argv: list[str]) -> int:
    """The exit code of one call: the outcome's, 2 for bad input, 130 for Ctrl-C, 3 for a bug of ours."""
    occupy_standard_streams()
    return guarded(lambda: _dispatch(argv))


def guarded(command: Callable[[], int]) -> int:
    try:
        return command() or _delivered()
    except UserError as error:
        complain(error.message, error.hint)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 141
    except OSError as error:
        if error.errno not in _FULL_OR_GONE:
            return _unforeseen(error)
        complain(f"cannot write: {error.strerror}", "free some space, or send the output elsewhere")
        return 2
    except Exception as error:  # noqa: BLE001 - the one boundary: a bug of ours must not look like a result
        return _unforeseen(error)


def _delivered() -> int:
    """0 once all that was said has left the house; whether it can is not known before."""
    if sys.stdout is not None and not sys.stdout.closed:
        sys.stdout.flush()
    return 0


_LONGEST = 2000  # characters of a complaint
_FULL_OR_GONE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""A disk that is full, a terminal that is gone: no bug of ours."""


def complain(message: str, hint: str = "") -> None:
    more = "…" if len(message) > _LONGEST else ""  # somebody may have quoted the wrong things
    print(f"ralph: {message[:_LONGEST]}{more}", file=sys.stderr)
    if hint:
        print(f"hint: {hint}", file=sys.stderr)


def _unforeseen(error: Exception) -> int:
    if not _is_lost():
        return _report_bug(error)
    complain("the current folder is gone", "go to another one")
    return 2


def _is_lost() -> bool:
    """Whether the current folder is gone: then next to nothing works, and nobody else is to blame."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def _report_bug(error: Exception) -> int:
    import tempfile
    import traceback

    from ralph.core.secrets import redact_text

    with tempfile.NamedTemporaryFile("w", prefix="ralph-bug-", suffix=".txt", delete=False, errors="replace") as file:
        file.write(redact_text("".join(traceback.format_exception(error))))
    complain(
        f"internal error: {type(error).__name__}: {error}", f"this is a bug in ralph; the traceback is in {file.name}"
    )
    return 3


PLAIN = {"ps", "show", "logs", "stop", "pause", "tell", "ask", "report"}
"""Commands that answer without click."""


def _dispatch(argv: list[str]) -> int:
    if argv and argv[0] in PLAIN:
        import importlib

        from ralph.run import options

        import_leanly("msgspec")
        plain = importlib.import_module(f"ralph.cli.{argv[0]}").PLAIN
        understood = options.parse(plain.options, argv[1:])
        if understood is not None:
            return int(plain.answer(*understood))
    if argv and argv[0] in ("land", "item", "reread"):  # by the coordinator of a backlog alone
        from ralph.cli.land import run_command

        return run_command(argv[0], argv[1:])
    if argv and argv[0] in ("run", "loop", "task", "job", "work"):
        from ralph.run import options

        parsed = options.parse(options.COMMANDS[argv[0]], argv[1:])
        if parsed is not None:
            return start(argv[0], *parsed)
    import_leanly("msgspec", "pathlib")
    from ralph.cli.commands import click_main

    return click_main(_print_takes_a_value(argv))


def start(command: str, values: dict[str, Any], words: list[str]) -> int:
    """Runs one of the commands that start an agent."""
    if command == "task":
        from ralph.cli.task import run_command
    elif command == "job":
        from ralph.cli.job import run_command
    elif command == "work":
        from ralph.cli.work import run_command
    else:
        from ralph.cli.run import run_command
    return run_command(command, values, words)


def _print_takes_a_value(argv: list[str]) -> list[str]:
    """`--print=GOAL` is `--print GOAL`: the goal is a positional word either way. Behind `--` a word is what it is."""
    end = argv.index("--") if "--" in argv else len(argv)
    words = [part for word in argv[:end] for part in (word.split("=", 1) if word.startswith("--print=") else (word,))]
    return words + argv[end:]
