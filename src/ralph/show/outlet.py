"""Write to readers that may be slow or gone, and choose marks and colours for a terminal."""

import os
import select
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from errno import EDQUOT, ENOSPC
from stat import S_ISREG
from typing import IO

from msgspec import Struct
from msgspec.structs import replace

from ralph.errors import UserError

WRITE_TIMEOUT = 0.1  # seconds that a reader who has just fallen behind may take to catch up
_CHUNK = 4096  # a pipe that is ready takes this much without blocking
_STOP_INTERVAL = 100  # milliseconds between looks for a stop request while waiting for a reader
_FULL = (ENOSPC, EDQUOT)


class _Descriptor:
    """A descriptor that is written without blocking.

    A terminal or pipe is opened a second time, because the setting not to block would also apply to the shell and
    others that share the open file.
    """

    def __init__(self, fd: int) -> None:
        self.is_own = not S_ISREG(os.fstat(fd).st_mode)  # a file never blocks; its path may be another file by now
        self.fd = _reopen(fd) if self.is_own else fd
        self._blocks = os.get_blocking(self.fd)
        self._ready = select.poll()
        self._ready.register(self.fd, select.POLLOUT)

    def send(self, data: bytes | memoryview, milliseconds: float | None) -> int:
        """Write as much as fits; return how many bytes, 0 if the reader took none in time."""
        with suppress(BlockingIOError):
            if not self._blocks:
                return os.write(self.fd, data)
        with suppress(BlockingIOError):
            if self._ready.poll(milliseconds):
                return os.write(self.fd, data[:_CHUNK])
        return 0

    def close(self) -> None:
        if self.is_own:
            os.close(self.fd)


def _reopen(fd: int) -> int:
    try:
        path = os.ttyname(fd) if os.isatty(fd) else f"/proc/self/fd/{fd}"
        return os.open(path, os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK)
    except OSError:  # for example after `su`: the terminal is another user's
        return os.dup(fd)


class Outlet:
    """Writes text to a stream without blocking. With `waits` it waits for a slow reader instead of skipping text, and
    raises an OSError if the text can't be written.
    """

    def __init__(self, stream: IO[str] | None, waits: bool = False) -> None:
        self.gone = stream is None
        self._waits, self._stream = waits, stream
        self._encoding = getattr(stream, "encoding", None) or "utf-8"
        self._descriptor: _Descriptor | None = None
        self._is_line_open = self._is_behind = False

    def write(self, text: str, timeout: float = WRITE_TIMEOUT) -> bool:
        """Return whether the whole text was written. Once the reader is gone, everything counts as written."""
        if self.gone or self._stream is None:
            return True
        if self._descriptor is None:
            try:
                self._descriptor = _Descriptor(self._stream.fileno())
            except (OSError, ValueError, AttributeError):  # it is captured or closed
                try:
                    self._stream.write(text.encode(self._encoding, "backslashreplace").decode(self._encoding))
                    self._stream.flush()
                except (OSError, ValueError):
                    self.gone = True
                return True
        data = text.encode(self._encoding, "backslashreplace")
        data = b"\n" + data if self._is_line_open else data
        limit = 0 if self._is_behind and timeout <= WRITE_TIMEOUT else timeout * 1000
        written = self._write_some(self._descriptor, data, limit)
        self._is_behind = written < len(data)
        self._is_line_open = self._is_behind and (written > 0 or self._is_line_open)
        return not self._is_behind or self.gone

    def _write_some(self, descriptor: _Descriptor, data: bytes, limit: float) -> int:
        """Write until all is written, the reader takes nothing for `limit` milliseconds, or the reader is gone."""
        written = 0
        while written < len(data):
            try:
                count = descriptor.send(memoryview(data)[written:], None if self._waits else limit)
            except OSError as error:
                if error.errno not in _FULL:
                    self.gone = True
                elif self._waits:
                    raise
                break
            if not count and not self._waits:
                break
            written += count
        return written

    def close(self) -> None:
        self.gone = True
        if self._descriptor:
            self._descriptor.close()
            self._descriptor = None


_ERASE = "\r\x1b[J"


class LiveRows:
    """Rows that stay at the bottom of a terminal, below the lines that are printed.

    The cursor rests at the beginning of the first row, so that all rows can be erased even if a narrower terminal has
    folded them. Automatic wrapping is off while they are drawn: a character that is wider than expected must not fold a
    row.
    """

    def __init__(self, outlet: Outlet) -> None:
        self._outlet = outlet
        self.is_drawn = False

    def write(self, lines: Sequence[str], rows: Sequence[str] = (), timeout: float = WRITE_TIMEOUT) -> bool:
        """Erase the rows, print the lines and draw the new rows, in one write; return whether all was written."""
        text = _ERASE if self.is_drawn else ""
        text += "".join(f"{line}\n" for line in lines)
        if rows:
            up = f"\x1b[{len(rows) - 1}A" if len(rows) > 1 else ""
            text += "\x1b[?7l" + "\n".join(rows) + f"\x1b[?7h\r{up}"
        self.is_drawn = bool(rows)
        return not text or self._outlet.write(text, timeout)


