"""With which signs does the full screen speak? Signs of one column: a pane must not be torn by a wide one."""

import os
from collections.abc import Mapping
from typing import TextIO

from msgspec import Struct
from msgspec.structs import replace

from ralph.show.style import ASCII, EMOJI, Style, choose

NARROW = replace(
    EMOJI,
    ok="✓",
    error="✗",
    refused="⊘",
    warning="!",
    info="i",
    waiting="◔",
    paused="‖",
    question="?",
    person="»",
    retry="↻",
    review="◎",
    todo="",
    todo_done="✓",
    todo_active="▸",
    todo_pending="·",
    progress="",
    tool="•",
    output="└",
)
PLAIN = replace(
    ASCII,
    ok="+",
    error="x",
    passed="+",
    failed="x",
    refused="x",
    warning="!",
    info="i",
    waiting="~",
    paused="=",
    question="?",
    person=">",
    retry="~",
    review=">",
    todo_done="+",
    todo_active=">",
    todo_pending=".",
)
STATES = {
    "running": "●",
    "stopping": "○",
    "waiting": "◔",
    "paused": "‖",
    "asking": "?",
    "done": "✓",
    "stopped": "✓",
    "interrupted": "○",
    "failed": "✗",
}
PLAIN_STATES = STATES | {"running": "*", "waiting": "~", "paused": "=", "done": "+", "stopped": "+", "interrupted": "o"}
PLAIN_STATES |= {"stopping": "o", "failed": "x"}
TONES = {
    "running": "green",
    "stopping": "yellow",
    "waiting": "yellow",
    "paused": "yellow",
    "asking": "warn",
    "done": "cyan",
    "stopped": "cyan",
    "interrupted": "dim",
}


class Look(Struct, frozen=True):
    """Marks and paint for lines, the steps of a bar from empty to full, and the prompt. `is_plain`: ASCII only."""

    style: Style = Style(NARROW)
    is_plain: bool = False
    steps: str = "·▁▂▃▄▅▆▇█"
    prompt: str = "❯"

    def paint(self, name: str, text: str) -> str:
        return self.style.paint(name, text)

    def state(self, name: str) -> str:
        """The sign of a state, painted."""
        signs = PLAIN_STATES if self.is_plain else STATES
        return self.paint(TONES.get(name, "red"), signs.get(name, signs["failed"]))


def look_for(stream: TextIO | None, env: Mapping[str, str] = os.environ) -> Look:
    """What this terminal can display. Colours are painted always: without them the terminal gets none."""
    if choose(stream, env, True, True, None).marks is ASCII:
        return Look(Style(PLAIN, True), True, "._-=#", ">")
    return Look(Style(NARROW, True))
