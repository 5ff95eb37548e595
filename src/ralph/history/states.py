"""The tables of states: how each state of a run, result of an iteration and state of a task looks, and which runs need
a person.
"""

from typing import Literal

from msgspec import Struct

Tone = Literal["running", "waiting", "asking", "good", "calm", "bad"]
COLORS = {"running": "green", "waiting": "yellow", "asking": "warn", "good": "cyan", "calm": "dim", "bad": "red"}
"""The colour of each tone in a terminal."""
BADGES = {"running": "run", "waiting": "warn", "asking": "warn", "good": "good", "calm": "calm", "bad": "bad"}
"""The CSS class of each tone."""


class RunState(Struct, frozen=True):
    """How a state looks. `mark` and `plain_mark` (ASCII) represent it in a list; `advice` says what a person can do
    about it."""

    tone: Tone
    mark: str
    plain_mark: str
    needs_you: bool = False
    advice: str = ""

    @property
    def color(self) -> str:
        return COLORS[self.tone]

    @property
    def badge(self) -> str:
        return BADGES[self.tone]


def _end_state(advice: str, tone: Tone = "bad", mark: str = "✗", plain_mark: str = "x") -> RunState:
    return RunState(tone, mark, plain_mark, needs_you=True, advice=advice)


STATES = {
    "running": RunState("running", "●", "*"),
    "stopping": RunState("waiting", "○", "o"),
    "waiting": RunState("waiting", "◔", "~"),
    "paused": RunState("waiting", "‖", "=", True, "It is paused: resume it when you like."),
    "asking": RunState("asking", "?", "?", True),
    "done": RunState("good", "✓", "+"),
    "unverified": RunState("asking", "≈", "-"),
    "stopped": RunState("good", "✓", "+"),
    "exhausted": _end_state("The iterations are used up. If its work looks right, give it more."),
    "budget": _end_state("The budget is spent. If its work looks right, give it more."),
    "timeout": _end_state("The time is over. If its work looks right, give it more."),
    "stalled": _end_state("It made no progress. Tell it what it misses, then resume it."),
    "blocked": _end_state("Remove the obstacle or tell it how to continue, then resume it."),
    "failed": _end_state("The agent kept failing. Find out why, then resume it."),
    "fatal": _end_state("Something stopped it. Fix that, then resume it."),
    "killed": _end_state("It was killed. Its record is complete: resume it."),
    "interrupted": _end_state("It was interrupted. Resume it when you like.", "calm", "○", "o"),
    "parked": _end_state("Some tasks need you."),
}
_UNKNOWN = RunState("bad", "✗", "x", needs_you=True)


def state_of(name: str) -> RunState:
    """Return the row of a state or outcome. An unknown one looks bad and needs a person."""
    return STATES.get(name, _UNKNOWN)


RESULT_TONES: dict[str, Tone] = {
    "done": "good",
    "kept": "good",
    "dropped": "calm",
    "no claim": "calm",
    "interrupted": "calm",
    "unfinished": "calm",
    "children at work": "waiting",
    "refused": "bad",
    "failed": "bad",
    "checks failed": "bad",
    "not checked": "bad",
}
TASK_TONES: dict[str, Tone] = {
    "merged": "good",
    "working": "running",
    "ready": "running",
    "held": "waiting",
    "blocked": "asking",
    "parked": "bad",
    "queued": "calm",
    "waiting": "calm",
    "withdrawn": "calm",
}
