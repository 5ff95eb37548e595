"""The entry point of the command."""

import atexit
import os
import signal
import sys
from typing import NoReturn

from ralph import __version__


def main() -> int:
    if sys.platform == "win32":
        print("ralph: Windows is not supported; use it inside WSL2 (wsl --install)", file=sys.stderr)
        return 2
    drop_workspace_from_path()
    # The caller may have ignored SIGCHLD, and children inherit that: exit codes would never be known.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    exit_on_signals()
    if sys.argv[1:] in (["--version"], ["-v"], ["-V"]):
        try:
            print(f"ralph {__version__}", flush=True)
        except OSError as error:
            print(f"ralph: cannot write: {error.strerror}", file=sys.stderr)
            return 2
        return 0
    if sys.argv[1:2] == ["hook"] and sys.argv[2:3] in (["stop"], ["prompt"], ["remind"]) and "--help" not in sys.argv:
        from ralph.hooks.stop import main as answer  # runs after every turn of every session, so it stays light

        return answer(sys.argv[2:])
    from ralph.cli.main import run_cli

    return run_cli(sys.argv[1:])


def drop_workspace_from_path() -> None:
    """Keep modules of the workspace from being imported, even if PYTHONPATH or `python -m` put it on `sys.path`.

    Other PYTHONPATH entries move to the end. Otherwise a sandboxed agent could plant a `msgspec.py` for the next
    command.
    """
    try:
        workspace = os.getcwd()
    except OSError:  # the folder is gone; the command reports that
        return
    own = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    extra = {os.path.abspath(path) for path in ("", *os.environ.get("PYTHONPATH", "").split(os.pathsep))} - {own}
    if not extra.isdisjoint(sys.path):
        is_workspace = os.path.lexists(f"{workspace}/.git") or os.path.lexists(f"{workspace}/.ralph")
        last = [path for path in sys.path if path in extra and path != workspace]
        last = [path for path in last if not (is_workspace and path.startswith(f"{workspace}/"))]
        sys.path[:] = [*(path for path in sys.path if path not in extra), *last]


def exit_on_signals() -> None:
    """Exit with 130 on a signal that arrives during start-up: KeyboardInterrupt can get lost inside an import."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, lambda *_: os._exit(130))


def leave(code: int) -> NoReturn:
    """Flush and exit at once, without waiting for readers that stopped reading or for interpreter teardown."""
    exit_on_signals()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):  # closed, or the reader is gone
            code = code or 120
    os._exit(code)


if __name__ == "__main__":
    leave(main())
