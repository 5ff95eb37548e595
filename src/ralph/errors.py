"""Errors that the user can fix: one line and a hint."""

import sys
from errno import EAGAIN, EDQUOT, EFBIG, EMFILE, ENFILE, ENOMEM, ENOSPC
from shutil import which

from msgspec import DecodeError

from ralph.core.text import clean

DISTRIBUTION = "ralph-until-done"  # `ralph` on the package index is another project

UNREADABLE = (ValueError, DecodeError, RecursionError)
"""What decoders raise for data that isn't ours: not JSON, not UTF-8, or nested too deeply.

`DecodeError` is a `ValueError` only since msgspec 0.21."""


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
    """Return the error for a resource that has run out, such as memory or open files; None for any other error."""
    code = ENOMEM if isinstance(error, MemoryError) else error.errno if isinstance(error, OSError) else None
    if code in (EMFILE, ENFILE):
        return UserError("too many open files", "raise the limit: `ulimit -n 256`")
    if code in (ENOSPC, EDQUOT):
        where = f" for {error.filename}" if isinstance(error, OSError) and error.filename else ""
        return UserError(f"no space left{where}", "free some space")
    if code == EFBIG:
        return UserError("a file has reached its size limit", "raise the limit: `ulimit -f unlimited`")
    if code == ENOMEM:
        return UserError("out of memory", "end other programs, or raise the limit: `ulimit -v unlimited`")
    if isinstance(error, BlockingIOError) and code == EAGAIN and error.filename:  # the program that was to be started
        return UserError("too many processes", "end other programs, or raise the limit: `ulimit -u 1000`")
    return None


MAX_MESSAGE = 2000  # characters; an unclosed quote can swallow a whole file


def complain(message: str, hint: str = "") -> None:
    more = "…" if len(message) > MAX_MESSAGE else ""
    print(f"ralph: {clean(message[:MAX_MESSAGE])}{more}", file=sys.stderr)
    if hint:
        print(f"hint: {clean(hint)}", file=sys.stderr)


def complaint_in(text: str) -> tuple[str, str]:
    """Return the message and the hint at the end of another ralph's output."""
    *_, message, hint = "", "", *filter(None, map(str.strip, clean(text).split("\n")))
    if not hint.startswith("hint: "):
        message, hint = hint, ""
    return message.removeprefix("ralph: "), hint.removeprefix("hint: ")


def to_install(extra: str) -> str:
    """Return the command that adds an optional extra to this installation.

    It names the packages themselves: ralph is not on a package index yet, so `pip install ralph[tui]` would fail.
    """
    from importlib.metadata import PackageNotFoundError, requires  # slow to import, and only this error needs it

    try:
        requirements = [line.replace('"', "'").partition(";") for line in requires(DISTRIBUTION) or ()]
        needed = [name.strip() for name, _, marker in requirements if f"extra == '{extra}'" in marker]
    except PackageNotFoundError:  # not installed: run from a checkout by path
        needed = [f".[{extra}]"]
    packages = " ".join(f"'{package}'" for package in needed)
    if "/pipx/venvs/" in sys.prefix:
        return f"pipx inject {DISTRIBUTION} {packages}"
    if "/uv/tools/" in sys.prefix:
        return f"uv pip install --python {sys.prefix}/bin/python {packages}"
    own = f"{sys.prefix}/bin/pip"  # any other pip would install them where ralph isn't
    pip = own if sys.prefix != sys.base_prefix and which(own) and which("pip") != own else "pip"
    return f"{pip} install {packages}"
