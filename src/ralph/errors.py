"""What is told to a person when something they asked for cannot be done?"""

import sys
from errno import EAGAIN, EDQUOT, EFBIG, EMFILE, ENFILE, ENOMEM, ENOSPC
from shutil import which

from ralph.core.text import clean

DISTRIBUTION = "ralph-until-done"  # on the package index `ralph` is somebody else's


UNREADABLE = (ValueError, RecursionError)
"""What decoders raise: it is no JSON, not ours, not even UTF-8, or nested deeper than anybody writes."""


class UserError(Exception):
    """Bad input: one clear line, a hint that says what to do, exit code 2."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    @property
    def advice(self) -> str:
        """Message and hint in one sentence."""
        return f"{self.message} ({self.hint})" if self.hint else self.message


def shortage(error: BaseException) -> UserError | None:
    """What the machine, or a limit of the shell, does not let us have more of: no bug of ours, and no file's fault."""
    code = ENOMEM if isinstance(error, MemoryError) else error.errno if isinstance(error, OSError) else None
    if code in (EMFILE, ENFILE):
        return UserError("too many open files", "raise the limit: `ulimit -n 256`")
    if code in (ENOSPC, EDQUOT):
        where = f" for {error.filename}" if isinstance(error, OSError) and error.filename else ""
        return UserError(f"no space is left{where}", "free some space")
    if code == EFBIG:
        return UserError("a file is as large as it may be", "raise the limit: `ulimit -f unlimited`")
    if code == ENOMEM:
        return UserError("out of memory", "end other programs, or raise the limit: `ulimit -v unlimited`")
    if isinstance(error, BlockingIOError) and code == EAGAIN and error.filename:  # the program that was to be started
        return UserError("too many processes", "end other programs, or raise the limit: `ulimit -u 1000`")
    return None


_LONGEST = 2000  # characters of a complaint: somebody may have quoted the wrong things


def complain(message: str, hint: str = "") -> None:

    more = "…" if len(message) > _LONGEST else ""
    print(f"ralph: {clean(message[:_LONGEST])}{more}", file=sys.stderr)
    if hint:
        print(f"hint: {clean(hint)}", file=sys.stderr)


def complaint_in(said: str) -> tuple[str, str]:
    """What another ralph has complained of at the end of all that it said: message and hint."""

    *_, message, hint = "", "", *filter(None, map(str.strip, clean(said).split("\n")))
    if not hint.startswith("hint: "):
        message, hint = hint, ""
    return message.removeprefix("ralph: "), hint.removeprefix("hint: ")


def to_install(extra: str) -> str:
    """The command that adds an optional part, by the way in which ralph itself was installed."""
    wanted = f"'{DISTRIBUTION}[{extra}]'"
    if "/pipx/venvs/" in sys.prefix:
        return f"pipx install --force {wanted}"
    if "/uv/tools/" in sys.prefix:
        return f"uv tool install --force {wanted}"

    own = f"{sys.prefix}/bin/pip"  # another one would install it where ralph is not
    pip = own if sys.prefix != sys.base_prefix and which(own) and which("pip") != own else "pip"
    return f"{pip} install {wanted}"
