"""With which marks and colours do we speak? What the reader can display decides, unless a person says otherwise."""

from collections.abc import Mapping
from typing import TextIO

from msgspec import Struct
from msgspec.structs import replace


class Marks(Struct, frozen=True):
    """The signs in front of lines."""

    ok: str = "✅"
    error: str = "❌"
    passed: str = "✓"
    failed: str = "✗"
    refused: str = "⛔"
    warning: str = "⚠"
    info: str = "ℹ"
    waiting: str = "⏳"
    paused: str = "⏸"
    question: str = "❓"
    person: str = "💬"
    retry: str = "🔁"
    review: str = "🔍"
    todo: str = "📋 "
    todo_done: str = "✅"
    todo_active: str = "🔄"
    todo_pending: str = "⏸️"
    progress: str = "📊 "
    tool: str = "⏺"
    check: str = "▸"
    output: str = "⎿"
    quote: str = "│"
    rule: str = "─"
    dot: str = "·"
    from_: str = "←"
    to: str = "→"
    more: str = "…"


EMOJI = Marks()
TEXT = replace(
    EMOJI,
    ok="[OK]",
    error="[ERR]",
    refused="[NO]",
    warning="[!]",
    info="[i]",
    waiting="[WAIT]",
    paused="[PAUSE]",
    question="[?]",
    person="[YOU]",
    retry="[RETRY]",
    review="[REVIEW]",
    todo="",
    todo_done="[x]",
    todo_active="[>]",
    todo_pending="[ ]",
    progress="",
)
ASCII = replace(
    TEXT,
    passed="[OK]",
    failed="[ERR]",
    tool="*",
    check=">",
    output="|",
    quote="|",
    rule="-",
    dot="-",
    from_="<-",
    to="->",
    more="...",
)

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
    """Marks, and paint where there is colour."""

    marks: Marks = EMOJI
    color: bool = False

    def paint(self, name: str, text: str) -> str:
        return f"{_CODES[name]}{text}{RESET}" if self.color else text


def is_smart(env: Mapping[str, str]) -> bool:
    """Whether the terminal can move its cursor."""
    return env.get("TERM", "") not in ("", "dumb")


def choose(
    stream: TextIO | None, env: Mapping[str, str], is_terminal: bool, color: bool | None, emoji: bool | None
) -> Style:
    """The style for `stream`. None leaves the choice to what is known about it."""
    if color is None:
        color = bool(env.get("FORCE_COLOR")) or (is_terminal and is_smart(env))
        color = color and not env.get("NO_COLOR")
    encoding = (getattr(stream, "encoding", None) or "utf-8").lower()
    terminal = env.get("TERM", "") if is_terminal else "unknown"
    if not encoding.startswith("utf") or (terminal == "linux" and not emoji):  # its console has few glyphs
        return Style(ASCII, color)
    if emoji is None:
        emoji = terminal not in ("", "dumb")
    return Style(EMOJI if emoji else TEXT, color)
