"""The entry point: answers what must be instant, hands everything else to the command line."""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def main() -> int:
    if sys.platform == "win32":
        print("ralph: not on Windows itself: use it inside WSL2 (wsl --install)", file=sys.stderr)
        return 2
    keep_to_own_modules()
    hear_of_children()
    leave_on_signals()
    if sys.argv[1:] in (["--version"], ["-v"]):
        from ralph import __version__

        try:
            print(f"ralph {__version__}", flush=True)
        except OSError as error:
            print(f"ralph: cannot write: {error.strerror}", file=sys.stderr)
            return 2
        return 0
    if sys.argv[1:2] == ["hook"] and sys.argv[2:3] in (["stop"], ["prompt"], ["remind"]) and "--help" not in sys.argv:
        from ralph.hooks.stop import main as answer

        return answer(sys.argv[2:])
    import gc

    gc.set_threshold(100_000)  # what start-up makes is there to stay: looking for garbage in it takes a tenth of it
    from ralph.cli.main import run_cli

    return run_cli(sys.argv[1:])


def keep_to_own_modules() -> None:
    """What is imported once an agent has been at work does not come from where it works, though PYTHONPATH, or `python
    -m`, may have named that folder; what is elsewhere comes last."""
    try:
        here = os.getcwd()
    except OSError:  # it is gone: a command says so
        return
    own = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    lent = {os.path.abspath(path) for path in ("", *os.environ.get("PYTHONPATH", "").split(os.pathsep))} - {own}
    if not lent.isdisjoint(sys.path):
        is_workspace = os.path.lexists(f"{here}/.git") or os.path.lexists(f"{here}/.ralph")
        behind = [path for path in sys.path if path in lent and path != here]
        behind = [path for path in behind if not (is_workspace and path.startswith(f"{here}/"))]
        sys.path[:] = [*(path for path in sys.path if path not in lent), *behind]


def hear_of_children() -> None:
    """Who called may ignore that children end, and hand that down: no exit code would ever be known."""
    import _signal  # type: ignore[import-not-found]

    _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)


def leave_on_signals() -> None:
    """Before anything has begun there is nothing to finish. The exception that Python would raise can get lost on its
    way through an import, and msgspec does not survive it. `_signal`, for `signal` is itself a long import."""
    import _signal

    for number in (_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP):
        if _signal.getsignal(number) in (_signal.SIG_DFL, _signal.default_int_handler):
            _signal.signal(number, lambda *_: os._exit(130))


def leave(code: int) -> "NoReturn":
    """Ends the process at once. To take the interpreter apart would cost as much as a third of a short run."""
    import atexit

    leave_on_signals()  # whoever should read what is still to be said may have stopped reading
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):  # closed, or its reader is gone
            code = code or 120
    os._exit(code)


if __name__ == "__main__":
    leave(main())