class Ndjson:
    """Writes JSON lines to a descriptor. It waits for a slow reader until `at_once` returns True, and writes nothing
    more once the reader has gone: a closed pipe must not end the run.
    """

    def __init__(self, at_once: Callable[[], bool] = lambda: False, fd: int = 1) -> None:
        self._at_once, self._fd = at_once, fd
        self._descriptor: _Descriptor | None = None
        self._is_over = False

    def __call__(self, lines: bytes) -> None:
        self._descriptor = self._descriptor or _Descriptor(self._fd)
        while lines and not self._is_over:
            try:
                count = self._descriptor.send(lines, _STOP_INTERVAL)
            except OSError as error:
                self._is_over = True
                if not isinstance(error, BrokenPipeError):
                    raise UserError(f"cannot write events to stdout: {error.strerror}", "send them elsewhere") from None
                return
            lines = lines[count:]
            self._is_over = not count and self._at_once()


def terminal_size(stream: IO[str] | None, columns: int, rows: int = 24) -> tuple[int, int]:
    """Return the width and height of a terminal, or the defaults if there is none or it reports 0."""
    try:
        size = os.get_terminal_size(stream.fileno() if stream else -1)
    except (OSError, ValueError, AttributeError):
        return columns, rows
    return size.columns or columns, size.lines or rows


class Marks(Struct, frozen=True, kw_only=True):
    """The signs in front of lines, one column each."""

    passed: str = "✓"
    failed: str = "✗"
    refused: str = "⊘"
    warning: str = "!"
    info: str = "i"
    waiting: str = "◔"
    paused: str = "‖"
    question: str = "?"
    person: str = "»"
    retry: str = "↻"
    review: str = "◎"
    todo_done: str = "✓"
    todo_active: str = "▸"
    todo_pending: str = "·"
    tool: str = "•"
    check: str = "▸"
    output: str = "└"
    quote: str = "│"
    verdict: str = "┃"
    rule: str = "─"
    dot: str = "·"
    to: str = "→"
    more: str = "…"


GLYPHS = Marks()
TEXT = replace(
    GLYPHS,
    passed="[OK]",
    failed="[ERR]",
    refused="[NO]",
    warning="[!]",
    info="[i]",
    waiting="[WAIT]",
    paused="[PAUSE]",
    question="[?]",
    person="[YOU]",
    retry="[RETRY]",
    review="[REVIEW]",
    todo_done="[x]",
    todo_active="[>]",
    todo_pending="[ ]",
)
ASCII = replace(TEXT, tool="*", check=">", output="|", quote="|", verdict="|", rule="-", dot="-", to="->", more="...")

_CODES = {
    "plain": "",
    "bold": "\x1b[1m",
    "dim": "\x1b[2m",
    "red": "\x1b[31m",
    "green": "\x1b[32m",
    "yellow": "\x1b[33m",
    "cyan": "\x1b[36m",
    "title": "\x1b[1;36m",
    "alarm": "\x1b[1;31m",
    "good": "\x1b[1;32m",
    "warn": "\x1b[1;33m",
}
RESET = "\x1b[0m"


class Style(Struct, frozen=True):
    """The marks, and whether there are colours."""

    marks: Marks = GLYPHS
    color: bool = False

    def paint(self, name: str, text: str) -> str:
        return f"{_CODES[name]}{text}{RESET}" if self.color else text

    def sign(self, passed: bool) -> str:
        """Return the painted mark of something that passed or failed."""
        return self.paint("green", self.marks.passed) if passed else self.paint("alarm", self.marks.failed)


def outcome_tone(exit_code: int | None) -> str:
    """Return the tone of a sentence about the end of a run."""
    return {0: "good", 2: "alarm", None: "cyan"}.get(exit_code, "warn")


def can_move_cursor(env: Mapping[str, str]) -> bool:
    return env.get("TERM", "") not in ("", "dumb")


def choose(
    stream: IO[str] | None,
    env: Mapping[str, str] = os.environ,
    is_terminal: bool | None = None,
    color: bool | None = None,
    emoji: bool | None = None,
) -> Style:
    """Return the style for `stream`. None: decide by the stream and `env`."""
    if is_terminal is None:
        is_terminal = stream is not None and stream.isatty()
    if color is None:
        color = bool(env.get("FORCE_COLOR")) or (is_terminal and can_move_cursor(env))
        color = color and not env.get("NO_COLOR")
    encoding = (getattr(stream, "encoding", None) or "utf-8").lower()
    terminal = env.get("TERM", "") if is_terminal else "unknown"
    if not encoding.startswith("utf") or (terminal == "linux" and not emoji):  # its console has few glyphs
        return Style(ASCII, color)
    if emoji is None:
        emoji = terminal not in ("", "dumb")
    return Style(GLYPHS if emoji else TEXT, color)
