"""The presets, as data: the defaults that each one gives the settings, and what sets it apart from the others. No other
file asks for a preset by its name."""

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct

from ralph.core import prompts

PresetName = Literal["guardrails", "goal", "checks", "tune", "promise", "supervise"]


class Preset(Struct, frozen=True, kw_only=True):
    """A way to loop."""

    defaults: Mapping[str, Any]
    """The settings that it changes, by their keys in settings.json."""
    compose: prompts.Compose
    """Composes the prompt of each turn."""
    command: str = "ralph run"
    """The command that people start it with."""
    fewest_iterations: int = 1
    """The smallest `maximumIterations`."""
    counts_continuations: bool = False
    """`maximumIterations` counts the turns after the first."""
    reads_completion_response: bool = False
    """`completionResponse` sets the claim."""
    needs_checks: bool = False
    measures: bool = False
    """The run optimises a number: measurements decide, not claims, and an attempt that fails is undone."""
    works_elsewhere: bool = False
    """Work outside the folder counts, so a turn that was denied everything there may still have done some."""
    is_verbatim: bool = False
    """The prompt is sent as it is, and says nothing about claims."""
    compares_tests: bool = False
    """Without the setting `tests`, a claim is compared with the tests as they were."""
    quotes_diff: bool = False
    """Prompts quote what has changed since the start."""
    quotes_fail_action: bool = False
    """Prompts quote the `failAction` of a check."""
    reminds_of_claim: bool = False
    """Every prompt says how to claim, so that no rule has to."""


PRESETS: Mapping[str, Preset] = {
    "guardrails": Preset(
        defaults={"until": ["response:DONE"], "maximumIterations": 10},
        compose=prompts.guardrails,
        reads_completion_response=True,
        is_verbatim=True,
        quotes_fail_action=True,
    ),
    "goal": Preset(
        defaults={"until": ["word:STOP"], "maximumIterations": 10, "stall": 1},
        compose=prompts.goal,
    ),
    "checks": Preset(
        defaults={
            "until": ["tag:COMPLETE"],
            "maximumIterations": 25,
            "checkTimeout": 120,
            "baseline": True,
            "stuck": 8,
        },
        compose=prompts.checks,
        command="ralph loop",
        needs_checks=True,
        compares_tests=True,
        quotes_diff=True,
    ),
    "promise": Preset(
        defaults={"until": ["promise:DONE"], "maximumIterations": 100, "minToolCalls": 1, "session": "continue"},
        compose=prompts.promise,
        fewest_iterations=0,
        counts_continuations=True,
        reminds_of_claim=True,
    ),
    "tune": Preset(
        defaults={
            "until": [],
            "maximumIterations": 50,
            "checkTimeout": 600,
            "baseline": True,
            "worktree": True,
            "stuck": 6,
        },
        compose=prompts.tune,
        command="ralph tune",
        measures=True,
        quotes_diff=True,
    ),
    "supervise": Preset(
        defaults={
            "until": ["file:DONE"],
            "maximumIterations": 100,
            "maxFailures": 0,
            "everyTurnCounts": True,
            "waitSignals": True,
            "restartDelay": 1,
            "pollInterval": 1,
        },
        compose=prompts.supervise,
        command="ralph task",
        fewest_iterations=0,
        works_elsewhere=True,
    ),
}
DEFAULT_PRESET: PresetName = "guardrails"
PRESET_OF: Mapping[str, PresetName] = {
    "loop": "checks",
    "judge": "checks",
    "tune": "tune",
    "work": "checks",
    "task": "supervise",
    "job": "supervise",
    "start": "promise",
    "print": "goal",
    "plan": "guardrails",
}
"""The preset of each command and of `--print`; that of the others is a setting."""


def find_preset(name: str) -> Preset:
    """Return the preset of a recorded run. One that this version doesn't know counts as the default."""
    return PRESETS.get(name) or PRESETS[DEFAULT_PRESET]
