"""What do the five ways to loop take for granted? Each preset is a row of defaults in the words of settings.json."""

from typing import Any

PRESETS: dict[str, dict[str, Any]] = {
    "guardrails": {"until": ["response:DONE"], "maximumIterations": 10},
    "goal": {"until": ["word:STOP"], "maximumIterations": 10, "stall": 1},
    "checks": {"until": ["tag:COMPLETE"], "maximumIterations": 25, "checkTimeout": 120},
    "promise": {"until": ["promise:DONE"], "maximumIterations": 100, "minToolCalls": 1, "session": "continue"},
    "supervise": {
        "until": ["file:DONE"],
        "maximumIterations": 100,
        "maxFailures": 0,
        "everyTurnCounts": True,
        "waitSignals": True,
        "restartDelay": 1,
        "pollInterval": 1,
    },
}

# Zero continuations or attempts are a wish that can be granted; a loop of zero iterations is a mistake.
FEWEST_ITERATIONS = {"guardrails": 1, "goal": 1, "checks": 1, "promise": 0, "supervise": 0}
