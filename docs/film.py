"""Film a command as an animated SVG: `python docs/film.py PICTURE COMMAND…`.

The command runs in a pseudo-terminal; every line appears in the picture when it appeared on the screen, and the picture
scrolls when it is full. It needs no script and no font from elsewhere.
"""

import os
import pty
import struct
import sys
import time
from fcntl import ioctl
from html import escape
from pathlib import Path
from termios import TIOCSWINSZ

from rich.color import ColorSystem
from rich.style import Style
from rich.text import Text

COLUMNS, ROWS = 84, 26
CHAR, LINE = 8.4, 19  # pixels
PADDING = 14
PAUSE = 6.0  # seconds that the last screen stays
LONGEST_GAP = 2.5  # seconds between two lines in the picture
COLOURS = {1: "#ff7b72", 2: "#7ee787", 3: "#e3b341", 4: "#79c0ff", 5: "#d2a8ff", 6: "#76e3ea", 8: "#8b949e"}
STYLE = (
    "text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:#e6edf3}"
    "text{white-space:pre}"
    ".line{opacity:0;animation:show var(--all) step-end infinite}"
)


def record(argv: list[str]) -> list[tuple[float, str]]:
    """Run a command in a terminal and return its lines, each with the second at which it was complete."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(TERM="xterm-256color", COLUMNS=str(COLUMNS), LINES=str(ROWS))
        os.execvp(argv[0], argv)
    ioctl(terminal, TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    started, pending, lines = time.monotonic(), b"", list[tuple[float, str]]()
    while data := _read(terminal):
        *whole, pending = (pending + data).split(b"\n")
        lines += [(time.monotonic() - started, line.decode(errors="replace").rstrip("\r")) for line in whole]
    os.waitpid(pid, 0)
    return lines


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # the command has exited
        return b""


def draw(command: str, lines: list[tuple[float, str]]) -> str:
    """Return the animated picture of a recording."""
    shown = [(0.3, f"\x1b[1m$ {command}\x1b[0m"), *_without_long_gaps(lines)]
    length = shown[-1][0] + PAUSE
    width, height = COLUMNS * CHAR + 2 * PADDING, ROWS * LINE + 2 * PADDING
    rows = "\n".join(_row(number, at, text, length) for number, (at, text) in enumerate(shown))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img" '
        f'aria-label="{escape(command)} in a terminal">\n'
        f"<style>{STYLE}:root{{--all:{length:.1f}s}}\n{_scrolling(shown, length)}</style>\n"
        f'<rect width="100%" height="100%" rx="8" fill="#0d1117"/>\n'
        f'<clipPath id="screen"><rect x="0" y="{PADDING}" width="100%" height="{ROWS * LINE}"/></clipPath>\n'
        f'<g clip-path="url(#screen)"><g class="all">\n{rows}\n</g></g>\n</svg>\n'
    )


def _without_long_gaps(lines: list[tuple[float, str]]) -> list[tuple[float, str]]:
    shown, now, before = [], 1.0, lines[0][0] if lines else 0.0
    for at, text in lines:
        now += min(at - before, LONGEST_GAP)
        before = at
        shown.append((now, text))
    return shown


def _row(number: int, at: float, text: str, length: float) -> str:
    y = PADDING + LINE * number + 14
    return (
        f"<style>@keyframes l{number}{{0%{{opacity:0}}{100 * at / length:.2f}%,100%{{opacity:1}}}}</style>"
        f'<text class="line" x="{PADDING}" y="{y}" style="animation-name:l{number}">{_spans(text)}</text>'
    )


def _spans(text: str) -> str:
    line = Text.from_ansi(text)
    return "".join(_span(part.plain, part.spans[0].style if part.spans else "") for part in line.divide(_edges(line)))


def _edges(line: Text) -> list[int]:
    return sorted({edge for span in line.spans for edge in (span.start, span.end)})


def _span(text: str, style: "Style | str") -> str:
    if not text:
        return ""
    if not isinstance(style, Style):
        return escape(text)
    colour = style.color.downgrade(ColorSystem.STANDARD).number if style.color and not style.color.is_default else None
    fill = COLOURS.get((colour or 0) % 8 or 8 if colour else 8 if style.dim else 0, "")
    attributes = (f' fill="{fill}"' if fill else "") + (' font-weight="700"' if style.bold else "")
    return f"<tspan{attributes}>{escape(text)}</tspan>" if attributes else escape(text)


def _scrolling(shown: list[tuple[float, str]], length: float) -> str:
    frames = ["0%{transform:none}"]
    for number, (at, _) in enumerate(shown):
        if number >= ROWS:
            frames.append(f"{100 * at / length:.2f}%{{transform:translateY({(ROWS - number - 1) * LINE}px)}}")
    return f".all{{animation:scroll var(--all) step-end infinite}}@keyframes scroll{{{''.join(frames)}}}"


if __name__ == "__main__":
    picture, *argv = sys.argv[1:]
    Path(picture).write_text(draw(" ".join(argv), record(argv)))
