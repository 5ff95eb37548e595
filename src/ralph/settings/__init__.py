"""The settings of a run: what can be set (`shape`), where it is said (`layers`), what is wrong with it (`source`)."""

from ralph.settings.layers import PRESETS, Loaded, amended, load
from ralph.settings.shape import (
    AgentChoice,
    CustomAgent,
    Guardrail,
    ReviewPrompt,
    Reviews,
    Scm,
    Settings,
    format_duration,
    parse_duration,
    parse_size,
)

__all__ = [
    "PRESETS",
    "AgentChoice",
    "CustomAgent",
    "Guardrail",
    "Loaded",
    "ReviewPrompt",
    "Reviews",
    "Scm",
    "Settings",
    "amended",
    "format_duration",
    "load",
    "parse_duration",
    "parse_size",
]
